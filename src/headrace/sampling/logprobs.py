"""Log-probabilities of chosen and of most likely tokens, on the device, packed for the way to the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headrace.sampling.candidates import candidates
from headrace.sampling.filters import total
from headrace.sampling.scores import score_columns


def scores(logits: jax.Array, tokens: jax.Array, wanted: jax.Array, max_top: int) -> jax.Array:
    """What `scores.token_logprobs` reads: [rows, score_columns(max_top)] int32.

    The columns are: bits of the token's logit (float32), of the largest, and of the sum of exp(logit − largest); the
    token's rank, 1 + how many ids have a larger logit; the ids with the largest logits, ties by id; the bits of those.
    The host makes log-probabilities of them: XLA:CPU takes the logarithms of few numbers in another way than of many.

    Args:
        logits: [rows, vocab] float32.
        tokens: [rows] int32.
        wanted: [rows] bool; if it is true of no row, nothing is computed and all columns are 0. The columns of other
            rows have no meaning.
        max_top: most likely ids to list; static.
    """
    top = min(max_top, logits.shape[1])

    def scored() -> jax.Array:
        peak = logits.max(-1, keepdims=True)
        token = jnp.maximum(tokens, 0)[:, None]
        logit = jnp.take_along_axis(logits, token, axis=1, mode="clip")
        rank = 1 + (logits > logit).astype(jnp.float32).sum(-1).astype(jnp.int32)  # exact up to 2**24 tokens
        values, ids = _largest(logits, top)
        missing = ((0, 0), (0, max_top - top))
        ids, values = jnp.pad(ids, missing), jnp.pad(values, missing, constant_values=-jnp.inf)
        floats = jnp.concatenate([logit, peak, total(jnp.exp(logits - peak))[:, None]], axis=1)
        return jnp.concatenate([_bits(floats), rank[:, None], ids, _bits(values)], axis=1)

    nothing = jnp.zeros((len(logits), score_columns(max_top)), jnp.int32)
    result: jax.Array = jax.lax.cond(wanted.any(), scored, lambda: nothing)
    return result


def _largest(logits: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The `count` largest of logits [rows, vocab] and their ids, ties by id."""
    some = candidates(logits, max(count, 1), padding=-jnp.inf)
    columns, values = jax.lax.sort((some.columns, jnp.where(some.values == 0, 0.0, some.values)), num_keys=1)
    values, places = jax.lax.top_k(values, count)
    return values, jnp.take_along_axis(columns, places, axis=1, mode="promise_in_bounds")


def _bits(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.int32)
