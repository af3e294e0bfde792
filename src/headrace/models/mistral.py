"""Mistral: Llama with a sliding window on every layer (in some versions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.models import llama
from headrace.models.family import Family, GGUFHeader
from headrace.models.spec import DecoderSpec, LayerSpec


def from_config(config: Mapping[str, Any]) -> DecoderSpec:
    """config.json of MistralForCausalLM -> spec; `sliding_window` null means none."""
    spec = llama.from_config(config)
    window = config.get("sliding_window") or None
    return replace(spec, family="mistral", layers=(LayerSpec(window=window),) * spec.num_layers)


def from_gguf(header: GGUFHeader) -> DecoderSpec:
    """GGUF header of architecture `mistral` -> spec (older files say `llama`)."""
    return replace(llama.from_gguf(header), family="mistral")


FAMILY = Family("mistral", ("MistralForCausalLM",), ("mistral",), from_config, from_gguf, gguf_permuted_qk=True)
