"""Gaps and durations of a recording, against steps made by hand."""

from __future__ import annotations

import pytest

from headrace.benchmark.trace import Recording
from headrace.execution.metrics import StepMetrics, StepTimes


def step(rows: int, tokens: int) -> StepMetrics:
    return StepMetrics((8, 2), rows, tokens, rows, StepTimes(*[0.0] * 7), 1, 0, 1, 0)


def test_x13_gaps_lie_between_neighbouring_decode_steps_of_all_requests() -> None:
    # Prefill, two decode steps, one beside a chunk of a prompt, three decode steps, one of a single request.
    steps = [step(*n) for n in [(2, 9), (2, 2), (2, 2), (2, 5), (2, 2), (2, 2), (2, 2), (1, 1)]]
    runs = [(0, 5), (6, 7), (7.5, 9.5), (10, 13), (14, 15), (15.25, 17.25), (18, 19), (20, 21)]
    recording = Recording(steps, [(float(begin), float(end)) for begin, end in runs])
    assert recording.gaps(2) == pytest.approx([0.5, 0.25, 0.75])
    assert recording.durations(2) == pytest.approx([1, 2, 1, 2, 1])
