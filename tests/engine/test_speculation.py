"""Speculative decoding changes how many steps it takes, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from engine.paper import ALPHABET, continuation, paper_engine
from headrace.engine.engine import TokenOutput
from headrace.engine.speculation import in_turns, num_right
from headrace.sampling.params import SamplingParams
from headrace.text.tokenizer import Tokenizer
from tiny import SMALL, SOLO, check_pages, run, tiny_engine, tokens


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


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("most", [1, 5])
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


def test_drafts_after_the_end_do_not_count(tokenizer: Tokenizer) -> None:
    """Every output token is one that a step brings anyway, or an accepted draft, wherever in a run the end lies."""
    geometry = {"pages": 40, "page_size": 1, "length": 40, "seqs": 8, "budget": 8}
    engine = paper_engine(tokenizer, options={"speculative_tokens": 5}, **geometry)
    taken = 0
    for place in range(12):
        for i in range(20):
            prompt = [*range(3, 3 + i), *ALPHABET]
            end = continuation(prompt, 12)[place]
            [outputs] = run(engine, [(prompt, SamplingParams(max_tokens=12, stop_token_ids=[end], ignore_eos=True))])
            taken += len(tokens(outputs))
    counters = engine.metrics.counters
    assert taken == counters.tokens_sampled + counters.accepted_tokens
    assert 0 < counters.accepted_tokens < counters.drafted_tokens


@pytest.mark.parametrize("seed", range(4))
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


def mixed_params(rng: random.Random, tokenizer: Tokenizer) -> SamplingParams:
    """Every parameter now and then; few tokens to choose from, so that guesses are often right and often not."""
    few = rng.choice([(65, 66), (65, 66), (65, 66, 67), None])
    max_tokens = rng.choice([1, 2, 3, 20, 40])
    return SamplingParams(
        n=rng.choice([1, 1, 2]),
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, max_tokens // 2]),
        temperature=rng.choice([0.0, 0.0, 0.3, 1.0]),
        top_k=rng.choice([0, 1, 5]),
        top_p=rng.choice([1.0, 0.9]),
        repetition_penalty=rng.choice([1.0, 0.5, 1.2]),
        presence_penalty=rng.choice([0.0, -1.0, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.3]),
        logit_bias=rng.choice([None, {65: 1.5, 66: 1.0}]),
        allowed_token_ids=few,
        bad_words=rng.choice([[], [], [tokenizer.decode([67, 65])]]),
        stop=rng.choice([[], [], [tokenizer.decode([65, 65, 66])]]),
        stop_token_ids=rng.choice([[], [], [67]]),
        ignore_eos=True,
        seed=rng.getrandbits(63),
        logprobs=rng.choice([None, 0, 3]),
        prompt_logprobs=rng.choice([None, None, 1]),
    )


def by_choice(outputs: list[TokenOutput]) -> dict[int, list[TokenOutput]]:
    """What each choice of a request got, without what depends on its company."""
    choices: dict[int, list[TokenOutput]] = {}
    for output in outputs:
        choices.setdefault(output.index, []).append(replace(output, request_id="", num_cached_tokens=0))
    return choices


@pytest.mark.parametrize(("name", "dtype"), [("llama3", "float32"), ("gemma3", "bfloat16")])
def test_the_same_bits_as_without(tiny_folder: Path, tokenizer: Tokenizer, name: str, dtype: str) -> None:
    """Tokens, texts and log-probabilities of requests of all kinds in any company, beside those of each alone."""
    rng = random.Random(7)
    heads = [rng.choices((65, 66, 67), k=20) for _ in range(2)]
    cases = [([*rng.choice(heads), *rng.choices((65, 66, 67), k=i)], mixed_params(rng, tokenizer)) for i in range(40)]
    solo = tiny_engine(tiny_folder, name, config={"prefix_caching": False}, **{**SOLO, "dtype": dtype})
    expected = [by_choice(run(solo, [case])[0]) for case in cases]

    geometry = {**SMALL, "dtype": dtype, "num_pages": 8, "max_num_seqs": 8, "min_input_pad": 8}
    engine = tiny_engine(tiny_folder, name, config={"speculative_tokens": 5}, **geometry)
    got: list[list[TokenOutput]] = [[] for _ in cases]
    waiting, aborted = list(range(len(cases))), set()
    while waiting or engine.has_unfinished:
        if waiting and rng.random() < 0.15:
            i = waiting.pop()
            engine.add(str(i), *cases[i])
        if rng.random() < 0.01 and engine.scheduler.running:
            victim = rng.choice(engine.scheduler.running).request_id
            engine.abort(victim)
            aborted.add(int(victim))
        for output in engine.step():
            got[int(output.request_id)].append(output)
        check_pages(engine)
    for i, outputs in enumerate(map(by_choice, got)):
        for choice, its_outputs in outputs.items():
            whole = len(its_outputs) if i in aborted else None
            assert its_outputs == expected[i][choice][:whole], f"case {i}: {cases[i]}"
        assert i in aborted or outputs.keys() == expected[i].keys()
    metrics = engine.metrics
    assert metrics.compilations == 0
    assert metrics.preemptions > 0
    assert metrics.prefix_hit_tokens > 0
    assert 50 < metrics.counters.accepted_tokens < metrics.counters.drafted_tokens - 50
    assert metrics.acceptance_rate == metrics.counters.accepted_tokens / metrics.counters.drafted_tokens
