"""Each filter against sorting in float64."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from headrace.sampling.filters import keep
from sampling import oracle

VOCABULARIES = [1, 5, 127, 128, 129, 1000]
TOTAL = 2**14  # of integer weights: their sums, and p * TOTAL for the p used here, are exact in float32

keep_jit = jax.jit(keep)


def top_k_top_p(weights: np.ndarray, k: np.ndarray, p: np.ndarray) -> jax.Array:
    return keep_jit(weights, k, p, np.zeros(len(k), np.float32))


def min_p(weights: np.ndarray, p: np.ndarray) -> jax.Array:
    return keep_jit(weights, np.zeros(len(p), np.int32), np.ones(len(p), np.float32), p)


def top_k(weights: np.ndarray, k: np.ndarray) -> jax.Array:
    return top_k_top_p(weights, k, np.ones(len(k), np.float32))


def top_p(weights: np.ndarray, p: np.ndarray) -> jax.Array:
    return top_k_top_p(weights, np.zeros(len(p), np.int32), p)


def each_row(keep: object, weights: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    return np.stack([keep(w, p) for w, p in zip(weights, parameters.tolist(), strict=True)])  # type: ignore[operator]


def continuous(vocab: int, rows: int, seed: int = 0) -> np.ndarray:
    """Likelihoods of random logits: 1 at the peak and no ties."""
    logits = np.random.default_rng(seed).normal(size=(rows, vocab)).astype(np.float32) * 3
    return np.exp(logits - logits.max(-1, keepdims=True))


def integers(vocab: int, rows: int, levels: int = 7, seed: int = 0) -> np.ndarray:
    """Integer weights with many ties and zeros; one random entry brings each row's sum to TOTAL."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, levels, (rows, vocab))
    weights[np.arange(rows), rng.integers(0, vocab, rows)] = 0
    index = rng.integers(0, vocab, rows)
    weights[np.arange(rows), index] += TOTAL - weights.sum(-1)
    return weights.astype(np.float32)


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("make", [continuous, integers])
def test_top_k_keeps_the_k_largest_and_of_ties_the_lowest_ids(make: object, vocab: int) -> None:
    k = np.array([1, 2, 3, vocab // 2, vocab - 1, vocab, vocab + 1, 10**7, 2**31 - 1, 0, -1, -(2**31)], np.int32)
    weights = make(vocab, len(k))  # type: ignore[operator]
    np.testing.assert_array_equal(top_k(weights, k), each_row(oracle.top_k, weights, k))


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_top_p_at_exact_sums_and_just_beside_them(vocab: int) -> None:
    rows = 24
    weights = integers(vocab, rows)
    running = np.cumsum(-np.sort(-weights, axis=-1), axis=-1) / TOTAL
    reached = running[np.arange(rows), np.random.default_rng(1).integers(0, vocab, rows)]
    # Multiples of 2**-17: the products with TOTAL, and the differences of those, are exact.
    p = np.clip(reached + np.resize([0, 2.0**-17, -(2.0**-17)], rows), 2.0**-17, 1)
    p[:4] = [1e-30, 2.0**-17, 1 - 2.0**-17, 1.0]
    np.testing.assert_array_equal(top_p(weights, p.astype(np.float32)), each_row(oracle.top_p, weights, p))


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_top_p_of_random_likelihoods(vocab: int) -> None:
    weights = continuous(vocab, 32)
    # Halfway between two running sums rounding cannot decide, wherever a token weighs more than a few roundings.
    running = np.cumsum(-np.sort(-weights.astype(np.float64), axis=-1), axis=-1)
    count = np.resize([0, vocab // 100, vocab // 20, vocab // 5], 32)
    at = np.arange(32)
    p = (running[at, count] - np.sort(weights, axis=-1)[:, ::-1][at, count] / 2) / running[:, -1]
    kept = each_row(oracle.top_p, weights, p)
    assert ((kept > 0).sum(-1) == count + 1).all()
    np.testing.assert_array_equal(top_p(weights, p.astype(np.float32)), kept)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_min_p_is_a_share_of_the_most_likely(vocab: int) -> None:
    weights = continuous(vocab, 9)  # their peak is 1, so products with it are exact
    third = weights[:, ::3]
    third[:] = np.where(third == 1, 1, np.resize([0.5, 0.25, 0.125], third.shape))
    p = np.array([0, 1, 0.5, 0.25, 2.0**-10, 0.75, 2.0**-24, 0.125, 1e-45], np.float32)
    np.testing.assert_array_equal(min_p(weights, p), each_row(oracle.min_p, weights, p))


@pytest.mark.parametrize("p", [1e-50, 1e-45, 1e-40, 1.2e-38, 1e-30, 1e-10])
def test_top_p_keeps_the_most_likely_token_however_small_p_is(p: float) -> None:
    weights = continuous(300, 8)
    kept = np.asarray(top_p(weights, np.full(8, p, np.float32)))
    np.testing.assert_array_equal(kept, np.where(weights == 1, 1, 0))


def test_a_vocabulary_of_a_real_model() -> None:
    vocab = 49_152
    weights = np.concatenate([continuous(vocab, 2), np.round(continuous(vocab, 2) * 20)])
    k = np.array([40, vocab - 1, 1000, 2], np.int32)
    np.testing.assert_array_equal(top_k(weights, k), each_row(oracle.top_k, weights, k))
    weights = np.pad(integers(vocab // 4, 4, levels=2), ((0, 0), (vocab // 2, vocab // 4)))
    p = np.array([0.25, 0.5, 0.75, 1 - 2.0**-14], np.float32)
    np.testing.assert_array_equal(top_p(weights, p), each_row(oracle.top_p, weights, p))


def test_top_p_shares_out_what_top_k_left() -> None:
    weights = integers(129, 12)
    kept = np.stack([oracle.top_k(w, 16) for w in weights])
    kept[np.arange(12), kept.argmax(-1)] += TOTAL - kept.sum(-1)  # exact sums again; the largest stays the largest
    weights = np.where(kept > 0, kept, weights).astype(np.float32)
    k, p = np.full(12, 16, np.int32), np.linspace(1, 12, 12, dtype=np.float32) / 16
    both = np.stack([oracle.top_p(oracle.top_k(w, 16), x) for w, x in zip(weights, p.tolist(), strict=True)])
    np.testing.assert_array_equal(top_k_top_p(weights, k, p), both)


def test_filters_leave_alone_rows_that_do_not_ask() -> None:
    weights = np.concatenate([continuous(129, 3), integers(129, 3)])
    k, p = np.array([0, 5, 0, -1, 5, 129], np.int32), np.array([1, 1, 0.5, 1, 0.5, 1], np.float32)
    kept = np.asarray(top_k_top_p(weights, k, p))
    np.testing.assert_array_equal(kept[[0, 3, 5]], weights[[0, 3, 5]])
    assert ((kept > 0).sum(-1)[[1, 2, 4]] < 129).all()
    np.testing.assert_array_equal(min_p(weights, np.zeros(6, np.float32)), weights)


def peaked(vocab: int, rows: int, spread: float, seed: int = 0) -> np.ndarray:
    """Likelihoods of logits of so much spread: the more, the fewer tokens have most of the weight."""
    logits = np.random.default_rng(seed).normal(size=(rows, vocab)).astype(np.float32) * np.float32(spread)
    return np.exp(logits - logits.max(-1, keepdims=True))


@pytest.mark.parametrize("vocab", [8192, 8193, 20_000, 49_152])
def test_rows_of_few_and_of_many_likely_tokens_in_one_batch(vocab: int) -> None:
    """Some are found among the candidates, some only in the whole row; each keeps what it keeps alone."""
    weights = np.concatenate([peaked(vocab, 3, spread) for spread in (1.0, 4.0, 12.0)])
    weights[[1, 4]] = np.round(weights[[1, 4]] * 64) / 64  # many ties, and at the last two values alone
    k = np.array([0, 700, 5000, 0, 513, 0, 0, 512, 1], np.int32)
    p = np.array([0.5, 1, 0.9, 0.9, 0.8, 0.99, 0.999, 1, 0.9], np.float32)
    kept = np.asarray(top_k_top_p(weights, k, p))
    for row in range(len(k)):
        alone = np.asarray(top_k_top_p(weights[[row]], k[[row]], p[[row]]))[0]
        np.testing.assert_array_equal(kept[row], alone)
        for beyond in (1 - 1e-5, 1 + 1e-5):  # rounding may decide about a last token, not about more
            right = oracle.top_p(oracle.top_k(weights[row], k[row]), min(p[row] * beyond, 1) if p[row] < 1 else 1.0)
            more, less = (right > 0, kept[row] > 0) if beyond > 1 else (kept[row] > 0, right > 0)
            assert (more | ~less).all()
        np.testing.assert_array_equal(kept[row], np.where(kept[row] > 0, weights[row], 0))


@pytest.mark.parametrize("k", [1, 511, 512, 513, 9000])
def test_top_k_of_equals_all_over_a_long_row(k: int) -> None:
    weights = np.full((2, 10_000), 0.5, np.float32)
    weights[1, ::20] = 1.0
    kept = np.asarray(top_k(weights, np.full(2, k, np.int32)))
    np.testing.assert_array_equal(kept, np.stack([oracle.top_k(w, k) for w in weights]))
