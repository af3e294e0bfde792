"""Every sampling parameter at its bounds, one step beyond them, and of the wrong type."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.errors import RequestError
from headrace.sampling.params import MAX_STOPS, SamplingParams

BELOW_0, ABOVE_1 = math.nextafter(0, -1), math.nextafter(1, 2)
NOT_FINITE = [math.nan, math.inf, -math.inf]
TOO_LARGE = 10**400  # an integer beyond every float

ACCEPTED: list[tuple[str, Any]] = [
    *(("max_tokens", value) for value in (1, 2, 10**9)),
    *(("temperature", value) for value in (0, 0.0, -0.0, 5e-324, 1, 2.5, 1e30)),
    *(("top_p", value) for value in (5e-324, 0.5, 1, 1.0)),
    *(("top_k", value) for value in (-1, 0, 1, 10**7, 2**40)),
    *(("min_p", value) for value in (0, 0.0, 5e-324, 1, 1.0)),
    *(("seed", value) for value in (None, 0, 1, -1, 2**63, 2**64 - 1, -(2**63))),
    *(("ignore_eos", value) for value in (True, False)),
    *(("stop", value) for value in ("x", (), [], ["a", "b"], ["x"] * MAX_STOPS)),
    *(("stop_token_ids", value) for value in ((), [], [0], (5, 7))),
]

REFUSED: list[tuple[str, Any]] = [
    *(("max_tokens", value) for value in (0, -1, 1.0, True, "1", None, *NOT_FINITE)),
    *(("temperature", value) for value in (BELOW_0, -1, True, "1", None, TOO_LARGE, *NOT_FINITE)),
    *(("top_p", value) for value in (0, 0.0, BELOW_0, ABOVE_1, 2, True, "1", None, TOO_LARGE, *NOT_FINITE)),
    *(("top_k", value) for value in (-2, -(2**40), 1.0, True, "1", None, *NOT_FINITE)),
    *(("min_p", value) for value in (BELOW_0, ABOVE_1, True, "0", None, *NOT_FINITE)),
    *(("seed", value) for value in (2**64, -(2**63) - 1, 1.0, True, "1", *NOT_FINITE)),
    *(("ignore_eos", value) for value in (0, 1, "true", None)),
    *(("stop", value) for value in ("", "\ud800", [""], ["a", ""], [1], 1, None, b"x", ["x"] * (MAX_STOPS + 1), {"x"})),
    *(("stop_token_ids", value) for value in ([-1], [1.0], [True], ["1"], "1", b"1", 1, None, {1})),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_accepted(name: str, value: Any) -> None:
    params = SamplingParams(**{name: value})
    if name == "stop":
        assert params.stops == ((value,) if isinstance(value, str) else tuple(value))
    elif name == "stop_token_ids":
        assert params.stop_token_ids == tuple(value)
    else:
        assert getattr(params, name) == value


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refused_naming_the_field(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(**{name: value})
    assert refusal.value.param == name
    assert str(refusal.value).startswith(f"{name}: ")


def test_unknown_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]


def test_stop_tokens_must_be_in_the_vocabulary() -> None:
    params = SamplingParams(stop_token_ids=[0, 9])
    params.check_vocabulary(10)
    with pytest.raises(RequestError, match="<= 8") as refusal:
        params.check_vocabulary(9)
    assert refusal.value.param == "stop_token_ids"


def test_the_defaults() -> None:
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (16, 1.0, 1.0, 0, 0.0)
    assert (params.stops, params.stop_token_ids, params.ignore_eos, params.seed) == ((), (), False, None)
