"""Engine options: what the user gives, and how the rest follows from the model and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import psutil

from headrace.errors import ConfigError
from headrace.execution.options import CompileGuard
from headrace.kernels.attention import AttentionChoice, attention_for, page_bytes
from headrace.models.sharding import device_spec
from headrace.models.spec import DecoderSpec
from headrace.sampling.chain import LogprobsMode

DTYPES = ("auto", "float32", "bfloat16")
WEIGHTS_DTYPES = (*DTYPES, "int8", "gguf")
PAGE_SIZES = (8, 16, 32, 64)
ATTENTIONS = get_args(AttentionChoice)
LOGPROBS_MODES = get_args(LogprobsMode)
COMPILE_GUARDS = get_args(CompileGuard)
MAX_NUM_SEQS = 65536

_GIB = 1 << 30
_CPU_SHARE, _CPU_MOST = 0.1, _GIB  # of the free memory, and at most
_ACCELERATOR_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of an engine; None and "auto" mean that `resolve` works them out.

    Attributes:
        model: known name, `.gguf` file, Hugging Face folder or hub id.
        dtype: of keys, values and products: "auto" (bfloat16), "float32" or "bfloat16".
        weights_dtype: of the matrices in memory: "auto" (with native kernels the blocks of a GGUF file, unless `dtype`
            is float32; else `dtype`), "float32", "bfloat16", "int8" (with a scale per output) or "gguf" (the file's own
            blocks). docs/models.md says what each costs and gives.
        max_model_len: longest sequence, prompt and output, in tokens; None takes what the model was made for, or
            what the KV cache holds if that is less.
        max_num_seqs: requests that run at once, in each data parallel rank.
        max_num_batched_tokens: most tokens that one step computes, in each data parallel rank; longer prompts are cut
            into chunks.
        page_size: tokens per KV page.
        kv_cache_bytes: memory for KV pages over all layers, on each device. None takes `kv_cache_share`.
        kv_cache_share: share of the free memory for KV pages, in (0, 1]; None takes a tenth, at most 1 GiB, on the
            CPU and 0.8 on an accelerator. Devices that are made of one CPU share its memory.
        attention: kernel: "jax" (plain JAX, everywhere), "pallas" (the platform's own; GPU and TPU) or "auto" (the
            platform's own where there is one).
        min_input_pad: smallest number of requests that a step is compiled for.
        num_tokens_paddings, num_reqs_paddings: sizes that steps are compiled for; None takes powers of two.
        max_compiled_variants: most compiled steps that are kept.
        max_logprobs: most log probabilities of likely tokens that a request may ask for at each place, ≥ 0.
        logprobs_mode: log-probabilities of output tokens are those of the model's own distribution ("raw"), or of what
            is drawn from, after penalties, bias, masks, temperature and filters ("processed").
        seed: of the seeds of requests that give none; None takes a fresh one.
        use_aot_forward: compile every step before serving; else each at its first use, with a warning.
        compile_guard: what happens when a step compiles something after warm-up: "off", "count" or "raise".
        debug: compare the arguments of each step with what it was compiled for, and name those that differ.
        prefix_caching: keep the keys and values of what was computed, for later prompts that begin the same.
        max_queued_requests: most requests that may wait to run; None sets no limit.
        overlap: give the device its next step before reading the tokens of the last.
        speculative_tokens: most tokens of each request that a step checks ahead of those that are known, guessed from
            its own text (prompt lookup). 0 is off; else less than `max_num_seqs`, and steps do not overlap.
        prompt_lookup_max, prompt_lookup_min: longest and shortest end of the text, in tokens, that is looked for in
            what is before it.
        tensor_parallel: devices that share one copy of the model: its heads, MLP, vocabulary and KV pages.
        data_parallel: copies of the model, each with requests and KV pages of its own.
        coordinator: HOST:PORT of process 0 where several serve one model, each with its own devices; the port after it
            is used too.
        num_processes: how many they are.
        process_id: which of them this one is.
    """

    model: str
    dtype: str = "auto"
    weights_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    page_size: int = 16
    kv_cache_bytes: int | None = None
    kv_cache_share: float | None = None
    attention: AttentionChoice = "auto"
    min_input_pad: int = 8
    num_tokens_paddings: Sequence[int] | None = None
    num_reqs_paddings: Sequence[int] | None = None
    max_compiled_variants: int = 64
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw"
    seed: int | None = None
    use_aot_forward: bool = True
    compile_guard: CompileGuard = "count"
    debug: bool = False
    prefix_caching: bool = True
    max_queued_requests: int | None = None
    overlap: bool = True
    speculative_tokens: int = 0
    prompt_lookup_max: int = 3
    prompt_lookup_min: int = 1
    tensor_parallel: int = 1
    data_parallel: int = 1
    coordinator: str | None = None
    num_processes: int = 1
    process_id: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model: must be a name or a path, not {self.model!r}")
        for name, known in (("dtype", DTYPES), ("weights_dtype", WEIGHTS_DTYPES)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(known)}")
        if isinstance(self.page_size, float) or self.page_size not in PAGE_SIZES:
            raise ConfigError(f"page_size: {self.page_size!r} is not one of {', '.join(map(str, PAGE_SIZES))}")
        if self.attention not in ATTENTIONS:
            raise ConfigError(f"attention: {self.attention!r} is not one of {', '.join(ATTENTIONS)}")
        if self.compile_guard not in COMPILE_GUARDS:
            raise ConfigError(f"compile_guard: {self.compile_guard!r} is not one of {', '.join(COMPILE_GUARDS)}")
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise ConfigError(f"logprobs_mode: {self.logprobs_mode!r} is not one of {', '.join(LOGPROBS_MODES)}")
        for name in ("use_aot_forward", "debug", "prefix_caching", "overlap"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: must be true or false, not {getattr(self, name)!r}")
        for name in ("max_num_seqs", "max_num_batched_tokens", "min_input_pad", "max_compiled_variants"):
            _positive(name, getattr(self, name))
        for name in ("tensor_parallel", "data_parallel", "num_processes"):
            _positive(name, getattr(self, name))
        self._check_processes()
        self._check_speculation()
        for name in ("max_model_len", "kv_cache_bytes", "max_queued_requests"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if isinstance(self.max_logprobs, bool) or not isinstance(self.max_logprobs, int) or self.max_logprobs < 0:
            raise ConfigError(f"max_logprobs: must be an integer >= 0, not {self.max_logprobs!r}")
        if self.max_num_seqs > MAX_NUM_SEQS:
            raise ConfigError(f"max_num_seqs: must be at most {MAX_NUM_SEQS}, not {self.max_num_seqs}")
        if self.max_model_len == 1:
            raise ConfigError("max_model_len: must be at least 2, for a prompt and an answer of a token each")
        if self.kv_cache_share is not None and not _is_share(self.kv_cache_share):
            raise ConfigError(f"kv_cache_share: must be > 0 and <= 1, not {self.kv_cache_share!r}")
        for name in ("num_tokens_paddings", "num_reqs_paddings"):
            _sizes(name, getattr(self, name))
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ConfigError(f"seed: must be an integer, not {self.seed!r}")
        if self.kv_cache_bytes is not None and self.kv_cache_share is not None:
            raise ConfigError("kv_cache_share: cannot be given together with kv_cache_bytes")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens: {self.max_num_batched_tokens} is less than max_num_seqs "
                f"({self.max_num_seqs}), but every running request takes a token per step"
            )

    def _check_speculation(self) -> None:
        most, seqs = self.speculative_tokens, self.max_num_seqs
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise ConfigError(f"speculative_tokens: must be an integer >= 0, not {most!r}")
        if most >= seqs and most:
            raise ConfigError(
                f"speculative_tokens: {most} must be less than max_num_seqs ({seqs}): a step samples as many tokens as "
                f"that in all; give max_num_seqs at least {most + 1}"
            )
        for name in ("prompt_lookup_max", "prompt_lookup_min"):
            _positive(name, getattr(self, name))
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min: {self.prompt_lookup_min} is more than prompt_lookup_max ({self.prompt_lookup_max})"
            )

    def _check_processes(self) -> None:
        if self.num_processes > 1 and not self.use_aot_forward:
            raise ConfigError("use_aot_forward: must be true where several processes serve one model")
        if self.num_processes == 1 and (self.coordinator is not None or self.process_id not in (None, 0)):
            raise ConfigError("num_processes: must be at least 2 with coordinator or process_id")
        if self.num_processes > 1:
            host, _, port = (self.coordinator or "").rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65535:
                raise ConfigError(
                    f"coordinator: must be HOST:PORT of process 0, with a port below 65535, for "
                    f"{self.num_processes} processes, not {self.coordinator!r}"
                )
        if self.process_id is None and self.num_processes > 1:
            raise ConfigError(f"process_id: must be given, 0 … {self.num_processes - 1}, a number for each process")
        if self.process_id is not None and (
            not isinstance(self.process_id, int) or not 0 <= self.process_id < self.num_processes
        ):
            raise ConfigError(f"process_id: must be 0 … {self.num_processes - 1}, not {self.process_id!r}")

    @property
    def jax_dtype(self) -> jnp.dtype:
        """`dtype` as JAX has it; only once resolved."""
        return jnp.dtype(self.dtype)

    def num_pages(self, spec: DecoderSpec) -> int:
        """Pages in the pool of each layer; only once resolved."""
        assert self.kv_cache_bytes is not None
        return self.kv_cache_bytes // self._page_bytes(spec)

    def _page_bytes(self, spec: DecoderSpec) -> int:
        """Bytes of a page over all layers, on one device."""
        devices = self.tensor_parallel * self.data_parallel
        kernel = attention_for(
            self.jax_dtype, jax.default_backend(), self.attention, page_size=self.page_size, devices=devices
        )
        own = device_spec(spec, self.tensor_parallel)
        return own.num_layers * page_bytes(kernel, self.page_size, own.num_kv_heads, own.head_dim)

    def resolve(self, spec: DecoderSpec, *, keep_blocks: bool = False) -> EngineConfig:
        """The same options with nothing left open.

        Args:
            keep_blocks: whether "auto" for `weights_dtype` keeps the blocks of a GGUF file, unless `dtype` asks for
                float32; else it is `dtype`.

        Raises:
            ConfigError: the context asked for is longer than the model's, or the KV cache is too small for it; or so
                many devices cannot share the model.
        """
        dtype = "bfloat16" if self.dtype == "auto" else self.dtype
        auto = "gguf" if keep_blocks and dtype != "float32" else dtype
        config = replace(self, dtype=dtype, weights_dtype=auto if self.weights_dtype == "auto" else self.weights_dtype)
        wanted = self.max_model_len or spec.max_position
        if wanted > spec.max_position:
            raise ConfigError(f"max_model_len: {wanted} is more than the model's {spec.max_position}")
        page_bytes, budget = config._page_bytes(spec), self.kv_cache_bytes
        pages_per_seq = -(-wanted // self.page_size)
        if budget is None:
            # No more than every slot can use, and never too little for one request of the length asked for.
            most = pages_per_seq * self.max_num_seqs
            pages = min(_few_sizes(self._cache_budget() // page_bytes), most)
            if self.max_model_len is not None:
                pages = max(pages, pages_per_seq)
        else:
            pages = _few_sizes(budget // page_bytes)
            if self.max_model_len is not None:
                pages = max(pages, min(budget // page_bytes, pages_per_seq))
        if pages < pages_per_seq and self.max_model_len is not None:
            raise ConfigError(
                f"kv_cache_bytes: {budget} bytes hold {pages * self.page_size} tokens, less than max_model_len "
                f"({wanted}), which takes {pages_per_seq * page_bytes} bytes"
            )
        if pages < 1:
            given = (
                "kv_cache_share: that much memory holds" if budget is None else f"kv_cache_bytes: {budget} bytes hold"
            )
            raise ConfigError(f"{given} not even one page, which takes {page_bytes} bytes; give more")
        total = pages * page_bytes * self._sharers
        if total > (memory := _memory()):
            raise ConfigError(f"kv_cache_bytes: {total} bytes are more than the {memory} of this machine")
        length = min(wanted, pages * self.page_size)
        step = self.max_num_batched_tokens
        if self.num_tokens_paddings is None:  # else its largest size is the step's
            step = min(step, self.max_num_seqs * length)  # no step can hold more
        return replace(
            config,
            max_model_len=length,
            max_num_batched_tokens=step,
            kv_cache_bytes=pages * page_bytes,
            kv_cache_share=None,
        )

    @property
    def _sharers(self) -> int:
        """Devices that have one memory between them."""
        devices = self.tensor_parallel * self.data_parallel // self.num_processes
        return max(devices, 1) if jax.default_backend() == "cpu" else 1

    def _cache_budget(self) -> int:
        """Bytes for KV pages on each device of this machine."""
        stats, share = _device_memory(), self.kv_cache_share
        if stats is None:
            free = psutil.virtual_memory().available
            return int(free * share if share is not None else min(free * _CPU_SHARE, _CPU_MOST)) // self._sharers
        free = stats["bytes_limit"] - stats["bytes_in_use"]
        return int(free * (_ACCELERATOR_SHARE if share is None else share))

    @classmethod
    def from_options(cls, model: str, options: dict[str, Any]) -> EngineConfig:
        """From keyword options; ConfigError names an unknown one and lists those there are."""
        known = [f.name for f in fields(cls) if f.name != "model"]
        for name in options:
            if name not in known:
                raise ConfigError(f"{name}: unknown option; known: {', '.join(known)}")
        return cls(model=model, **options)


def _positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: must be a positive integer, not {value!r}")


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1


def _sizes(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
        raise ConfigError(f"{name}: must be a list of sizes, not {value!r}")
    for size in value:
        _positive(name, size)


def _few_sizes(pages: int) -> int:
    """Rounded down to three significant bits: compiled steps depend on the number of pages, and with few possible
    numbers a machine with a little more or less free memory finds its steps in the compilation cache."""
    drop = max(pages.bit_length() - 3, 0)
    return pages >> drop << drop


def _memory() -> int:
    """Bytes of memory that a device of this machine has."""
    stats = _device_memory()
    return psutil.virtual_memory().total if stats is None else stats["bytes_limit"]


def _device_memory() -> dict[str, int] | None:
    """What JAX says of an accelerator's memory; None on the CPU."""
    return None if jax.default_backend() == "cpu" else jax.local_devices()[0].memory_stats()
