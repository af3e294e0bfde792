"""The first look at logits: the largest of each row, by native code and by plain JAX, against NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from headrace.sampling import candidates
from headrace.sampling.sampler import BAD_LOGITS, most_likely


def awkward_rows(vocab: int) -> np.ndarray:
    """Random logits, ties, zeros of both signs, hardly anything allowed and nothing; infinity; NaN first and last."""
    x = np.random.default_rng(vocab).normal(size=(9, vocab)).astype(np.float32)
    x[1] = np.round(x[1])
    x[2], x[2, ::2] = 0.0, -0.0
    x[3, :-1] = x[4] = -np.inf
    x[5, vocab // 2] = np.inf
    x[6, 0] = x[7, -1] = np.nan
    x[8, [vocab // 3, -1]] = 9.0
    return x


@pytest.mark.parametrize("kernels", ["as they are", "absent"])
@pytest.mark.parametrize("vocab", [1, 15, 17, 511, 513, 8191, 8193, 40_000])
def test_the_largest_of_a_row_and_its_first_place(vocab: int, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels == "absent":
        monkeypatch.setattr(candidates.native, "available", lambda: False)
    logits = awkward_rows(vocab)
    value, column = (np.asarray(x) for x in jax.jit(lambda x: candidates.argmax(x))(logits))
    whole = ~np.isnan(logits).any(-1)
    np.testing.assert_array_equal(value, logits.max(-1))  # NaN where there is any
    np.testing.assert_array_equal(column[whole], logits.argmax(-1)[whole])

    tokens = np.asarray(jax.jit(lambda x: most_likely(x))(logits))
    np.testing.assert_array_equal(tokens, np.where(np.isfinite(logits.max(-1)), logits.argmax(-1), BAD_LOGITS))
