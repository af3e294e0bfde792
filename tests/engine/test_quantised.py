"""X10: requests on quantised weights, which nothing above the layers knows about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.test_invariance import random_cases
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.errors import StepError
from headrace.execution.compiled import compilations
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.execution.swap import place_like
from headrace.models.weights import DecoderWeights
from headrace.text.tokenizer import Tokenizer
from headrace.weights.load import load_weights, open_checkpoint
from models import block_models
from tiny import SMALL, run, tokens

BFLOAT16 = jnp.dtype(jnp.bfloat16)


@dataclass(frozen=True)
class Model:
    folder: Path
    weights: DecoderWeights
    manager: ExecutionManager

    def engine(self) -> Engine:
        self.manager.reset_state()
        return Engine(EngineConfig(model="x", seed=0), Tokenizer.from_folder(self.folder), self.manager)


@pytest.fixture(scope="module", params=["int8", "gguf"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Model:
    opened = open_checkpoint(block_models.write(tmp_path_factory.mktemp("blocks")))
    weights = load_weights(opened, BFLOAT16, request.param)

    sizes = {**SMALL, "num_pages": 6, "dtype": BFLOAT16, "vocab_limit": 256, "compile_guard": "raise"}
    manager = ExecutionManager(opened.spec, weights, ExecutionOptions(**sizes))
    manager.compile([sizes["max_num_batched_tokens"]], [sizes["max_num_seqs"]])
    return Model(tiny_folder, weights, manager)


def test_x10_company_does_not_change_a_requests_tokens(model: Model) -> None:
    cases = list(random_cases(seed=10, count=24))
    engine, compiled = model.engine(), compilations()
    crowded = [tokens(outputs) for outputs in run(engine, cases)]
    assert engine.scheduler.num_preemptions > 0
    assert compilations() == compiled
    for case, got in zip(cases, crowded, strict=True):
        [alone] = run(model.engine(), [case])
        assert got == tokens(alone), case


def shuffled(weights: DecoderWeights) -> DecoderWeights:
    """The same kind of model with other contents: every column of every array in another order."""
    order = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: order.permuted(np.asarray(leaf), axis=0) if leaf.ndim == 2 else leaf, weights)


def test_x10_weights_are_swapped_for_others_of_the_same_kind(model: Model) -> None:
    [case] = random_cases(seed=4, count=1)
    before = run(model.engine(), [case])
    engine, compiled = model.engine(), compilations()
    model.manager.update_graphs(shuffled(model.weights))
    try:
        other = run(engine, [case])
        model.manager.update_graphs(model.weights)
        again = run(model.engine(), [case])
    finally:
        model.manager.update_graphs(model.weights)
    assert tokens(other[0]) != tokens(before[0])
    assert tokens(again[0]) == tokens(before[0])
    assert compilations() == compiled


def with_down(weights: DecoderWeights, down: Any) -> DecoderWeights:
    layers = list(weights.layers)
    layers[1] = replace(layers[1], down=down)
    return replace(weights, layers=tuple(layers))


def test_x10_another_kind_of_weight_is_refused_by_name(tmp_path: Path) -> None:
    opened = open_checkpoint(block_models.write(tmp_path))
    dense, int8, blocks = (load_weights(opened, BFLOAT16, form) for form in (None, "int8", "gguf"))
    down = blocks.layers[1].down
    dense_down, int8_down = (weights.layers[1].down for weights in (dense, int8))
    for old, new, message in [
        (dense, int8_down, r"down\.array is int8\[256, 512\], compiled for bfloat16\[256, 512\]"),
        (int8, dense_down, r"down\.array is bfloat16\[256, 512\], compiled for int8\[256, 512\]"),
        (dense, down, r"down\.array is missing"),
        (blocks, blocks.layers[0].down, r"down\.fields\['scale'\] is float16\[256, 2\], compiled for"),
        # Arrays of the same form with another meaning.
        (blocks, replace(down, dtype=jnp.dtype(jnp.float32)), r"down is .*float32.*, compiled for .*bfloat16"),
    ]:
        message = r"^layers\[1\]\." + message
        with pytest.raises(StepError, match=message):
            place_like(old, with_down(old, new))
    same = place_like(blocks, with_down(blocks, replace(down, fields=jax.tree.map(jnp.zeros_like, down.fields))))
    assert not np.asarray(same.layers[1].down.fields["quants"]).any()
