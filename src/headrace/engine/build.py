"""From options to a compiled engine: find the model, read it, size the cache, compile."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jax

from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.execution.manager import ExecutionManager, ExecutionOptions
from headrace.text.tokenizer import Tokenizer
from headrace.weights.gguf import GGUFFile
from headrace.weights.load import Checkpoint, load_weights, open_checkpoint
from headrace.weights.pull import cache_dir
from headrace.weights.sources import resolve


@dataclass(frozen=True)
class Built:
    """A ready engine and how it came about.

    Attributes:
        startup_s: seconds from options to ready, without the import of JAX.
        compile_s: seconds of those that went into compilation.
        phases: seconds of each part of the start, in order.
    """

    engine: Engine
    checkpoint: Checkpoint
    startup_s: float
    compile_s: float
    phases: Mapping[str, float]

    def describe(self) -> str:
        """A few lines for a person: what is served and how."""
        config, o = self.engine.config, self.engine.manager.options
        compiled = self.engine.manager.buckets
        buckets = ", ".join(f"{tokens}x{requests}" for tokens, requests in compiled) or "each at its first use"
        weights = "" if config.weights_dtype == config.dtype else f", weights {config.weights_dtype}"
        return (
            f"model {config.model} ({self.checkpoint.spec.family}, {self.checkpoint.path.name}), dtype {config.dtype}"
            f"{weights} on {jax.default_backend()}\n"
            f"KV cache {o.num_pages} pages of {o.page_size} tokens, longest context {o.max_model_len} tokens, "
            f"up to {o.max_num_seqs} requests at once\n"
            f"compiled steps (tokens x requests): {buckets}\n"
            f"ready in {self.startup_s:.1f} s, {self.compile_s:.1f} s of it compiling"
        )


def build(config: EngineConfig, *, progress: bool = False) -> Built:
    """Makes an engine ready to serve.

    Raises:
        ConfigError, ModelError: see there; nothing is left behind.
    """
    start, phases = time.perf_counter(), _Phases()
    saved_steps = use_compilation_cache()
    checkpoint = open_checkpoint(resolve(config.model, progress=progress))
    phases.ends("open")
    tokenizer = _tokenizer(checkpoint)
    phases.ends("tokenizer")
    config = config.resolve(checkpoint.spec)
    assert config.max_model_len is not None
    options = ExecutionOptions(
        dtype=config.jax_dtype,
        num_pages=config.num_pages(checkpoint.spec),
        page_size=config.page_size,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        vocab_limit=min(tokenizer.vocab_size, checkpoint.spec.vocab_size),
        attention=config.attention,
        min_input_pad=config.min_input_pad,
        max_compiled_variants=config.max_compiled_variants,
        use_aot_forward=config.use_aot_forward,
        compile_guard=config.compile_guard,
        saved_steps=saved_steps,
        debug=config.debug,
    )
    weights = load_weights(checkpoint, config.jax_dtype, config.weights_dtype, progress=progress)
    phases.ends("weights")
    manager = ExecutionManager(checkpoint.spec, weights, options)
    phases.ends("state")
    compile_s = manager.compile(config.num_tokens_paddings, config.num_reqs_paddings, progress=progress)
    phases.ends("compile")
    engine = Engine(config, tokenizer, manager)
    return Built(engine, checkpoint, time.perf_counter() - start, compile_s, phases.seconds)


class _Phases:
    """Seconds between the ends of the parts of a start."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def ends(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._last = now - self._last, now


def use_compilation_cache() -> Path | None:
    """Points JAX's persistent compilation cache at the user's cache directory, and returns where compiled steps are
    kept. None, and nothing done, if the user has set a cache of JAX's.

    Compiled code belongs to one jaxlib and one kind of processor, so each has a directory of its own.
    """
    kind = hashlib.sha256(f"{platform.machine()} {_cpu_flags()}".encode()).hexdigest()[:12]
    directory = cache_dir() / "xla" / f"jaxlib-{version('jaxlib')}-{kind}"
    if jax.config.jax_compilation_cache_dir not in (None, str(directory)):  # type: ignore[attr-defined]
        return None
    jax.config.update("jax_compilation_cache_dir", str(directory))
    # The many tiny programs of start-up are worth keeping too: together they take as long as a step.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return directory / "steps"


def _cpu_flags() -> str:
    """What the processor can do, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    if isinstance(checkpoint.file, GGUFFile):
        return Tokenizer.from_gguf(checkpoint.file.metadata)
    return Tokenizer.from_folder(checkpoint.path)
