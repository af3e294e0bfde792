"""What the rows of a step forbid and prefer, as one array that is sent only with steps where a row asks for it."""

from __future__ import annotations

import numpy as np

from headrace.execution.schedule import ScheduledStep
from headrace.sampling.limits import MAX_LOGIT_BIAS


def constraint_words(vocab_size: int) -> int:
    """Words of a logits row: the mask of what is allowed, then ids and values of the bias; see `constrain`."""
    return mask_words(vocab_size) + 2 * MAX_LOGIT_BIAS


def mask_words(vocab_size: int) -> int:
    """Words of a mask with one bit for each id."""
    return -(-vocab_size // 32)


def fill_constraints(step: ScheduledStep, num_rows: int, vocab_size: int) -> np.ndarray:
    """The constraints [num_rows, words] int32 of a step's logits rows, in their order.

    What a row does not ask for is undefined; `HostBatch` says which rows ask.
    """
    mask = mask_words(vocab_size)
    out = np.zeros((num_rows, constraint_words(vocab_size)), np.int32)
    first = 0
    for slot, count in zip(step.slots.tolist(), step.num_logits.tolist(), strict=True):
        rows, first = out[first : first + count], first + count
        one = step.constraints.get(slot)
        if one is not None and one.allowed is not None:
            rows[:, :mask] = one.allowed.view(np.int32)
        if one is not None and one.bias is not None:
            ids, values = one.bias
            end = mask + MAX_LOGIT_BIAS
            rows[:, mask:end] = vocab_size  # which no id is
            rows[:, mask : mask + len(ids)] = ids
            rows[:, end : end + len(values)] = values.astype(np.float32).view(np.int32)
    return out
