"""Penalties against the float64 oracle, and what they must leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from sampling import oracle
from sampling.adjust import History, penalise_jit, penalty_arguments


def penalised(logits: np.ndarray, histories: list[History], max_pages: int, seed: int = 0) -> np.ndarray:
    return np.asarray(penalise_jit(logits, *penalty_arguments(histories, max_pages, seed)))


def expected(logits: np.ndarray, histories: list[History]) -> np.ndarray:
    return np.stack([oracle.penalised(row, **vars(history)) for row, history in zip(logits, histories, strict=True)])


def random_histories(lengths: list[tuple[int, int]], vocab: int, seed: int = 0) -> list[History]:
    rng = np.random.default_rng(seed)
    return [
        History(
            rng.integers(0, vocab, prompt).tolist(),
            rng.integers(0, vocab, output).tolist(),
            float(np.float32(rng.uniform(0.5, 2))),
            float(np.float32(rng.uniform(-2, 2))),
            float(np.float32(rng.uniform(-2, 2))),
        )
        for prompt, output in lengths
    ]


@pytest.mark.parametrize(
    ("penalty", "value", "right"),
    [
        ("repetition", 2.0, [1, -4, 0.5, 0]),
        ("presence", 0.5, [2, -2, 0.5, 0]),
        ("frequency", 0.5, [2, -2, 0, 0]),
    ],
)
def test_sam_06_each_penalty_counts_what_it_should(penalty: str, value: float, right: list[float]) -> None:
    history = History([0, 0, 0, 1], [2, 2], **{penalty: value})
    got = penalised(np.array([[2, -2, 1, 0]], np.float32), [history], max_pages=1)
    np.testing.assert_array_equal(got[0], np.float32(right))


def test_sam_06_the_first_output_already_sees_the_prompt() -> None:
    got = penalised(np.ones((1, 3), np.float32), [History([1], [], repetition=2.0, presence=1.0)], max_pages=1)
    np.testing.assert_array_equal(got[0], [1, 0.5, 1])


# Around the ends of pages (16) and of the chunks in which they are counted (128), and the whole page table (160).
LENGTHS = [(1, 0), (15, 1), (16, 1), (1, 15), (17, 110), (127, 0), (127, 1), (128, 1), (100, 59), (100, 60), (160, 0)]


@pytest.mark.parametrize("vocab", [3, 129])
def test_random_histories(vocab: int) -> None:
    histories = random_histories(LENGTHS, vocab)
    logits = np.random.default_rng(1).normal(size=(len(LENGTHS), vocab)).astype(np.float32) * 5
    logits[:, 2] = 0.0
    got = penalised(logits, histories, max_pages=10)
    np.testing.assert_allclose(got, expected(logits, histories), rtol=1e-6, atol=1e-5)


def test_rows_that_do_not_ask_keep_their_bits() -> None:
    histories = random_histories([(20, 9)] * 4, 50)
    for quiet in histories[::2]:
        quiet.repetition, quiet.presence, quiet.frequency = 1.0, 0.0, 0.0
    logits = np.random.default_rng(1).normal(size=(4, 50)).astype(np.float32)
    logits[0, :3] = [np.nan, -np.inf, -0.0]
    got = penalised(logits, histories, max_pages=2)
    np.testing.assert_array_equal(got[::2].view(np.int32), logits[::2].view(np.int32))
    assert (got[1::2] != logits[1::2]).any(axis=1).all()


def test_a_row_is_penalised_alike_in_any_company() -> None:
    vocab = 1000
    histories = random_histories([(40, n) for n in range(0, 120, 10)], vocab)
    logits = np.random.default_rng(2).normal(size=(len(histories), vocab)).astype(np.float32)
    together = penalised(logits, histories, max_pages=20)
    for row, history in enumerate(histories):
        alone = penalised(logits[[row]], [history], max_pages=20, seed=row)
        np.testing.assert_array_equal(alone[0], together[row])


@pytest.mark.parametrize("repetition", [1e-45, 1e-38, 3e38])
def test_extreme_penalties_stay_finite(repetition: float) -> None:
    logits = np.array([[5, -5, -np.inf, 1, 0]], np.float32)
    got = penalised(logits, [History([0, 1, 2, 4], [], repetition=repetition)], max_pages=1)[0]
    assert got[2] == -np.inf
    assert np.isfinite(np.delete(got, 2)).all()
    assert (got[0] > 5, got[1] > -5) == (repetition < 1, repetition < 1)
