"""The tiny models: one function per family, each gives the configurations whose golden data we keep."""

from dataclasses import dataclass, field
from typing import Any

from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config


@dataclass(frozen=True)
class TinyModel:
    """One golden set.

    `twin` holds configuration changes that a wrong reader of the configuration would amount to (no window, no rope
    scaling): the logits must change with them, otherwise the set proves nothing.
    `legacy` holds what the older config.json has instead of `rope_parameters` and `layer_types`.
    """

    name: str
    config: PretrainedConfig
    twin: dict[str, Any] = field(default_factory=dict)
    legacy: dict[str, Any] | None = None
    embed_std: float = 0.5
    sharded: bool = False


SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


def default_rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def llama() -> list[TinyModel]:
    """Llama 2, Llama 3 and SmolLM2 shapes, and biases on the attention projections."""
    llama3_rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    plain = default_rope(10_000.0)
    multi_head = SIZES | {"num_key_value_heads": 4, "tie_word_embeddings": False}
    groups_of_three = SIZES | {"hidden_size": 96, "intermediate_size": 64, "num_attention_heads": 6}
    smollm2_rope = default_rope(100_000.0)
    return [
        TinyModel("llama2", LlamaConfig(**multi_head, rms_norm_eps=1e-5, rope_parameters=plain)),
        TinyModel(
            "llama3",
            LlamaConfig(**SIZES, rms_norm_eps=1e-5, rope_parameters={**llama3_rope, "rope_theta": 500_000.0}),
            twin={"rope_parameters": default_rope(500_000.0)},
            legacy={"rope_theta": 500_000.0, "rope_scaling": llama3_rope},
            sharded=True,
        ),
        TinyModel("smollm2", LlamaConfig(**groups_of_three, rms_norm_eps=1e-5, rope_parameters=smollm2_rope)),
        TinyModel(
            "llama_bias",
            LlamaConfig(**SIZES, attention_bias=True, rope_parameters=plain),
        ),
    ]


def llama_rope() -> list[TinyModel]:
    """The other kinds of rope scaling, on a Llama; the long prompts pass the length that the scaling starts from."""
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32}
    mscale = {"mscale": 1.2, "mscale_all_dim": 0.4, "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False}
    scalings: dict[str, dict[str, Any]] = {
        "llama_linear": {"rope_type": "linear", "factor": 4.0},
        "llama_yarn": {"rope_type": "yarn", **yarn},
        "llama_yarn_attention": {"rope_type": "yarn", **yarn, "attention_factor": 1.3},
        "llama_yarn_mscale": {"rope_type": "yarn", **yarn, **mscale},
        "llama_dynamic": {"rope_type": "dynamic", "factor": 4.0},
    }
    models = []
    for name, scaling in scalings.items():
        length = 32 if name == "llama_dynamic" else 128
        old_spelling = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
        models.append(
            TinyModel(
                name,
                LlamaConfig(
                    **SIZES | {"intermediate_size": 64, "max_position_embeddings": length},
                    rope_parameters={**scaling, "rope_theta": 10_000.0},
                ),
                twin={"rope_parameters": default_rope(10_000.0)},
                legacy={"rope_theta": 10_000.0, "rope_scaling": old_spelling},
            )
        )
    return models


def mistral() -> list[TinyModel]:
    """A window on every layer; and no window with a head size that is not hidden size / heads (as in Nemo)."""
    rope = default_rope(10_000.0)
    sizes = SIZES | {"tie_word_embeddings": False, "rms_norm_eps": 1e-5}
    return [
        TinyModel(
            "mistral_window",
            MistralConfig(**sizes, sliding_window=16, rope_parameters=rope),
            twin={"sliding_window": None},
            legacy={"rope_theta": 10_000.0},
        ),
        TinyModel("mistral", MistralConfig(**sizes, head_dim=32, sliding_window=None, rope_parameters=rope)),
    ]


def qwen() -> list[TinyModel]:
    """Qwen 2 (biases on q, k, v) and Qwen 3 (norms on q and k); the older files name a window that is switched off."""
    rope = default_rope(1_000_000.0)
    window_off = {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 1}
    legacy = {"rope_theta": 1_000_000.0, "rope_scaling": None, **window_off}
    return [
        TinyModel("qwen2", Qwen2Config(**SIZES, rope_parameters=rope), legacy=legacy),
        TinyModel(
            "qwen2_window",
            Qwen2Config(**SIZES, rope_parameters=rope, **window_off | {"use_sliding_window": True}),
            twin={"layer_types": ["full_attention"] * 2},
            legacy={**legacy, "use_sliding_window": True},
        ),
        TinyModel("qwen3", Qwen3Config(**SIZES, head_dim=32, rope_parameters=rope), legacy=legacy),
    ]


def gemma3() -> list[TinyModel]:
    """Local and global layers with their own rope; the larger Gemma 3 models scale the global layers' rope by 8."""
    sizes = SIZES | {
        "intermediate_size": 64,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "sliding_window": 16,
        "bos_token_id": 2,
        "eos_token_id": 1,
    }
    local, scaling = default_rope(10_000.0), {"rope_type": "linear", "factor": 8.0}
    plain = {"sliding_attention": local, "full_attention": default_rope(1_000_000.0)}
    scaled = {"sliding_attention": local, "full_attention": {**scaling, "rope_theta": 1_000_000.0}}
    legacy = {"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}
    return [
        TinyModel(
            "gemma3",
            Gemma3TextConfig(**sizes | {"num_hidden_layers": 4}, sliding_window_pattern=3, rope_parameters=plain),
            twin={"layer_types": ["sliding_attention"] * 4},
            legacy={**legacy, "sliding_window_pattern": 3, "rope_scaling": None},
            embed_std=0.05,
        ),
        TinyModel(
            "gemma3_linear",
            Gemma3TextConfig(**sizes | {"num_hidden_layers": 3}, sliding_window_pattern=2, rope_parameters=scaled),
            twin={"rope_parameters": plain},
            legacy={**legacy, "sliding_window_pattern": 2, "rope_scaling": scaling},
            embed_std=0.05,
        ),
    ]


def all_models() -> list[TinyModel]:
    return [model for family in (llama, llama_rope, mistral, qwen, gemma3) for model in family()]
