"""The log-probabilities of one token as a caller sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# The log-probability of a token without probability, instead of −inf or NaN, which JSON cannot say.
IMPOSSIBLE = -9999.0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was where it stands, and what was most likely there.

    Attributes:
        token_id: the token.
        logprob: its log-probability, natural; `IMPOSSIBLE` if it has no probability.
        rank: 1 for the most likely; 1 + how many tokens are more likely.
        top: ids and log-probabilities of the most likely tokens, most likely first, ties by id. Those without
            probability are left out.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


_FIXED = 4  # columns before those of the most likely tokens


def score_columns(max_top: int) -> int:
    """Columns of a row of scores with so many most likely tokens."""
    return _FIXED + 2 * max_top


def token_logprobs(row: np.ndarray, token_id: int, num_top: int) -> TokenLogprobs:
    """Reads one row of `logprobs.scores`, int32 [score_columns(max_top)], and lists `num_top` ≤ max_top tokens."""
    max_top = (len(row) - _FIXED) // 2
    logit, peak, total = row[:3].view(np.float32).tolist()
    log_sum = peak + math.log(total) if total > 0 else math.inf
    ids, values = row[_FIXED : _FIXED + num_top].tolist(), row[_FIXED + max_top :].view(np.float32)[:num_top].tolist()
    top = tuple((i, value - log_sum) for i, value in zip(ids, values, strict=True) if value - log_sum > IMPOSSIBLE)
    logprob = logit - log_sum
    return TokenLogprobs(token_id, logprob if logprob > IMPOSSIBLE else IMPOSSIBLE, int(row[3]), top)
