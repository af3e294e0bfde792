"""The report of a run, for JSON and for the terminal."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headrace
from headrace.benchmark.serve.load import Run
from headrace.benchmark.serve.options import LoadOptions
from headrace.benchmark.serve.records import OK
from headrace.benchmark.serve.statistics import LATENCIES, figures, percentile, summary

_LAG_LIMIT = 0.01  # seconds; of the client's own lag, p99
_CPU_LIMIT = 0.9  # of one processor


def report(options: LoadOptions, run: Run) -> dict[str, Any]:
    """Everything: `settings`, `machine` (the client's), `figures`, `client` (its own lag), `warnings`, `requests`."""
    done = figures(run.records, options.percentiles, options.goodput)
    client = {
        "loop_lag_ms": summary(run.lags, (50, 90, 99)),
        "cpu_share": round(run.cpu_share, 4),
        # Without room for it a request is late because of those before it.
        "late_ms": None if options.concurrency else summary([r.start - r.due for r in run.records], (50, 90, 99)),
    }
    return {
        "settings": {**options.as_dict(), "model": run.model},
        "began": run.began,
        "machine": machine(),
        "figures": done,
        "client": client,
        "warnings": list(_warnings(options, run)),
        "requests": [record.as_dict() for record in run.records],
    }


def machine() -> dict[str, Any]:
    """What the client ran on."""
    return {
        "headrace": headrace.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _warnings(options: LoadOptions, run: Run) -> Any:
    lag = percentile(sorted(run.lags), 99) if run.lags else 0.0
    if lag > _LAG_LIMIT or run.cpu_share > _CPU_LIMIT:
        yield (
            f"the client lagged: its event loop was late by {1e3 * lag:.1f} ms (p99), it used {run.cpu_share:.0%} of "
            "a core; times may be its own: give it a core, or less to do"
        )
    counts = {record.counted_by for record in run.records if record.outcome == OK}
    if "chunks" in counts:
        yield "the server told no usage for some answers: their tokens are counted in chunks, their prompts guessed"
    if not counts:
        yield "no request was answered"


def format_report(full: dict[str, Any]) -> str:
    """The figures as tables for the terminal."""
    s, f, client = full["settings"], full["figures"], full["client"]
    lines = [
        f"{s['url']} ({s['api']}), model {s['model']}, dataset {s['dataset']['name']}, {_pattern(s)}",
        f"{f['ok']} answered ({f['slow']} of them read slowly), {f['errors']} errors, {f['cancelled']} cancelled, "
        f"in {f['duration']:.2f} s",
        f"requests/s {f['requests_per_s']:.2f}   tokens/s: output {f['output_tokens_per_s']:.1f}, "
        f"input {f['input_tokens_per_s']:.1f}, both {f['total_tokens_per_s']:.1f}",
        f"tokens: {f['input_tokens']} in{_cached(f)}, {f['output_tokens']} out, counted by "
        + (", ".join(f"{name} ({count})" for name, count in f["counted_by"].items()) or "nobody"),
    ]
    if f["goodput"]:
        limits = ", ".join(f"{name} <= {limit:g} ms" for name, limit in f["goodput"]["limits"].items())
        lines.append(f"goodput {f['goodput']['requests_per_s']:.2f} requests/s: {f['goodput']['good']} with {limits}")
    lines += _table({name.upper(): f[name] for name in LATENCIES})
    lines += _table({"loop lag": client["loop_lag_ms"], "sent late": client["late_ms"]}, "client, ms")
    for kind, entry in f["error_kinds"].items():
        lines += [f"error: {entry['count']} x {kind}", *(f"    {example}" for example in entry["examples"])]
    return "\n".join([*lines, *(f"warning: {text}" for text in full["warnings"])])


def _pattern(settings: dict[str, Any]) -> str:
    rate, limit = settings["request_rate"], settings["concurrency"]
    parts = [f"{rate:g} requests/s" if rate else "", f"{limit} at once" if limit else ""]
    return ", at most ".join(part for part in parts if part) or "all at once"


def _cached(f: dict[str, Any]) -> str:
    return "" if f["cached_tokens"] is None else f" ({f['cached_tokens']} of them cached)"


def _table(rows: dict[str, dict[str, float] | None], title: str = "ms") -> Sequence[str]:
    given = {name: row for name, row in rows.items() if row is not None}
    if not given:
        return []
    names = list(next(iter(given.values())))
    return [
        f"{title:<12}" + "".join(f"{name:>11}" for name in names),
        *(f"{label:<12}" + "".join(f"{row[name]:>11.2f}" for name in names) for label, row in given.items()),
    ]
