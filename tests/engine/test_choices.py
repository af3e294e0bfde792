"""Requests with several choices: shared pages, one id, and what ends them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.engine import Engine, TokenOutput
from headrace.errors import QueueFullError, RequestError
from headrace.llm import LLM
from headrace.sampling.params import MAX_N, SamplingParams
from headrace.sampling.structured import StructuredOutputs
from headrace.text.tokenizer import Tokenizer
from tiny import SMALL, SOLO, check_pages, run, text, tiny_engine, tokens

HOT = SamplingParams(n=3, temperature=1.5, seed=7, max_tokens=9, ignore_eos=True)
PROMPT = [5 + i for i in range(40)]


@pytest.fixture
def engine(tiny_folder: Path) -> Engine:
    return tiny_engine(tiny_folder, **SMALL)


def by_choice(outputs: list[TokenOutput], n: int) -> list[list[TokenOutput]]:
    return [[output for output in outputs if output.index == index] for index in range(n)]


def test_each_choice_is_a_draw_of_its_own_whatever_n_is(tiny_folder: Path, engine: Engine) -> None:
    seen = {}
    for n in (1, 2, 4, 6):  # more than run at once
        [outputs] = run(engine, [(PROMPT, replace(HOT, n=n))])
        choices = by_choice(outputs, n)
        seen[n] = [tokens(choice) for choice in choices]
        assert [len(ids) for ids in seen[n]] == [9] * n
        assert [choice[-1].finish_reason for choice in choices] == ["length"] * n
        assert [text(choice) for choice in choices] == [engine.tokenizer.decode(ids) for ids in seen[n]]
    assert len({tuple(ids) for ids in seen[6]}) == 6
    for n in (1, 2, 4):
        assert seen[n] == seen[6][:n]
    [again] = run(tiny_engine(tiny_folder, **SOLO), [(PROMPT, replace(HOT, n=6))])
    assert [tokens(choice) for choice in by_choice(again, 6)] == seen[6]


def test_without_a_seed_choices_and_requests_differ(engine: Engine) -> None:
    fresh = replace(HOT, seed=None, n=2)
    found = {
        tuple(tokens(choice)) for outputs in run(engine, [(PROMPT, fresh)] * 2) for choice in by_choice(outputs, 2)
    }
    assert len(found) == 4


def test_choices_share_the_prompts_full_pages(engine: Engine) -> None:
    [outputs] = run(engine, [(PROMPT, HOT)])
    assert [choice[-1].num_cached_tokens for choice in by_choice(outputs, 3)] == [0, 32, 32]
    assert engine.metrics.prefix_hit_tokens == 64


@pytest.mark.parametrize("overlap", [True, False])
def test_the_first_choice_brings_what_is_said_of_the_prompt(tiny_folder: Path, overlap: bool) -> None:
    engine = tiny_engine(tiny_folder, config={"overlap": overlap}, **SMALL)
    for most in (0, 1, 9):
        [outputs] = run(engine, [(PROMPT, replace(HOT, max_tokens=most, logprobs=1, prompt_logprobs=2))])
        first, *others = by_choice(outputs, 3)
        assert len(first[0].prompt_logprobs or ()) == 40
        assert all(output.prompt_logprobs is None for output in [*first[1:], *others[0], *others[1]])
        assert all((output.logprobs is None) == (output.token_id is None) for output in outputs)
        assert [choice[-1].finish_reason for choice in (first, *others)] == ["length"] * 3


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_an_abort_ends_all_choices(engine: Engine, steps: int) -> None:
    for name, n in (("a", 3), ("b", 3)):  # some wait
        engine.add(name, PROMPT, replace(HOT, n=n))
    for _ in range(steps):
        engine.step()
    engine.abort("a")
    check_pages(engine)
    assert not engine.has_request("a")
    assert engine.has_request("b")
    engine.abort("b")
    assert not engine.has_unfinished
    assert engine.pool.num_available == engine.pool.num_pages
    assert engine.step() == []


def test_the_id_is_in_use_until_the_last_choice_has_ended(engine: Engine) -> None:
    engine.add("a", PROMPT, HOT)
    ends: list[int] = []
    while engine.has_unfinished:
        with pytest.raises(RequestError, match="'a' is in use"):
            engine.add("a", PROMPT, HOT)
        ends += [output.index for output in engine.step() if output.finish_reason is not None]
    assert sorted(ends) == [0, 1, 2]
    engine.add("a", PROMPT, HOT)
    engine.abort("a")


def test_a_pause_that_aborts_tells_of_every_choice(engine: Engine) -> None:
    engine.add("a", PROMPT, replace(HOT, prompt_logprobs=0))
    engine.step()
    outputs = engine.pause("abort")
    assert [(o.index, o.finish_reason) for o in outputs if o.finish_reason] == [(i, "abort") for i in range(3)]
    assert all(output.prompt_logprobs is None for output in outputs)  # not all of them were known
    engine.resume()
    check_pages(engine)


def test_every_choice_counts_in_the_queue(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, config={"max_queued_requests": 3}, **SMALL)
    with pytest.raises(RequestError, match=r"^n: is 4, but only 3 requests may wait"):
        engine.add("a", PROMPT, replace(HOT, n=4))
    engine.add("a", PROMPT, replace(HOT, n=2))
    with pytest.raises(QueueFullError, match="2 requests are waiting, and max_queued_requests is 3"):
        engine.add("b", PROMPT, replace(HOT, n=2))
    assert not engine.has_request("b")
    engine.add("b", PROMPT, replace(HOT, n=1))
    while engine.has_unfinished:
        engine.step()


def test_generate_queues_as_many_choices_as_may_wait(tiny_folder: Path) -> None:
    options: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "min_input_pad": 2, "max_model_len": 64}
    llm = LLM(str(tiny_folder), dtype="float32", max_queued_requests=3, num_tokens_paddings=[16], **options)
    prompts = [[5 + i] * (3 + i) for i in range(5)]
    each = [replace(HOT, n=1 + i % 3, max_tokens=1 + i) for i in range(5)]
    together = llm.generate(prompts, each)
    assert [len(output.outputs) for output in together] == [1, 2, 3, 1, 2]
    assert [output.num_output_tokens for output in together] == [1, 4, 9, 4, 10]
    assert together == [llm.generate([prompt], one)[0] for prompt, one in zip(prompts, each, strict=True)]


def test_choices_share_what_is_made_of_the_parameters(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad words are tokenized once, and not for `check`, for `add` and for every choice."""
    encoded: list[str] = []
    encode = Tokenizer.encode

    def watched(self: Tokenizer, text: str, **options: Any) -> list[int]:
        encoded.append(text)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    words = [f"{i:04}" for i in range(100)]
    for n in (1, MAX_N):
        params = replace(HOT, n=n, bad_words=words, structured_outputs=StructuredOutputs(regex="a{3}"))
        engine.check(PROMPT, params)
        engine.add("a", PROMPT, params)
        engine.abort("a")
        assert sorted(text for text in encoded if text.strip() in words) == sorted([*words, *(f" {w}" for w in words)])
        encoded.clear()
