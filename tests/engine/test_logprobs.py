"""Log-probabilities of output and prompt tokens against transformers, and as a function of the request alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden
from headrace.engine.engine import Engine, TokenOutput
from headrace.execution.compiled import compilations
from headrace.sampling.params import SamplingParams
from headrace.sampling.scores import TokenLogprobs
from tiny import SMALL, SOLO, run, tiny_engine, tokens

MODELS = ("llama3", "mistral_window", "gemma3")
GEOMETRY = {**SMALL, "max_model_len": 128, "num_pages": 40}
WHOLE = {**SOLO, "max_model_len": 128, "max_num_batched_tokens": 128, "num_pages": 12}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def assert_scores(got: TokenLogprobs, right: np.ndarray, token: int, top: int) -> None:
    """Right are the log-probabilities [vocab] in float64."""
    assert got.token_id == token
    assert got.logprob == pytest.approx(right[token], abs=1e-4)
    near = 1e-4  # where two are as close as that either may be the likelier
    assert (right > right[token] + near).sum() < got.rank <= (right > right[token] - near).sum() + 1
    assert len(got.top) == min(top, 256)
    best = np.sort(right)[::-1][:top]
    np.testing.assert_allclose([value for _, value in got.top], best, atol=1e-4)
    np.testing.assert_allclose([right[i] for i, _ in got.top], best, atol=1e-4)


def prompt_scores(outputs: list[TokenOutput]) -> list[TokenLogprobs | None]:
    assert all(output.prompt_logprobs is None for output in outputs[1:])
    assert outputs[0].prompt_logprobs is not None
    return outputs[0].prompt_logprobs


@pytest.mark.parametrize("name", MODELS)
def test_tokens_of_output_and_prompt_are_as_likely_as_transformers_says(tiny_folder: Path, name: str) -> None:
    data = golden.load(name)
    engine = tiny_engine(tiny_folder, name, **GEOMETRY)
    prompts = [prompt for prompt in data.prompts if len(prompt) + 4 <= 128]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=5, prompt_logprobs=3)
    for i, (prompt, outputs) in enumerate(zip(prompts, run(engine, [(p, params) for p in prompts]), strict=True)):
        assert tokens(outputs) == data.continuations[i][:4]
        for output, right in zip(outputs, data.logprobs[i], strict=False):
            assert output.logprobs is not None
            assert output.logprobs.token_id == output.token_id
            assert output.logprobs.logprob == pytest.approx(float(right), abs=1e-4)
            assert output.logprobs.rank == 1
        right = log_softmax(data.logits[i])
        assert_scores(outputs[0].logprobs, right[-1], data.continuations[i][0], 5)
        first, *others = prompt_scores(outputs)
        assert first is None
        assert len(others) == len(prompt) - 1
        for position, one in enumerate(others):
            assert one is not None
            assert_scores(one, right[position], prompt[position + 1], 3)


@pytest.mark.parametrize("budget", [5, 31, 32, 33])
def test_cac_07_prompt_scores_do_not_depend_on_what_is_cached_nor_on_chunks(tiny_folder: Path, budget: int) -> None:
    ids = random.Random(1).choices(range(3, 256), k=40)
    plain = SamplingParams(temperature=0, max_tokens=1)
    scored = [SamplingParams(temperature=0, max_tokens=1, logprobs=k, prompt_logprobs=k) for k in (2, 5)]
    [want] = run(tiny_engine(tiny_folder, **WHOLE), [(ids, scored[1])])
    engine = tiny_engine(tiny_folder, **{**GEOMETRY, "max_num_batched_tokens": budget})
    run(engine, [(ids, plain)])
    for params in (*scored, scored[1], scored[1]):
        [got] = run(engine, [(ids, params)])
        top = params.prompt_logprobs
        assert len(prompt_scores(got)) == 40
        assert prompt_scores(got) == [
            one and TokenLogprobs(one.token_id, one.logprob, one.rank, one.top[:top]) for one in prompt_scores(want)
        ]
    [hit] = run(engine, [(ids, plain)])
    assert hit[0].num_cached_tokens == 32  # what a scored request computed others can use


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 64])
def test_a_prompt_is_scored_without_a_token_being_sampled(tiny_folder: Path, length: int) -> None:
    ids = random.Random(length).choices(range(3, 256), k=length)
    engine = tiny_engine(tiny_folder, **SMALL)
    [outputs] = run(engine, [(ids, SamplingParams(max_tokens=0, prompt_logprobs=0))])
    assert [(o.token_id, o.text, o.finish_reason, o.logprobs) for o in outputs] == [(None, "", "length", None)]
    [want] = run(tiny_engine(tiny_folder, **WHOLE), [(ids, SamplingParams(max_tokens=1, prompt_logprobs=0))])
    assert prompt_scores(outputs) == prompt_scores(want)
    assert [one and one.top for one in prompt_scores(outputs)] == [None] + [()] * (length - 1)


def test_processed_log_probabilities_are_of_what_is_drawn_from(tiny_folder: Path) -> None:
    data = golden.load("llama3")
    logits, prompt = data.logits[0][-1].astype(np.float64), data.prompts[0]
    engine = tiny_engine(tiny_folder, **SMALL, logprobs_mode="processed")
    best = np.argsort(-logits)[:6].tolist()
    sure = {"max_tokens": 1, "logprobs": 20, "prompt_logprobs": 20, "logit_bias": {best[1]: -3.0}}
    drawn = SamplingParams(temperature=0.7, top_k=5, seed=1, **sure)
    [greedy], [random_one] = run(engine, [(prompt, SamplingParams(temperature=0, **sure)), (prompt, drawn)])
    biased = logits.copy()
    biased[best[1]] -= 3
    assert_scores(greedy.logprobs, log_softmax(biased), best[0], 20)
    kept = np.argsort(-biased)[:5]
    right = np.full(256, -np.inf)
    right[kept] = log_softmax(biased[kept] / 0.7)
    assert random_one.logprobs is not None
    assert [i for i, _ in random_one.logprobs.top] == kept.tolist()
    np.testing.assert_allclose([value for _, value in random_one.logprobs.top], right[kept], atol=1e-4)
    assert random_one.logprobs.logprob == pytest.approx(right[random_one.token_id], abs=1e-4)
    for one, row in zip(prompt_scores([greedy])[1:], data.logits[0], strict=False):  # the prompt's are raw
        assert one is not None
        assert_scores(one, log_softmax(row), one.token_id, 20)


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        max_tokens=rng.choice([0, 1, 5, 20]),
        temperature=rng.choice([0.0, 0.8]),
        top_p=rng.choice([1.0, 0.9]),
        seed=rng.getrandbits(63),
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice([None, 0, 1, 20]),
        prompt_logprobs=rng.choice([None, None, 0, 4]),
        presence_penalty=rng.choice([0.0, 0.0, 1.0]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
    )


def facts(outputs: list[TokenOutput]) -> list[Any]:
    return [(o.token_id, o.text, o.finish_reason, o.logprobs, o.prompt_logprobs) for o in outputs]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sch_03_any_company_gives_the_solo_tokens_and_log_probabilities(
    tiny_folder: Path, dtype: str, overlap: bool
) -> None:
    rng = random.Random(7)
    beginning = rng.choices(range(3, 256), k=20)
    cases = []
    for _ in range(30):
        ids = beginning[: rng.randrange(21)] + rng.choices(range(3, 256), k=rng.randrange(1, 35))
        cases.append((ids, random_params(rng)))
    engine = tiny_engine(
        tiny_folder, "gemma3", config={"overlap": overlap}, **{**SMALL, "num_pages": 6, "dtype": dtype}
    )
    compiled = compilations()
    together = run(engine, cases)
    assert compilations() == compiled, "a step was compiled while serving"
    assert engine.metrics.preemptions > 0
    assert engine.metrics.prefix_hit_tokens > 0
    alone = tiny_engine(tiny_folder, "gemma3", config={"prefix_caching": False}, **{**SOLO, "dtype": dtype})
    for case, outputs in zip(cases, together, strict=True):
        assert facts(outputs) == facts(run(alone, [case])[0]), case


def test_sch_07_requests_that_are_scored_compile_nothing_and_move_only_what_is_asked(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **GEOMETRY)
    before, counts = compilations(), engine.manager.transfers.counts
    rng = random.Random(3)
    plain = counts.d2h_transfers, engine.metrics.counters.steps
    run(engine, [(rng.choices(range(3, 256), k=9), SamplingParams(temperature=0, max_tokens=3)) for _ in range(4)])
    assert counts.d2h_transfers - plain[0] == engine.metrics.counters.steps - plain[1]
    for length in range(1, 51):
        ids, moved = rng.choices(range(3, 256), k=length), counts.d2h_bytes
        steps = engine.metrics.counters.steps
        run(engine, [(ids, SamplingParams(max_tokens=1, logprobs=length % 21, prompt_logprobs=length % 21))])
        # Of each token and of each row at most: three numbers and the rank, and 20 ids and logits.
        assert counts.d2h_bytes - moved <= (engine.metrics.counters.steps - steps) * 4 * (44 * (32 + 4) + 4)
    assert compilations() == before


def test_the_first_tokens_scores_need_no_logits_of_other_rows(tiny_engine_of_one: Engine) -> None:
    [outputs] = run(tiny_engine_of_one, [([5], SamplingParams(max_tokens=2, logprobs=0, prompt_logprobs=2))])
    assert prompt_scores(outputs) == [None]
    assert [o.logprobs is not None for o in outputs] == [True, True]


@pytest.fixture
def tiny_engine_of_one(tiny_folder: Path) -> Engine:
    return tiny_engine(tiny_folder, **SOLO)
