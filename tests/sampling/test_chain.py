"""From logits to tokens through everything, against the float64 oracle, and alike in any company."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import jax
import numpy as np
import pytest

from headrace.sampling.chain import LogprobsMode, next_tokens
from headrace.sampling.logprobs import scores
from headrace.sampling.params import SamplingParams
from headrace.sampling.scores import token_logprobs
from sampling import oracle
from sampling.adjust import History, Rules, constraint_arguments, penalty_arguments
from sampling.rows import GREEDY, rows_of

MAX_PAGES = 4


@dataclass(frozen=True)
class Row:
    """All that one row asks for."""

    params: SamplingParams = GREEDY
    history: History = field(default_factory=History)
    rules: Rules = field(default_factory=Rules)


def run(logits: np.ndarray, rows: list[Row], seeds: list[int], mode: LogprobsMode) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [rows] and packed scores of them."""
    histories = penalty_arguments([row.history for row in rows], MAX_PAGES, seed=len(rows))
    rules = constraint_arguments([row.rules for row in rows], logits.shape[1], seed=len(rows))
    tokens, scored = _JITTED[mode](logits, rows_of([row.params for row in rows], seeds), *histories, rules)
    return np.asarray(tokens), np.asarray(scored)


def _chain(mode: LogprobsMode, logits: jax.Array, rows, penalties, pages, table, rules):  # type: ignore[no-untyped-def]
    tokens, scored = next_tokens(logits, rows, penalties, (pages, table), rules, mode)
    return tokens, scores(scored, tokens, tokens > -9, 8)


_MODES: tuple[LogprobsMode, ...] = ("raw", "processed")
_JITTED = {mode: jax.jit(partial(_chain, mode)) for mode in _MODES}


def adjusted(logits: np.ndarray, row: Row) -> np.ndarray:
    """What the oracle makes of logits [vocab] before temperature."""
    return oracle.constrained(oracle.penalised(logits, **vars(row.history)), dict(row.rules.bias), row.rules.allowed)


def right_distribution(logits: np.ndarray, row: Row) -> np.ndarray:
    params = row.params
    return oracle.distribution(adjusted(logits, row), params.temperature, params.top_k, params.top_p, params.min_p)


HISTORY = History([3, 3, 5, 7, 11], [5, 5, 13, 2], repetition=1.3, presence=0.4, frequency=0.3)
RULES = Rules({3: 1.5, 20: -2.0, 2: 3.0}, set(range(0, 90, 2)) | {3, 5, 7, 13})
EVERYTHING = Row(SamplingParams(temperature=1.3, top_k=40, top_p=0.9, min_p=0.02), HISTORY, RULES)
ROWS = [
    Row(),
    EVERYTHING,
    replace(EVERYTHING, params=GREEDY),
    Row(SamplingParams(temperature=0.8, top_p=0.8)),
    Row(SamplingParams(temperature=1.1), HISTORY),
    Row(SamplingParams(top_k=7), rules=RULES),
    Row(GREEDY, HISTORY),
    Row(GREEDY, rules=Rules({}, {77})),
]


@pytest.mark.parametrize("row", [EVERYTHING, replace(EVERYTHING, params=SamplingParams(temperature=2.0))])
def test_draws_through_everything_follow_the_oracle(row: Row) -> None:
    logits = np.random.default_rng(0).normal(size=100).astype(np.float32) * 2
    right = right_distribution(logits, row)
    tokens: list[int] = []
    for first in range(0, 40_000, 500):
        many = run(np.tile(logits, (500, 1)), [row] * 500, list(range(first, first + 500)), "raw")
        tokens += many[0].tolist()
    drawn = np.array(tokens)
    assert (right[drawn] > 0).all()
    statistic, bound = oracle.chi_square(drawn, right)
    assert statistic < bound


@pytest.mark.parametrize("vocab", [100, 9000])
@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_tokens_and_log_probabilities_are_the_oracles(mode: LogprobsMode, vocab: int) -> None:
    logits = np.random.default_rng(1).normal(size=(len(ROWS), vocab)).astype(np.float32) * 3
    tokens, scored = run(logits, ROWS, list(range(len(ROWS))), mode)
    for line, row, token, packed in zip(logits, ROWS, tokens.tolist(), scored, strict=True):
        wanted = adjusted(line, row)
        if row.params.temperature == 0:
            assert token == wanted.argmax()
            processed = oracle.logprobs(wanted)
        else:
            with np.errstate(divide="ignore"):
                processed = np.log(right_distribution(line, row))
        right = processed if mode == "processed" else oracle.logprobs(line)
        got = token_logprobs(packed, token, 8)
        assert got.logprob == pytest.approx(right[token], abs=1e-5)
        order = [i for i in np.argsort(-right, kind="stable")[:8].tolist() if right[i] > -np.inf]
        assert [i for i, _ in got.top] == order
        np.testing.assert_allclose([value for _, value in got.top], right[order], atol=1e-5)


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_a_row_gives_the_same_bits_in_any_company(mode: LogprobsMode) -> None:
    vocab, rng = 9000, np.random.default_rng(2)  # beyond what is searched at once
    rows = [
        *ROWS,
        Row(SamplingParams(temperature=3.0, top_p=0.95)),
        Row(SamplingParams(top_k=3000, top_p=0.9), HISTORY),
    ]
    logits = rng.normal(size=(len(rows), vocab)).astype(np.float32) * 2
    alone = [run(logits[[i]], [row], [i], mode) for i, row in enumerate(rows)]
    for size in (3, len(rows)):
        for _ in range(4):
            picked = rng.permutation(len(rows))[:size].tolist()
            tokens, scored = run(logits[picked], [rows[i] for i in picked], picked, mode)
            for place, i in enumerate(picked):
                assert tokens[place] == alone[i][0][0]
                np.testing.assert_array_equal(scored[place], alone[i][1][0])
