"""What one request may ask of generation, and the check that it makes sense."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import RequestError
from headrace.text.checks import check_text

MAX_STOPS = 16

_LARGEST = sys.float_info.max  # an integer may be larger than any float


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends. Wrong values raise RequestError, which names the field.

    The order is temperature, top-k, top-p, min-p, each on what the one before left, in float32; ties go to the
    lowest token id.

    Attributes:
        max_tokens: most tokens to generate, ≥ 1; generation also ends where the context is full.
        temperature: divides the logits, ≥ 0; 0 takes the most likely token.
        top_p: keep the fewest most likely tokens whose probabilities reach this sum; in (0, 1], 1 is off.
        top_k: keep this many of the most likely tokens; 0 and −1 are off.
        min_p: drop tokens less likely than this times the most likely one; in [0, 1], 0 is off.
        stop: strings that end the text; they are not part of it. The earliest match in the text wins.
        stop_token_ids: further tokens that end generation, besides the model's own.
        ignore_eos: the model's own end tokens do not end generation.
        seed: 64-bit seed of this request's draws; the same seed gives the same tokens in any company.
            None takes a fresh one.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, 1, None)
        _number("temperature", self.temperature, 0.0, None)
        _number("top_p", self.top_p, 0.0, 1.0, open_below=True)
        _integer("top_k", self.top_k, -1, None)
        _number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        if not isinstance(self.ignore_eos, bool):
            raise RequestError("ignore_eos", f"must be true or false, not {self.ignore_eos!r}")
        object.__setattr__(self, "stop", _stops(self.stop))
        if isinstance(self.stop_token_ids, (str, bytes)) or not isinstance(self.stop_token_ids, Sequence):
            raise RequestError("stop_token_ids", f"must be a list of token ids, not {self.stop_token_ids!r}")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, None)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return tuple(self.stop)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuses token ids that the model does not have."""
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, vocab_size - 1)


def _stops(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(isinstance(s, str) for s in stops):
        raise RequestError("stop", f"must be a string or a list of strings, not {stop!r}")
    for text in stops:
        check_text("stop", text)
    if any(not s for s in stops):
        raise RequestError("stop", "must not hold an empty string")
    if len(stops) > MAX_STOPS:
        raise RequestError("stop", f"holds {len(stops)} strings, at most {MAX_STOPS} are allowed")
    return tuple(stops)


def _integer(name: str, value: Any, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(name, f"must be an integer, not {value!r}")
    _bounds(name, value, low, high, open_below=False)


def _number(name: str, value: Any, low: float, high: float | None, open_below: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(name, f"must be a number, not {value!r}")
    if abs(value) > _LARGEST or math.isnan(value):
        raise RequestError(name, "must be a finite number")
    _bounds(name, value, low, high, open_below)


def _bounds(name: str, value: float, low: float, high: float | None, open_below: bool) -> None:
    below = value <= low if open_below else value < low
    if below or (high is not None and value > high):
        least = f"> {low}" if open_below else f">= {low}"
        most = "" if high is None else f" and <= {high}"
        raise RequestError(name, f"must be {least}{most}, not {value!r}")
