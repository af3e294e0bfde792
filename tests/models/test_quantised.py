"""X10: a model with quantised weights computes what the same weights compute as plain numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import golden
from execution.steps import Driver
from headrace.errors import ConfigError
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.layers.blocks import BlockWeight
from headrace.layers.fused import FusedWeight
from headrace.layers.int8 import Int8Weight
from headrace.layers.linear import DenseWeight
from headrace.weights.load import _CHUNK_ELEMENTS, load_weights, open_checkpoint
from models import block_models
from models.runs import all_logits

FLOAT32 = jnp.dtype(jnp.float32)
SEQUENCES = [[int(t) for t in np.random.default_rng(i).integers(0, 256, n)] for i, n in enumerate((70, 33, 5))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return block_models.write(tmp_path_factory.mktemp("blocks"))


def test_x10_blocks_of_mixed_formats_give_the_logits_of_their_values(path: Path) -> None:
    opened = open_checkpoint(path)
    dense, blocks = (load_weights(opened, FLOAT32, form) for form in (None, "gguf"))
    expected = all_logits(opened.spec, dense, SEQUENCES)
    for got, want in zip(all_logits(opened.spec, blocks, SEQUENCES), expected, strict=True):
        assert np.std(want) > 0.1
        np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def test_x10_blocks_are_kept_as_they_are_in_the_file(path: Path) -> None:
    opened = open_checkpoint(path)
    weights = load_weights(opened, jnp.dtype(jnp.bfloat16), "gguf")
    first, second = weights.layers
    assert isinstance(first.qkv, FusedWeight)
    assert [part.format for part in first.qkv.parts] == ["Q4_K", "Q4_K", "Q6_K"]
    assert isinstance(first.gate_up, BlockWeight)
    assert first.gate_up.format == "Q4_1"
    assert isinstance(second.qkv, BlockWeight)
    assert isinstance(second.gate_up, FusedWeight)
    assert [type(part) for part in second.gate_up.parts] == [BlockWeight, DenseWeight]
    assert isinstance(second.o, DenseWeight)
    # Not a byte more than the blocks of the file, and rows first in every array.
    plain = ("F32", "F16", "BF16")
    in_blocks = [name for name, info in opened.file.tensors.items() if info.dtype not in plain]
    matrices = [leaf for leaf in jax.tree.leaves(weights) if leaf.ndim == 2 and leaf.dtype != jnp.bfloat16]
    assert sum(leaf.nbytes for leaf in matrices) == sum(opened.file.read_stored(name).nbytes for name in in_blocks)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(first.down)} == {block_models.HIDDEN}


def in_plain_numbers(leaf: Any) -> Any:
    """What a leaf of int8 stands for, as a dense one."""
    if not isinstance(leaf, Int8Weight):
        return leaf
    return DenseWeight(jnp.asarray(np.asarray(leaf.array, np.float32) * np.asarray(leaf.scale)[:, None]))


@pytest.mark.parametrize("name", ["llama2", "gemma3", "blocks"])
def test_x10_int8_gives_the_logits_of_the_rounded_weights(name: str, path: Path) -> None:
    opened = open_checkpoint(path if name == "blocks" else golden.ROOT / name)
    dense, int8 = (load_weights(opened, FLOAT32, form) for form in (None, "int8"))
    rounded = jax.tree.map(in_plain_numbers, int8, is_leaf=lambda leaf: isinstance(leaf, Int8Weight))
    matrices = [pair for pair in zip(*map(jax.tree.leaves, (dense, rounded)), strict=True) if pair[0].ndim == 2]
    assert len(matrices) == 4 * opened.spec.num_layers + 1 + (not opened.spec.tied_head)
    for exact, near in (map(np.asarray, pair) for pair in matrices):
        steps = np.abs(exact).max(1, keepdims=True) / 127
        assert (np.abs(near - exact) <= 0.501 * steps).all()
    expected = all_logits(opened.spec, rounded, SEQUENCES)
    for got, want in zip(all_logits(opened.spec, int8, SEQUENCES), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def test_x10_int8_of_a_matrix_that_is_read_in_pieces(smollm2_path: Path) -> None:
    opened = open_checkpoint(smollm2_path)
    embedding: Any = load_weights(opened, FLOAT32, "int8").embedding
    exact = opened.file.read("token_embd.weight")
    assert exact.size > 6 * _CHUNK_ELEMENTS
    exact -= np.asarray(embedding.array, np.float32) * np.asarray(embedding.scale)[:, None]
    assert (np.abs(exact).max(1) <= 0.501 * np.asarray(embedding.scale)).all()


def test_x10_the_weights_dtype_may_differ_from_that_of_the_products() -> None:
    opened = open_checkpoint(golden.ROOT / "llama3")
    weights = load_weights(opened, FLOAT32, "bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(weights) if leaf.ndim == 2} == {jnp.dtype(jnp.bfloat16)}
    assert {leaf.dtype for leaf in jax.tree.leaves(weights) if leaf.ndim == 1} == {FLOAT32}


def test_x10_blocks_of_a_model_without_any_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^weights_dtype: 'gguf' keeps the blocks of a GGUF file, and .* is none"):
        load_weights(open_checkpoint(golden.ROOT / "llama3"), FLOAT32, "gguf")


def test_x10_a_real_model_in_blocks_says_what_its_dequantised_weights_say(smollm2_path: Path) -> None:
    opened = open_checkpoint(smollm2_path)
    options: dict[str, Any] = {"page_size": 16, "num_pages": 8, "max_model_len": 128, "max_num_seqs": 1}
    options |= {"max_num_batched_tokens": 8, "dtype": FLOAT32, "vocab_limit": opened.spec.vocab_size}
    weights = load_weights(opened, FLOAT32, "gguf")
    manager = ExecutionManager(opened.spec, weights, ExecutionOptions(**options))
    manager.compile()
    for prompt in golden.facts("smollm2")["prompts"][:1]:
        driver = Driver(manager)
        driver.add(0, prompt["ids"], pages=range(8))
        assert driver.generate(0, len(prompt["continuation"]), chunk=8) == prompt["continuation"], prompt["name"]
