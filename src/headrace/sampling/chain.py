"""From a step's logits to its tokens: penalties, biases, masks, then the draw."""

from __future__ import annotations

from typing import Literal

import jax

from headrace.sampling.constraints import constrain
from headrace.sampling.penalties import PenaltyRows, penalise
from headrace.sampling.sampler import SamplingRows, most_likely, sample, sample_processed

LogprobsMode = Literal["raw", "processed"]


def next_tokens(
    logits: jax.Array,
    rows: SamplingRows,
    penalties: PenaltyRows,
    histories: tuple[jax.Array, jax.Array],
    rules: tuple[jax.Array, jax.Array, jax.Array],
    mode: LogprobsMode,
) -> tuple[jax.Array, jax.Array]:
    """Tokens [rows] int32, and the logits [rows, vocab] float32 whose log-probabilities are reported.

    Args:
        logits: [rows, vocab] float32.
        histories: page_tokens and page_table, see `penalise`.
        rules: constraints, has_mask and has_bias, see `constrain`.
        mode: static; "raw" reports `logits`, "processed" what the tokens are drawn from.
    """
    _, has_mask, has_bias = rules
    more = ((rows.temperature > 0) | penalties.asks | has_mask | has_bias).any()

    def adjusted() -> jax.Array:
        return constrain(penalise(logits, penalties, *histories), *rules)

    # A cond whose result are logits copies them, which for a large vocabulary takes longer than to find the largest:
    # a batch that asks for nothing goes around all of them.
    tokens: jax.Array
    if mode == "raw":
        tokens = jax.lax.cond(more, lambda: sample(adjusted(), rows), lambda: most_likely(logits))
        return tokens, logits
    tokens, drawn_from = jax.lax.cond(
        more, lambda: sample_processed(adjusted(), rows), lambda: (most_likely(logits), logits)
    )
    return tokens, drawn_from
