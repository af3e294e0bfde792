"""The scheduler and cache cases of public bug reports, in the small geometry with a window of 128 tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import golden
from execution.steps import Driver
from headrace.config import EngineConfig
from headrace.engine.engine import Engine, TokenOutput
from headrace.errors import RequestError
from headrace.execution.compiled import compilations
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.sampling.params import SamplingParams
from headrace.text.folder_tokenizer import read_folder_tokenizer
from headrace.text.tokenizer import Tokenizer
from headrace.weights.load import open_checkpoint
from tiny import SMALL, SOLO, check_pages, run, text, tiny_engine, tiny_weights, tokens

GOLDEN = golden.load("llama3")
LONG = GOLDEN.prompts[2]  # 70 tokens
BUDGET = 33  # tokens per step: no power of two
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)

Case = tuple[Sequence[int], SamplingParams]


@cache
def manager() -> ExecutionManager:
    """12 pages of 16 tokens, 128 tokens of context, and token buckets at which lengths can go wrong."""
    options = {**SMALL, "max_model_len": 128, "max_num_batched_tokens": BUDGET, "dtype": jnp.dtype("float32")}
    spec = open_checkpoint(GOLDEN.folder).spec
    made = ExecutionManager(spec, tiny_weights("llama3", "float32"), ExecutionOptions(**options, vocab_limit=256))
    made.compile(num_tokens_paddings=[20, BUDGET], num_reqs_paddings=[2, 4])
    return made


@pytest.fixture
def engine(tiny_folder: Path) -> Engine:
    manager().reset_state()
    return Engine(EngineConfig(model="llama3", seed=0), Tokenizer.from_folder(tiny_folder), manager())


def solo(folder: Path, case: Case) -> list[TokenOutput]:
    """What a request gives alone, with its whole prompt in one chunk."""
    geometry = {**SOLO, "max_model_len": 128, "max_num_batched_tokens": 128}
    [outputs] = run(tiny_engine(folder, **geometry), [case])
    return outputs


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 256) for _ in range(length)]


def test_sch_02_the_first_token_of_every_prompt_length_is_the_references() -> None:
    driver = Driver(manager())
    assert driver.manager.buckets == [(8, 2), (8, 4), (20, 4), (33, 4)]
    before = compilations()
    for length in range(1, 2 * BUDGET + 2):  # 8, 20 and 33 and their neighbours are among them
        driver.add(0, LONG[:length], pages=range(5))
        while driver.computed[0] < length:
            step = driver.schedule({0: min(BUDGET, length - driver.computed[0])})
            result = driver.manager.execute(step)
            sampled = driver.commit(step, result)[0]
        expected = GOLDEN.logits[2][length - 1]
        assert sampled == int(expected.argmax()), f"{length} tokens"
        logits = np.asarray(result.logits)[0]
        best = np.argsort(-expected)[:5]
        np.testing.assert_allclose(logits[best], expected[best], atol=1e-3, err_msg=f"{length} tokens")
        assert np.argsort(-logits)[:5].tolist() == best.tolist() or np.diff(expected[best]).max() > -2e-3
    assert compilations() == before


VARIANTS = {
    "greedy": GREEDY,
    "seed": replace(GREEDY, temperature=0.9, top_p=0.95, seed=42),
    "no top-p, hot": replace(GREEDY, temperature=3.0, seed=2**64 - 1),
}


def check_four_that_preempt(engine: Engine, folder: Path, cases: list[Case]) -> list[list[TokenOutput]]:
    results = run(engine, cases)
    assert engine.scheduler.num_preemptions > 0
    for case, outputs in zip(cases, results, strict=True):
        alone = solo(folder, case)
        assert tokens(outputs) == tokens(alone)
        assert [o.text for o in outputs] == [o.text for o in alone]  # no delta twice, none missing
        assert [o.finish_reason for o in outputs] == [o.finish_reason for o in alone]
    return results


@pytest.mark.parametrize("variant", VARIANTS)
def test_sch_03_four_that_do_not_fit_together_equal_their_solo_results(
    engine: Engine, tiny_folder: Path, variant: str
) -> None:
    # Each comes to 100 tokens, 7 pages; 4 of them to 28 of the 12 that there are.
    cases: list[Case] = [(prompt(i, 40), VARIANTS[variant]) for i in range(4)]
    for outputs in check_four_that_preempt(engine, tiny_folder, cases):
        assert len(tokens(outputs)) == 60
        assert outputs[-1].finish_reason == "length"


def test_sch_03_a_stop_string_over_a_preemption(engine: Engine, tiny_folder: Path) -> None:
    cases: list[Case] = []
    for i in range(4):
        whole = text(solo(tiny_folder, (prompt(i, 40), GREEDY)))
        cases.append((prompt(i, 40), replace(GREEDY, stop=[whole[36:39]])))
    results = check_four_that_preempt(engine, tiny_folder, cases)
    assert [outputs[-1].finish_reason for outputs in results] == ["stop"] * 4
    for (_, params), outputs in zip(cases, results, strict=True):
        assert params.stops[0] not in text(outputs)


def test_sch_03_a_resumed_prompt_is_cut_into_chunks_and_says_nothing_before_its_end(engine: Engine) -> None:
    for i in range(4):
        engine.add(str(i), prompt(i, 40), GREEDY)
    resumed = 0
    while engine.has_unfinished:
        again = {r.request_id: r.num_tokens for r in engine.scheduler.waiting if r.num_tokens > 40}
        outputs = {o.request_id for o in engine.step()}
        for request in engine.scheduler.running:
            if request.request_id in again and request.num_pending > 1:
                resumed += 1
                assert request.num_computed <= BUDGET
                assert request.request_id not in outputs
    assert resumed > 0


def test_sch_03_the_earliest_request_advances_in_every_step(engine: Engine) -> None:
    for i in range(4):
        engine.add(str(i), prompt(i, 40), GREEDY)
    while engine.has_unfinished:
        earliest = (engine.scheduler.running or engine.scheduler.waiting)[0]
        before = earliest.num_computed, earliest.num_tokens
        engine.step()
        # Its last token may be all that is left to read.
        assert (earliest.num_computed, earliest.num_tokens) > before
    assert engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("length", [15, 16, 17, 48])
def test_cac_05_equal_prompts_in_one_step_equal_their_solo_results(
    engine: Engine, tiny_folder: Path, length: int
) -> None:
    ids, params = prompt(7, length), replace(GREEDY, max_tokens=8)
    cases: list[Case] = [(ids, params), (ids, params), ([*ids, 5], params)]
    first, second, third = run(engine, cases)
    assert tokens(first) == tokens(second) == tokens(solo(tiny_folder, cases[0]))
    assert tokens(third) == tokens(solo(tiny_folder, cases[2]))


def test_cac_08_pages_return_whatever_ends_a_request(engine: Engine, tiny_folder: Path) -> None:
    rng = random.Random(8)
    likely = tokens(solo(tiny_folder, (prompt(0, 16), GREEDY)))
    definition = replace(read_folder_tokenizer(tiny_folder), eos_ids=frozenset({likely[5]}))
    engine = Engine(engine.config, Tokenizer(definition), engine.manager)
    ended: dict[str | None, int] = {}
    added = 0
    while added < 200 or engine.has_unfinished:
        while added < 200 and len(engine.scheduler.waiting) < 3:
            length = rng.choice([1, 15, 16, 17, 32, 48, 64, 127])
            params = SamplingParams(
                temperature=0,
                max_tokens=rng.choice([1, 8, 30]),
                stop=rng.choice([(), ("e",), ("a", "b", "c")]),
                stop_token_ids=rng.choice([(), likely[:3]]),
                ignore_eos=rng.random() < 0.3,
            )
            if rng.random() < 0.1:
                with pytest.raises(RequestError):
                    engine.add(str(added), prompt(added, 128), params)
            else:
                engine.add(str(added), prompt(0 if rng.random() < 0.3 else added, length), params)
            added += 1
        if rng.random() < 0.2:  # a client left: its request waits, is in mid-prefill, or decodes
            victim = rng.choice([*engine.scheduler.waiting, *engine.scheduler.running])
            state = "waiting" if victim.slot is None else "prefill" if victim.num_pending > 1 else "decode"
            ended[state] = ended.get(state, 0) + 1
            engine.abort(victim.request_id)
            check_pages(engine)
        for output in engine.step():
            ended[output.finish_reason] = ended.get(output.finish_reason, 0) + 1
        check_pages(engine)
    assert {"stop", "length", "waiting", "prefill", "decode"} <= set(ended)
    assert engine.pool.num_available == engine.pool.num_pages
    assert not engine.scheduler.waiting
    assert not engine.scheduler.running


@pytest.mark.parametrize("company", [0, 1, 7])
@pytest.mark.parametrize("place", ["first", "last"])
def test_sam_05_a_seed_repeats_in_any_company(engine: Engine, tiny_folder: Path, company: int, place: str) -> None:
    seeded = (prompt(3, 20), SamplingParams(temperature=0.9, seed=42, max_tokens=16, ignore_eos=True))
    others: list[Case] = [(prompt(i, 10 + i), replace(seeded[1], seed=None)) for i in range(company)]
    cases = [seeded, seeded, *others] if place == "first" else [*others, seeded, seeded]
    results = [tokens(outputs) for outputs in run(engine, cases)]
    mine = results[:2] if place == "first" else results[-2:]
    assert mine == [tokens(solo(tiny_folder, seeded))] * 2


def test_sam_05_requests_without_a_seed_differ(engine: Engine) -> None:
    free = (prompt(3, 20), SamplingParams(temperature=0.9, max_tokens=16, ignore_eos=True))
    results = [tuple(tokens(outputs)) for outputs in run(engine, [free] * 4)]
    assert len(set(results)) == 4


@pytest.mark.parametrize(
    "ids", [[], [-1], [256], [2**31], [2**32 + 5], [1.5], [True], ["a", 1], [None], [[1], [2]], [5] * 128]
)
def test_api_10_and_12_a_wrong_prompt_is_refused_and_its_neighbour_does_not_notice(
    engine: Engine, tiny_folder: Path, ids: list[Any]
) -> None:
    good = (prompt(1, 9), replace(GREEDY, max_tokens=6))
    engine.add("good", *good)
    got = engine.step()
    with pytest.raises(RequestError, match=r"^prompt: "):
        engine.add("bad", ids, GREEDY)
    while engine.has_unfinished:
        got += engine.step()
    assert {o.request_id for o in got} == {"good"}
    assert [o.token_id for o in got] == tokens(solo(tiny_folder, good))


class FailsAt:
    """A manager that raises in some of its steps: after the real one is done, or with the device's pages lost."""

    def __init__(self, manager: ExecutionManager, steps: set[int], error: BaseException) -> None:
        self._manager, self._steps, self._error = manager, steps, error
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def execute(self, step: Any) -> Any:
        self._count += 1
        if self._count in self._steps and self._count % 2:
            for array in jax.live_arrays():
                if array.ndim == 4 and array.shape[0] == self._manager.options.num_pages:
                    array.delete()
            raise self._error
        result = self._manager.execute(step)
        if self._count in self._steps:
            raise self._error
        return result


@pytest.mark.parametrize("error", [RuntimeError("the device is gone"), KeyboardInterrupt()])
def test_rob_failed_steps_lose_and_repeat_nothing(engine: Engine, tiny_folder: Path, error: BaseException) -> None:
    cases: list[Case] = [(prompt(i, 40), VARIANTS["seed"]) for i in range(4)]
    failing = FailsAt(engine.manager, {1, 2, 5, 30, 31, 60}, error)
    engine = Engine(engine.config, engine.tokenizer, failing)  # type: ignore[arg-type]
    got: dict[str, list[TokenOutput]] = {str(i): [] for i in range(4)}
    for name, case in zip(got, cases, strict=True):
        engine.add(name, *case)
    failures = 0
    while engine.has_unfinished:
        try:
            for output in engine.step():
                got[output.request_id].append(output)
        except (RuntimeError, KeyboardInterrupt):
            failures += 1
            assert failures <= 6, "a failed step must not make the next one fail"
            assert not engine.scheduler.running
        check_pages(engine)
    assert failures == 6
    for outputs, case in zip(got.values(), cases, strict=True):
        alone = solo(tiny_folder, case)
        assert [o.text for o in outputs] == [o.text for o in alone]
        assert tokens(outputs) == tokens(alone)
