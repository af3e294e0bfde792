"""X9: an engine over data parallel ranks."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from execution.meshes import LENGTH
from headrace.config import EngineConfig
from headrace.engine.engine import Engine, TokenOutput
from headrace.engine.pages import PagePool
from headrace.engine.prefix import PrefixCache
from headrace.engine.ranks import RankedScheduler
from headrace.engine.request import Request
from headrace.engine.scheduler import Scheduler
from headrace.execution.compiled import compilations
from headrace.execution.sequences import SequenceTable
from headrace.sampling.params import SamplingParams
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.stop import StopMatcher
from headrace.text.tokenizer import Tokenizer
from tiny import check_pages, run, tokens

Case = tuple[list[int], SamplingParams]


@pytest.fixture
def new_engine(meshed: Any, tiny_folder: Path) -> Any:
    def make(data_parallel: int, tensor_parallel: int, **config: Any) -> Engine:
        manager = meshed("llama3", data_parallel, tensor_parallel)
        manager.reset_state()
        return Engine(EngineConfig(model="x", **{"seed": 0, **config}), Tokenizer.from_folder(tiny_folder), manager)

    return make


def random_cases(count: int, **params: Any) -> list[Case]:
    rng = random.Random(count)
    lengths = [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 60, LENGTH - 1]
    return [
        (
            [rng.randrange(3, 249) for _ in range(rng.choice(lengths))],
            SamplingParams(max_tokens=rng.choice([1, 3, 10, 30]), seed=rng.getrandbits(63), **params),
        )
        for _ in range(count)
    ]


def test_x9_requests_over_two_ranks_of_two_devices_equal_their_results_on_one_device(new_engine: Any) -> None:
    cases = random_cases(24, temperature=0.0)
    alone = new_engine(1, 1)
    expected = [tokens(run(alone, [case])[0]) for case in cases]
    engine, rng = new_engine(2, 2), random.Random(2)
    compiled, waiting = compilations(), list(range(len(cases)))
    got: dict[int, list[int]] = {i: [] for i in waiting}
    seen = set()
    while waiting or engine.has_unfinished:
        while waiting and rng.random() < 0.5:
            engine.add(str(waiting[-1]), *cases[waiting[-1]])
            waiting.pop()
        for output in engine.step():
            got[int(output.request_id)] += tokens([output])
        check_pages(engine)
        seen |= {request.slot for request in engine.scheduler.running}
    assert compilations() == compiled
    assert [got[i] for i in range(len(cases))] == expected
    assert seen == {0, 1, 2, 3}  # both ranks, and all of their slots
    for pool in engine.pools:
        assert pool.num_available == pool.num_pages


def test_x9_a_request_draws_the_same_tokens_in_any_company_and_rank(new_engine: Any) -> None:
    cases = random_cases(12, temperature=1.0, top_p=0.9, ignore_eos=True)
    engine = new_engine(2, 2)
    together = [tokens(o) for o in run(engine, cases)]
    assert together == [tokens(run(engine, [case])[0]) for case in cases]


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        max_tokens=rng.choice([0, 1, 8, 16]),
        seed=rng.getrandbits(63),
        temperature=rng.choice([0.0, 1.0]),
        presence_penalty=rng.choice([0.0, 1.5]),
        repetition_penalty=rng.choice([1.0, 1.4]),
        logit_bias=rng.choice([None, {rng.randrange(249): 50.0}]),
        allowed_token_ids=rng.choice([None, rng.sample(range(249), 9)]),
        logprobs=rng.choice([None, 3]),
        prompt_logprobs=rng.choice([None, 2]),
        ignore_eos=True,
    )


def all_that_is_known(outputs: list[TokenOutput]) -> list[Any]:
    return [(o.token_id, o.text, o.finish_reason, o.logprobs, o.prompt_logprobs) for o in outputs]


@pytest.mark.parametrize(("data_parallel", "tensor_parallel"), [(1, 1), (2, 2)])
def test_x9_every_parameter_is_that_of_its_own_request_in_any_rank(
    new_engine: Any, data_parallel: int, tensor_parallel: int
) -> None:
    rng = random.Random(5)
    cases = [([rng.randrange(3, 249) for _ in range(rng.randrange(1, 40))], random_params(rng)) for _ in range(24)]
    engine, compiled = new_engine(data_parallel, tensor_parallel), compilations()
    together = [all_that_is_known(o) for o in run(engine, cases)]
    assert compilations() == compiled
    assert together == [all_that_is_known(run(engine, [case])[0]) for case in cases]
    for (_, params), outputs in zip(cases, together, strict=True):
        allowed = params.allowed_token_ids
        assert allowed is None or {token for token, *_ in outputs} <= {None, *allowed}


def test_x9_drafts_of_each_rank_change_nothing(new_engine: Any) -> None:
    rng = random.Random(6)
    cases = []
    for _ in range(12):
        params = replace(random_params(rng), allowed_token_ids=[65, 66], temperature=rng.choice([0.0, 0.7]))
        cases.append((rng.choices((65, 66), k=rng.randrange(1, 40)), params))
    expected = [all_that_is_known(o) for o in run(new_engine(2, 2), cases)]
    engine, compiled = new_engine(2, 2, speculative_tokens=1), compilations()
    assert [all_that_is_known(o) for o in run(engine, cases)] == expected
    assert compilations() == compiled
    counters = engine.metrics.counters
    assert 0 < counters.accepted_tokens < counters.drafted_tokens


def test_x9_a_new_request_goes_to_the_rank_with_the_least_to_do(tiny_folder: Path) -> None:
    pools, table = [PagePool(13, 16) for _ in range(3)], SequenceTable(6, 64)
    ranks = [Scheduler(pool, PrefixCache(pool), table, 2, 32, 2 * i) for i, pool in enumerate(pools)]
    scheduler, tokenizer = RankedScheduler(ranks), Tokenizer.from_folder(tiny_folder)

    def request(total: int) -> Request:
        ids, detokenizer = [7] * 4, IncrementalDetokenizer(tokenizer)
        return Request("", ids, 4, SamplingParams(), total, frozenset(), 0, detokenizer, StopMatcher(()))

    requests = [request(total) for total in (50, 49, 49, 10, 5, 5)]
    for one in requests:
        scheduler.add(one)
    a, b, c, d, e, f = requests
    # 50, 49 and 49 tokens; then 59 for the second rank, 54 for the third, 55 for the first.
    assert [rank.waiting for rank in ranks] == [[a, f], [b, d], [c, e]]
    assert scheduler.waiting == [a, f, b, d, c, e]
    schedule = scheduler.schedule()
    assert schedule is not None
    scheduler.launched(schedule)
    assert [(r.slot, r.num_computed) for r in (a, f, b, d, c, e)] == [(i, 4) for i in range(6)]
    assert sorted(schedule.step.slots.tolist()) == list(range(6))
    scheduler.remove(b)
    late = request(3)
    scheduler.add(late)
    assert ranks[1].waiting == [late]
    scheduler.preempt_all()
    assert [len(rank.waiting) for rank in ranks] == [2, 2, 2]


def test_x9_pausing_and_failing_concern_all_ranks(new_engine: Any) -> None:
    engine = new_engine(2, 1)
    cases = random_cases(8, temperature=0.0, ignore_eos=True)
    expected = [tokens(o) for o in run(engine, cases)]
    got: dict[str, list[int]] = {str(i): [] for i in range(8)}
    for i, case in enumerate(cases):
        engine.add(str(i), *case)
    outputs = engine.step() + engine.step() + engine.pause("wait")
    assert {request.num_computed for request in engine.scheduler.waiting} == {0}
    assert engine.scheduler.running == []
    engine.resume()
    outputs += engine.step()
    outputs += engine.reset_prefix_cache(recompute_running=True)
    assert [len(prefix) for prefix in engine.prefixes] == [0, 0]
    assert engine.scheduler.running == []
    while engine.has_unfinished:
        outputs += engine.step()
        check_pages(engine)
    for output in outputs:
        got[output.request_id] += tokens([output])
    assert list(got.values()) == expected


def test_x13_padding_counts_the_buckets_of_all_ranks(new_engine: Any) -> None:
    engine = new_engine(2, 1)
    engine.add("a", [7] * 5, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    engine.add("b", [7] * 3, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    steps = []
    while engine.has_unfinished:
        engine.step()
        if engine.last_step is not None and engine.last_step not in steps:
            steps.append(engine.last_step)
    assert [(s.ranks, s.bucket[0], s.tokens, s.padding) for s in steps] == [(2, 8, 8, 8), (2, 8, 2, 14)]
    assert engine.metrics.counters.padded_tokens == 22
