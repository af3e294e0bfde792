"""Speculative decoding changes how many steps it takes, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.paper import ALPHABET, continuation, paper_engine
from headrace.engine.speculation import in_turns, num_right
from headrace.sampling.params import SamplingParams
from headrace.text.tokenizer import Tokenizer
from tiny import check_pages, run, tokens


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny_folder)


@pytest.mark.parametrize(
    ("wanted", "room", "counts"),
    [
        ([], 3, []),
        ([2, 2], 0, [0, 0]),
        ([2, 2], 1, [1, 0]),
        ([2, 2], 3, [2, 1]),
        ([2, 2], 4, [2, 2]),
        ([2, 2], 9, [2, 2]),
        ([0, 5, 1], 4, [0, 3, 1]),
    ],
)
def test_drafts_are_given_in_turns(wanted: list[int], room: int, counts: list[int]) -> None:
    assert in_turns(wanted, room) == counts


@pytest.mark.parametrize(
    ("drafts", "sampled", "right"),
    [
        ([], [5], 0),
        ([5], [5, 6], 1),
        ([4], [5, 6], 0),
        ([5, 6, 7], [5, 6, 7, 8], 3),
        ([5, 6, 7], [5, 6, 8, 9], 2),
        ([5, 4, 7], [5, 6, 7, 8], 1),  # what follows a wrong draft does not count
    ],
)
def test_drafts_count_up_to_the_first_wrong_one(drafts: list[int], sampled: list[int], right: int) -> None:
    assert num_right(drafts, sampled) == right


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_one_request_of_any_length(tokenizer: Tokenizer, page_size: int, most: int) -> None:
    """Page edges, the end of the context and that of the request, each one before, at and after."""
    engine = paper_engine(
        tokenizer,
        options={"speculative_tokens": most},
        pages=20 // page_size,
        page_size=page_size,
        length=20,
        seqs=8,
        budget=8,
    )
    for prompt_len in range(1, 20):
        for max_tokens in range(1, 22 - prompt_len):
            prompt = [68, 69, 70, 69, 68][: 1 + prompt_len % 5] * 20
            [outputs] = run(engine, [(prompt[:prompt_len], SamplingParams(max_tokens=max_tokens, ignore_eos=True))])
            assert tokens(outputs) == continuation(prompt[:prompt_len], min(max_tokens, 20 - prompt_len))
    counters = engine.metrics.counters
    assert 0 < counters.accepted_tokens < counters.drafted_tokens
    assert engine.manager.most_logits == 1 + most
    assert engine.scheduler.num_preemptions == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_load(tokenizer: Tokenizer, seed: int) -> None:
    """Prefix hits, preemptions, aborts, chunks and full batches, over little memory."""
    rng = random.Random(seed)
    page_size, seqs = rng.choice([1, 2, 4]), rng.choice([4, 5, 8, 9])
    engine = paper_engine(
        tokenizer,
        options={"speculative_tokens": rng.randrange(1, seqs), "overlap": rng.random() < 0.8},
        pages=2 * 32 // page_size,
        page_size=page_size,
        length=32,
        seqs=seqs,
        budget=rng.choice([seqs, seqs + 1, 16, 40]),
    )
    heads = [rng.choices(ALPHABET, k=9) for _ in range(3)]
    expected: dict[str, list[int]] = {}
    got: dict[str, list[int]] = {}
    for i in range(1500):
        if len(engine.scheduler.waiting) < 4 and i < 1400 and rng.random() < 0.4:
            prompt = [*rng.choice(heads), *rng.choices(ALPHABET, k=rng.randrange(12))]
            count, stops = rng.randrange(1, 33 - len(prompt)), rng.choice([[], [], [70]])
            params = SamplingParams(max_tokens=count, stop_token_ids=stops, ignore_eos=True, priority=rng.randrange(3))
            engine.add(str(i), prompt, params)
            expected[str(i)], got[str(i)] = continuation(prompt, count, stops), []
        if rng.random() < 0.01 and engine.scheduler.running:
            victim = rng.choice(engine.scheduler.running).request_id
            engine.abort(victim)
            expected[victim] = got[victim]
        outputs = engine.reset_prefix_cache(recompute_running=True) if rng.random() < 0.002 else engine.step()
        for output in outputs:
            got[output.request_id] += tokens([output])
        check_pages(engine)
    while engine.has_unfinished:
        for output in engine.step():
            got[output.request_id] += tokens([output])
    assert got == expected
    metrics = engine.metrics
    assert metrics.preemptions > 0
    assert metrics.prefix_hit_tokens > 0
    assert engine.pool.num_evictions > 0
    assert 0 < metrics.counters.accepted_tokens < metrics.counters.drafted_tokens
