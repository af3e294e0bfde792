"""Qwen 3 (dense): Qwen 2 with RMS norms on the heads of q and k instead of biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.models import qwen2
from headrace.models.family import Family, GGUFHeader
from headrace.models.spec import DecoderSpec


def from_config(config: Mapping[str, Any]) -> DecoderSpec:
    """config.json of Qwen3ForCausalLM -> spec."""
    bias = bool(config.get("attention_bias"))
    head_dim = config.get("head_dim") or 128  # the architecture's own default, not hidden_size / heads
    spec = qwen2.from_config({**config, "head_dim": head_dim})
    return replace(spec, family="qwen3", qkv_bias=bias, o_bias=bias, qk_norm=True)


def from_gguf(header: GGUFHeader) -> DecoderSpec:
    """GGUF header of architecture `qwen3` -> spec."""
    return replace(qwen2.from_gguf(header), family="qwen3", qkv_bias=False, qk_norm=True)


FAMILY = Family("qwen3", ("Qwen3ForCausalLM",), ("qwen3",), from_config, from_gguf)
