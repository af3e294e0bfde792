"""Every sampling parameter at its bounds, one step beyond them, and of the wrong type."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from headrace.errors import RequestError
from headrace.sampling.limits import MAX_LOGIT_BIAS
from headrace.sampling.params import MAX_BAD_WORDS, MAX_N, MAX_STOPS, SamplingParams
from headrace.sampling.structured import StructuredOutputs

BELOW_0, ABOVE_1 = math.nextafter(0, -1), math.nextafter(1, 2)
NOT_FINITE = [math.nan, math.inf, -math.inf]
TOO_LARGE = 10**400  # an integer beyond every float
TWO_SIDED = ("presence_penalty", "frequency_penalty")
FLAGS = (
    "include_stop_str_in_output",
    "ignore_eos",
    "echo",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
BIASES = dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0)
LOGPROBS = ("logprobs", "prompt_logprobs")

ACCEPTED: list[tuple[str, Any]] = [
    *(("n", value) for value in (1, 2, MAX_N)),
    *(("max_tokens", value) for value in (0, 1, 2, 10**9)),
    *(("min_tokens", value) for value in (0, 1, 15, 16)),
    *(("temperature", value) for value in (0, 0.0, -0.0, 5e-324, 1, 2.5, 1e30)),
    *(("top_p", value) for value in (5e-324, 0.5, 1, 1.0)),
    *(("top_k", value) for value in (-1, 0, 1, 10**7, 2**40)),
    *(("min_p", value) for value in (0, 0.0, 5e-324, 1, 1.0)),
    *((name, value) for name in TWO_SIDED for value in (-2, -2.0, 0, 0.5, 2, 2.0)),
    *(("repetition_penalty", value) for value in (0.001, 0.5, 1, 1.3, 1000)),
    *(
        ("logit_bias", value)
        for value in (None, {5: 100}, {0: -100.0, 7: 0}, dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0))
    ),
    *(("allowed_token_ids", value) for value in (None, (0,), (5, 7, 5))),
    *(("bad_words", value) for value in ((), ("a",), ("a b", "é"), ("x",) * MAX_BAD_WORDS)),
    *(("seed", value) for value in (None, 0, 1, -1, 2**63, 2**64 - 1, -(2**63))),
    *((name, value) for name in FLAGS for value in (True, False)),
    *(("stop", value) for value in ((), ("a", "b"), ("x",) * MAX_STOPS)),
    *((name, value) for name in ("stop_token_ids", "shown_token_ids") for value in ((), (0,), (5, 7))),
    *((name, value) for name in LOGPROBS for value in (None, 0, 1, 20, 10**6)),
    *(("truncate_prompt_tokens", value) for value in (None, -1, 1, 10**9)),
    *(("priority", value) for value in (0, -5, 10**9)),
    *(("structured_outputs", value) for value in (None, StructuredOutputs(json_object=True))),
]

NO_INTEGERS = (1.0, True, False, "1", b"1", [1], np.int32(1), *NOT_FINITE)
NO_NUMBERS = (True, False, "1", b"1", [1], np.float32(1), TOO_LARGE, -TOO_LARGE, *NOT_FINITE)
NO_IDS = ([-1], [1.0], [True], ["1"], "1", b"1", 1, {1}, [None], np.array([1]), [np.int64(1)])

REFUSED: list[tuple[str, Any]] = [
    *(("n", value) for value in (0, -1, MAX_N + 1, None, *NO_INTEGERS)),
    *(("max_tokens", value) for value in (-1, None, *NO_INTEGERS)),
    *(("min_tokens", value) for value in (-1, 17, None, *NO_INTEGERS)),
    *(("temperature", value) for value in (BELOW_0, -1, None, *NO_NUMBERS)),
    *(("top_p", value) for value in (0, 0.0, BELOW_0, ABOVE_1, 2, None, *NO_NUMBERS)),
    *(("top_k", value) for value in (-2, -(2**40), None, *NO_INTEGERS)),
    *(("min_p", value) for value in (BELOW_0, ABOVE_1, None, *NO_NUMBERS)),
    *((name, value) for name in TWO_SIDED for value in (math.nextafter(2, 3), math.nextafter(-2, -3), None)),
    *((name, value) for name in TWO_SIDED for value in NO_NUMBERS),
    *(("repetition_penalty", value) for value in (0, -1, 0.000999, 1000.001, None, *NO_NUMBERS)),
    *(("logit_bias", {5: value}) for value in (math.nextafter(100, 101), -101, None, *NO_NUMBERS)),
    *(("logit_bias", {key: 1}) for key in (-1, "-1", "abc", "", " 5", "5.0", "1_0", "٣", "9" * 5000, 1.5, True, None)),
    *(
        ("logit_bias", value)
        for value in ({5: 1, "5": 2}, [], [5], "5", 5, dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1))
    ),
    *(("allowed_token_ids", value) for value in ([], (), *NO_IDS)),
    *(("bad_words", value) for value in ("word", "", "\ud800", [""], ["\ud800"], [1], 1, None, b"x", {"x"})),
    ("bad_words", ["x"] * (MAX_BAD_WORDS + 1)),
    *(("seed", value) for value in (2**64, -(2**63) - 1, *NO_INTEGERS)),
    *((name, value) for name in FLAGS for value in (0, 1, "true", None, np.True_)),
    *(("stop", value) for value in ("", "\ud800", [""], ["a", ""], [1], 1, None, b"x", ["x"] * (MAX_STOPS + 1), {"x"})),
    *((name, value) for name in ("stop_token_ids", "shown_token_ids") for value in (None, *NO_IDS)),
    *((name, value) for name in LOGPROBS for value in (-1, *NO_INTEGERS)),
    *(("truncate_prompt_tokens", value) for value in (0, -2, *NO_INTEGERS)),
    *(("priority", value) for value in (None, 1.5, True, "1", np.int32(1), *NOT_FINITE)),
    *(("structured_outputs", value) for value in ({}, {"json_object": True}, "json", True)),
]


def test_every_field_is_tried() -> None:
    names = {field.name for field in fields(SamplingParams)}
    assert {name for name, _ in ACCEPTED} == {name for name, _ in REFUSED} == names


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_accepted(name: str, value: Any) -> None:
    params = SamplingParams(**{name: value})
    assert getattr(params, name) == value
    assert replace(params) == params


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refused_naming_the_field(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(**{name: value})
    assert refusal.value.param == name
    assert str(refusal.value).startswith(f"{name}: ")
    assert len(str(refusal.value)) < 200


def test_a_number_too_long_to_print_is_refused_as_well() -> None:
    for given in ({"max_tokens": -(10**5000)}, {"top_p": 10**5000}, {"logit_bias": {-(10**5000): 1}}):
        with pytest.raises(RequestError, match=f"^{next(iter(given))}: "):
            SamplingParams(**given)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"^min_tokens: this int is more than max_tokens \(this int\)"):
        SamplingParams(min_tokens=10**5000, max_tokens=10**4999)


def test_lists_become_tuples_and_a_single_stop_string_a_list() -> None:
    params = SamplingParams(stop="x", stop_token_ids=[5], bad_words=["a"], allowed_token_ids=[1, 2])
    assert (params.stops, params.stop_token_ids) == (("x",), (5,))
    assert (params.bad_words, params.allowed_token_ids) == (("a",), (1, 2))


def test_biases_are_by_token_id_however_they_are_written() -> None:
    given: dict[Any, Any] = {"5": 1, 7: -2.5, "0": 100}
    params = SamplingParams(logit_bias=given)
    given["9"] = 1
    assert params.biases == params.logit_bias == {5: 1.0, 7: -2.5, 0: 100.0}
    assert SamplingParams(logit_bias={}).logit_bias is None
    assert SamplingParams().biases == {}


@pytest.mark.parametrize(("most", "least"), [(0, 1), (4, 5), (16, 17)])
def test_min_tokens_is_at_most_max_tokens(most: int, least: int) -> None:
    assert SamplingParams(max_tokens=most, min_tokens=most).min_tokens == most
    with pytest.raises(RequestError, match=rf"^min_tokens: {least} is more than max_tokens \({most}\)"):
        SamplingParams(max_tokens=most, min_tokens=least)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, None),
        ({"logprobs": 3}, None),
        ({"echo": True}, None),
        ({"echo": True, "logprobs": 3}, 3),
        ({"echo": True, "logprobs": 0}, 0),
        ({"prompt_logprobs": 2}, 2),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 2}, 2),
    ],
)
def test_log_probabilities_of_the_prompt(given: dict[str, Any], wanted: int | None) -> None:
    assert SamplingParams(**given).num_prompt_logprobs == wanted


def test_unknown_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["stop_token_ids", "shown_token_ids", "allowed_token_ids", "logit_bias"])
def test_token_ids_must_be_in_the_vocabulary(name: str) -> None:
    params = SamplingParams(**{name: {0: 1, 9: 1} if name == "logit_bias" else [0, 9]})
    params.check_vocabulary(10)
    with pytest.raises(RequestError, match=f"^{name}: 9 is not a token id; ids are 0 … 8") as refusal:
        params.check_vocabulary(9)
    assert refusal.value.param == name


@pytest.mark.parametrize("name", LOGPROBS)
def test_log_probabilities_are_bounded_by_the_engine(name: str) -> None:
    for most in (0, 5):
        SamplingParams(**{name: most}).check_logprobs(most)
        with pytest.raises(RequestError, match=f"^{name}: must be >= 0 and <= {most}, not {most + 1}"):
            SamplingParams(**{name: most + 1}).check_logprobs(most)
    SamplingParams().check_logprobs(0)


def test_the_defaults() -> None:
    p = SamplingParams()
    assert (p.n, p.max_tokens, p.min_tokens, p.temperature, p.top_p, p.top_k, p.min_p) == (1, 16, 0, 1.0, 1.0, 0, 0.0)
    assert (p.presence_penalty, p.frequency_penalty, p.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (p.logit_bias, p.allowed_token_ids, p.bad_words, p.structured_outputs) == (None, None, (), None)
    assert (p.stops, p.stop_token_ids, p.include_stop_str_in_output, p.ignore_eos, p.seed) == (
        (),
        (),
        False,
        False,
        None,
    )
    assert (p.seed, p.logprobs, p.prompt_logprobs, p.echo, p.truncate_prompt_tokens) == (None, None, None, False, None)
    assert (p.skip_special_tokens, p.spaces_between_special_tokens, p.priority) == (True, True, 0)
    assert isinstance(hash(p), int)
