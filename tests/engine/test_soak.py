"""Thousands of random steps: everything that can happen to a request, at random, and each equals its solo result."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from engine.test_invariance import Case, random_cases
from execution.test_swap import shuffled
from headrace.engine.engine import Engine
from headrace.execution.compiled import compilations
from headrace.models.weights import DecoderWeights
from tiny import SMALL, SOLO, check_pages, run, tiny_engine, tiny_weights, tokens


class Soak:
    """An engine under random load, with two sets of weights that take turns."""

    def __init__(self, folder: Path, name: str, dtype: str, seed: int, drafts: int) -> None:
        self.rng = random.Random(seed)
        weights = tiny_weights(name, dtype)
        self.weights: list[DecoderWeights] = [weights, shuffled(weights)]
        self.current = 0
        geometry: dict[str, Any] = {**SMALL, "num_pages": 9, "dtype": dtype}
        config = {"max_queued_requests": 20, "speculative_tokens": drafts}
        self.engine: Engine = tiny_engine(folder, name, config=config, **geometry)
        self.engine.update_graphs(weights)
        self.cases = self._cases()
        self.got: dict[str, list[int]] = {}
        self.case_of: dict[str, int] = {}
        self.weights_of: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.counts = {"finished": 0, "aborted": 0, "swaps": 0, "hits": 0}
        self.solo: Callable[[int, int], list[int]] = cache(lambda case, w: self._solo(folder, name, dtype, case, w))

    def _cases(self) -> list[Case]:
        """Random requests, half of which begin with one of two prompts that others begin with too."""
        heads = [tuple(self.rng.randrange(3, 256) for _ in range(n)) for n in (16, 33)]
        cases = list(random_cases(seed=5, count=30))
        cases += [((*self.rng.choice(heads), *prompt)[:60], params) for prompt, params in cases]
        return cases

    def _solo(self, folder: Path, name: str, dtype: str, case: int, weights: int) -> list[int]:
        engine = tiny_engine(folder, name, config={"prefix_caching": False}, **{**SOLO, "dtype": dtype})
        engine.update_graphs(self.weights[weights])
        prompt, params = self.cases[case]
        return tokens(run(engine, [(prompt, params)])[0])

    def step(self) -> None:
        """One step, and now and then something else before it."""
        rng, engine = self.rng, self.engine
        # More arrive than can be served for a while, then fewer.
        busy = len(engine.scheduler.waiting) < 12 and rng.random() < 0.35
        if busy or not engine.has_unfinished:
            self._add()
        if rng.random() < 0.01 and engine.has_unfinished:
            victim = rng.choice([*engine.scheduler.running, *engine.scheduler.waiting]).request_id
            engine.abort(victim)
            self.aborted.add(victim)
            self._end(victim)
        if rng.random() < 0.004:
            self._swap()
        if rng.random() < 0.003:
            engine.reset_prefix_cache(recompute_running=False)
        if rng.random() < 0.002:
            self._take(engine.reset_prefix_cache(recompute_running=True))
        self._take(engine.step())

    def _add(self) -> None:
        request_id, case = f"r{len(self.got)}", self.rng.randrange(len(self.cases))
        prompt, params = self.cases[case]
        priority, salt = self.rng.choice([0, 0, 0, -1, 3]), self.rng.choice([None, None, None, "salt"])
        self.engine.add(request_id, prompt, replace(params, priority=priority), cache_salt=salt)
        self.got[request_id], self.case_of[request_id] = [], case

    def _swap(self) -> None:
        """Equal weights under running requests, or others once those have ended."""
        self.counts["swaps"] += 1
        if self.rng.random() < 0.5:
            self.engine.update_graphs(jax.tree.map(np.array, self.weights[self.current]))
            return
        self._take(self.engine.pause("wait"))
        self.current = 1 - self.current
        self.engine.update_graphs(self.weights[self.current])
        self.engine.resume()

    def _take(self, outputs: list[Any]) -> None:
        check_pages(self.engine)
        for request in self.engine.scheduler.running:
            self.weights_of.setdefault(request.request_id, self.current)
        for output in outputs:
            self.weights_of.setdefault(output.request_id, self.current)
            self.got[output.request_id] += tokens([output])
            if output.finish_reason is not None:
                self.counts["hits"] += output.num_cached_tokens
                self._end(output.request_id)

    def _end(self, request_id: str) -> None:
        got, case = self.got[request_id], self.case_of[request_id]
        expected = self.solo(case, self.weights_of[request_id]) if got else []
        if request_id in self.aborted:
            self.counts["aborted"] += 1
            assert got == expected[: len(got)]
        else:
            self.counts["finished"] += 1
            assert got == expected, f"{request_id}: {self.cases[case]}"

    def finish(self) -> None:
        """Until nothing is left."""
        while self.engine.has_unfinished:
            self._take(self.engine.step())
        assert self.engine.pool.num_available == self.engine.pool.num_pages


def soak(folder: Path, name: str, dtype: str, steps: int, drafts: int = 0) -> None:
    load = Soak(folder, name, dtype, steps, drafts)
    for case in range(len(load.cases)):
        for weights in (0, 1):
            load.solo(case, weights)
    load.engine.update_graphs(load.weights[0])
    compiled = compilations()
    try:
        for _ in range(steps):
            load.step()
        load.finish()
    finally:
        load.engine.update_graphs(load.weights[0])
    assert load.engine.manager.compilations_while_serving == 0
    assert load.counts["finished"] > steps / 20
    assert load.counts["aborted"] > 0
    assert load.counts["swaps"] > 0
    assert load.counts["hits"] > 0
    assert load.engine.scheduler.num_preemptions > 0
    assert load.engine.pool.num_evictions > 0
    assert (load.engine.metrics.counters.accepted_tokens > steps / 200) == (drafts > 0)
    print(
        f"{name} {dtype}: {steps} steps, {load.counts}, {load.engine.scheduler.num_preemptions} preemptions, "
        f"{load.engine.pool.num_evictions} pages evicted, {compilations() - compiled} compilations"
    )


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_thousand_random_steps(tiny_folder: Path, drafts: int) -> None:
    soak(tiny_folder, "llama2", "float32", 1000, drafts)


@pytest.mark.soak
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama2", "mistral_window", "gemma3"])
def test_ten_thousand_random_steps(tiny_folder: Path, name: str, dtype: str, drafts: int) -> None:
    soak(tiny_folder, name, dtype, 10_000, drafts)
