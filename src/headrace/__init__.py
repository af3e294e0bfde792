"""Headrace: an LLM inference engine on JAX.

from headrace import LLM, SamplingParams

llm = LLM("smollm2")
print(llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import ConfigError, HeadraceError, ModelError, RequestError
from headrace.sampling.params import SamplingParams
from headrace.sampling.structured import StructuredOutputs

if TYPE_CHECKING:
    from headrace.config import EngineConfig
    from headrace.engine.engine import TokenOutput
    from headrace.engine.pooling import PoolingParams
    from headrace.llm import LLM
    from headrace.outputs import CompletionOutput, RequestOutput
    from headrace.sampling.scores import TokenLogprobs

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "HeadraceError",
    "ModelError",
    "PoolingParams",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "TokenLogprobs",
    "TokenOutput",
]


def __getattr__(name: str) -> object:
    """Imports what needs JAX only when it is asked for, so that the command line answers at once."""
    if name == "LLM":
        from headrace.llm import LLM

        return LLM
    if name == "EngineConfig":
        from headrace.config import EngineConfig

        return EngineConfig
    if name in ("CompletionOutput", "RequestOutput", "TokenLogprobs"):
        from headrace import outputs

        return getattr(outputs, name)
    if name == "PoolingParams":
        from headrace.engine.pooling import PoolingParams

        return PoolingParams
    if name == "TokenOutput":
        from headrace.engine.engine import TokenOutput

        return TokenOutput
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
