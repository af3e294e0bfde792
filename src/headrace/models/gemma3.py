"""Gemma 3 text models: local and global layers with their own rotations, norms before and after, scaled embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import ModelError
from headrace.models.family import (
    HF_NAMES,
    Family,
    GGUFHeader,
    check_activation,
    config_num_layers,
    config_rope,
    config_sizes,
    gguf_rope,
    gguf_sizes,
)
from headrace.models.spec import DecoderSpec, LayerSpec, RopeSpec

LOCAL_THETA = 10000.0  # what GGUF files leave out
GLOBAL_EVERY = 6  # every sixth layer sees everything; GGUF files leave that out too
LAYERS_27B = 62  # the one size whose attention scale is not head_dim ** -0.5; GGUF files do not say so

_GLOBAL, _LOCAL = 0, 1  # indices of the two rotations


def from_config(config: Mapping[str, Any]) -> DecoderSpec:
    """config.json of Gemma3ForCausalLM -> spec."""
    check_activation(config, "hidden_activation", ("gelu_pytorch_tanh",))
    if config.get("attn_logit_softcapping") or config.get("final_logit_softcapping"):
        raise ModelError("config.json: logit soft-capping is not supported")
    if config.get("attention_bias"):
        raise ModelError("config.json: attention_bias is not supported for Gemma 3")
    sizes = config_sizes({"head_dim": 256, "max_position_embeddings": 131072, "vocab_size": 262208, **config})
    count, window = config_num_layers(config), config.get("sliding_window", 4096)
    every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or GLOBAL_EVERY
    types = config.get("layer_types") or _pattern(count, every)
    return DecoderSpec(
        family="gemma3",
        layers=_layers(types, window),
        ropes=_config_ropes(config, sizes["head_dim"]),
        attention_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        tied_head=bool(config.get("tie_word_embeddings", True)),
        **_common(sizes["hidden_size"]),
        **sizes,
    )


def from_gguf(header: GGUFHeader) -> DecoderSpec:
    """GGUF header of architecture `gemma3` -> spec."""
    sizes, count = gguf_sizes(header), header.num_layers
    head_dim = sizes["head_dim"]
    local = RopeSpec(header.get("rope.freq_base_swa", LOCAL_THETA), head_dim)
    types = _pattern(count, header.get("attention.sliding_window_pattern", GLOBAL_EVERY))
    scalar = sizes["hidden_size"] // sizes["num_heads"] if count == LAYERS_27B else head_dim
    return DecoderSpec(
        family="gemma3",
        layers=_layers(types, header.get("attention.sliding_window")),
        ropes=(gguf_rope(header, head_dim), local),
        attention_scale=scalar**-0.5,
        **_common(sizes["hidden_size"]),
        **sizes,
    )


def _common(hidden_size: int) -> dict[str, Any]:
    return {
        "activation": "gelu_tanh",
        "qk_norm": True,
        "post_norms": True,
        "embedding_scale": hidden_size**0.5,
    }


def _pattern(count: int, every: int) -> list[str]:
    return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)]


def _layers(types: list[str], window: int) -> tuple[LayerSpec, ...]:
    local, full = LayerSpec(window, _LOCAL), LayerSpec(None, _GLOBAL)
    return tuple(local if kind == "sliding_attention" else full for kind in types)


def _config_ropes(config: Mapping[str, Any], head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Rotations of global and local layers. In the older form of the file scaling belongs to the global ones only."""
    nested = config.get("rope_parameters") or {}
    if "sliding_attention" in nested:
        with_length = {"max_position_embeddings": 131072, **config}
        return tuple(config_rope(with_length, head_dim, t) for t in ("full_attention", "sliding_attention"))  # type: ignore[return-value]
    older = {"rope_theta": 1e6, "max_position_embeddings": 131072, **config}
    return config_rope(older, head_dim), RopeSpec(config.get("rope_local_base_freq", LOCAL_THETA), head_dim)


FAMILY = Family(
    "gemma3",
    ("Gemma3ForCausalLM",),
    ("gemma3",),
    from_config,
    from_gguf,
    hf_names={
        **HF_NAMES,
        "post_attn_norm": "model.layers.{layer}.post_attention_layernorm.weight",
        "mlp_norm": "model.layers.{layer}.pre_feedforward_layernorm.weight",
        "post_mlp_norm": "model.layers.{layer}.post_feedforward_layernorm.weight",
    },
    hf_norm_offset=1.0,
)
