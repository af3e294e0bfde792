"""Log-probabilities, ranks and top lists against the float64 oracle."""

from __future__ import annotations

import math
from functools import partial

import jax
import numpy as np
import pytest

from headrace.sampling.logprobs import scores
from headrace.sampling.scores import IMPOSSIBLE, TokenLogprobs, score_columns, token_logprobs
from sampling import oracle

score = jax.jit(scores, static_argnums=3)


def scored(logits: np.ndarray, tokens: np.ndarray, max_top: int) -> np.ndarray:
    return np.asarray(score(logits, tokens.astype(np.int32), np.ones(len(tokens), bool), max_top))


def check(row: np.ndarray, logits: np.ndarray, token: int, num_top: int) -> None:
    """One packed row against sorting in float64."""
    got, right = token_logprobs(row, token, num_top), oracle.logprobs(logits)
    order = [i for i in np.argsort(-logits, kind="stable")[:num_top].tolist() if right[i] > -np.inf]
    assert got.token_id == token
    assert got.rank == 1 + np.count_nonzero(logits > logits[token])
    assert got.logprob == pytest.approx(max(right[token], IMPOSSIBLE), abs=2e-6, rel=2e-6)
    assert [i for i, _ in got.top] == order
    np.testing.assert_allclose([value for _, value in got.top], right[order], atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("max_top", [0, 1, 20])
@pytest.mark.parametrize("vocab", [1, 5, 20, 129, 5000])
def test_scores_of_random_logits(vocab: int, max_top: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.normal(size=(12, vocab)).astype(np.float32) * 4
    logits[6:] = np.round(logits[6:])  # many ties
    logits[::3, 1::2] = -np.inf
    logits[4] += 1000
    tokens = rng.integers(0, vocab, 12)
    tokens[:2] = logits[:2].argmax(-1)
    packed = scored(logits, tokens, max_top)
    assert packed.shape == (12, score_columns(max_top))
    for row, line, token in zip(packed, logits, tokens.tolist(), strict=True):
        for num_top in {0, min(1, max_top), max_top}:
            check(row, line, token, num_top)


@pytest.mark.parametrize("vocab", [1000, 49_152, 151_936])
def test_a_row_is_scored_alike_in_any_company(vocab: int) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(17, vocab)).astype(np.float32) * 4
    tokens = rng.integers(0, vocab, 17)
    together = scored(logits, tokens, 5)
    for picked in ([0], [16], [3, 9], rng.permutation(17)[:8], rng.permutation(17)[:12]):
        np.testing.assert_array_equal(scored(logits[picked], tokens[picked], 5), together[picked])


def test_logits_that_are_no_numbers_give_finite_log_probabilities() -> None:
    for logits in ([np.nan, 1, 2], [np.inf, 1, 2], [-np.inf] * 3):
        got = token_logprobs(scored(np.array([logits], np.float32), np.array([1]), 3)[0], 1, 3)
        assert all(math.isfinite(value) for value in (got.logprob, *dict(got.top).values()))


def test_nothing_is_scored_that_nobody_wants() -> None:
    nobody = np.zeros(2, bool)
    packed = score(np.ones((2, 9), np.float32), np.zeros(2, np.int32), nobody, 3)
    np.testing.assert_array_equal(packed, np.zeros((2, score_columns(3)), np.int32))


def test_what_has_no_probability_is_left_out() -> None:
    logits = np.array([[-np.inf, 0, -np.inf, 0]], np.float32)
    read = partial(token_logprobs, scored(logits, np.array([2]), 4)[0])
    half = math.log(0.5)
    assert read(2, 4) == TokenLogprobs(2, IMPOSSIBLE, 3, ((1, half), (3, half)))
    assert read(2, 1).top == ((1, half),)
    assert read(2, 0).top == ()
