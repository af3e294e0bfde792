"""What a family of models adds to the decoder: how its files describe it and what they call its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ModelError
from headrace.models.spec import DecoderSpec, RopeSpec

MOST_LAYERS = 1000

HF_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attn_norm": "model.layers.{layer}.input_layernorm.weight",
    "q": "model.layers.{layer}.self_attn.q_proj.weight",
    "k": "model.layers.{layer}.self_attn.k_proj.weight",
    "v": "model.layers.{layer}.self_attn.v_proj.weight",
    "q_bias": "model.layers.{layer}.self_attn.q_proj.bias",
    "k_bias": "model.layers.{layer}.self_attn.k_proj.bias",
    "v_bias": "model.layers.{layer}.self_attn.v_proj.bias",
    "q_norm": "model.layers.{layer}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{layer}.self_attn.k_norm.weight",
    "o": "model.layers.{layer}.self_attn.o_proj.weight",
    "o_bias": "model.layers.{layer}.self_attn.o_proj.bias",
    "mlp_norm": "model.layers.{layer}.post_attention_layernorm.weight",
    "gate": "model.layers.{layer}.mlp.gate_proj.weight",
    "up": "model.layers.{layer}.mlp.up_proj.weight",
    "down": "model.layers.{layer}.mlp.down_proj.weight",
}

GGUF_NAMES: Mapping[str, str] = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "attn_norm": "blk.{layer}.attn_norm.weight",
    "q": "blk.{layer}.attn_q.weight",
    "k": "blk.{layer}.attn_k.weight",
    "v": "blk.{layer}.attn_v.weight",
    "q_bias": "blk.{layer}.attn_q.bias",
    "k_bias": "blk.{layer}.attn_k.bias",
    "v_bias": "blk.{layer}.attn_v.bias",
    "q_norm": "blk.{layer}.attn_q_norm.weight",
    "k_norm": "blk.{layer}.attn_k_norm.weight",
    "o": "blk.{layer}.attn_output.weight",
    "o_bias": "blk.{layer}.attn_output.bias",
    "post_attn_norm": "blk.{layer}.post_attention_norm.weight",
    "mlp_norm": "blk.{layer}.ffn_norm.weight",
    "gate": "blk.{layer}.ffn_gate.weight",
    "up": "blk.{layer}.ffn_up.weight",
    "down": "blk.{layer}.ffn_down.weight",
    "post_mlp_norm": "blk.{layer}.post_ffw_norm.weight",
}


@dataclass(frozen=True)
class GGUFHeader:
    """The part of a GGUF file that describes the model.

    Attributes:
        arch: value of `general.architecture`, the prefix of the other keys.
        metadata: all keys.
        tensors: names of the tensors that the file holds.
        rope_factors: contents of `rope_freqs.weight`, when there is one.
        vocab_size: rows of the embedding.
    """

    arch: str
    metadata: Mapping[str, Any]
    tensors: frozenset[str]
    vocab_size: int
    rope_factors: tuple[float, ...] | None = None

    @property
    def num_layers(self) -> int:
        """`{arch}.block_count`; ModelError if it is not a number of layers that the file can hold."""
        count: int = self.get("block_count")
        if not isinstance(count, int) or not 0 < count <= len(self.tensors):
            raise ModelError(f"GGUF metadata: {self.arch}.block_count is {count!r}, with {len(self.tensors)} tensors")
        return count

    def get(self, key: str, default: Any = None) -> Any:
        """Value of `{arch}.{key}`; without a default a missing key is a ModelError."""
        value = self.metadata.get(f"{self.arch}.{key}", default)
        if value is None:
            raise ModelError(f"GGUF metadata: the key {self.arch}.{key} is missing")
        return value


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        name: the family's own name.
        hf_architectures: values of `architectures` in config.json.
        gguf_architectures: values of `general.architecture` in a GGUF file.
        from_config: config.json -> spec.
        from_gguf: GGUF header -> spec.
        hf_names, gguf_names: role -> name pattern of the tensor.
        hf_norm_offset: what safetensors norms lack (Gemma stores w where the layer multiplies by 1 + w).
        gguf_permuted_qk: the GGUF file orders the rows of q and k for interleaved rotation.
    """

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    from_config: Callable[[Mapping[str, Any]], DecoderSpec]
    from_gguf: Callable[[GGUFHeader], DecoderSpec]
    hf_names: Mapping[str, str] = field(default_factory=lambda: HF_NAMES)
    gguf_names: Mapping[str, str] = field(default_factory=lambda: GGUF_NAMES)
    hf_norm_offset: float = 0.0
    gguf_permuted_qk: bool = False


def config_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The spec's fields that every config.json spells the same way."""
    hidden, heads = need(config, "hidden_size"), need(config, "num_attention_heads")
    return {
        "vocab_size": need(config, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": need(config, "intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "max_position": need(config, "max_position_embeddings"),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
    }


def gguf_sizes(header: GGUFHeader) -> dict[str, Any]:
    """The spec's fields that every GGUF architecture spells the same way."""
    hidden, heads = header.get("embedding_length"), header.get("attention.head_count")
    head_dim = header.get("attention.key_length", hidden // heads)
    if header.get("attention.value_length", head_dim) != head_dim:
        raise ModelError(
            "GGUF metadata: attention.key_length and attention.value_length differ, which is not supported"
        )
    return {
        "vocab_size": header.vocab_size,
        "hidden_size": hidden,
        "intermediate_size": header.get("feed_forward_length"),
        "num_heads": heads,
        "num_kv_heads": header.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position": header.get("context_length"),
        "norm_eps": header.get("attention.layer_norm_rms_epsilon"),
        "tied_head": "output.weight" not in header.tensors,
    }


def config_num_layers(config: Mapping[str, Any]) -> int:
    """`num_hidden_layers`; ModelError if it is not a sensible number of layers."""
    count: int = need(config, "num_hidden_layers")
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MOST_LAYERS:
        raise ModelError(f"config.json: num_hidden_layers must be an integer of 1 to {MOST_LAYERS}, not {count!r}")
    return count


def need(config: Mapping[str, Any], key: str) -> Any:
    """config[key], or a ModelError that names the key."""
    if config.get(key) is None:
        raise ModelError(f"config.json: the key {key} is missing")
    return config[key]


def check_activation(config: Mapping[str, Any], key: str, accepted: tuple[str, ...]) -> None:
    """Refuses an activation function that the family's MLP does not have."""
    found = config.get(key, accepted[0])
    if found not in accepted:
        raise ModelError(
            f"config.json: {key} {found!r} is not supported for this architecture; it must be {accepted[0]!r}"
        )


def config_rope(config: Mapping[str, Any], head_dim: int, layer_type: str | None = None) -> RopeSpec:
    """The rotary embedding that config.json describes, in the present form (`rope_parameters`, possibly one entry
    per layer type) or the older one (`rope_theta` and `rope_scaling`, whose kind is called `type` or `rope_type`)."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if layer_type is not None and layer_type in parameters:
        parameters = dict(parameters[layer_type] or {})
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    if config.get("partial_rotary_factor", parameters.get("partial_rotary_factor", 1.0)) not in (None, 1.0):
        raise ModelError("config.json: partial_rotary_factor other than 1 is not supported")
    max_position = need(config, "max_position_embeddings")
    original = parameters.get("original_max_position_embeddings") or max_position
    if kind == "default":
        return RopeSpec(theta, head_dim)
    if kind == "linear":
        return RopeSpec(theta, head_dim, "linear", need(parameters, "factor"))
    if kind == "dynamic":
        return RopeSpec(theta, head_dim, "dynamic", need(parameters, "factor"), max_position)
    if kind == "llama3":
        return RopeSpec(
            theta,
            head_dim,
            "llama3",
            need(parameters, "factor"),
            original,
            low_freq_factor=need(parameters, "low_freq_factor"),
            high_freq_factor=need(parameters, "high_freq_factor"),
        )
    if kind == "yarn":
        return RopeSpec(
            theta,
            head_dim,
            "yarn",
            parameters.get("factor") or max_position / original,
            original,
            beta_fast=parameters.get("beta_fast") or 32.0,
            beta_slow=parameters.get("beta_slow") or 1.0,
            attention_factor=parameters.get("attention_factor"),
            mscale=parameters.get("mscale"),
            mscale_all_dim=parameters.get("mscale_all_dim"),
            truncate=parameters.get("truncate", True),
        )
    raise ModelError(f"config.json: rope type {kind!r} is not supported; known: default, linear, dynamic, llama3, yarn")


def gguf_rope(header: GGUFHeader, head_dim: int) -> RopeSpec:
    """The rotary embedding that a GGUF header describes."""
    theta = header.get("rope.freq_base", 10000.0)
    kind = header.get("rope.scaling.type", "none")
    factor = header.get("rope.scaling.factor", 1.0)
    if header.get("rope.dimension_count", head_dim) != head_dim:
        raise ModelError("GGUF metadata: rope.dimension_count differs from the head size, which is not supported")
    if header.rope_factors is not None:
        return RopeSpec(theta, head_dim, freq_factors=header.rope_factors)
    if kind == "none":
        return RopeSpec(theta, head_dim)
    if kind == "linear":
        return RopeSpec(theta, head_dim, "linear", factor)
    if kind == "yarn":
        return RopeSpec(
            theta,
            head_dim,
            "yarn",
            factor,
            header.get("rope.scaling.original_context_length"),
            beta_fast=header.get("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=header.get("rope.scaling.yarn_beta_slow", 1.0),
        )
    raise ModelError(f"GGUF metadata: rope scaling {kind!r} is not supported; known: none, linear, yarn")
