"""Writes a Hugging Face folder as a GGUF file, following llama.cpp's conversion (convert_hf_to_gguf.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file

OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
INSIDE_GEMMA = {
    **INSIDE,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write(
    folder: Path,
    path: Path,
    arch: str,
    *,
    permute: bool = False,
    norm_offset: float = 0.0,
    stored: Mapping[str, tuple[str, np.ndarray]] | None = None,
) -> Path:
    """Writes the model in `folder` to `path`.

    Args:
        permute: reorder the rows of q and k for interleaved rotation, as files of architecture llama have them.
        norm_offset: added to every norm, as files of architecture gemma3 have it.
        stored: type and rows as stored, by the file's name of a tensor, to write instead of what the folder has.
    """
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config["rope_parameters"]
    writer = GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if arch == "gemma3":
        writer.add_sliding_window(config["sliding_window"])  # but neither the local rope base nor the layer pattern
    for name, tensor in load_file(folder / "model.safetensors").items():
        target = _name(name, INSIDE_GEMMA if arch == "gemma3" else INSIDE)
        if stored and target in stored:
            dtype, rows = stored[target]
            writer.add_tensor(target, rows, raw_dtype=GGMLQuantizationType[dtype])
            continue
        if permute and target.endswith(("attn_q.weight", "attn_k.weight")):
            tensor = interleave(tensor, heads if "attn_q" in target else kv_heads)
        writer.add_tensor(target, tensor + np.float32(norm_offset) if "norm" in target else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads * dim, ...] whose halves belong together -> rows whose neighbours do, head by head."""
    dim = len(rows) // heads
    order = [head * dim + half * dim // 2 + i for head in range(heads) for i in range(dim // 2) for half in (0, 1)]
    return rows[order]


def _name(name: str, inside: dict[str, str]) -> str:
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, _, layer, rest = name.split(".", 3)
    role, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{inside[role]}.{kind}"
