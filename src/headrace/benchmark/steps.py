"""What a step takes, on the host and on the device, and what it moves between them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from headrace.benchmark.device import Profile, Span, profiled
from headrace.benchmark.workload import Load, decode_steps, following, load_for, random_prompts, run_steps
from headrace.errors import HeadraceError
from headrace.execution.compiled import compilations
from headrace.execution.metrics import PHASES, StepMetrics

_PROFILED_TOKENS = 24  # the profiler notes some thousand events for each step


def measure(
    load: Load, chosen: dict[str, Any], requests: int, prompt_tokens: int, output_tokens: int
) -> dict[str, Any]:
    """Runs `requests` random prompts together: once to get warm, once for the host's times, once under the profiler.

    Medians are over the steps in which every request decoded a token; `buckets` has all steps. Times are in ms.

    Transfers are those that the profiler saw (see `benchmark.device`), over its steps. `h2d_bytes_per_step` is the
    size of the arrays that the execution layer sent, and it is all that was: every run is under JAX's transfer guard,
    which raises at a transfer that is not explicit. A guard on the way to the host has nothing to refuse on the CPU,
    where arrays lie in the host's memory already.

    Args:
        load: engine options -> the loaded model.
        chosen: engine options of the user's own.
        requests: how many run at once.

    Returns:
        `model`, `dtype`, `requests`, `overlap`, `max_model_len`, `prompt_tokens`, `output_tokens`;
        `schedule_ms_median`: choose the rows; `prepare_ms_median`: fill the batch and begin its transfer;
        `dispatch_ms_median`; `wait_ms_median`: for the tokens; `commit_ms_median`: from tokens to outputs;
        `step_ms_median`: from one step's start to the next's; `device_ms_median`: the device's time for one step;
        `device_idle_share`: share of the time from the first to the last of them in which the device ran none (both
        None where the profiler does not show programs); `h2d_transfers_per_step`, `d2h_transfers_per_step`,
        `h2d_bytes_per_step`, `d2h_bytes_per_step`, `compilations_after_warmup`, `preemptions`; and `buckets`, a list
        of `tokens`, `requests`, `steps`, `padding_share`, the medians, and `h2d_bytes_per_step`.
    """
    llm = load_for(load, chosen, requests, prompt_tokens + output_tokens)
    engine, before = llm.engine, compilations()
    prompts = random_prompts(llm, requests, prompt_tokens)
    with jax.transfer_guard("disallow"):
        run_steps(engine, prompts, min(output_tokens, 4))
        steps = run_steps(engine, prompts, output_tokens)
        seen, profile = profiled(lambda: run_steps(engine, prompts, min(output_tokens, _PROFILED_TOKENS)))
    decoding = [steps[i] for i in decode_steps(steps, requests)]
    device = _device_runs(profile, seen)
    config = engine.config
    return {
        "model": config.model,
        "dtype": config.dtype,
        "requests": requests,
        "overlap": config.overlap,
        "max_model_len": config.max_model_len,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        **_host_medians(decoding),
        "step_ms_median": _step_ms(steps, requests),
        **_device_figures(device, seen, requests),
        "h2d_transfers_per_step": profile.h2d_transfers / len(seen),
        "d2h_transfers_per_step": profile.d2h_transfers / len(seen),
        "h2d_bytes_per_step": _mean(s.h2d_bytes for s in decoding),
        "d2h_bytes_per_step": _mean(s.d2h_bytes for s in decoding),
        "compilations_after_warmup": compilations() - before,
        "preemptions": engine.metrics.preemptions,
        "buckets": _by_bucket(steps, seen, device),
    }


def _host_medians(steps: Sequence[StepMetrics]) -> dict[str, float]:
    seconds = [step.seconds for step in steps]
    return {f"{phase}_ms_median": _median_ms([s[phase] for s in seconds]) for phase in PHASES}


def _step_ms(steps: Sequence[StepMetrics], requests: int) -> float:
    pairs = following(decode_steps(steps, requests))
    return _median_ms([steps[b].times.start - steps[a].times.start for a, b in pairs])


def _device_runs(profile: Profile, seen: Sequence[StepMetrics]) -> list[Span] | None:
    try:
        return profile.runs_of(len(seen))
    except HeadraceError:
        return None


def _device_figures(runs: list[Span] | None, steps: Sequence[StepMetrics], requests: int) -> dict[str, float | None]:
    if runs is None:
        return {"device_ms_median": None, "device_idle_share": None}
    chosen = [runs[i] for i in decode_steps(steps, requests)]
    busy = [end - begin for begin, end in chosen]
    window = chosen[-1][1] - chosen[0][0]
    return {"device_ms_median": _median_ms(busy), "device_idle_share": round(max(1 - sum(busy) / window, 0.0), 5)}


def _by_bucket(
    steps: Sequence[StepMetrics], seen: Sequence[StepMetrics], runs: list[Span] | None
) -> list[dict[str, Any]]:
    rows = []
    for bucket in sorted({step.bucket for step in steps}):
        own = [step for step in steps if step.bucket == bucket]
        busy = [end - begin for step, (begin, end) in zip(seen, runs or [], strict=False) if step.bucket == bucket]
        rows.append(
            {
                "tokens": bucket[0],
                "requests": bucket[1],
                "steps": len(own),
                "padding_share": round(
                    sum(step.padding for step in own) / sum(step.ranks * bucket[0] for step in own), 4
                ),
                **_host_medians(own),
                "device_ms_median": _median_ms(busy) if busy else None,
                "h2d_bytes_per_step": _mean(step.h2d_bytes for step in own),
            }
        )
    return rows


def _median_ms(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 4)


def _mean(values: Iterable[int]) -> float:
    return statistics.fmean(values)


def format_report(report: dict[str, Any]) -> str:
    """The figures as a table for the terminal."""
    r, idle = report, report["device_idle_share"]
    phases = ("schedule", "prepare", "dispatch", "device", "wait", "commit")
    lines = [
        f"{r['model']}, {r['dtype']}, {r['requests']} requests, overlap {'on' if r['overlap'] else 'off'}, "
        f"max_model_len {r['max_model_len']}",
        f"{'bucket':>10}{'steps':>7}{'padding':>9}" + "".join(f"{name + ' ms':>13}" for name in phases),
    ]
    for b in r["buckets"]:
        figures = (b[f"{name}_ms_median"] for name in phases)
        lines.append(
            f"{b['tokens']:>6}x{b['requests']:<3}{b['steps']:>7}{b['padding_share']:>9.1%}"
            + "".join(f"{'-' if ms is None else format(ms, '.3f'):>13}" for ms in figures)
        )
    lines += [
        f"steps of {r['requests']} decoding requests: {r['step_ms_median']:.2f} ms, of which prepare "
        f"{r['prepare_ms_median']:.3f} and commit {r['commit_ms_median']:.3f}; "
        f"device idle {'unknown' if idle is None else format(idle, '.2%')}",
        f"per step: {r['h2d_transfers_per_step']:g} transfers in ({r['h2d_bytes_per_step']:.0f} bytes), "
        f"{r['d2h_transfers_per_step']:g} out ({r['d2h_bytes_per_step']:.0f} bytes); "
        f"{r['compilations_after_warmup']} compilations after warm-up, {r['preemptions']} preemptions",
    ]
    return "\n".join(lines)
