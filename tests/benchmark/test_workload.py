"""Which steps of a run the figures are of."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.benchmark.workload import decode_steps, following, run_steps
from headrace.errors import ConfigError
from tiny import SMALL, tiny_engine


def test_x13_decode_steps_are_those_of_every_request(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **SMALL)
    # 32 tokens per step: the first prompt and 12 tokens of the second, then the other 8 beside a decoded one.
    steps = run_steps(engine, [[5] * 20, [6] * 20], 6)
    assert [step.tokens for step in steps] == [32, 9, 2, 2, 2, 2, 1]
    assert decode_steps(steps, 2) == [2, 3, 4, 5]
    assert not engine.has_unfinished


def test_x13_requests_that_never_decode_together_are_refused(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **SMALL)  # four slots
    steps = run_steps(engine, [[5] * 3] * 6, 5)
    with pytest.raises(ConfigError, match="requests: 6 never decoded together for two steps; give fewer"):
        decode_steps(steps, 6)


def test_x13_only_neighbours_follow_one_another() -> None:
    assert following([1, 2, 3, 5, 6, 8]) == [(1, 2), (2, 3), (5, 6)]
