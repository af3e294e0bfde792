"""The draw: right distribution, nothing that was filtered out, and no influence of the other rows."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

from headrace.errors import RequestError
from headrace.execution.sequences import SequenceTable
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import BAD_LOGITS, SamplingRows, sample, threefry
from sampling import oracle
from sampling.rows import GREEDY, draw, draws, fields_of, rows_of

RANDOM = SamplingParams(temperature=1.0)


def random_logits(vocab: int, rows: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, vocab)).astype(np.float32)


def check_distribution(logits: np.ndarray, params: SamplingParams, count: int) -> None:
    probabilities = oracle.distribution(logits, params.temperature, params.top_k, params.top_p, params.min_p)
    tokens = draws(logits, params, count)
    assert (probabilities[tokens] > 0).all()  # exactly never, not merely seldom
    statistic, bound = oracle.chi_square(tokens, probabilities)
    assert statistic < bound


@pytest.mark.parametrize(
    "params",
    [
        RANDOM,
        SamplingParams(temperature=0.7, top_k=3),
        SamplingParams(temperature=1.7, top_p=0.8),
        SamplingParams(min_p=0.3),
        SamplingParams(temperature=1.3, top_k=60, top_p=0.9, min_p=0.05),
    ],
    ids=["plain", "top_k", "top_p", "min_p", "all"],
)
@pytest.mark.parametrize("vocab", [5, 129])
def test_x11_draws_follow_the_filtered_distribution(vocab: int, params: SamplingParams) -> None:
    check_distribution(random_logits(vocab)[0], params, 100_000)


def test_draws_over_many_blocks_of_the_vocabulary() -> None:
    check_distribution(random_logits(1000)[0] / 4, SamplingParams(top_p=0.95), 20_000)


def test_draws_among_ties_keep_the_lowest_ids() -> None:
    logits = np.round(random_logits(129)[0])
    params = SamplingParams(top_k=20)
    assert len(np.unique(logits)) < 8
    check_distribution(logits, params, 20_000)


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = np.full(129, -np.inf, np.float32)
    logits[[3, 127, 128]] = [0, 1, 2]
    check_distribution(logits, RANDOM, 20_000)
    assert draws(logits, SamplingParams(top_k=7, top_p=0.999, min_p=1e-6), 8).max() < 129


def test_a_vocabulary_of_one_token() -> None:
    assert (draws(np.zeros(1), SamplingParams(top_k=1, top_p=0.5, min_p=0.5), 64) == 0).all()


def test_a_row_draws_the_same_token_wherever_it_is_and_beside_whomever() -> None:
    vocab = 1000
    params = [RANDOM, SamplingParams(temperature=1.5, top_k=40), SamplingParams(top_p=0.7, min_p=0.01), GREEDY]
    rows = 16
    mine, logits = params * (rows // 4), random_logits(vocab, rows)
    seeds, positions, choices = list(range(100, 100 + rows)), list(range(rows)), [r % 3 for r in range(rows)]
    together = np.asarray(draw(logits, rows_of(mine, seeds, positions, choices)))

    for r in range(rows):  # alone, so that no filter runs that the row itself does not ask for
        alone = draw(logits[[r]], rows_of([mine[r]], [seeds[r]], [positions[r]], [choices[r]]))
        assert int(alone[0]) == together[r]

    rng = np.random.default_rng(5)
    for size in (3, rows):
        for _ in range(4):
            picked = rng.permutation(rows)[:size]
            chosen = rows_of(*([x[r] for r in picked] for x in (mine, seeds, positions, choices)))
            np.testing.assert_array_equal(draw(logits[picked], chosen), together[picked])


def test_seed_choice_and_position_each_change_the_draws() -> None:
    logits = np.zeros((64, 1000), np.float32)

    def tokens(seed: int = 1, choice: int = 0, first: int = 0) -> tuple[int, ...]:
        rows = rows_of([RANDOM] * 64, [seed] * 64, list(range(first, first + 64)), [choice] * 64)
        return tuple(np.asarray(draw(logits, rows)).tolist())

    seeds = [1, 2**32 + 1, 0, -1, 2**63, 2**63 - 1, -(2**63), 2**31, 2**32]
    streams = {seed: tokens(seed) for seed in seeds}
    assert streams[2**63] == streams[-(2**63)]  # the same 64 bits
    assert len(set(streams.values())) == len(seeds) - 1
    assert tokens() == streams[1]
    assert tokens(choice=1) != streams[1]
    assert tokens(first=1)[:-1] == streams[1][1:]
    assert len(set(streams[1])) > 48  # positions differ: 64 draws from 1,000 repeat about twice


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (1, (0, 1)),
        (2**32 + 1, (1, 1)),
        (-1, (2**32 - 1, 2**32 - 1)),
        (2**63, (2**31, 0)),
        (2**64 - 1, (2**32 - 1, 2**32 - 1)),
        (-(2**63), (2**31, 0)),
    ],
)
def test_seed_words_are_the_two_halves_of_64_bits(seed: int, words: tuple[int, int]) -> None:
    SamplingParams(seed=seed)
    table = SequenceTable(1, 1)
    table.load(0, [0], 1, RANDOM, seed)
    fields = fields_of(table.sampling)
    assert (fields["seed_high"][0], fields["seed_low"][0]) == words


def test_greedy_rows_take_the_lowest_of_the_most_likely() -> None:
    logits = np.round(random_logits(129, 8) * 2)
    logits[:, [100, 17, 64]] = 9
    logits[3] = -5.0  # all equal
    mixed = [GREEDY, SamplingParams(temperature=2.0, top_k=3)] * 4
    tokens = np.asarray(draw(logits, rows_of(mixed, range(8))))
    np.testing.assert_array_equal(tokens[::2], np.argmax(logits, axis=-1)[::2])
    alone = np.asarray(draw(logits, rows_of([GREEDY] * 8, range(8))))
    np.testing.assert_array_equal(alone, [17, 17, 17, 0, 17, 17, 17, 17])


@pytest.mark.parametrize("others", [GREEDY, RANDOM, SamplingParams(top_k=5, top_p=0.9, min_p=0.1)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_of_bad_logits_fails_alone(bad: float, others: SamplingParams) -> None:
    vocab = 129
    logits = random_logits(vocab, vocab)
    rows = rows_of([others] * vocab, range(vocab))
    good = np.asarray(draw(logits, rows))
    spoiled = logits.copy()
    at = np.arange(0, vocab, 2)
    spoiled[at, at] = bad  # one bad entry, at every even place of the vocabulary once
    tokens = np.asarray(draw(spoiled, rows))
    assert (tokens[::2] == BAD_LOGITS).all()
    np.testing.assert_array_equal(tokens[1::2], good[1::2])


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_row_without_any_candidate_is_bad(value: float) -> None:
    logits = random_logits(129, 4)
    logits[[0, 2]] = value
    mixed = [GREEDY, GREEDY, RANDOM, RANDOM]
    tokens = np.asarray(draw(logits, rows_of(mixed, range(4))))
    assert tokens.tolist()[::2] == [BAD_LOGITS] * 2
    assert (tokens[1::2] >= 0).all()


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1.1754944e-38, 1e-40, 1e-45, 1e-60, 5e-324])
def test_a_tiny_temperature_is_the_most_likely_token(temperature: float) -> None:
    logits = random_logits(129)[0] * 30
    logits[5] = -np.inf
    for rest in ({}, {"top_k": 4, "top_p": 0.5, "min_p": 0.2}):
        tokens = draws(logits, SamplingParams(temperature=temperature, **rest), 64)
        assert (tokens == logits.argmax()).all()


@pytest.mark.parametrize("temperature", [1e30, 3e38, 1e39, 1e300])
def test_a_huge_temperature_is_uniform_over_what_is_possible(temperature: float) -> None:
    logits = random_logits(5)[0]
    logits[2] = -np.inf
    tokens = draws(logits, SamplingParams(temperature=temperature), 20_000)
    statistic, bound = oracle.chi_square(tokens, np.array([0.25, 0.25, 0, 0.25, 0.25]))
    assert statistic < bound


@pytest.mark.parametrize("top_p", [1e-12, 1e-40, 1e-60])
def test_a_tiny_top_p_is_the_most_likely_token(top_p: float) -> None:
    logits = random_logits(129)[0]
    assert (draws(logits, SamplingParams(top_p=top_p, temperature=5.0), 64) == logits.argmax()).all()


def test_min_p_of_one_leaves_the_peak_and_its_ties() -> None:
    logits = np.round(random_logits(129)[0])
    tokens = draws(logits, SamplingParams(min_p=1.0), 20_000)
    assert set(tokens.tolist()) == set(np.flatnonzero(logits == logits.max()).tolist())


def test_every_order_of_rows_gives_each_row_its_own_parameters() -> None:
    logits = np.tile(random_logits(129), (4, 1))
    params = [GREEDY, SamplingParams(temperature=3.0), SamplingParams(top_k=2), SamplingParams(min_p=0.9)]
    expected = np.asarray(draw(logits, rows_of(params, [7, 8, 9, 10])))
    for order in itertools.permutations(range(4)):
        tokens = draw(logits, rows_of([params[i] for i in order], [7 + i for i in order]))
        np.testing.assert_array_equal(tokens, expected[list(order)])


def test_rows_are_arrays_of_four_bytes() -> None:
    rows = rows_of([SamplingParams(top_k=2**40)], [0])
    assert isinstance(rows, SamplingRows)
    assert rows.temperature.dtype == rows.top_p.dtype == rows.min_p.dtype == jnp.float32
    assert int(rows.top_k[0]) == 2**31 - 1


def test_seeds_beyond_64_bits_are_refused() -> None:
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(RequestError, match="seed"):
            SamplingParams(seed=seed)


def test_threefry_is_jaxs() -> None:
    words = np.random.default_rng(3).integers(0, 2**32, (4, 1000), dtype=np.uint32)
    words[:, :4] = [[0, 0, 2**32 - 1, 2**32 - 1], [0, 1, 0, 2**32 - 1], [0, 2**31, 1, 2**32 - 1], [0, 1, 2, 2**32 - 1]]
    mine = threefry((words[0], words[1]), (words[2], words[3]))
    np.testing.assert_array_equal(mine, threefry2x32_p.bind(*(jnp.asarray(w) for w in words)))


def test_the_sampler_stays_quick_to_compile() -> None:
    """Each kernel of the sampler takes some 10 ms to compile, in every step: there are to be few."""
    rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((32, *x.shape[1:]), x.dtype), rows_of([GREEDY], [0]))
    text = jax.jit(sample).lower(jax.ShapeDtypeStruct((32, 49_152), jnp.float32), rows).compile().as_text()
    assert text is not None
    assert text.count(" while(") <= 9
    assert text.count(" fusion(") <= 130  # 125 with jaxlib 0.10.2; integers summed along the vocabulary would add 4
    assert " sort(" not in text
