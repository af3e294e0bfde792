"""What ends a request and what of its tokens is text, with SmolLM2's tokenizer."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.engine.request import Request
from headrace.sampling.params import SamplingParams
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.stop import StopMatcher
from headrace.text.tokenizer import Tokenizer
from text.vocabularies import gguf_definition, gguf_tokenizer

RIVER, WHISPERED, HALF_EMOJI = 4626, 39529, 10813  # " river", " whispered", the bytes F0 9F
START, END = 1, 2  # <|im_start|>, <|im_end|>: control tokens, the second the model's end


@pytest.fixture
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return gguf_tokenizer(smollm2_path)


def fed(tokenizer: Tokenizer, ids: Sequence[int], **given: Any) -> tuple[Request, list[str]]:
    """A request that has taken tokens until it ended, and the text that each made final."""
    params = SamplingParams(**{"max_tokens": len(ids), **given})
    request = Request(
        request_id="r",
        token_ids=[7, 8, 9],
        num_prompt=3,
        params=params,
        max_total=3 + params.max_tokens,
        end_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else tokenizer.eos_ids),
        seed=0,
        detokenizer=IncrementalDetokenizer(
            tokenizer, skip_special=params.skip_special_tokens, shown=params.shown_token_ids
        ),
        stop=StopMatcher(params.stops, include=params.include_stop_str_in_output),
    )
    deltas = []
    for token in ids:
        deltas.append(request.append(token))
        if request.finish_reason is not None:
            break
    return request, deltas


def ends(tokenizer: Tokenizer, ids: Sequence[int], **given: Any) -> tuple[str, int, str | None]:
    """Text, number of tokens and reason."""
    request, deltas = fed(tokenizer, ids, **given)
    assert request.token_ids[3:] == list(ids[: request.num_output])
    return "".join(deltas), request.num_output, request.finish_reason


@pytest.mark.parametrize(
    ("given", "text", "count"),
    [
        ({"stop": ["river river"]}, " ", 2),
        ({"stop": ["iver"]}, " r", 1),
        ({"stop": ["river river", "iver"]}, " r", 1),
        ({"stop": ["iver river", "river river"]}, " ", 2),  # both end there: the longer began earlier
        ({"stop": ["river r"]}, " ", 2),
        ({"stop": ["river river"], "include_stop_str_in_output": True}, " river river", 2),
        ({"stop": ["river r"], "include_stop_str_in_output": True}, " river r", 2),
        ({"stop": ["iver"], "min_tokens": 1}, " river r", 2),
        ({"stop": ["iver"], "min_tokens": 3}, " river river river r", 4),
        ({"stop": ["river river"], "min_tokens": 1}, " ", 2),  # it ends in the second token
        ({"stop": ["river river"], "min_tokens": 2}, " river ", 3),  # that which ends in the second counts no more
        ({"stop": ["iver"], "min_tokens": 3, "include_stop_str_in_output": True}, " river river river river", 4),
    ],
)
def test_stop_strings(tokenizer: Tokenizer, given: dict[str, Any], text: str, count: int) -> None:
    assert ends(tokenizer, [RIVER] * 8, **given) == (text, count, "stop")


def test_a_stop_string_that_is_complete_too_early_is_text_and_the_run_ends_with_length(tokenizer: Tokenizer) -> None:
    ids = [RIVER, WHISPERED, WHISPERED, WHISPERED]
    assert ends(tokenizer, ids, stop="river", min_tokens=1) == (tokenizer.decode(ids), 4, "length")
    assert ends(tokenizer, ids[:2], stop="whispered", min_tokens=2) == (" river whispered", 2, "length")
    assert ends(tokenizer, ids[:2], stop="whispered", min_tokens=1) == (" river ", 2, "stop")


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_end_tokens(tokenizer: Tokenizer, include: bool, skip: bool) -> None:
    options = {"include_stop_str_in_output": include, "skip_special_tokens": skip}
    shown = "<|im_end|>" if include and not skip else ""
    assert ends(tokenizer, [RIVER, END, RIVER], **options) == (" river" + shown, 2, "stop")
    word = " whispered" if include else ""
    ids = [RIVER, WHISPERED, RIVER]
    assert ends(tokenizer, ids, stop_token_ids=[WHISPERED], **options) == (" river" + word, 2, "stop")


def test_end_tokens_within_min_tokens_end_nothing(tokenizer: Tokenizer) -> None:
    ids = [END, START, RIVER, END, RIVER]
    assert ends(tokenizer, ids, min_tokens=3) == (" river", 4, "stop")
    assert ends(tokenizer, ids, min_tokens=4) == (" river river", 5, "length")
    assert ends(tokenizer, ids) == ("", 1, "stop")
    assert ends(tokenizer, ids, ignore_eos=True) == (" river river", 5, "length")
    assert ends(tokenizer, ids, ignore_eos=True, stop_token_ids=[START]) == ("", 2, "stop")


def test_what_stopped_a_request_is_the_stop_string_or_stop_token_and_nothing_for_any_other_end(
    tokenizer: Tokenizer,
) -> None:
    def reason(ids: list[int], **given: Any) -> str | int | None:
        return fed(tokenizer, ids, **given)[0].stop_reason

    assert reason([RIVER, RIVER], stop=["iver river", "river river", "x"]) == "river river"
    assert reason([RIVER, HALF_EMOJI], stop="r\ufffd") == "r\ufffd"
    assert reason([RIVER, WHISPERED], stop_token_ids=[WHISPERED]) == WHISPERED
    assert reason([RIVER, END], stop="whispered") is None
    assert reason([RIVER, WHISPERED], stop_token_ids=[START]) is None
    assert reason([WHISPERED, RIVER], stop_token_ids=[WHISPERED], min_tokens=2) is None


@pytest.mark.parametrize("spaces", [False, True])
def test_control_tokens_are_text_if_they_are_not_skipped(
    tokenizer: Tokenizer, smollm2_path: Path, spaces: bool
) -> None:
    ids = [START, START, RIVER, START, END]
    backend = gguf_definition(smollm2_path).backend
    for skip in (False, True):
        # Neither value of spaces_between_special_tokens puts spaces there, as with the fast tokenizers of transformers.
        text = backend.decode(ids, skip_special_tokens=skip)
        options = {"skip_special_tokens": skip, "spaces_between_special_tokens": spaces, "ignore_eos": True}
        assert ends(tokenizer, ids, **options) == (text, 5, "length")
    assert ends(tokenizer, ids, skip_special_tokens=False, stop="start|> r")[0] == "<|im_start|><|im_"


def test_some_control_tokens_are_text_and_others_are_not(tokenizer: Tokenizer) -> None:
    ids = [START, RIVER, END, START]
    assert ends(tokenizer, ids, shown_token_ids=[START], ignore_eos=True)[0] == "<|im_start|> river<|im_start|>"
    assert ends(tokenizer, ids, shown_token_ids=[START, END]) == ("<|im_start|> river", 3, "stop")


def test_half_a_character_at_the_end_is_replaced_and_may_complete_a_stop_string(tokenizer: Tokenizer) -> None:
    ids = [RIVER, HALF_EMOJI]
    assert ends(tokenizer, ids) == (" river\ufffd", 2, "length")
    assert ends(tokenizer, ids, stop="r\ufffd") == (" rive", 2, "stop")
    assert ends(tokenizer, ids, stop="r\ufffd", min_tokens=2) == (" river\ufffd", 2, "length")
    assert ends(tokenizer, [*ids, END]) == (" river\ufffd", 3, "stop")


def test_the_reason_is_stop_where_the_last_token_allowed_also_stops(tokenizer: Tokenizer) -> None:
    assert ends(tokenizer, [RIVER, RIVER], stop="river river") == (" ", 2, "stop")
    assert ends(tokenizer, [RIVER, END]) == (" river", 2, "stop")


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    words=st.lists(st.sampled_from([RIVER, WHISPERED, HALF_EMOJI, START, END, 216]), min_size=1, max_size=12),
    stops=st.lists(st.text(" rivewhsp\ufffd", min_size=1, max_size=8), max_size=3),
    least=st.integers(0, 6),
    include=st.booleans(),
    skip=st.booleans(),
)
def test_the_rule(
    tokenizer: Tokenizer, words: list[int], stops: list[str], least: int, include: bool, skip: bool
) -> None:
    """The first k at which the text of k tokens ends with a stop string, or the k-th is an end token."""
    least = min(least, len(words))
    options = {"min_tokens": least, "include_stop_str_in_output": include, "skip_special_tokens": skip}
    request, deltas = fed(tokenizer, words, stop=stops, **options)

    def certain(ids: list[int], final: bool) -> str:
        data = b"".join(tokenizer.token_bytes(id) for id in ids if not (skip and tokenizer.is_special(id)))
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)

    expected = (certain(words, True), len(words), "length")
    quiet = len(certain(words[:least], False))
    for k in range(least + 1, len(words) + 1):
        is_end = words[k - 1] == END
        text = certain(words[: k - 1 if is_end and not include else k], is_end or k == len(words))
        starts = [(text.find(stop, max(quiet - len(stop) + 1, 0)), len(stop)) for stop in stops]
        hits = sorted((start + length, start) for start, length in starts if start >= 0)
        if hits or is_end:
            end, start = hits[0] if hits else (len(text), len(text))
            expected = (text[: end if include else start], k, "stop")
            break
    assert ("".join(deltas), request.num_output, request.finish_reason) == expected
