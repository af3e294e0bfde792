"""What a step is said to read and compute, against the model's file and a loop over positions."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file

import golden
from headrace import native
from headrace.benchmark.machine import Machine, Rate
from headrace.benchmark.work import Counted, Limit, Row, Work
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.weights.load import load_weights, open_checkpoint
from models import block_models
from tiny import SMALL, tiny_weights

TOKENS = 7
FLOAT32 = jnp.dtype(jnp.float32)


def keys_seen(row: Row, window: int | None) -> int:
    """Pairs of a new token and a key that it sees, one by one."""
    positions = range(row.cached, row.cached + row.new)
    return sum(1 for p in positions for key in range(p + 1) if window is None or p - key < window)


def cached_seen(row: Row, window: int | None) -> int:
    """Cached tokens that some new token sees."""
    positions = range(row.cached, row.cached + row.new)
    return len({k for p in positions for k in range(row.cached) if window is None or p - k < window})


@pytest.mark.parametrize("name", ["llama3", "gemma3"])
def test_a_step_reads_each_matrix_once_and_the_pages_that_it_sees(name: str) -> None:
    options = ExecutionOptions(vocab_limit=256, **{**SMALL, "dtype": FLOAT32})
    manager = ExecutionManager(open_checkpoint(golden.ROOT / name).spec, tiny_weights(name, "float32"), options)
    counted = Counted.of(manager)  # nothing needs to be compiled
    config = json.loads((golden.ROOT / name / "config.json").read_text())
    tensors = load_file(golden.ROOT / name / "model.safetensors")
    layers = [t for key, t in tensors.items() if t.ndim == 2 and ".layers." in key]
    head = tensors["model.embed_tokens.weight"]  # tied in both
    window = config.get("sliding_window")
    windows = [window if kind == "sliding_attention" else None for kind in config.get("layer_types", [""] * 2)]
    # Around the window of 16, and chunks that begin before and after it is full.
    rows = [Row(n) for n in (0, 1, 14, 15, 16, 17, 40)] + [Row(0, 5), Row(0, 16), Row(0, 17), Row(10, 20), Row(30, 9)]
    for chosen in [[row] for row in rows] + [rows]:
        work = counted.step(chosen, 3)
        assert work.weight_bytes == 4 * (sum(t.size for t in layers) + head.size)  # float32
        pages = sum(cached_seen(row, w) + row.new for row in chosen for w in windows)
        padded = -(-config["head_dim"] // 32) * 32 if native.available() else config["head_dim"]
        assert work.page_bytes == pages * config["num_key_value_heads"] * padded * 2 * 4  # key and value, float32
        seen = sum(keys_seen(row, w) for row in chosen for w in windows)
        products = sum(row.new for row in chosen) * sum(t.size for t in layers) + 3 * head.size
        attention = 2 * config["num_attention_heads"] * config["head_dim"] * seen
        assert sum(work.operations.values()) == products + attention
    without_head = counted.step(rows, 0)
    assert work.weight_bytes - without_head.weight_bytes == 4 * head.size


@pytest.mark.skipif(not native.available(), reason="the native kernels are absent")
def test_packed_matrices_count_as_what_the_file_has_and_by_the_instructions_that_multiply_them(tmp_path: Path) -> None:
    path = block_models.write(tmp_path / "blocks")
    checkpoint = open_checkpoint(path)
    weights = load_weights(checkpoint, jnp.dtype(jnp.bfloat16), "gguf", native=True)
    work = Counted(checkpoint.spec, weights, 1, "attention").step([Row(0, TOKENS)], 1)
    size, operations = 0, {"int8": 0, "float32": 0}
    for tensor in GGUFReader(path).tensors:
        if len(tensor.shape) == 2 and tensor.name != "token_embd.weight":
            size += int(tensor.n_bytes)
            kind = "float32" if tensor.tensor_type.name in ("F16", "BF16") else "int8"
            operations[kind] += int(tensor.n_elements) * (1 if tensor.name == "output.weight" else TOKENS)
    assert size <= work.weight_bytes < 1.05 * size  # scales of some formats are a little longer
    seen = len(block_models.TYPES) * TOKENS * (TOKENS + 1) // 2
    assert work.operations == {**operations, "attention": 2 * block_models.HEADS * block_models.DIM * seen}


def test_the_limit_is_the_longer_of_reading_and_computing() -> None:
    rates = {"int8": Rate(5.0, 10.0), "float32": Rate(None, 2.0)}
    machine = Machine(2, None, "avx512", Rate(50.0, 100.0), rates)
    reading = Limit.of(Work(300, 100, {"int8": 20, "float32": 2}), machine)
    assert (reading.memory_s, reading.arithmetic_s, reading.seconds) == (4.0, 3.0, 4.0)
    computing = Limit.of(Work(300, 100, {"int8": 20}) + Work(0, 0, {"float32": 6}), machine)
    assert (computing.memory_s, computing.arithmetic_s, computing.seconds) == (4.0, 5.0, 5.0)
