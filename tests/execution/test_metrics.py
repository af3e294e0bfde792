"""X13: step metrics and counters, and the transfers that they count."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
import pytest

from execution.steps import GEOMETRY, ONE
from headrace.benchmark.device import profiled
from headrace.benchmark.workload import run_steps
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.execution.histogram import Histogram
from headrace.execution.metrics import PHASES, StepCounters, StepMetrics, StepTimes
from headrace.sampling.params import SamplingParams
from headrace.text.tokenizer import Tokenizer
from tiny import SMALL, FailsOnce, run, tiny_engine, tiny_manager


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def steps_of(engine: Engine) -> list[StepMetrics]:
    """Runs what is queued to its end."""
    steps = []
    while engine.has_unfinished:
        last = engine.last_step
        engine.step()
        if engine.last_step is not None and engine.last_step is not last:
            steps.append(engine.last_step)
    return steps


@pytest.mark.parametrize("overlap", [True, False])
def test_x13_a_steps_metrics_follow_from_its_schedule(tiny_folder: Path, overlap: bool) -> None:
    engine = tiny_engine(tiny_folder, **SMALL, config={"overlap": overlap})
    engine.add("a", [5] * 40, greedy(4))  # 32 tokens per step: a chunk of 32, then the other 8
    engine.add("b", [6] * 3, greedy(3))
    steps = steps_of(engine)
    # (tokens, requests) of the bucket, rows, tokens, sampled, padding
    assert [(s.bucket, s.rows, s.tokens, s.sampled, s.padding) for s in steps] == [
        ((32, 4), 1, 32, 0, 0),
        ((32, 4), 2, 11, 2, 21),
        ((8, 2), 2, 2, 2, 6),
        ((8, 2), 2, 2, 2, 6),
        ((8, 2), 1, 1, 1, 7),
    ]
    assert [s.is_decode for s in steps] == [False, False, True, True, True]


def test_x13_the_phases_of_a_step_follow_one_another(tiny_folder: Path) -> None:
    for overlap in (True, False):
        engine = tiny_engine(tiny_folder, **SMALL, config={"overlap": overlap})
        engine.add("a", [5] * 5, greedy(8))
        steps = steps_of(engine)
        for step in steps:
            assert list(step.times) == sorted(step.times)
            assert list(step.seconds) == list(PHASES)
            # All but what lies between dispatch and the reading of the tokens.
            between = step.times.reading - step.times.dispatched
            assert sum(step.seconds.values()) + between == pytest.approx(step.times.committed - step.times.start)
        for one, other in pairwise(steps):
            # With overlap a step is launched before the tokens of the last are read.
            assert (other.times.dispatched < one.times.reading) is overlap


def test_x13_counters_are_the_sums_of_the_steps(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **SMALL)
    assert engine.metrics.last_step is None
    assert engine.metrics.counters.steps == 0
    for i, length in enumerate((3, 40, 17, 30, 8)):
        engine.add(str(i), [7] * length, greedy(10))
    steps, metrics = steps_of(engine), engine.metrics
    counters = metrics.counters
    assert metrics.last_step is steps[-1]
    assert counters.steps == len(steps)
    assert counters.tokens_computed == sum(s.tokens for s in steps)
    assert counters.tokens_sampled == sum(s.sampled for s in steps) >= 5 * 10
    assert counters.padded_tokens == sum(s.bucket[0] - s.tokens for s in steps)
    assert counters.steps_by_bucket == Counter(s.bucket for s in steps)
    for name in ("h2d_transfers", "h2d_bytes", "d2h_transfers", "d2h_bytes"):
        assert getattr(counters, name) == sum(getattr(s, name) for s in steps)
    assert counters.seconds == pytest.approx({name: sum(s.seconds[name] for s in steps) for name in PHASES})
    assert (metrics.waiting, metrics.running, metrics.compilations) == (0, 0, 0)
    assert metrics.free_pages == metrics.pages == 12
    run(engine, [([5] * 3, greedy(2))])
    assert counters.steps == len(steps), "a copy does not move on"
    assert engine.metrics.counters.steps > len(steps)


def test_x13_preemptions_and_what_waits_are_in_the_metrics(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **SMALL)
    for i in range(5):
        engine.add(str(i), [7 + i] * 30, greedy(30))  # 5 x 4 pages, of which there are 12; 4 slots
    most = 0
    while engine.has_unfinished:
        engine.step()
        metrics = engine.metrics
        most = max(most, metrics.waiting)
        assert metrics.waiting + metrics.running == len(engine._requests)
        assert metrics.free_pages == engine.pool.num_available
    assert most > 1
    assert engine.metrics.preemptions == engine.scheduler.num_preemptions > 0
    computed_anew = engine.metrics.counters.tokens_computed - 5 * (30 + 30 - 1)
    assert computed_anew > 0


def test_x13_tokens_found_in_the_prefix_cache_are_in_the_metrics_and_are_not_computed(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **SMALL)
    for _ in range(2):
        run(engine, [([5] * 40, greedy(1))])
    metrics = engine.metrics
    # Two full pages of 16 tokens are known the second time.
    assert (metrics.prefix_queried_tokens, metrics.prefix_hit_tokens) == (80, 32)
    assert metrics.counters.tokens_computed == 40 + 8


def test_x13_a_step_that_failed_is_not_counted(tiny_folder: Path) -> None:
    manager = FailsOnce(tiny_manager(**SMALL), 3, RuntimeError("device lost"))
    engine = Engine(EngineConfig(model="x"), Tokenizer.from_folder(tiny_folder), manager)  # type: ignore[arg-type]
    engine.add("a", [5] * 5, greedy(6))
    engine.step()
    engine.step()
    with pytest.raises(RuntimeError, match="device lost"):
        engine.step()
    before = engine.metrics.counters
    assert before.steps == 1
    steps = steps_of(engine)
    assert engine.metrics.counters.steps == 1 + len(steps)
    assert engine.metrics.counters.tokens_sampled == 6


def test_x13_a_step_moves_one_array_in_and_one_out_and_the_profiler_sees_no_more(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **SMALL)
    prompts = [[5] * 5, [6] * 9]
    with jax.transfer_guard("disallow"):
        steps, profile = profiled(lambda: run_steps(engine, prompts, 9))
    for step in steps:
        layout = engine.manager._batches[step.bucket].layout
        assert (step.h2d_transfers, step.h2d_bytes) == (1, 4 * layout.size)
        assert (step.d2h_transfers, step.d2h_bytes) == (1, 4 * step.bucket[1])
    assert profile.h2d_transfers == profile.d2h_transfers == len(steps) == 9
    assert len(profile.runs_of(9)) == 9  # one program each


def test_x13_the_guard_refuses_an_array_of_the_host_in_a_compiled_step() -> None:
    manager = tiny_manager(**GEOMETRY)
    bucket, step = manager._step_for(8, 2)
    packed = np.zeros(manager._batches[bucket].layout.size, np.int32)
    spare = manager._spare_logits.take(bucket[1]) if manager._spare_logits is not None else None
    with (
        jax.transfer_guard("disallow"),
        pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"),
    ):
        step(manager._weights, manager._state, packed, manager._no_constraints[2], spare)
    manager.reset_state()


def test_x13_without_jaxs_short_way_to_the_device_the_long_one_is_taken(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = run(tiny_engine(tiny_folder, **SMALL), [([5] * 5, greedy(5))])
    monkeypatch.setattr("headrace.execution.transfer._put", None)
    engine = tiny_engine(tiny_folder, **SMALL)
    with jax.transfer_guard("disallow"):
        assert run(engine, [([5] * 5, greedy(5))])[0][-1].text == want[0][-1].text
    assert engine.last_step is not None
    assert engine.last_step.h2d_transfers == 1


def test_x13_what_a_step_moves_does_not_grow_with_max_model_len(tiny_folder: Path) -> None:
    def moved(max_model_len: int) -> Any:
        geometry = {**ONE, "max_model_len": max_model_len}
        engine = tiny_engine(tiny_folder, **geometry)
        engine.add("a", [5] * 20, greedy(10))
        return [(s.bucket, s.h2d_bytes, s.d2h_bytes) for s in steps_of(engine)]

    assert moved(8 * 1024) == moved(128 * 1024)


def step_at(*times: float, tokens: int = 1) -> StepMetrics:
    return StepMetrics((8, 2), 1, tokens, 1, StepTimes(*times), 1, 4, 1, 4)


def test_x13_the_time_of_a_step_and_of_an_idle_device_are_told_from_having_nothing_to_do() -> None:
    counters = StepCounters()
    #                     start scheduled prepared dispatched reading read committed
    counters.add(step_at(100.0, 100.1, 100.25, 100.3, 100.3, 101.0, 101.5))  # waits for schedule and prepare
    assert (counters.idle_seconds, counters.step_seconds.total) == (0.25, 1.5)
    counters.add(step_at(101.5, 101.6, 101.75, 101.8, 101.8, 102.0, 102.25))  # 0.5 of commit, 0.25 as before
    assert (counters.idle_seconds, counters.step_seconds.total) == (1.0, 2.25)
    counters.add(step_at(110.0, 110.1, 110.25, 110.3, 110.3, 111.0, 111.0))  # 7.75 s without a request do not count
    assert (counters.idle_seconds, counters.step_seconds.total) == (1.5, 3.25)
    counters.add(step_at(110.5, 110.6, 110.75, 110.8, 111.0, 112.0, 112.0, tokens=9))  # launched during the last one
    assert (counters.idle_seconds, counters.step_seconds.total) == (1.5, 4.25)
    assert sum(counters.step_seconds.counts) == counters.steps == 4
    assert counters.step_tokens.counts[:4] == [3, 0, 1, 0]  # 1, 1, 1 and 9, of at most 1, 8, 16 and 32


def test_x13_a_value_is_counted_in_the_first_range_that_holds_it() -> None:
    histogram = Histogram((1, 8))
    for value in (0, 1, 1.5, 8, 8.5):
        histogram.observe(value)
    copy = histogram.copy()
    histogram.observe(1)
    assert (copy.counts, copy.total) == ([2, 2, 1], 19.0)
    assert (histogram.counts, histogram.total) == ([3, 2, 1], 20.0)


def test_x13_an_output_says_when_its_request_got_a_slot(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **{**SMALL, "max_num_seqs": 1})
    engine.add("a", [5] * 5, greedy(3))
    engine.add("b", [6] * 5, greedy(3))
    before, seen = perf_counter(), {}
    while engine.has_unfinished:
        for output in engine.step():
            assert output.scheduled == seen.setdefault(output.request_id, output.scheduled)
            if output.request_id == "a":
                ended = perf_counter()
    assert before < seen["a"] < ended
    assert seen["a"] < seen["b"] < perf_counter(), "there is one slot"
