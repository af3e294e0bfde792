"""The stream cases of public bug reports, through the offline API."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import LLM, CompletionOutput, RequestOutput, SamplingParams
from headrace.engine.engine import TokenOutput
from smol import END, HALF_EMOJI, RIVER, force

PROMPT = "Once upon a time"


def answers(llm: LLM, params: SamplingParams, prompt: Any = PROMPT) -> RequestOutput:
    """What `generate` gives, once it is known that a stream gives the same."""
    [whole] = llm.generate([prompt], params)
    streamed = list(llm.stream(prompt, params))
    for choice in whole.outputs:
        mine = [output for output in streamed if output.index == choice.index]
        assert_parity(choice, mine, whole, params)
    assert {output.index for output in streamed} == {*range(params.n)}
    return whole


def assert_parity(
    choice: CompletionOutput, streamed: list[TokenOutput], whole: RequestOutput, params: SamplingParams
) -> None:
    assert "".join(output.text for output in streamed) == choice.text
    assert [output.token_id for output in streamed if output.token_id is not None] == choice.token_ids
    assert [output.finish_reason for output in streamed] == [None] * (len(streamed) - 1) + [choice.finish_reason]
    scored = [output.prompt_logprobs for output in streamed]
    assert scored[0] == (whole.prompt_logprobs if choice.index == 0 else None)
    assert scored[1:] == [None] * (len(streamed) - 1)
    own = [output.logprobs for output in streamed if output.token_id is not None]
    if params.logprobs is None:
        assert choice.logprobs is None
        assert own == [None] * len(own)
    else:
        before = (whole.prompt_logprobs or []) if params.echo else []
        assert choice.logprobs == [*before, *own]


STOPS = [
    (["river river"], " ", " river river", 2),
    (["iver"], " r", " river", 1),
    (["river river", "iver"], " r", " river", 1),
]


@pytest.mark.parametrize(("stop", "text", "included", "count"), STOPS)
@pytest.mark.parametrize("include", [False, True])
def test_str_01_stop_strings_over_and_within_tokens(
    smol: LLM, stop: list[str], text: str, included: str, count: int, include: bool
) -> None:
    params = force(RIVER, stop=stop, max_tokens=8, include_stop_str_in_output=include)
    output = answers(smol, params)
    assert (output.text, output.finish_reason) == (included if include else text, "stop")
    assert output.token_ids == [RIVER] * count


@pytest.mark.parametrize(("stop", "text", "included", "count"), STOPS)
def test_str_03_ids_and_logprobs_hold_every_sampled_token(
    smol: LLM, stop: list[str], text: str, included: str, count: int
) -> None:
    output = answers(smol, force(RIVER, stop=stop, max_tokens=8, logprobs=2))
    assert output.text == text
    assert output.logprobs is not None
    assert [one.token_id for one in output.logprobs if one is not None] == output.token_ids == [RIVER] * count
    assert all(one is not None and len(one.top) == 2 for one in output.logprobs)
    assert output.num_output_tokens == count


def test_str_03_an_end_token_counts_and_is_no_text(smol: LLM) -> None:
    output = answers(smol, force(END, max_tokens=8, logprobs=2))
    assert (output.text, output.token_ids, output.finish_reason) == ("", [END], "stop")
    assert output.logprobs is not None
    assert len(output.logprobs) == 1


@pytest.mark.parametrize("count", [1, 5, 20])
def test_str_03_max_tokens_are_exactly_so_many(smol: LLM, count: int) -> None:
    output = answers(smol, force(RIVER, max_tokens=count, logprobs=0))
    assert (output.text, output.token_ids, output.finish_reason) == (" river" * count, [RIVER] * count, "length")
    assert output.logprobs is not None
    assert len(output.logprobs) == count


def test_str_05_choices_are_prompt_major_and_each_ends_once(smol: LLM) -> None:
    prompts = ["A", "B B", "C C C"]
    params = SamplingParams(n=2, max_tokens=3, echo=True, temperature=1, seed=7)
    results = smol.generate(prompts, params)
    for prompt, result in zip(prompts, results, strict=True):
        assert [choice.index for choice in result.outputs] == [0, 1]
        assert all(choice.text.startswith(prompt) for choice in result.outputs)
        assert result.num_output_tokens == sum(len(choice.token_ids) for choice in result.outputs)
        assert answers(smol, params, prompt).outputs == result.outputs
    assert [result.num_prompt_tokens for result in results] == [1, 2, 3]


@pytest.mark.parametrize("n", [1, 3])
def test_str_07_every_token_has_its_logprobs_also_where_its_text_is_empty(smol: LLM, n: int) -> None:
    output = answers(smol, force(HALF_EMOJI, n=n, max_tokens=8, logprobs=3, echo=True, prompt_logprobs=1))
    for choice in output.outputs:
        assert choice.logprobs is not None
        own = [one for one in choice.logprobs[output.num_prompt_tokens :] if one is not None]
        assert [one.token_id for one in own] == choice.token_ids == [HALF_EMOJI] * 8
        assert [len(one.top) for one in own] == [3] * 8
        assert choice.text == PROMPT + "\ufffd" * 8
    hot = SamplingParams(n=n, max_tokens=8, logprobs=3, temperature=3.0, seed=3)
    for choice in answers(smol, hot).outputs:
        assert choice.logprobs is not None
        assert [one.token_id for one in choice.logprobs if one is not None] == choice.token_ids
