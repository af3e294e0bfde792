"""The families that Headrace knows, and which one a model file belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ModelError
from headrace.models import gemma3, llama, mistral, qwen2, qwen3
from headrace.models.family import Family

FAMILIES: tuple[Family, ...] = (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY, gemma3.FAMILY)


def family_of_config(config: Mapping[str, Any]) -> Family:
    """The family named by `architectures` in config.json; ModelError for an unknown one."""
    if config.get("quantization_config"):
        raise ModelError("config.json: quantization_config is not supported; use plain or GGUF weights")
    names = [str(name) for name in config.get("architectures") or []]
    for family in FAMILIES:
        if any(name in family.hf_architectures for name in names):
            return family
    known = ", ".join(name for family in FAMILIES for name in family.hf_architectures)
    raise ModelError(f"config.json: architecture {', '.join(names) or '(none)'} is not known; known: {known}")


def family_of_gguf(architecture: str) -> Family:
    """The family of a GGUF `general.architecture`; ModelError for an unknown one."""
    for family in FAMILIES:
        if architecture in family.gguf_architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.gguf_architectures)
    raise ModelError(f"GGUF architecture {architecture!r} is not known; known: {known}")
