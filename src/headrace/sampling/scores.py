"""The log-probabilities of one token as a caller sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

IMPOSSIBLE = -9999.0  # instead of −inf, which JSON cannot say: the log-probability of a token that has no probability


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


def token_logprobs(row: np.ndarray, token_id: int, num_top: int) -> TokenLogprobs:
    """Reads one row of what `logprobs.scores` packed, int32 [2 + 2 * max_top]; `num_top` ≤ max_top are listed."""
    max_top = (len(row) - 2) // 2
    logprobs = row.view(np.float32)
    ids, values = row[2 : 2 + num_top].tolist(), logprobs[2 + max_top : 2 + max_top + num_top].tolist()
    top = tuple((i, value) for i, value in zip(ids, values, strict=True) if value > -np.inf)
    return TokenLogprobs(token_id, max(float(logprobs[0]), IMPOSSIBLE), int(row[1]), top)
