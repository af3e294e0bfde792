"""The probes of the machine give numbers that a machine can have; how fast it is, no test says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from headrace import native
from headrace.benchmark import machine
from headrace.benchmark.machine import Machine, Rate, kind_of_xla, last_level_cache, probe


@pytest.mark.parametrize("with_kernels", [True, False])
def test_rates_are_finite_and_positive(monkeypatch: pytest.MonkeyPatch, with_kernels: bool) -> None:
    if with_kernels and not native.available():
        pytest.skip("the native kernels are absent")
    monkeypatch.setattr(machine, "_LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "_CACHES", 0)
    monkeypatch.setattr(machine, "_LEAST_SECONDS", 1e-4)
    monkeypatch.setattr(machine, "_XLA_SIZE", 64)
    monkeypatch.setattr(native, "available", lambda: with_kernels)
    kinds = {"int8", "float32", "XLA bfloat16"} if with_kernels else {kind_of_xla("bfloat16"), "XLA float32"}
    found = probe(kinds)
    assert set(found.operations) == kinds
    assert found.threads >= 1
    for kind, rate in {"memory": found.bandwidth, **found.operations}.items():
        assert (rate.one is None) == kind.startswith("XLA")
        for value in (rate.all, rate.all if rate.one is None else rate.one):
            assert math.isfinite(value)
            assert 1e6 < value < 1e15  # between a microcontroller and a rack


def test_the_last_level_cache_is_the_largest(tmp_path: Path) -> None:
    assert last_level_cache(tmp_path) is None
    for index, size in enumerate(("32K", "1024K", "32M", "64K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert last_level_cache(tmp_path) == 32 * 2**20


def test_of_two_measurements_the_higher_limits_hold() -> None:
    first = Machine(2, None, "", Rate(1.0, 4.0), {"int8": Rate(None, 7.0)})
    second = Machine(2, None, "", Rate(2.0, 3.0), {"int8": Rate(None, 8.0)})
    assert first.best(second) == Machine(2, None, "", Rate(2.0, 4.0), {"int8": Rate(None, 8.0)})
