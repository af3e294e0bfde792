"""Random parameters in mixed batches: each request against its solo run, and that against the oracle in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.config import EngineConfig
from headrace.engine.engine import Engine, TokenOutput
from headrace.execution.manager import ExecutionManager
from headrace.sampling.params import SamplingParams
from headrace.text.folder_tokenizer import read_folder_tokenizer
from headrace.text.tokenizer import Tokenizer
from sampling.oracle import chi_square, constrained, distribution, logprobs, penalised
from tiny import SMALL, SOLO, run, tiny_manager

BATCHES, REQUESTS = 200, 300
END, VOCAB = 2, 256
NEAR = 1e-4  # logits this close may change places between float32 and float64

Case = tuple[list[int], SamplingParams]


def random_case(rng: random.Random) -> Case:
    """A prompt and parameters; most are at their defaults."""

    def some(default: Any, *others: Any) -> Any:
        return default if rng.random() < 0.6 else rng.choice(others)

    max_tokens = rng.choice([1, 3, 8, 16])
    bias = {token: rng.uniform(-3, 3) for token in rng.sample(range(VOCAB), 5)}
    params = SamplingParams(
        n=some(1, 2),
        max_tokens=max_tokens,
        min_tokens=some(0, rng.randint(0, max_tokens)),
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0, 1.5]),
        top_p=some(1.0, 0.9, 0.5),
        top_k=some(0, 1, 5, 40),
        min_p=some(0.0, 0.05, 0.3),
        presence_penalty=some(0.0, 1.0, -0.5, 2.0),
        frequency_penalty=some(0.0, 0.7, -0.3),
        repetition_penalty=some(1.0, 1.3, 0.8),
        logit_bias=some(None, bias, {END: 4.0}),
        allowed_token_ids=some(None, rng.sample(range(VOCAB), 60), [END, *rng.sample(range(3, VOCAB), 40)]),
        bad_words=some((), ("a", "bc"), tuple(chr(97 + i) for i in range(26))),
        stop=some((), "e", ("ab", "th")),
        stop_token_ids=some((), rng.sample(range(VOCAB), 8)),
        ignore_eos=rng.random() < 0.3,
        seed=rng.getrandbits(63),
        logprobs=some(None, 0, 3, 20),
        prompt_logprobs=some(None, None, 2),
    )
    return [rng.randrange(3, 250) for _ in range(rng.choice([1, 2, 15, 16, 17, 33, 40]))], params


class Recorder:
    """A manager that keeps the logits of each token that is sampled in the first row."""

    def __init__(self, manager: ExecutionManager) -> None:
        self._manager = manager
        self.logits: list[np.ndarray] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def start_async_prep(self, step: Any) -> None:
        self._samples = bool(step.samples[0])
        self._manager.start_async_prep(step)

    def execute(self, prepared: Any) -> Any:
        result = self._manager.execute(prepared)
        if self._samples:
            self.logits.append(np.asarray(result.logits[0], np.float64))
        return result


@dataclass(frozen=True)
class Solo:
    """What a request gives alone: its outputs, and for each of its tokens in turn the model's logits [vocab]."""

    outputs: list[TokenOutput]
    logits: list[np.ndarray]


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    """Of bytes, but for the first ids; the model ends with a token that it does say."""
    return Tokenizer(replace(read_folder_tokenizer(tiny_folder), eos_ids=frozenset({END})))


def engine_of(tokenizer: Tokenizer, manager: Any, **config: Any) -> Engine:
    return Engine(EngineConfig(model="llama3", seed=0, **config), tokenizer, manager)


def run_solo(tokenizer: Tokenizer, case: Case) -> Solo:
    recorder = Recorder(tiny_manager(**SOLO))
    engine = engine_of(tokenizer, recorder, overlap=False, prefix_caching=False)
    [outputs] = run(engine, [case])
    return Solo(outputs, recorder.logits)


def allowed(tokenizer: Tokenizer, params: SamplingParams, output: list[int]) -> set[int]:
    """Ids that may come after this output, by what docs/sampling.md says."""
    ids = {*range(VOCAB)} if params.allowed_token_ids is None else {*params.allowed_token_ids}
    for word in params.bad_words:
        for text in (word, " " + word):
            *before, last = tokenizer.encode(text, add_bos=False)
            if not before or output[-len(before) :] == before:
                ids.discard(last)
    return ids - {END, *params.stop_token_ids} if len(output) < params.min_tokens else ids


def check_solo(tokenizer: Tokenizer, case: Case, solo: Solo, rng: random.Random) -> list[float]:
    """Holds each token to the oracle; of each that was drawn, a number that is uniform in [0, 1) if all is right."""
    prompt, params = case
    places: list[float] = []
    sampled = [output for output in solo.outputs if output.token_id is not None]
    outputs: dict[int, list[int]] = {}
    for output, raw in zip(sampled, solo.logits, strict=True):
        token, before = output.token_id, outputs.setdefault(output.index, [])
        assert token is not None
        penalties = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        logits = penalised(raw, prompt, before, *penalties)
        logits = constrained(logits, params.biases, allowed(tokenizer, params, before))
        if params.temperature == 0:
            assert logits[token] >= logits.max() - NEAR
        else:
            filters = params.top_k, params.top_p, params.min_p
            right = distribution(logits, params.temperature, *filters)
            edge = distribution(logits, params.temperature, params.top_k, min(params.top_p * 1.0001, 1), params.min_p)
            assert right[token] > 0 or edge[token] > 0
            places.append(float(right[:token].sum() + rng.random() * right[token]))
        if params.logprobs is not None:
            assert output.logprobs is not None
            assert output.logprobs.logprob == pytest.approx(logprobs(raw)[token], abs=1e-4)
        before.append(token)
    return places


def facts(outputs: list[TokenOutput]) -> list[Any]:
    """What must be the same in any company."""
    one = [(o.index, o.token_id, o.text, o.finish_reason, o.error, o.logprobs, o.prompt_logprobs) for o in outputs]
    return sorted(one, key=lambda output: output[0])


def test_every_request_of_mixed_batches_is_its_solo_run_and_the_oracles(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    cases = [random_case(rng) for _ in range(REQUESTS)]
    solo = cache(lambda i: run_solo(tokenizer, cases[i]))
    places: list[float] = []
    for i, case in enumerate(cases):
        places += check_solo(tokenizer, case, solo(i), rng)
    statistic, bound = chi_square((np.array(places) * 20).astype(int), np.full(20, 1 / 20))
    assert statistic < bound
    assert len(places) > 800

    engine = engine_of(tokenizer, tiny_manager(**SMALL))
    for _ in range(BATCHES):
        chosen = rng.sample(range(REQUESTS), rng.randint(2, 6))
        for i, outputs in zip(chosen, run(engine, [cases[i] for i in chosen]), strict=True):
            assert facts(outputs) == facts(solo(i).outputs), cases[i]
    assert engine.scheduler.num_preemptions > 0
    assert engine.metrics.prefix_hit_tokens > 0
