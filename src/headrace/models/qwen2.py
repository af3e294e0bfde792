"""Qwen 2 and 2.5: biases on q, k and v; optional sliding window on the upper layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.models.family import (
    Family,
    GGUFHeader,
    check_activation,
    config_num_layers,
    config_rope,
    config_sizes,
    gguf_rope,
    gguf_sizes,
)
from headrace.models.spec import DecoderSpec, LayerSpec


def config_layers(config: Mapping[str, Any]) -> tuple[LayerSpec, ...]:
    """Layers of a Qwen config.json: `layer_types` says which slide; without it the first `max_window_layers` do not."""
    count = config_num_layers(config)
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    if not window:
        return (LayerSpec(),) * count
    full = config.get("max_window_layers", count)
    types: list[str] = config.get("layer_types") or [
        "full_attention" if i < full else "sliding_attention" for i in range(count)
    ]
    return tuple(LayerSpec(window=window if kind == "sliding_attention" else None) for kind in types)


def from_config(config: Mapping[str, Any]) -> DecoderSpec:
    """config.json of Qwen2ForCausalLM -> spec."""
    check_activation(config, "hidden_act", ("silu", "swish"))
    sizes = config_sizes(config)
    return DecoderSpec(
        family="qwen2",
        layers=config_layers(config),
        ropes=(config_rope(config, sizes["head_dim"]),),
        attention_scale=sizes["head_dim"] ** -0.5,
        tied_head=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=True,
        **sizes,
    )


def from_gguf(header: GGUFHeader) -> DecoderSpec:
    """GGUF header of architecture `qwen2` -> spec."""
    sizes = gguf_sizes(header)
    return DecoderSpec(
        family="qwen2",
        layers=(LayerSpec(),) * header.num_layers,
        ropes=(gguf_rope(header, sizes["head_dim"]),),
        attention_scale=sizes["head_dim"] ** -0.5,
        qkv_bias=True,
        **sizes,
    )


FAMILY = Family("qwen2", ("Qwen2ForCausalLM",), ("qwen2",), from_config, from_gguf)
