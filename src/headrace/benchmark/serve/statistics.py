"""From the records of a run to its figures: percentiles, throughput, goodput, errors by kind."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.benchmark.serve.records import CANCELLED, ERROR, OK, RequestRecord

LATENCIES = ("ttft", "itl", "tpot", "e2e")
_EXAMPLES = 3  # of each kind of error


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The `percent`-th percentile of a sequence that is not empty, linear between the two nearest (NumPy's default)."""
    place = (len(ascending) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (place - low)


def summary(seconds: Sequence[float], percents: Sequence[float]) -> dict[str, float] | None:
    """`mean`, `std` (of the population), `min`, `max` and a `pN` for each percentile, in ms; None of nothing."""
    if not seconds:
        return None
    values = sorted(1e3 * one for one in seconds)
    figures = {"mean": statistics.fmean(values), "std": statistics.pstdev(values), "min": values[0], "max": values[-1]}
    figures.update((f"p{percent:g}", percentile(values, percent)) for percent in percents)
    return {name: round(value, 4) for name, value in figures.items()}


def latencies(records: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """All values of each of `LATENCIES`, in seconds."""
    return {
        "ttft": [r.ttft for r in records],
        "itl": [gap for r in records for gap in r.itls],
        "tpot": [r.tpot for r in records if r.tpot is not None],
        "e2e": [r.e2e for r in records],
    }


def is_good(record: RequestRecord, limits: Mapping[str, float]) -> bool:
    """Whether an answer kept all limits (ms, by `ttft`, `tpot`, `e2e`). One of a single token has a tpot of 0."""
    values = {"ttft": record.ttft, "tpot": record.tpot or 0.0, "e2e": record.e2e}
    return all(1e3 * values[name] <= limit for name, limit in limits.items())


def figures(records: Sequence[RequestRecord], percents: Sequence[float], limits: Mapping[str, float]) -> dict[str, Any]:
    """What a run came to.

    Latencies and goodput are those of answers that came whole and were read at full speed. Tokens count for the
    throughput where an answer came whole, however it was read: what an error or a cancelled request got is not
    counted.

    Args:
        records: all ended.
        percents: which percentiles.
        limits: ms for `ttft`, `tpot` or `e2e`, for the goodput.

    Returns:
        `duration` in seconds, from the first request's start to the last's end; the numbers of requests `ok`,
        `errors`, `cancelled`, `slow` (those of `ok` that were read slowly); `input_tokens`, `output_tokens` of the
        `ok` ones, `cached_tokens` (None where no server said), `counted_by` (requests by who counted); per second
        `requests_per_s`, `input_tokens_per_s`, `output_tokens_per_s`, `total_tokens_per_s`; `goodput` (None without
        limits) with `limits`, `good` and `requests_per_s`; `error_kinds`, by kind `count` and some `examples`; and a
        `summary` for each of `LATENCIES`.
    """
    ok = [r for r in records if r.outcome == OK]
    timed = [r for r in ok if not r.slow]
    start = min((r.start for r in records), default=0.0)
    duration = max((r.end for r in records), default=0.0) - start
    inputs, outputs = sum(r.input_tokens for r in ok), sum(r.output_tokens for r in ok)
    cached = [r.cached_tokens for r in ok if r.cached_tokens is not None]
    counts = {"requests": len(ok), "input_tokens": inputs, "output_tokens": outputs, "total_tokens": inputs + outputs}
    good = sum(is_good(r, limits) for r in timed)
    return {
        "duration": round(duration, 4),
        "ok": len(ok),
        "errors": sum(r.outcome == ERROR for r in records),
        "cancelled": sum(r.outcome == CANCELLED for r in records),
        "slow": len(ok) - len(timed),
        "input_tokens": inputs,
        "output_tokens": outputs,
        "cached_tokens": sum(cached) if cached else None,
        "counted_by": dict(Counter(r.counted_by for r in ok)),
        **{f"{name}_per_s": _per_second(count, duration) for name, count in counts.items()},
        "goodput": {"limits": dict(limits), "good": good, "requests_per_s": _per_second(good, duration)}
        if limits
        else None,
        "error_kinds": _error_kinds(records),
        **{name: summary(values, percents) for name, values in latencies(timed).items()},
    }


def _per_second(count: int, seconds: float) -> float:
    return round(count / seconds, 4) if seconds > 0 else 0.0


def _error_kinds(records: Sequence[RequestRecord]) -> dict[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.kind is not None:
            entry = kinds.setdefault(record.kind, {"count": 0, "examples": []})
            entry["count"] += 1
            if record.error not in entry["examples"] and len(entry["examples"]) < _EXAMPLES:
                entry["examples"].append(record.error)
    return dict(sorted(kinds.items(), key=lambda item: -item[1]["count"]))
