"""Repetition, presence and frequency penalties, from the tokens that lie in a row's own pages."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

CHUNK = 128  # tokens of each row that are counted in one pass of the loop, at least a page

_IN_PROMPT = 2**30  # added to the count of outputs, which is smaller
_LARGEST = 1e30  # of a penalised logit; sums of these do not overflow


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PenaltyRows:
    """Penalties of each row. Padding and rows that do not ask have 1, 0 and 0.

    Attributes:
        repetition, presence, frequency: [rows] float32.
        prompt_lens: [rows] int32, tokens of the row's prompt.
        history_lens: [rows] int32, tokens before the one that is sampled, prompt included; 0 for padding.
    """

    repetition: jax.Array
    presence: jax.Array
    frequency: jax.Array
    prompt_lens: jax.Array
    history_lens: jax.Array

    @property
    def asks(self) -> jax.Array:
        """Which rows [rows] bool have a penalty."""
        return (self.repetition != 1) | (self.presence != 0) | (self.frequency != 0)


def penalise(logits: jax.Array, rows: PenaltyRows, page_tokens: jax.Array, page_table: jax.Array) -> jax.Array:
    """Lowers the logits [rows, vocab] float32 of tokens that a row already has.

    The repetition penalty divides a positive logit and multiplies a negative one, once per distinct token of prompt
    and output (Keskar et al., 2019). Then presence is subtracted once, and frequency for each time, of the tokens of
    the output alone (OpenAI). Rows that do not ask are left as they are, and a batch of those costs nothing.

    Args:
        page_tokens: [pages, page_size] int32, the ids whose keys and values lie in each page.
        page_table: [rows, pages per sequence] int32, pages of each row; those past its history may be anything.
    """
    lengths = jnp.where(rows.asks, rows.history_lens, 0)

    def penalised() -> jax.Array:
        counts = _counts(logits.shape, lengths, rows.prompt_lens, page_tokens, page_table)
        times = (counts & (_IN_PROMPT - 1)).astype(jnp.float32)
        repetition, presence, frequency = (x[:, None] for x in (rows.repetition, rows.presence, rows.frequency))
        out = jnp.where(logits > 0, logits / repetition, logits * repetition)
        out = out - (frequency * times + jnp.where(times > 0, presence, 0.0))
        # A tiny or huge penalty may overflow; a logit that was not finite stays as it is.
        return jnp.where((counts > 0) & jnp.isfinite(logits), jnp.clip(out, -_LARGEST, _LARGEST), logits)

    result: jax.Array = jax.lax.cond(rows.asks.any(), penalised, lambda: logits)
    return result


def _counts(
    shape: tuple[int, ...], lengths: jax.Array, prompt_lens: jax.Array, page_tokens: jax.Array, page_table: jax.Array
) -> jax.Array:
    """How often each id occurs among a row's outputs, plus `_IN_PROMPT` if it is in the prompt: [rows, vocab] int32.

    The loop is as long as the longest of lengths [rows].
    """
    num_rows, vocab = shape
    page_size, max_pages = page_tokens.shape[1], page_table.shape[1]
    pages = min(max(CHUNK // page_size, 1), max_pages)
    row, offset = jnp.arange(num_rows)[:, None], jnp.arange(pages * page_size)

    def count_chunk(i: jax.Array, counts: jax.Array) -> jax.Array:
        columns = jnp.minimum(i * pages + jnp.arange(pages), max_pages - 1)
        ids = page_tokens.at[page_table[:, columns]].get(mode="clip").reshape(num_rows, -1)
        positions = i * pages * page_size + offset
        in_prompt = positions < prompt_lens[:, None]
        ids = jnp.where(positions < lengths[:, None], ids, vocab)
        # The prompt comes first, so what is set was not yet counted.
        counts = counts.at[row, jnp.where(in_prompt, ids, vocab)].set(_IN_PROMPT, mode="drop")
        return counts.at[row, jnp.where(in_prompt, vocab, ids)].add(1, mode="drop")

    chunks = -(-lengths.max() // (pages * page_size))
    counts: jax.Array = jax.lax.fori_loop(0, chunks, count_chunk, jnp.zeros(shape, jnp.int32))
    return counts
