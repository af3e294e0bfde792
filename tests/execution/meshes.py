"""Managers of small random models on meshes of devices that are made of one CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp

from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.models.sharding import make_mesh
from headrace.weights.load import load_weights, open_checkpoint

# In each rank: two requests, one compiled step of 8 tokens, 13 pages of 16 tokens. 13 is in no size of the models.
SEQS, PAGES, LENGTH = 2, 13, 96

# Changes to the configurations of golden sets, so that up to eight devices can share the heads.
MODELS: dict[str, dict[str, Any]] = {
    "llama3": {"num_attention_heads": 8, "head_dim": 16, "tie_word_embeddings": False},  # 2 key/value heads
    "qwen2": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 250},
}


def new_manager(
    path: Path, data_parallel: int, tensor_parallel: int, weights_dtype: str | None = None
) -> ExecutionManager:
    """A compiled manager, float32, that compares the arguments of each step with what it was compiled for."""
    checkpoint, mesh = open_checkpoint(path), make_mesh(data_parallel, tensor_parallel)
    options = ExecutionOptions(
        dtype=jnp.dtype("float32"),
        num_pages=PAGES,
        page_size=16,
        max_model_len=LENGTH,
        max_num_seqs=SEQS,
        max_num_batched_tokens=8,
        vocab_limit=249,
        compile_guard="raise",
        debug=True,
    )
    weights = load_weights(checkpoint, options.dtype, weights_dtype, mesh)
    manager = ExecutionManager(checkpoint.spec, weights, options, mesh)
    manager.compile([8], [SEQS])
    return manager
