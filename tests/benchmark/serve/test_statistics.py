"""From records to figures, on records whose figures are known."""

from __future__ import annotations

import re
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.benchmark.serve.records import CANCELLED, ERROR, OK, RequestRecord
from headrace.benchmark.serve.statistics import LATENCIES, figures, is_good, percentile, summary

PERCENTS = (50.0, 90.0, 99.0)


def record(index: int, start: float, chunks: list[float], **given: Any) -> RequestRecord:
    """An answer in chunks, which come so many seconds after its start."""
    moments = [start + chunk for chunk in chunks]
    fields = {"due": start, "max_tokens": 9, "input_tokens": 10, "outcome": OK, "output_tokens": len(chunks)}
    return RequestRecord(index=index, start=start, chunks=moments, end=moments[-1], **{**fields, **given})


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values: list[float], percent: float) -> None:
    values.sort()
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-9)


def test_a_summary_is_in_ms() -> None:
    found = summary([0.004, 0.001, 0.003, 0.002], PERCENTS)
    assert found == {"mean": 2.5, "std": round(statistics.pstdev([1, 2, 3, 4]), 4), "min": 1, "max": 4} | {
        "p50": 2.5, "p90": 3.7, "p99": 3.97
    }  # fmt: skip
    assert summary([], PERCENTS) is None


def test_latencies_of_one_answer() -> None:
    one = record(0, 5.0, [0.25, 0.5, 0.5, 1.0], output_tokens=7)  # two chunks of one read; more tokens than chunks
    assert one.ttft == 0.25
    assert one.itls == [0.25, 0.0, 0.5]
    assert one.e2e == 1.0
    assert one.tpot == 0.75 / 6
    assert record(0, 5.0, [0.25], output_tokens=1).tpot is None
    assert record(0, 5.0, [0.25, 0.5], output_tokens=2).tpot == 0.25
    empty = record(0, 5.0, [0.5])
    empty.chunks = []
    assert (empty.ttft, empty.itls, empty.e2e) == (0.5, [], 0.5)  # a token without text


def test_a_thousand_scripted_delays() -> None:
    # TTFT of request i is i + 1 ms, then nine gaps of 2(i + 1) ms: every figure is a formula of i.
    n = 1000
    records = [record(i, 0.1 * i, [1e-3 * (i + 1) * (1 + 2 * k) for k in range(10)]) for i in range(n)]
    f = figures(records, PERCENTS, {"ttft": 400, "e2e": 5700})
    at = {p: 1 + (n - 1) * p / 100 for p in PERCENTS}  # of 1 … n
    for name, factor in (("ttft", 1), ("itl", 2), ("tpot", 2), ("e2e", 19)):
        assert f[name]["mean"] == pytest.approx(factor * (n + 1) / 2)
        assert f[name]["max"] == pytest.approx(factor * n)
        if name != "itl":  # of which there are nine of each
            assert [f[name][f"p{p:g}"] for p in PERCENTS] == pytest.approx([factor * at[p] for p in PERCENTS])
    assert f["itl"]["p50"] == pytest.approx(2 * statistics.median(range(1, n + 1)))
    end = max(0.1 * i + 19e-3 * (i + 1) for i in range(n))
    assert f["duration"] == pytest.approx(end)
    assert f["requests_per_s"] == pytest.approx(n / end, abs=1e-4)
    assert f["output_tokens_per_s"] == pytest.approx(10 * n / end, abs=1e-4)
    assert f["total_tokens_per_s"] == pytest.approx(20 * n / end, abs=1e-4)
    assert f["goodput"] == {  # e2e <= 5700 ms is i < 300
        "limits": {"ttft": 400, "e2e": 5700},
        "good": 300,
        "requests_per_s": pytest.approx(300 / end, abs=1e-4),
    }


@pytest.mark.parametrize(("name", "limit"), [("ttft", 250.0), ("tpot", 125.0), ("e2e", 1000.0)])
def test_a_limit_may_be_reached_but_not_passed(name: str, limit: float) -> None:
    one = record(0, 0.0, [0.25, 0.5, 1.0], output_tokens=7)
    assert is_good(one, {name: limit})
    assert not is_good(one, {name: limit - 0.001})
    assert not is_good(one, {"ttft": 1e9, name: limit - 0.001})
    assert is_good(record(0, 0.0, [0.25], output_tokens=1), {"tpot": 0.001})  # one token has none


def test_only_whole_answers_count_and_only_quick_readers_are_timed() -> None:
    records = [
        record(0, 1.0, [0.1, 0.2], counted_by="usage", cached_tokens=4),
        record(1, 1.0, [5.0, 9.0], slow=True),
        record(2, 2.0, [0.1], outcome=CANCELLED),
        record(3, 2.0, [0.1], outcome=ERROR, kind="HTTP 500", error="no"),
        record(4, 2.0, [0.1], outcome=ERROR, kind="timeout", error="late"),
        *(record(i, 2.0, [0.1], outcome=ERROR, kind="timeout", error=f"late {i % 5}") for i in range(5, 25)),
    ]
    f = figures(records, PERCENTS, {"ttft": 1e6})
    assert (f["ok"], f["slow"], f["errors"], f["cancelled"]) == (2, 1, 22, 1)
    assert f["duration"] == 9.0  # until the slow reader had it all
    assert (f["input_tokens"], f["output_tokens"], f["cached_tokens"]) == (20, 4, 4)
    assert f["counted_by"] == {"usage": 1, "chunks": 1}
    assert f["requests_per_s"] == round(2 / 9, 4)
    assert f["ttft"]["max"] == f["ttft"]["min"] == 100
    assert f["goodput"]["good"] == 1
    assert f["error_kinds"] == {
        "timeout": {"count": 21, "examples": ["late", "late 0", "late 1"]},
        "HTTP 500": {"count": 1, "examples": ["no"]},
    }


def test_no_answer_at_all() -> None:
    for records in ([], [record(0, 1.0, [0.0], outcome=ERROR, kind="connect", error="refused")]):
        f = figures(records, PERCENTS, {})
        assert (f["ok"], f["requests_per_s"], f["goodput"], f["duration"]) == (0, 0.0, None, 0.0)
        assert [f[name] for name in LATENCIES] == [None] * 4
    promised = (figures.__doc__ or "").partition("Returns:")[2]
    names = set(re.findall(r"`(\w+)`", promised)) - {"limits", "good", "count", "examples", "LATENCIES", "summary"}
    assert names | set(LATENCIES) == set(f)
