"""What is read from JAX's profiler, against runs and transfers of a known number."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.benchmark.device import Profile, profiled
from headrace.errors import HeadraceError

# A loop runs as programs within the program; it is one run all the same.
LOOP = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, y: jnp.tanh(y @ y), x))
FORM = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def test_x13_runs_and_transfers_are_those_that_were_made() -> None:
    program = LOOP.lower(FORM).compile()
    host, spans = np.eye(64, dtype=np.float32), []

    def work() -> None:
        for _ in range(5):
            begin = time.perf_counter()
            array = program(jax.device_put(host))
            array.block_until_ready()
            spans.append((begin, time.perf_counter()))
        for _ in range(3):
            jax.device_get(array)

    _, profile = profiled(work)
    assert (profile.h2d_transfers, profile.d2h_transfers) == (5, 3)
    for (begin, end), (asked, ready) in zip(profile.runs_of(5), spans, strict=True):
        assert begin < end
        # The profiler's clock, brought to the host's, is right within what a busy machine leaves of it.
        assert asked - 0.05 < begin
        assert end < ready + 0.05


def test_x13_a_host_array_as_an_argument_is_a_transfer_too() -> None:
    program = LOOP.lower(FORM).compile()
    _, profile = profiled(lambda: [program(np.eye(64, dtype=np.float32)).block_until_ready() for _ in range(4)])
    assert (profile.h2d_transfers, profile.d2h_transfers) == (4, 0)


def test_x13_more_programs_than_steps_are_an_error() -> None:
    profile = Profile(runs=[(0.0, 1.0), (2.0, 3.0)], h2d_transfers=0, d2h_transfers=0)
    assert profile.runs_of(2) == profile.runs
    for steps in (1, 3):
        with pytest.raises(HeadraceError, match=f"the profiler shows 2 programs for {steps} steps"):
            profile.runs_of(steps)
