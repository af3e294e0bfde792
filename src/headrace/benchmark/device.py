"""What JAX's profiler sees of a run: when the device ran each step, and what was moved to it and from it.

The host's own counts say what it asked for. The profiler's events come from JAX and XLA, so they also show what nobody
meant to ask for:

- A run of a compiled program. XLA:CPU runs it on a thread of its client: the outermost `ThunkExecutor::Execute` begins
  it, `ThunkExecutor::Execute (wait for completion)` ends it. Other devices have a line `XLA Modules` with one event for
  each run (TPU); where there is neither, there are no device times. Of several devices the first one counts.
- `DevicePut…`: JAX hands an array of the host to the device, whether by `device_put` or as an argument of a program.
- `np.asarray(jax.Array)`: JAX brings an array to the host. On the CPU, NumPy can also look at a JAX array in place,
  which moves nothing and leaves no event.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax

from headrace.errors import HeadraceError

T = TypeVar("T")
Span = tuple[float, float]  # begin and end, seconds of time.perf_counter

_CLOCK = "headrace clock"
_MODULES = "XLA Modules"
_RUN, _RUN_END = "ThunkExecutor::Execute", "ThunkExecutor::Execute (wait for completion)"
_SENT, _FETCHED = "DevicePut", "np.asarray(jax.Array)"


@dataclass(frozen=True)
class Profile:
    """What the profiler saw.

    Attributes:
        runs: begin and end of each program that ran on the device, ascending.
        h2d_transfers, d2h_transfers: arrays that went to the device, and that came from it.
    """

    runs: list[Span]
    h2d_transfers: int
    d2h_transfers: int

    def runs_of(self, num_steps: int) -> list[Span]:
        """The runs, of which there must be as many as steps: a step is one program, and nothing else may run.

        Raises:
            HeadraceError: there are more or fewer.
        """
        if len(self.runs) != num_steps:
            raise HeadraceError(
                f"the profiler shows {len(self.runs)} programs for {num_steps} steps; "
                f"it may not show whole programs on {jax.default_backend()}"
            )
        return self.runs


def profiled(work: Callable[[], T]) -> tuple[T, Profile]:
    """Runs `work` under the profiler. That slows the device down by some percent."""
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level, options.python_tracer_level = 1, 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            times = [_mark_clock() for _ in range(9)]
            result = work()
        [file] = Path(folder).rglob("*.xplane.pb")
        return result, _read(jax.profiler.ProfileData.from_file(str(file)), times)


def _mark_clock() -> float:
    now = time.perf_counter()
    with jax.profiler.TraceAnnotation(_CLOCK):
        return now


def _read(data: Any, times: list[float]) -> Profile:
    lines = [(plane.name, line.name, list(line.events)) for plane in data.planes for line in plane.lines]
    marks = sorted(e.start_ns for *_, events in lines for e in events if e.name == _CLOCK)
    # The profiler's clock is another one. The marks say by how much.
    offset = statistics.median(ns / 1e9 - seconds for ns, seconds in zip(marks, times, strict=True))
    modules = sorted(
        ((plane, events) for plane, line, events in lines if "/device:" in plane and line == _MODULES),
        key=lambda m: m[0],
    )
    runs = [(e.start_ns, e.start_ns + e.duration_ns) for _, events in modules[:1] for e in events]
    if not runs:
        runs = [run for *_, events in lines for run in _cpu_runs(events)]
    names = [e.name for *_, events in lines for e in events if e.name.startswith((_SENT, _FETCHED))]
    return Profile(
        runs=sorted((begin / 1e9 - offset, end / 1e9 - offset) for begin, end in runs),
        h2d_transfers=sum(name.startswith(_SENT) for name in names),
        d2h_transfers=names.count(_FETCHED),
    )


def _cpu_runs(events: list[Any]) -> Iterator[Span]:
    """Begin and end, in nanoseconds, of each program that a thread ran. Loops in a program nest in its own event."""
    begin = end = 0.0
    named = (e for e in events if e.name in (_RUN, _RUN_END))
    for e in sorted(named, key=lambda e: (e.start_ns, -e.duration_ns)):
        if e.name == _RUN_END:
            if dict(e.stats).get("device_ordinal", 0) == 0:
                yield begin, e.start_ns + e.duration_ns
        elif e.start_ns >= end:
            begin, end = e.start_ns, e.start_ns + e.duration_ns
