"""A trace of host and device over some steps, and the gaps that the host leaves between the device's steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from headrace.benchmark.device import Span, profiled
from headrace.benchmark.workload import Load, decode_steps, following, load_for, random_prompts, run_steps
from headrace.engine.engine import Engine
from headrace.execution.metrics import StepMetrics
from headrace.llm import LLM

_ROUNDS = 3
_HOST, _DEVICE = 1, 2  # thread ids in the trace


@dataclass(frozen=True)
class Recording:
    """The steps of one run, and when the device ran each."""

    steps: list[StepMetrics]
    runs: list[Span]

    def gaps(self, requests: int) -> list[float]:
        """Seconds between two steps of the device that follow each other and in which every request decodes."""
        pairs = following(decode_steps(self.steps, requests))
        return [self.runs[b][0] - self.runs[a][1] for a, b in pairs]

    def durations(self, requests: int) -> list[float]:
        """Seconds of the device for each such step."""
        return [self.runs[i][1] - self.runs[i][0] for i in decode_steps(self.steps, requests)]


def record(
    load: Load, chosen: dict[str, Any], requests: int, steps: int, prompt_tokens: int, overlaps: Sequence[bool]
) -> dict[str, Any]:
    """Runs `requests` random prompts together for about so many decode steps, in each mode by turns.

    Args:
        load: engine options -> the loaded model.
        chosen: engine options of the user's own.
        overlaps: with overlap on, off, or both; all in one process over the same compiled steps.

    Returns:
        A trace in the Chrome JSON format (`traceEvents`), one process per mode with a track for the host and one for
        the device; `otherData` has model and sizes, and per mode in `modes` `overlap`, `device_step_ms_median`,
        `gap_ms_median` and `gap_share`: the median gap over the median step of the device.

    Raises:
        HeadraceError: the profiler shows no device steps on this platform.
    """
    llm = load_for(load, chosen, requests, prompt_tokens + steps + 1)
    prompts = random_prompts(llm, requests, prompt_tokens)
    engines = {overlap: _engine(llm, overlap) for overlap in overlaps}
    recordings: dict[bool, list[Recording]] = {overlap: [] for overlap in overlaps}
    with jax.transfer_guard("disallow"):
        run_steps(llm.engine, prompts, 4)
        for overlap in [*overlaps] * _ROUNDS:
            recordings[overlap].append(_record_one(engines[overlap], prompts, steps + 1))
    config = llm.engine.config
    return {
        "traceEvents": [e for overlap in overlaps for e in _events(overlap, recordings[overlap][-1])],
        "displayTimeUnit": "ms",
        "otherData": {
            "model": config.model,
            "dtype": config.dtype,
            "requests": requests,
            "prompt_tokens": prompt_tokens,
            "modes": [_figures(overlap, recordings[overlap], requests) for overlap in overlaps],
        },
    }


def _engine(llm: LLM, overlap: bool) -> Engine:
    """An engine over the same compiled steps. One at a time may have requests."""
    return Engine(replace(llm.engine.config, overlap=overlap), llm.engine.tokenizer, llm.engine.manager)


def _record_one(engine: Engine, prompts: list[list[int]], max_tokens: int) -> Recording:
    steps, profile = profiled(lambda: run_steps(engine, prompts, max_tokens))
    return Recording(steps, profile.runs_of(len(steps)))


def _figures(overlap: bool, recordings: Sequence[Recording], requests: int) -> dict[str, Any]:
    gap = statistics.median(gap for r in recordings for gap in r.gaps(requests))
    step = statistics.median(seconds for r in recordings for seconds in r.durations(requests))
    return {
        "overlap": overlap,
        "device_step_ms_median": round(1e3 * step, 4),
        "gap_ms_median": round(1e3 * gap, 4),
        "gap_share": round(gap / step, 5),
    }


def _events(overlap: bool, recording: Recording) -> Iterator[dict[str, Any]]:
    process = 1 if overlap else 2
    yield _name(process, 0, "process_name", f"overlap {'on' if overlap else 'off'}")
    yield _name(process, _HOST, "thread_name", "host")
    yield _name(process, _DEVICE, "thread_name", "device")
    origin = recording.steps[0].times.start
    for number, (step, run) in enumerate(zip(recording.steps, recording.runs, strict=True)):
        args = {
            "step": number,
            "bucket": f"{step.bucket[0]}x{step.bucket[1]}",
            "rows": step.rows,
            "tokens": step.tokens,
            "decode": step.is_decode,
        }
        for phase, span in step.times.phases.items():
            yield _complete(process, _HOST, phase, span, origin, args)
        yield _complete(process, _DEVICE, f"step {number}", run, origin, args)


def _name(process: int, thread: int, kind: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}}


def _complete(process: int, thread: int, name: str, span: Span, origin: float, args: dict[str, Any]) -> dict[str, Any]:
    ts, dur = round(1e6 * (span[0] - origin), 3), round(1e6 * (span[1] - span[0]), 3)
    return {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": ts, "dur": dur, "args": args}


def format_report(trace: dict[str, Any]) -> str:
    """The gaps in words."""
    about = trace["otherData"]
    lines = [f"{about['model']}, {about['dtype']}, {about['requests']} requests"]
    for mode in about["modes"]:
        lines.append(
            f"overlap {'on ' if mode['overlap'] else 'off'}: steps of {mode['device_step_ms_median']:.2f} ms on the "
            f"device, a gap of {mode['gap_ms_median']:.3f} ms between two, {mode['gap_share']:.2%} (decode, medians)"
        )
    return "\n".join(lines)
