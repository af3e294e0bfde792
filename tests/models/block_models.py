"""A tiny model as a GGUF file whose matrices are in blocks of several formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from safetensors.numpy import save_file

from models import gguf_models
from weights.gguf_files import small_blocks

HIDDEN, MLP, VOCAB = 256, 512, 256  # whole blocks of 256
HEADS, KV_HEADS, DIM = 4, 2, 64

# By layer. As in a file of kind Q4_K_M some parts are finer than the rest; some matrices stay in plain floats.
TYPES = (
    {"attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q5_K", "ffn_gate": "Q4_1", "ffn_up": "Q4_1"},
    {"attn_q": "Q5_0", "attn_k": "Q5_0", "attn_v": "Q5_0", "attn_output": "BF16", "ffn_gate": "Q5_1", "ffn_up": "F16"},
)
DOWN = ("Q6_K", "Q4_0")


def write(folder: Path, changes: Mapping[str, str] | None = None) -> Path:
    """Writes the model into `folder` and returns the path of the GGUF file; `changes` to the first layer's types."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "num_hidden_layers": len(TYPES),
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0},
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (HIDDEN,)}
    shapes |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (VOCAB, HIDDEN))
    stored = {"token_embd.weight": ("Q8_0", small_blocks("Q8_0", VOCAB, HIDDEN))}
    stored["output.weight"] = ("Q6_K", small_blocks("Q6_K", VOCAB, HIDDEN))
    sizes = {"attn_q": (HEADS * DIM, HIDDEN), "attn_k": (KV_HEADS * DIM, HIDDEN), "attn_v": (KV_HEADS * DIM, HIDDEN)}
    sizes |= {"attn_output": (HIDDEN, HEADS * DIM), "ffn_down": (HIDDEN, MLP)}
    for layer, types in enumerate(({**TYPES[0], **(changes or {})}, TYPES[1])):
        for role, name in gguf_models.INSIDE.items():
            if role.endswith("norm"):
                if role[-6:] not in ("q_norm", "k_norm"):
                    shapes[f"model.layers.{layer}.{role}.weight"] = (HIDDEN,)
                continue
            out, columns = sizes.get(name, (MLP, HIDDEN))
            shapes[f"model.layers.{layer}.{role}.weight"] = (out, columns)
            dtype = DOWN[layer] if name == "ffn_down" else types[name]
            stored[f"blk.{layer}.{name}.weight"] = (dtype, _rows(dtype, out, columns, rng))
    tensors = {name: (1 + 0.1 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return gguf_models.write(folder, folder / "model.gguf", "llama", stored=stored)


def _rows(dtype: str, out: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    if dtype in ("F32", "F16", "BF16"):
        return quantize(0.05 * rng.normal(size=(out, columns)).astype(np.float32), GGMLQuantizationType[dtype])
    return small_blocks(dtype, out, columns, int(rng.integers(1000)))
