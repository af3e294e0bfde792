"""Biases and masks against the float64 oracle, and what they must leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.sampling.limits import MAX_LOGIT_BIAS
from sampling import oracle
from sampling.adjust import Rules, constrain_jit, constraint_arguments


def constrained(logits: np.ndarray, rules: list[Rules], seed: int = 0) -> np.ndarray:
    return np.asarray(constrain_jit(logits, *constraint_arguments(rules, logits.shape[1], seed)))


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000])
def test_biases_and_masks(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    ids = [0, vocab - 1, *rng.integers(0, vocab, 40).tolist()]
    bias = {token: float(np.float32(rng.uniform(-100, 100))) for token in ids}
    allowed = {0, vocab - 1, *rng.integers(0, vocab, vocab // 3).tolist()}
    rules = [Rules(), Rules(bias), Rules({}, allowed), Rules(bias, allowed), Rules({}, {vocab - 1}), Rules({}, set())]
    logits = rng.normal(size=(len(rules), vocab)).astype(np.float32)
    logits[:, vocab // 2] = -np.inf
    right = np.stack([oracle.constrained(row, dict(r.bias), r.allowed) for row, r in zip(logits, rules, strict=True)])
    got = constrained(logits, rules)
    np.testing.assert_array_equal(got, right.astype(np.float32))
    np.testing.assert_array_equal(got[0].view(np.int32), logits[0].view(np.int32))
    for row in range(len(rules)):  # alone, beside other random words
        np.testing.assert_array_equal(constrained(logits[[row]], [rules[row]], seed=row)[0], got[row])


@pytest.mark.parametrize("count", [1, 31, 32, 33, MAX_LOGIT_BIAS - 1, MAX_LOGIT_BIAS])
def test_every_bias_up_to_the_most_is_added_once(count: int) -> None:
    vocab = 2000
    ids = np.random.default_rng(count).permutation(vocab)[:count].tolist()
    got = constrained(np.zeros((2, vocab), np.float32), [Rules(dict.fromkeys(ids, 2.5)), Rules({7: -100.0})])
    assert np.flatnonzero(got[0] == 2.5).tolist() == sorted(ids)
    assert np.count_nonzero(got[0]) == count
    assert np.flatnonzero(got[1]).tolist() == [7]
