"""From logits to tokens, on the device, for all rows of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from headrace.layers.reduce import row_sum
from headrace.sampling.bisect import largest
from headrace.sampling.candidates import argmax
from headrace.sampling.filters import BLOCK, block_sums, keep

NO_TOKEN = -1  # the row does not sample in this step
BAD_LOGITS = -2  # the row's logits are NaN or have no finite maximum

Words = tuple[jax.Array, jax.Array]

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


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
    peak, greedy = argmax(logits)
    random = rows.temperature > 0

    def drawn() -> jax.Array:
        likelihood = _kept_likelihood(_scaled(logits, peak, rows), rows)
        return jnp.where(random, _inverse_cdf(likelihood, _uniforms(rows)), greedy)

    tokens = jax.lax.cond(random.any(), drawn, lambda: greedy)
    return jnp.where(jnp.isfinite(peak), tokens, BAD_LOGITS)


def most_likely(logits: jax.Array) -> jax.Array:
    """The tokens [rows] int32 of `sample` if all rows are greedy."""
    peak, greedy = argmax(logits)
    return jnp.where(jnp.isfinite(peak), greedy, BAD_LOGITS)


def sample_processed(logits: jax.Array, rows: SamplingRows) -> tuple[jax.Array, jax.Array]:
    """The tokens of `sample`, and the logits [rows, vocab] float32 that they are drawn from.

    Those are what temperature and filters make of the logits, up to a constant of each row; −inf for what is never
    drawn. Of greedy rows they are the logits.
    """
    peak, greedy = argmax(logits)
    random = rows.temperature > 0

    def drawn() -> tuple[jax.Array, jax.Array]:
        scaled = _scaled(logits, peak, rows)
        likelihood = _kept_likelihood(scaled, rows)
        tokens = jnp.where(random, _inverse_cdf(likelihood, _uniforms(rows)), greedy)
        return tokens, jnp.where(random[:, None], jnp.where(likelihood > 0, scaled, -jnp.inf), logits)

    tokens, processed = jax.lax.cond(random.any(), drawn, lambda: (greedy, logits))
    return jnp.where(jnp.isfinite(peak), tokens, BAD_LOGITS), processed


def _scaled(logits: jax.Array, peak: jax.Array, rows: SamplingRows) -> jax.Array:
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)
    # The maximum is subtracted before the division: a tiny temperature cannot overflow.
    return (logits - peak[:, None]) / temperature[:, None]


def _kept_likelihood(scaled: jax.Array, rows: SamplingRows) -> jax.Array:
    random = rows.temperature > 0  # nothing is searched for greedy rows
    top_k, top_p = jnp.where(random, rows.top_k, 0), jnp.where(random, rows.top_p, 1.0)
    return keep(jnp.exp(scaled), top_k, top_p, rows.min_p)


def _uniforms(rows: SamplingRows) -> Words:
    """Two numbers [rows] in [0, 1): one block of Threefry-2x32 (Salmon et al., SC'11), whose key is the seed and whose
    counter is (choice, output position)."""
    counter = rows.choices.astype(jnp.uint32), rows.output_positions.astype(jnp.uint32)
    bits = threefry((rows.seeds[:, 0], rows.seeds[:, 1]), counter)
    first, second = ((word >> 8).astype(jnp.float32) * 2.0**-24 for word in bits)
    return first, second


def threefry(key: Words, counter: Words) -> Words:
    """The 20 rounds of Threefry-2x32 on pairs of uint32 arrays. JAX's own runs them in a loop, which XLA:CPU takes far
    longer to compile than one straight kernel."""
    keys = *key, key[0] ^ key[1] ^ np.uint32(0x1BD11BDA)
    x, y = counter[0] + key[0], counter[1] + key[1]
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << turn) | (y >> (32 - turn)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _inverse_cdf(likelihood: jax.Array, uniforms: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Draws from likelihood [rows, vocab] ≥ 0: a block by the first number, a token in it by the second.

    Two numbers of 24 bits reach tokens that one could not.
    """
    rows, vocab = likelihood.shape
    block = _first_past(block_sums(likelihood), uniforms[0])
    blocks = jnp.pad(likelihood, ((0, 0), (0, -vocab % BLOCK))).reshape(rows, -1, BLOCK)
    members = jnp.take_along_axis(blocks, block[:, None, None], axis=1, mode="promise_in_bounds")[:, 0]
    return block * BLOCK + _first_past(members, uniforms[1])


def _first_past(x: jax.Array, uniform: jax.Array) -> jax.Array:
    """Index [rows] int32 of the entry of x [rows, n] ≥ 0 at which the running sum passes uniform [rows] × the sum.

    It is never an entry of 0: a sum in a fixed order does not change when a 0 takes the place of a 0.
    """
    rows, n = x.shape
    column, total = jnp.arange(n, dtype=jnp.uint32), row_sum(x)
    target = jnp.minimum(uniform * total, jnp.nextafter(total, 0.0))  # the product may round up to the total

    def not_past(count: jax.Array) -> jax.Array:
        before = row_sum(jnp.where(column < count[:, None], x, 0.0))
        return (count < n) & (before <= target)

    # The search and the total may add up in different orders; past the last entry that is not 0 there is none to take.
    last = jnp.where(x > 0, column.astype(jnp.float32), 0.0).max(-1).astype(jnp.uint32)
    return jnp.minimum(largest(n.bit_length(), rows, not_past), last).astype(jnp.int32)
