"""The sampling cases of public bug reports and the reference's sampling faults, on the sampler itself."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.errors import RequestError
from headrace.execution.batch import BatchLayout, HostBatch
from headrace.execution.schedule import ScheduledStep
from headrace.execution.sequences import SequenceTable
from headrace.execution.step import sampling_rows
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import SamplingRows
from sampling.rows import GREEDY, draw, draws, rows_of

VOCAB = 49_152
FIVE = np.log([0.5, 0.25, 0.15, 0.06, 0.04])


def packed_rows(params: list[SamplingParams], before: list[SamplingParams]) -> SamplingRows:
    """The rows of a batch of eight as they reach the device, packed into an array that held another batch before."""
    table = SequenceTable(8, 4)
    layout = BatchLayout((8, 8), 16)
    batch = HostBatch(layout, 8)
    for group in (before, params):
        for slot, one in enumerate(group):
            table.load(slot, [1], 1, one, seed=slot)
        count = len(group)
        ones = np.ones(count, np.int32)
        batch.fill(ScheduledStep(np.arange(count, dtype=np.int32), ones * 0, ones, ones > 0), table)
    return sampling_rows(layout.unpack(jnp.asarray(batch.packed)))


def test_sam_01_every_spelling_of_no_top_k_is_the_same() -> None:
    logits = np.random.default_rng(0).normal(size=VOCAB).astype(np.float32) * 2
    rows, seeds = np.tile(logits, (16, 1)), range(16)

    def tokens(**top_k: int) -> list[int]:
        params = SamplingParams(temperature=1.5, **top_k)
        return np.asarray(draw(rows, rows_of([params] * 16, seeds))).tolist()

    off = tokens()
    assert len(set(off)) >= 2
    for k in (0, -1, VOCAB, VOCAB + 1, 10**7, 2**31, 2**40):
        assert tokens(top_k=k) == off, k
    assert tokens(top_k=1) == [int(logits.argmax())] * 16
    assert set(tokens(top_k=3)) <= set(np.argsort(-logits)[:3].tolist())


def test_sam_01_a_greedy_row_beside_one_with_top_k() -> None:
    logits = np.random.default_rng(1).normal(size=(2, VOCAB)).astype(np.float32)
    logits[0, [7, 40_000]] = 9  # the lower of two equals
    best = np.argsort(-logits[1])[:3]
    seen = {
        tuple(np.asarray(draw(logits, rows_of([GREEDY, SamplingParams(top_k=3)], [0, seed]))).tolist())
        for seed in range(40)
    }
    assert seen == {(7, int(token)) for token in best}


def test_sam_01_other_negative_values_are_refused() -> None:
    with pytest.raises(RequestError, match="top_k"):
        SamplingParams(top_k=-2)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        pytest.param(SamplingParams(temperature=2.0, top_p=0.7), {0, 1, 2}, id="a"),
        pytest.param(SamplingParams(temperature=0.5, top_p=0.7), {0}, id="b"),
        pytest.param(SamplingParams(temperature=1.0, min_p=0.2), {0, 1, 2}, id="c-1"),
        pytest.param(SamplingParams(temperature=2.0, min_p=0.2), {0, 1, 2, 3, 4}, id="c-2"),
        pytest.param(SamplingParams(top_k=3, top_p=0.8), {0, 1}, id="d"),
    ],
)
def test_sam_03_temperature_comes_first_and_each_filter_renormalises(params: SamplingParams, kept: set[int]) -> None:
    assert set(draws(FIVE, params, 100_000).tolist()) == kept


def test_sam_04_parameters_stay_with_their_request_while_rows_move() -> None:
    requests = {
        "greedy": (GREEDY, 1),
        "hot": (SamplingParams(temperature=2.0, top_k=3), 2),
        "min_p": (SamplingParams(min_p=0.5), 3),
        "seeded": (SamplingParams(), 99),
        "narrow": (SamplingParams(top_p=0.2), 4),
    }
    lengths = dict(zip(requests, (6, 3, 5, 4, 2), strict=True))
    rng = np.random.default_rng(2)
    logits = {name: rng.normal(size=(lengths[name], 300)).astype(np.float32) for name in requests}

    def run(names: tuple[str, ...]) -> dict[str, list[int]]:
        """Generates with the rows in this order; those that have ended make room for those behind them."""
        out: dict[str, list[int]] = {name: [] for name in names}
        for position in range(6):
            rows = [name for name in names if position < lengths[name]]
            padded = np.zeros((8, 300), np.float32)
            for row, name in enumerate(rows):
                padded[row] = logits[name][position]
            params = [requests[name][0] for name in rows] + [GREEDY] * (8 - len(rows))
            seeds = [requests[name][1] for name in rows] + [0] * (8 - len(rows))
            tokens = np.asarray(draw(padded, rows_of(params, seeds, [position] * 8)))
            for name, token in zip(rows, tokens.tolist(), strict=False):
                out[name].append(token)
        return out

    alone = {name: run((name,))[name] for name in requests}
    assert alone["greedy"] == logits["greedy"].argmax(-1).tolist()
    for count in (3, 5):
        for order in itertools.islice(itertools.permutations(requests, count), 0, None, 7):
            for name, tokens in run(order).items():
                assert tokens == alone[name], (order, name)


def test_sam_04_padded_rows_are_neutral() -> None:
    hot = [SamplingParams(temperature=2.0, top_k=3, top_p=0.5, min_p=0.5)] * 8
    rows = packed_rows([GREEDY] * 3, before=hot)
    assert rows.temperature.tolist() == [0.0] * 8
    assert rows.top_k.tolist()[3:] == [0] * 5
    assert rows.top_p.tolist()[3:] == [1.0] * 5
    assert rows.min_p.tolist()[3:] == [0.0] * 5


def test_fault_09_greedy_rows_never_take_the_least_likely_token() -> None:
    logits = np.random.default_rng(3).normal(size=(8, 300)).astype(np.float32)
    best = logits.argmax(-1)
    greedy_after_hot = packed_rows([GREEDY] * 5, before=[SamplingParams(temperature=3.0)] * 8)
    np.testing.assert_array_equal(np.asarray(draw(logits, greedy_after_hot))[:5], best[:5])
    mixed = packed_rows([GREEDY, SamplingParams(temperature=3.0)] * 3, before=[SamplingParams()] * 8)
    np.testing.assert_array_equal(np.asarray(draw(logits, mixed))[:6:2], best[:6:2])


@pytest.mark.parametrize("shift", [-100.0, -1.0, 0.0, 100.0])
def test_fault_10_min_p_compares_probabilities_whatever_the_sign_of_the_logits(shift: float) -> None:
    assert set(draws(FIVE + shift, SamplingParams(min_p=0.2), 20_000).tolist()) == {0, 1, 2}


def test_fault_17_parameters_are_not_rounded_to_a_narrow_type() -> None:
    # bfloat16 rounds 0.9 to 0.8984 and 0.2008 to 0.2012: the first would drop token 1, the second token 2.
    assert set(draws(np.log([0.899, 0.1, 0.001]), SamplingParams(top_p=0.9), 4000).tolist()) == {0, 1}
    assert set(draws(np.log([0.5, 0.3995, 0.1005]), SamplingParams(min_p=0.2008), 4000).tolist()) == {0, 1, 2}
    rows = packed_rows([SamplingParams(temperature=1.003, top_p=0.9, min_p=0.2008)] * 8, before=[GREEDY] * 8)
    for field, value in (("temperature", 1.003), ("top_p", 0.9), ("min_p", 0.2008)):
        array: jax.Array = getattr(rows, field)
        assert array.dtype == jnp.float32
        assert array.tolist() == [float(np.float32(value))] * 8
