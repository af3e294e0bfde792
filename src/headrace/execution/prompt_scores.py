"""Log-probabilities of a prompt's own tokens, from the hidden states of a step that computes some of them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from headrace.execution.batch import NOT_SCORED
from headrace.layers.linear import MIN_ROWS
from headrace.sampling.logprobs import scores
from headrace.sampling.scores import score_columns


def score_prompts(
    logits_of: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    tokens: jax.Array,
    batch: dict[str, jax.Array],
    max_logprobs: int,
) -> jax.Array:
    """How likely the prompt token after each token of a step was, where its row asks for that.

    As many logits as the step has requests are computed at a time, so that memory does not grow with the chunk, and
    none where nobody asks.

    Args:
        logits_of: hidden states [rows, hidden] -> logits [rows, vocab].
        hidden: [tokens, hidden] float32.
        tokens: [tokens] int32.
        batch: the unpacked batch.

    Returns:
        [tokens, score_columns(max_logprobs)] int32, see `logprobs.scores`; 0 where nobody asks.
    """
    targets = _targets(tokens, batch)
    size, count = max(batch["slots"].shape[0], MIN_ROWS), tokens.shape[0]  # fewer rows would be padded to as many
    asked = targets >= 0
    # The tokens that ask, without gaps, and room for a last group that is not full.
    place = jnp.where(asked, jnp.cumsum(asked) - 1, count + size)
    order = jnp.full(count + size, count, jnp.int32).at[place].set(jnp.arange(count, dtype=jnp.int32), mode="drop")
    total = asked.sum(dtype=jnp.int32)

    def group(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, out = carry
        index = jax.lax.dynamic_slice_in_dim(order, start, size)
        logits = logits_of(hidden.at[index].get(mode="clip"))
        lines = scores(logits, targets.at[index].get(mode="clip"), index < count, max_logprobs)
        return start + size, out.at[index].set(lines, mode="drop")

    out = jnp.zeros((count, score_columns(max_logprobs)), jnp.int32)
    return jax.lax.while_loop(lambda carry: carry[0] < total, group, (jnp.int32(0), out))[1]


def _targets(tokens: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """[tokens] int32, the prompt token after each token, -1 where there is none or nobody asks."""
    rows = batch["token_rows"]
    next_ids = batch["next_ids"].at[rows].get(mode="fill", fill_value=NOT_SCORED)
    is_last = jnp.roll(rows, -1) != rows
    following = jnp.where(is_last.at[-1].set(True), next_ids, jnp.roll(tokens, -1))
    in_prompt = batch["positions"] + 1 < batch["prompt_lens"].at[rows].get(mode="clip")
    return jnp.where((next_ids != NOT_SCORED) & in_prompt, following, -1)
