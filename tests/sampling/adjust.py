"""Histories and constraints of rows in the form in which they reach the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from headrace.sampling.constraints import constrain
from headrace.sampling.limits import MAX_LOGIT_BIAS
from headrace.sampling.penalties import PenaltyRows, penalise

PAGE_SIZE = 16

penalise_jit, constrain_jit = jax.jit(penalise), jax.jit(constrain)


@dataclass
class History:
    """The tokens of one row and its penalties."""

    prompt: list[int] = field(default_factory=lambda: [0])
    output: list[int] = field(default_factory=list)
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


def penalty_arguments(
    histories: Sequence[History], max_pages: int, seed: int = 0, page_size: int = PAGE_SIZE
) -> tuple[PenaltyRows, jax.Array, jax.Array]:
    """The rows, page_tokens and page_table of histories whose pages lie in random order; what is unused holds ids that
    would be counted if it were read."""
    rng = np.random.default_rng(seed)
    table = rng.permutation(len(histories) * max_pages).reshape(-1, max_pages)
    pages = rng.integers(0, 4, (table.size, page_size))
    for row, history in enumerate(histories):
        for position, token in enumerate(history.prompt + history.output):
            pages[table[row, position // page_size], position % page_size] = token

    def column(values: list[float], dtype: type) -> jax.Array:
        return jnp.asarray(np.array(values, dtype))

    rows = PenaltyRows(
        repetition=column([h.repetition for h in histories], np.float32),
        presence=column([h.presence for h in histories], np.float32),
        frequency=column([h.frequency for h in histories], np.float32),
        prompt_lens=column([len(h.prompt) for h in histories], np.int32),
        history_lens=column([len(h.prompt + h.output) for h in histories], np.int32),
    )
    return rows, jnp.asarray(pages, jnp.int32), jnp.asarray(table, jnp.int32)


@dataclass
class Rules:
    """Biases and allowed ids of one row."""

    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: set[int] | None = None


def constraint_arguments(
    rules: Sequence[Rules], vocab: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The constraints, has_mask and has_bias of rows; those of rows that do not ask are random words."""
    words = -(-vocab // 32)
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 2**32, (len(rules), words + 2 * MAX_LOGIT_BIAS), dtype=np.uint32)
    for row, one in zip(packed, rules, strict=True):
        if one.allowed is not None:
            row[:words] = 0
            for token in one.allowed:
                row[token // 32] |= np.uint32(1 << token % 32)
        if one.bias:
            ids, values = row[words:][:MAX_LOGIT_BIAS], row[words:][MAX_LOGIT_BIAS:].view(np.float32)
            ids[:] = vocab
            ids[: len(one.bias)], values[: len(one.bias)] = list(one.bias), list(one.bias.values())
    return packed, np.array([r.allowed is not None for r in rules]), np.array([bool(r.bias) for r in rules])
