"""Llama 2, 3 and 3.x, and models of the same form such as SmolLM2. In GGUF files Mistral is called llama too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ModelError
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


def from_config(config: Mapping[str, Any]) -> DecoderSpec:
    """config.json of LlamaForCausalLM -> spec."""
    check_activation(config, "hidden_act", ("silu", "swish"))
    if config.get("mlp_bias"):
        raise ModelError("config.json: mlp_bias is not supported")
    sizes = config_sizes(config)
    bias = bool(config.get("attention_bias"))
    return DecoderSpec(
        family="llama",
        layers=(LayerSpec(),) * config_num_layers(config),
        ropes=(config_rope(config, sizes["head_dim"]),),
        attention_scale=sizes["head_dim"] ** -0.5,
        tied_head=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        o_bias=bias,
        **sizes,
    )


def from_gguf(header: GGUFHeader) -> DecoderSpec:
    """GGUF header of architecture `llama` -> spec."""
    if header.get("expert_count", 0):
        raise ModelError("GGUF metadata: a mixture of experts (llama.expert_count) is not supported")
    sizes = gguf_sizes(header)
    return DecoderSpec(
        family="llama",
        layers=(LayerSpec(window=header.get("attention.sliding_window", 0) or None),) * header.num_layers,
        ropes=(gguf_rope(header, sizes["head_dim"]),),
        attention_scale=sizes["head_dim"] ** -0.5,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        o_bias="blk.0.attn_output.bias" in header.tensors,
        **sizes,
    )


FAMILY = Family("llama", ("LlamaForCausalLM",), ("llama",), from_config, from_gguf, gguf_permuted_qk=True)
