"""From options to a compiled engine: find the model, read it, size the cache, compile."""

from __future__ import annotations

import hashlib
import logging
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import jax
from jax.sharding import Mesh

from headrace import native
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.errors import ConfigError, ModelError
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.execution.processes import Group, join, lead, settle
from headrace.models.sharding import make_mesh
from headrace.text.tokenizer import Tokenizer
from headrace.weights.gguf import GGUFFile
from headrace.weights.load import Checkpoint, load_weights, open_checkpoint
from headrace.weights.packed import known_blocks, wanted
from headrace.weights.pull import cache_dir
from headrace.weights.sources import resolve

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Built:
    """A ready engine and how it came about.

    Attributes:
        startup_s: seconds from options to ready, without the import of JAX.
        phases: seconds of each part of the start, in order; the last is "compile". "tokenizer" is what is left of
            reading it when the weights are there; with other processes it comes first and counts as "weights".
    """

    engine: Engine
    checkpoint: Checkpoint
    startup_s: float
    phases: Mapping[str, float]

    def describe(self) -> str:
        """A few lines for a person: what is served and how."""
        config, o = self.engine.config, self.engine.manager.options
        compiled = self.engine.manager.buckets
        buckets = ", ".join(f"{tokens}x{requests}" for tokens, requests in compiled) or "each at its first use"
        weights = "" if config.weights_dtype == config.dtype else f", weights {config.weights_dtype}"
        return (
            f"model {config.model} ({self.checkpoint.spec.family}, {self.checkpoint.path.name}), dtype {config.dtype}"
            f"{weights} on {jax.default_backend()}{self._devices}\n"
            f"KV cache {o.num_pages} pages of {o.page_size} tokens, longest context {o.max_model_len} tokens, "
            f"up to {o.max_num_seqs} requests at once\n"
            f"compiled steps (tokens x requests): {buckets}\n"
            f"ready in {self.startup_s:.1f} s, {self.phases['compile']:.1f} s of it compiling or loading steps"
        )

    @property
    def _devices(self) -> str:
        copies, sharers = self.engine.config.data_parallel, self.engine.config.tensor_parallel
        if copies * sharers == 1:
            return ""
        return f" (data parallel {copies} x tensor parallel {sharers} devices; sizes are those of a data parallel rank)"


def build(config: EngineConfig, *, progress: bool = False) -> Built:
    """Makes an engine ready to serve.

    Raises:
        ConfigError, ModelError: see there; nothing is left behind.
    """
    if config.process_id:
        raise ConfigError("process_id: only process 0 has an engine; the others call `follow`")
    start, phases = time.perf_counter(), _Phases()
    leader = lead(config.coordinator, config.num_processes) if config.coordinator is not None else None
    checkpoint = open_checkpoint(resolve(config.model, progress=progress))
    phases.ends("open")
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as reading:
        # For a large vocabulary seconds of Python, beside native code.
        tokenizer = reading.submit(_tokenizer, checkpoint)
        if wait([tokenizer], timeout=0.02).done:  # what it refuses it mostly refuses at once, the weights unread
            tokenizer.result()
        mesh = make_mesh(config.data_parallel, config.tensor_parallel)
        known = checkpoint.is_gguf and known_blocks(info.dtype for info in checkpoint.file.tensors.values())
        config = config.resolve(checkpoint.spec, keep_blocks=known and wanted(mesh))
        if leader is not None:
            leader.tell_options({**asdict(config), "fingerprint": _fingerprint(checkpoint, tokenizer.result())})
        manager = _manager(config, checkpoint, tokenizer.result, mesh, leader, phases, progress)
        engine = Engine(config, tokenizer.result(), manager)
    return Built(engine, checkpoint, time.perf_counter() - start, phases.seconds)


def follow(config: EngineConfig, *, progress: bool = False) -> None:
    """Takes part in serving a model that process 0 leads, until that ends. For the processes other than 0.

    Args:
        config: of these only the model and the three options about processes matter; process 0 gives the others.

    Raises:
        ConfigError, ModelError: see there.
        HeadraceError: process 0 was lost.
    """
    assert config.coordinator is not None
    assert config.process_id is not None
    follower = join(config.coordinator, config.num_processes, config.process_id)
    try:
        checkpoint = open_checkpoint(resolve(config.model, progress=progress))
        tokenizer = _tokenizer(checkpoint)
        options = follower.options()
        if options.pop("fingerprint") != _fingerprint(checkpoint, tokenizer):
            raise ModelError(f"{config.model}: is not the model of process 0; give both the same")
        config = EngineConfig(**{**options, "model": config.model, "process_id": config.process_id})
        mesh = make_mesh(config.data_parallel, config.tensor_parallel)
        manager = _manager(config, checkpoint, lambda: tokenizer, mesh, follower, _Phases(), progress)
        follower.follow(manager)
    except BaseException as error:
        follower.report(error)
        raise


def _manager(
    config: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: Callable[[], Tokenizer],
    mesh: Mesh | None,
    group: Group | None,
    phases: _Phases,
    progress: bool,
) -> ExecutionManager:
    """A compiled manager. The tokenizer is asked for when the weights are there."""
    assert config.max_model_len is not None
    if mesh is None and jax.default_backend() == "cpu" and not native.available():
        log.warning("%s", native.reason())
    weights = load_weights(
        checkpoint, config.jax_dtype, config.weights_dtype, mesh, native=wanted(mesh), progress=progress
    )
    phases.ends("weights")
    vocab_size = tokenizer().vocab_size
    phases.ends("tokenizer")
    options = ExecutionOptions(
        dtype=config.jax_dtype,
        num_pages=config.num_pages(checkpoint.spec),
        page_size=config.page_size,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        vocab_limit=min(vocab_size, checkpoint.spec.vocab_size),
        max_logprobs=config.max_logprobs,
        logprobs_mode=config.logprobs_mode,
        attention=config.attention,
        min_input_pad=config.min_input_pad,
        max_compiled_variants=config.max_compiled_variants,
        use_aot_forward=config.use_aot_forward,
        compile_guard=config.compile_guard,
        saved_steps=use_compilation_cache(),
        debug=config.debug,
    )
    manager = ExecutionManager(checkpoint.spec, weights, options, mesh, group)
    phases.ends("state")
    log.info("compiling steps, or loading those that were compiled before; the first time may take minutes")
    manager.compile(config.num_tokens_paddings, config.num_reqs_paddings, progress=progress)
    if group is not None:
        settle()
    phases.ends("compile")
    return manager


def _fingerprint(checkpoint: Checkpoint, tokenizer: Tokenizer) -> str:
    """What processes that serve one model must agree on."""
    return hashlib.sha256(f"{checkpoint.spec} {tokenizer.vocab_size}".encode()).hexdigest()


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
        return Tokenizer.from_gguf(checkpoint.file.metadata, cache_dir() / "merges")
    return Tokenizer.from_folder(checkpoint.path)
