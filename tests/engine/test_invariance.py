"""A request's tokens are a function of the request alone, whatever the chunks, company, buckets and preemptions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from headrace.execution.compiled import compilations
from headrace.sampling.params import SamplingParams
from tiny import SMALL, SOLO, check_pages, run, tiny_engine, tokens

Case = tuple[tuple[int, ...], SamplingParams]

# Models whose attention differs: grouped heads with rope scaling, a sliding window, local and global layers.
MODELS = ("llama3", "mistral_window", "gemma3")


def random_cases(seed: int, count: int) -> Iterator[Case]:
    rng = random.Random(seed)
    for _ in range(count):
        prompt = tuple(rng.randrange(3, 256) for _ in range(rng.choice([1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 60])))
        yield (
            prompt,
            SamplingParams(
                max_tokens=rng.choice([1, 3, 10, 40]),
                temperature=rng.choice([0.0, 0.0, 0.7, 1.5]),
                top_k=rng.choice([0, 1, 5, 50]),
                top_p=rng.choice([1.0, 0.9, 0.5]),
                min_p=rng.choice([0.0, 0.05]),
                seed=rng.getrandbits(63),
                ignore_eos=rng.random() < 0.5,
            ),
        )


def solo_tokens(folder: Path, name: str, dtype: str, case: Case) -> list[int]:
    [outputs] = run(tiny_engine(folder, name, **{**SOLO, "dtype": dtype}), [case])
    return tokens(outputs)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_any_company_gives_the_solo_tokens(tiny_folder: Path, name: str, dtype: str, overlap: bool) -> None:
    cases = list(random_cases(seed=len(name), count=40))
    solo = cache(lambda i: solo_tokens(tiny_folder, name, dtype, cases[i]))
    rng = random.Random(1)
    engine = tiny_engine(tiny_folder, name, config={"overlap": overlap}, **{**SMALL, "num_pages": 6, "dtype": dtype})
    compiled = compilations()
    waiting, got, aborted = list(range(len(cases))), {i: [] for i in range(len(cases))}, set()
    while waiting or engine.has_unfinished:
        while waiting and rng.random() < 0.6:
            i = waiting.pop()
            engine.add(str(i), *cases[i])
        for output in engine.step():
            got[int(output.request_id)] += tokens([output])
        if rng.random() < 0.02 and engine.scheduler.running:
            victim = rng.choice(engine.scheduler.running).request_id
            engine.abort(victim)
            aborted.add(int(victim))
        check_pages(engine)
    assert compilations() == compiled, "a step was compiled while serving"
    assert engine.scheduler.num_preemptions > 0, "the run was to preempt"
    for i in range(len(cases)):
        expected = solo(i)[: len(got[i])] if i in aborted else solo(i)
        assert got[i] == expected, f"case {i}: {cases[i]}"


@pytest.mark.parametrize("budget", [4, 5, 13, 16, 31, 64])
def test_any_chunk_size_gives_the_same_tokens(tiny_folder: Path, budget: int) -> None:
    cases = [([5 + i] * n, SamplingParams(temperature=0, max_tokens=4)) for i, n in enumerate((1, 4, 5, 6, 26, 59))]
    engine = tiny_engine(tiny_folder, "gemma3", **{**SMALL, "max_num_batched_tokens": budget})
    for case, outputs in zip(cases, run(engine, cases), strict=True):
        assert tokens(outputs) == solo_tokens(tiny_folder, "gemma3", "float32", case)


def test_64_prompts_with_room_for_few_equal_their_solo_results(tiny_folder: Path) -> None:
    rng = random.Random(3)
    cases = [
        (
            [rng.randrange(3, 256) for _ in range(rng.randint(1, 40))],
            SamplingParams(temperature=0, max_tokens=rng.randint(1, 20), ignore_eos=True),
        )
        for _ in range(64)
    ]
    engine = tiny_engine(tiny_folder, **{**SMALL, "max_num_seqs": 8})
    for case, outputs in zip(cases, run(engine, cases), strict=True):
        assert len(tokens(outputs)) == case[1].max_tokens
        assert outputs[-1].finish_reason == "length"
        assert tokens(outputs) == solo_tokens(tiny_folder, "llama3", "float32", case)
