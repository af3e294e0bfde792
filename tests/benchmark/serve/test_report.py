"""What a report warns of."""

from __future__ import annotations

import pytest

from headrace.benchmark.serve.load import Run
from headrace.benchmark.serve.options import LoadOptions
from headrace.benchmark.serve.records import OK, RequestRecord
from headrace.benchmark.serve.report import format_report, report


@pytest.mark.parametrize(
    ("lag", "share", "lags"),
    [(0.01, 0.9, False), (0.0101, 0.0, True), (0.0, 0.91, True)],
)
def test_a_client_that_lags_says_so(lag: float, share: float, lags: bool) -> None:
    record = RequestRecord(
        index=0, due=0.0, max_tokens=1, input_tokens=1, end=1.0, outcome=OK, output_tokens=1, counted_by="usage"
    )
    full = report(LoadOptions(url="http://127.0.0.1:1"), Run("m", 0.0, [record], [lag] * 100, share))
    assert any("the client lagged" in text for text in full["warnings"]) is lags
    assert ("warning: the client lagged" in format_report(full)) is lags
    assert full["client"]["loop_lag_ms"]["p99"] == pytest.approx(1e3 * lag)


def test_tokens_that_no_server_counted_are_a_warning() -> None:
    record = RequestRecord(index=0, due=0.0, max_tokens=1, input_tokens=1, end=1.0, outcome=OK, output_tokens=1)
    full = report(LoadOptions(url="http://127.0.0.1:1"), Run("m", 0.0, [record]))
    assert any("counted in chunks" in text for text in full["warnings"])
