"""From logits to tokens, on the device, for all rows of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from headrace.sampling.filters import BLOCK, block_sums, keep_min_p, keep_top_k, keep_top_p

NO_TOKEN = -1  # the row does not sample in this step
BAD_LOGITS = -2  # the row's logits are NaN or have no finite maximum


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplingRows:
    """Sampling parameters of each row. Padding and greedy rows have temperature 0.

    Attributes:
        temperature, top_p, min_p: [rows] float32.
        top_k: [rows] int32; ≤ 0 is off.
        seeds: [rows, 2] uint32, high and low word.
        choices: [rows] int32, which of a request's choices the row is.
        output_positions: [rows] int32, how many tokens the row has generated before this one.
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    seeds: jax.Array
    choices: jax.Array
    output_positions: jax.Array


def sample(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    """logits [rows, vocab] float32 -> tokens [rows] int32; `BAD_LOGITS` where a row has nothing to choose from.

    A row's token is a function of its logits and its own parameters alone. Ties go to the lowest id. A batch of
    greedy rows costs one argmax.
    """
    peak = logits.max(-1)
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    random = rows.temperature > 0
    tokens = jax.lax.cond(random.any(), lambda: jnp.where(random, _draw(logits, peak, rows), greedy), lambda: greedy)
    return jnp.where(jnp.isfinite(peak), tokens, BAD_LOGITS)


def _draw(logits: jax.Array, peak: jax.Array, rows: SamplingRows) -> jax.Array:
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)
    # The maximum is subtracted before the division: a tiny temperature cannot overflow.
    likelihood = jnp.exp((logits - peak[:, None]) / temperature[:, None])
    likelihood = _if_any(rows.top_k > 0, keep_top_k, likelihood, rows.top_k)
    likelihood = _if_any(rows.top_p < 1, keep_top_p, likelihood, rows.top_p)
    likelihood = _if_any(rows.min_p > 0, keep_min_p, likelihood, rows.min_p)
    return _inverse_cdf(likelihood, _uniforms(rows))


def _if_any(asked: jax.Array, keep: object, likelihood: jax.Array, parameter: jax.Array) -> jax.Array:
    return jax.lax.cond(asked.any(), keep, lambda x, _: x, likelihood, parameter)  # type: ignore[arg-type, no-any-return]


def _uniforms(rows: SamplingRows) -> jax.Array:
    """Two numbers [rows, 2] in [0, 1) from (seed, choice, output position), by Threefry (Salmon et al., SC'11)."""

    def one(seed: jax.Array, choice: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, choice), position)
        return jax.random.bits(key, (2,), jnp.uint32)

    bits = jax.vmap(one)(rows.seeds, rows.choices, rows.output_positions)
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def _inverse_cdf(likelihood: jax.Array, uniforms: jax.Array) -> jax.Array:
    """Draws from likelihood [rows, vocab] ≥ 0: a block by the first number, a token in it by the second.

    Two numbers of 24 bits reach tokens that one could not, and no running sum is longer than the number of blocks.
    """
    rows, vocab = likelihood.shape
    block = _first_past(block_sums(likelihood), uniforms[:, 0])
    blocks = jnp.pad(likelihood, ((0, 0), (0, -vocab % BLOCK))).reshape(rows, -1, BLOCK)
    members = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * BLOCK + _first_past(members, uniforms[:, 1])


def _first_past(x: jax.Array, uniform: jax.Array) -> jax.Array:
    """Index [rows] int32 of the first positive entry of x [rows, n] where the running sum passes uniform × the sum."""
    running = jnp.where(x > 0, jnp.cumsum(x, axis=-1), -1.0)
    past = running > uniform[:, None] * running.max(-1, keepdims=True)
    last = x.shape[1] - 1 - jnp.argmax((x > 0)[:, ::-1], axis=-1)
    return jnp.where(past.any(-1), jnp.argmax(past, axis=-1), last).astype(jnp.int32)
