"""The cases of public bug reports about log-probabilities, echo and truncated prompts, through the offline API."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM, RequestError, RequestOutput, SamplingParams, StructuredOutputs, TokenLogprobs
from smol import HALF_EMOJI, RIVER, force

RIVERS, RIVERS_IDS = "river river river", [11267, RIVER, RIVER]


@pytest.fixture(scope="module")
def processed(tiny_folder: Path) -> LLM:
    """Whose log-probabilities are of what the tokens are drawn from."""
    options = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "min_input_pad": 2, "max_model_len": 64}
    return LLM(str(tiny_folder), dtype="float32", logprobs_mode="processed", **options)


def known(scores: list[TokenLogprobs | None] | None) -> list[TokenLogprobs]:
    assert scores is not None
    return [one for one in scores if one is not None]


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("prompt", [RIVERS, RIVERS_IDS])
def test_api_01_echo_with_logprobs_scores_the_prompt(smol: LLM, max_tokens: int, prompt: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, echo=True, logprobs=3)
    [output] = smol.generate([prompt], params)
    if max_tokens == 0:
        assert output.text == RIVERS
        assert (output.token_ids, output.num_output_tokens, output.finish_reason) == ([], 0, "length")
    assert output.text.startswith(RIVERS)
    assert output.logprobs is not None
    assert output.logprobs[0] is None
    assert [one.token_id for one in known(output.logprobs)] == [*RIVERS_IDS[1:], *output.token_ids]
    assert len(output.logprobs) == 3 + max_tokens
    assert [smol.tokenizer.token_bytes(id) for id in output.prompt_token_ids] == [b"river", b" river", b" river"]
    assert output.prompt_logprobs == output.logprobs[:3]
    for place in (1, 2):  # each is what would have been sampled there is scored by
        [before] = smol.generate([RIVERS_IDS[:place]], force(RIVER, max_tokens=1, logprobs=3))
        assert output.logprobs[place] == known(before.logprobs)[0]


def test_api_01_prompts_of_different_lengths_longer_than_a_chunk_too(smol: LLM) -> None:
    prompts = ["river" + " river" * count for count in (0, 8, 70)]
    params = SamplingParams(max_tokens=0, echo=True, logprobs=0)
    together = smol.generate(prompts, params)
    assert [output.text for output in together] == prompts
    assert [len(output.logprobs or ()) for output in together] == [1, 9, 71]
    for output, prompt in zip(together, prompts, strict=True):
        alone = smol.generate([prompt], params)[0]
        assert (output.logprobs, output.prompt_logprobs) == (alone.logprobs, alone.prompt_logprobs)
    assert all(output.num_output_tokens == 0 for output in together)


def test_api_01_echo_without_logprobs_is_text_alone_and_prompt_logprobs_come_beside(smol: LLM) -> None:
    [plain] = smol.generate([RIVERS], SamplingParams(max_tokens=0, echo=True))
    assert (plain.text, plain.logprobs, plain.prompt_logprobs) == (RIVERS, None, None)
    [beside] = smol.generate([RIVERS], force(RIVER, max_tokens=2, logprobs=1, prompt_logprobs=2))
    assert (beside.text, len(beside.logprobs or ()), len(beside.prompt_logprobs or ())) == (" river river", 2, 3)
    assert [len(one.top) for one in known(beside.prompt_logprobs)] == [2, 2]


def test_api_02_each_token_has_its_own_bytes(smol: LLM) -> None:
    [output] = smol.generate(["Hi"], force(HALF_EMOJI, max_tokens=2, logprobs=5))
    scores, token_bytes = known(output.logprobs), smol.tokenizer.token_bytes
    assert [[*token_bytes(one.token_id)] for one in scores] == [[240, 159]] * 2
    assert b"".join(token_bytes(id) for id in output.token_ids).decode(errors="replace") == output.text
    for one in scores:
        assert one.rank > 5
        assert HALF_EMOJI not in [id for id, _ in one.top]
        assert one.logprob < one.top[-1][1]
        assert [*one.top] == sorted(one.top, key=lambda entry: -entry[1])
        assert len(one.top) == 5


def test_api_02_at_most_twenty(smol: LLM) -> None:
    [output] = smol.generate(["Hi"], SamplingParams(max_tokens=1, logprobs=20, prompt_logprobs=20))
    assert [len(one.top) for one in known(output.logprobs)] == [20]
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(RequestError, match=f"^{name}: must be >= 0 and <= 20, not 21"):
            smol.generate(["Hi"], SamplingParams(**{name: 21}))


def finite(output: RequestOutput) -> list[TokenLogprobs]:
    """All log-probabilities of a result, once it is known that JSON can say them."""
    scores = [*known(output.logprobs), *known(output.prompt_logprobs or [])]
    assert json.loads(json.dumps([asdict(one) for one in scores], allow_nan=False))
    return scores


@pytest.mark.parametrize("mode", ["smol", "processed"])
def test_api_03_nothing_that_is_not_finite_is_returned(mode: str, request: pytest.FixtureRequest) -> None:
    llm: LLM = request.getfixturevalue(mode)
    prompt = llm.tokenizer.encode("The sea is")
    narrow = SamplingParams(temperature=1, top_k=1, echo=True, logprobs=1, seed=1)
    [output] = llm.generate([prompt], narrow)
    finite(output)
    likeliest = output.token_ids[0]
    barred = SamplingParams(temperature=0, max_tokens=2, logit_bias={likeliest: -100}, logprobs=5)
    for one in finite(llm.generate([prompt], barred)[0]):
        assert one.rank >= 1
    few = SamplingParams(max_tokens=4, logprobs=10, structured_outputs=StructuredOutputs(choice=["ab", "ac"]))
    [output] = llm.generate([prompt], few)
    assert output.text in ("ab", "ac")
    tops = [len(one.top) for one in finite(output)]
    assert tops[0] < 10 if mode == "processed" else tops == [10] * len(tops)


def test_api_03_scores_of_the_prompt_ignore_the_requests_masks(processed: LLM) -> None:
    prompt = processed.tokenizer.encode("The sea is")
    [free] = processed.generate([prompt], SamplingParams(max_tokens=1, prompt_logprobs=3))
    barred = SamplingParams(max_tokens=1, prompt_logprobs=3, top_k=1, allowed_token_ids=[70], repetition_penalty=2.0)
    [masked] = processed.generate([prompt], barred)
    assert masked.prompt_logprobs == free.prompt_logprobs
    assert masked.token_ids == [70]


def test_api_03_processed_log_probabilities_are_those_of_the_draw(processed: LLM) -> None:
    prompt = processed.tokenizer.encode("The sea is")
    one = SamplingParams(max_tokens=1, allowed_token_ids=[70], logprobs=2)
    [output] = processed.generate([prompt], one)
    assert output.logprobs == [TokenLogprobs(70, 0.0, 1, ((70, 0.0),))]
    two = SamplingParams(max_tokens=1, allowed_token_ids=[70, 71], logit_bias={70: 100, 71: 100}, top_k=1, logprobs=2)
    [output] = processed.generate([prompt], two)
    assert [(score.logprob, len(score.top)) for score in known(output.logprobs)] == [(0.0, 1)]


def test_api_08_no_alternatives_is_not_no_logprobs(smol: LLM) -> None:
    [zero] = smol.generate(["Hi"], SamplingParams(temperature=0, max_tokens=3, logprobs=0))
    [some] = smol.generate(["Hi"], SamplingParams(temperature=0, max_tokens=3, logprobs=2))
    [none] = smol.generate(["Hi"], SamplingParams(temperature=0, max_tokens=3))
    assert none.logprobs is None
    assert [one.top for one in known(zero.logprobs)] == [()] * 3
    assert [one.logprob for one in known(zero.logprobs)] == [one.logprob for one in known(some.logprobs)]
    assert zero.token_ids == some.token_ids == none.token_ids


LONG = [RIVER + i for i in range(200)]  # the context holds 128


@pytest.mark.parametrize(
    ("keep", "max_tokens", "kept"), [(1, 2, 1), (5, 2, 5), (127, 2, 127), (-1, 2, 127), (-1, 0, 128), (128, 0, 128)]
)
def test_a_truncated_prompt_is_its_end(smol: LLM, keep: int, max_tokens: int, kept: int) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, truncate_prompt_tokens=keep, echo=True, logprobs=0
    )
    [output] = smol.generate([LONG], params)
    assert output.prompt_token_ids == LONG[-kept:]
    assert len(output.token_ids) == min(max_tokens, 128 - kept)
    assert output.text.startswith(smol.tokenizer.decode(LONG[-kept:]))
    assert len(output.logprobs or ()) == kept + len(output.token_ids)
    plain = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, echo=True, logprobs=0)
    [same] = smol.generate([LONG[-kept:]], plain)
    assert output.outputs == same.outputs


@pytest.mark.parametrize(("keep", "max_tokens"), [(128, 1), (129, 0), (None, 0), (200, 1)])
def test_a_prompt_that_is_still_too_long_is_refused(smol: LLM, keep: int | None, max_tokens: int) -> None:
    with pytest.raises(RequestError, match=r"^prompt: has \d+ tokens, but the context holds 128"):
        smol.generate([LONG], SamplingParams(max_tokens=max_tokens, truncate_prompt_tokens=keep))


def test_a_prompt_that_is_short_enough_stays_as_it_is(smol: LLM) -> None:
    for keep in (3, 4, 1000, -1):
        params = SamplingParams(max_tokens=0, truncate_prompt_tokens=keep, echo=True)
        [output] = smol.generate([RIVERS], params)
        assert (output.prompt_token_ids, output.text) == (RIVERS_IDS, RIVERS)
