"""X7: weights swapped under running sequences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import golden
from execution.steps import Driver
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.errors import StepError
from headrace.execution.compiled import compilations
from headrace.execution.manager import ExecutionManager
from headrace.layers.linear import DenseWeight
from headrace.models.weights import DecoderWeights
from headrace.sampling.params import SamplingParams
from headrace.text.tokenizer import Tokenizer
from tiny import SMALL, run, tiny_manager, tiny_weights, tokens

# Two checkpoints of one shape: the golden one, and one whose matrices are shuffled.
GOLDEN = golden.load("llama2")
A = tiny_weights("llama2", "float32")


def shuffled(weights: DecoderWeights) -> DecoderWeights:
    rng = np.random.default_rng(0)

    def shuffle(leaf: jax.Array) -> jax.Array:
        # Matrices, which may be packed: all that is larger than a vector.
        return jnp.asarray(rng.permuted(np.asarray(leaf), axis=-1)) if leaf.size > 1024 else leaf

    return jax.tree.map(shuffle, weights)


B = shuffled(A)


@pytest.fixture
def manager() -> ExecutionManager:
    manager = tiny_manager("llama2", **SMALL)
    manager.update_graphs(A)
    return manager


def continued(manager: ExecutionManager, after: int, total: int) -> list[int]:
    """Greedy tokens of the second golden prompt: so many with A, the rest with B on the same cache."""
    driver = Driver(manager)
    driver.add(0, GOLDEN.prompts[1])
    driver.generate(0, after)
    if after < total:
        manager.update_graphs(B)
        driver.generate(0, total - after)
    manager.update_graphs(A)
    return driver.ids[0][len(GOLDEN.prompts[1]) :]


def test_x7_fault_19_tokens_after_a_swap_are_the_new_weights_on_the_old_cache(
    manager: ExecutionManager,
) -> None:
    compiled = compilations()
    got = continued(manager, 5, 12)
    assert compilations() == compiled
    assert got[:5] == GOLDEN.continuations[1][:5]
    assert got[5:] != GOLDEN.continuations[1][5:12]

    # The same by another way: a manager that has only ever had B, given the device state that A left.
    left, right = Driver(manager), tiny_manager("llama2", weights=B, **SMALL)
    manager.reset_state()
    left.add(0, GOLDEN.prompts[1])
    left.generate(0, 5)
    right._state = jax.tree.map(jnp.copy, manager._state)
    right.sequences.token_ids[:] = manager.sequences.token_ids
    right.sequences.prompt_lens[:] = manager.sequences.prompt_lens
    right.sequences.device_position[:] = manager.sequences.device_position
    left.manager = right
    left.generate(0, 7)
    assert got == left.ids[0][len(GOLDEN.prompts[1]) :]


def test_x7_requests_in_flight_go_on_with_the_new_weights(manager: ExecutionManager, tiny_folder: Path) -> None:
    engine = Engine(EngineConfig(model="x"), Tokenizer.from_folder(tiny_folder), manager)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    prompts = [[5 + i] * (3 + i) for i in range(3)]
    only_a = [tokens(o) for o in run(engine, [(p, params) for p in prompts])]
    for i, prompt in enumerate(prompts):
        engine.add(str(i), prompt, params)
    compiled, got = compilations(), {str(i): [] for i in range(3)}
    for step in range(100):
        if step == 8:
            manager.update_graphs(B)
        for output in engine.step():
            got[output.request_id] += tokens([output])
    assert compilations() == compiled
    assert not engine.has_unfinished
    for mixed, pure in zip(got.values(), only_a, strict=True):
        assert len(mixed) == 20
        assert mixed[:8] == pure[:8]
        assert mixed != pure


def test_parts_may_be_swapped_alone_and_come_from_numpy(manager: ExecutionManager) -> None:
    as_numpy = jax.tree.map(np.asarray, B)
    manager.update_graphs(graphstate=replace(as_numpy, inv_freqs=()))
    assert manager._weights.inv_freqs[0] is not None
    np.testing.assert_array_equal(manager._weights.inv_freqs[0], A.inv_freqs[0])
    np.testing.assert_array_equal(manager._weights.embedding.array, B.embedding.array)
    manager.update_graphs(graphother=(np.asarray(A.inv_freqs[0]) * np.float32(2),), graphdef=manager.spec)
    np.testing.assert_array_equal(manager._weights.inv_freqs[0], A.inv_freqs[0] * 2)
    manager.update_graphs(A)


def test_the_callers_arrays_stay_the_callers(manager: ExecutionManager) -> None:
    mine = jax.tree.map(np.array, A)
    manager.update_graphs(mine)
    mine.embedding.array[:] = 0
    np.testing.assert_array_equal(manager._weights.embedding.array, A.embedding.array)
    given = jax.tree.map(jnp.copy, A)
    manager.update_graphs(given)
    given.embedding.array.delete()  # as a training step does that is given its weights to reuse
    np.testing.assert_array_equal(manager._weights.embedding.array, A.embedding.array)


def with_layer(index: int, **changes: Any) -> DecoderWeights:
    layers = list(A.layers)
    layers[index] = replace(layers[index], **changes)
    return replace(A, layers=tuple(layers))


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (
            with_layer(1, o=DenseWeight(jnp.zeros((64, 63)))),
            r"layers\[1\]\.o\.array is float32\[64, 63\], compiled for",
        ),
        (
            with_layer(0, attn_norm=jnp.ones(64, jnp.bfloat16)),
            r"layers\[0\]\.attn_norm is bfloat16\[64\], compiled for",
        ),
        (with_layer(1, q_norm=jnp.ones(16)), r"layers\[1\]\.q_norm is not in the model"),
        (replace(A, head=None), r"head\.array is missing"),
        (replace(A, layers=A.layers[:1]), r"layers\[1\]\.attn_norm is missing"),
        (replace(A, final_norm=1.0), r"final_norm is a float, not an array, compiled for float32\[64\]"),
    ],
)
def test_a_mismatch_names_the_first_leaf_and_changes_nothing(
    manager: ExecutionManager, new: DecoderWeights, message: str
) -> None:
    before = manager._weights
    with pytest.raises(StepError, match=message):
        manager.update_graphs(new)
    assert manager._weights is before


def test_another_structure_is_refused_and_no_argument_is_an_error(manager: ExecutionManager) -> None:
    with pytest.raises(StepError, match=r"graphdef\.norm_eps is 0\.5, the compiled steps have 1e-05"):
        manager.update_graphs(graphdef=replace(manager.spec, norm_eps=0.5))
    with pytest.raises(ValueError, match="give model, graphdef, graphstate or graphother"):
        manager.update_graphs()
    with pytest.raises(ValueError, match="give one or the others"):
        manager.update_graphs(A, graphstate=A)
