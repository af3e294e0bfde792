"""The checks that a request's parameters pass. Each raises RequestError, which names the parameter."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import RequestError
from headrace.text.checks import check_text

_LARGEST = sys.float_info.max  # an integer may be larger than any float
_LONGEST_SHOWN = 80


def check_integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> None:
    """Refuses what is not an `int` from `low` to `high`. True and False are none, nor are NumPy's integers."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(name, f"must be an integer, not {shown(value)}")
    _bounds(name, value, low, high, open_below=False)


def check_number(name: str, value: Any, low: float, high: float | None = None, *, open_below: bool = False) -> None:
    """Refuses what is not an `int` or `float` from `low` (itself excluded if `open_below`) to `high`, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(name, f"must be a number, not {shown(value)}")
    if abs(value) > _LARGEST or math.isnan(value):
        raise RequestError(name, "must be a finite number")
    _bounds(name, value, low, high, open_below)


def check_boolean(name: str, value: Any) -> None:
    """Refuses what is not True or False."""
    if not isinstance(value, bool):
        raise RequestError(name, f"must be true or false, not {shown(value)}")


def texts(name: str, value: Any, most: int) -> tuple[str, ...]:
    """A list of at most `most` texts, none of them empty, as a tuple."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise RequestError(name, f"must be a list of strings, not {shown(value)}")
    if len(value) > most:
        raise RequestError(name, f"holds {len(value)} strings, at most {most} are allowed")
    for text in value:
        check_text(name, text)
        if not text:
            raise RequestError(name, "must not hold an empty string")
    return tuple(value)


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """A list of token ids, as a tuple. Which ids the model has is checked later, by `check_ids`."""
    if isinstance(value, (str, bytes, bytearray, memoryview)) or not isinstance(value, Sequence):
        raise RequestError(name, f"must be a list of token ids, not {shown(value)}")
    for token in value:
        check_integer(name, token, 0)
    return tuple(value)


def logit_bias(name: str, value: Any, most: int, strongest: float) -> dict[int, float]:
    """At most `most` numbers from −`strongest` to `strongest`, by token id; ids may be written as text, as in JSON."""
    if not isinstance(value, Mapping):
        raise RequestError(name, f"must map token ids to numbers, not be {shown(value)}")
    if len(value) > most:
        raise RequestError(name, f"holds {len(value)} tokens, at most {most} are allowed")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token = _id_in_text(key) if isinstance(key, str) else key
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise RequestError(name, f"{shown(key)} is not a token id")
        if token in biases:
            raise RequestError(name, f"holds token {token} twice")
        check_number(name, bias, -strongest, strongest)
        biases[token] = float(bias)
    return biases


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Refuses ids from `vocab_size` on."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise RequestError(name, f"{shown(token)} is not a token id; ids are 0 … {vocab_size - 1}")


def shown(value: Any) -> str:
    """A value as error messages show it, in few characters."""
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, or an object of the caller's that has no repr
        return f"this {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def _id_in_text(key: str) -> int | None:
    # Not `int(key)`, which also takes "1_0", " 1 " and digits of other scripts, and whose time is not bounded.
    return int(key) if key.isascii() and key.isdigit() and len(key) <= 10 else None


def _bounds(name: str, value: float, low: float | None, high: float | None, open_below: bool) -> None:
    below = low is not None and (value <= low if open_below else value < low)
    if below or (high is not None and value > high):
        least = f"> {low}" if open_below else f">= {low}"
        most = "" if high is None else f" and <= {high}"
        raise RequestError(name, f"must be {least}{most}, not {shown(value)}")
