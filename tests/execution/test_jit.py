"""X2: steps compiled at their first use give what steps compiled ahead of time give."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import pytest

import golden
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.errors import StepError
from headrace.execution.manager import ExecutionManager
from headrace.sampling.params import SamplingParams
from headrace.text.tokenizer import Tokenizer
from tiny import SMALL, run, tiny_manager, tiny_weights, tokens

DATA = golden.load("llama2")
CASES = [
    (DATA.prompts[0], SamplingParams(temperature=0, max_tokens=12)),
    (DATA.prompts[1], SamplingParams(temperature=0, max_tokens=9)),
]


def engine_over(manager: ExecutionManager, folder: Path) -> Engine:
    return Engine(EngineConfig(model="x"), Tokenizer.from_folder(folder), manager)


def test_x2_the_same_tokens_compiled_at_first_use(tiny_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = tiny_manager("llama2", **SMALL, use_aot_forward=False)
    assert manager.buckets == [], "nothing is compiled before it is used"
    with caplog.at_level(logging.WARNING):
        outputs = run(engine_over(manager, tiny_folder), CASES)
    for i, got in enumerate(outputs):
        assert tokens(got) == DATA.continuations[i][: CASES[i][1].max_tokens]
    used = manager.buckets
    assert len(caplog.records) == len(used) == manager.cache_stats.misses > 1
    assert all("while serving" in record.message for record in caplog.records)

    hits = manager.cache_stats.hits
    again = run(engine_over(manager, tiny_folder), CASES)
    assert [tokens(o) for o in again] == [tokens(o) for o in outputs]
    assert manager.buckets == used
    assert manager.cache_stats.misses == len(used)
    assert manager.cache_stats.hits > hits


def test_the_guard_counts_or_refuses_a_compilation_in_a_step_compiled_ahead(tiny_folder: Path) -> None:
    for guard in ("off", "count", "raise"):
        manager = tiny_manager("llama2", weights=tiny_weights("llama2", "float32"), **SMALL, compile_guard=guard)
        bucket = manager.buckets[0]
        ahead = manager._compiled.find(bucket)
        assert ahead is not None

        def traces(weights: Any, state: Any, packed: Any, constraints: Any, spare: Any, ahead: Any = ahead) -> Any:
            jax.jit(lambda x: x + 1).lower(packed).compile()
            return ahead(weights, state, packed, constraints, spare)

        manager._compiled.put(bucket, traces)
        engine = engine_over(manager, tiny_folder)
        engine.add("a", [5, 6, 7], CASES[0][1])
        if guard == "raise":
            with pytest.raises(StepError, match="a step of 8 tokens x 2 requests compiled 1 programs"):
                engine.step()
        else:
            engine.step()
        assert manager.compilations_while_serving == (guard != "off")


def test_a_step_that_was_evicted_is_compiled_again(tiny_folder: Path) -> None:
    manager = tiny_manager("llama2", **SMALL, use_aot_forward=False, max_compiled_variants=1)
    outputs = run(engine_over(manager, tiny_folder), CASES[:1] * 2)
    for got in outputs:
        assert tokens(got) == DATA.continuations[0][:12]
    assert len(manager.buckets) == 1
    assert manager.cache_stats.evictions == manager.cache_stats.misses - 1 > 0
