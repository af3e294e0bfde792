"""Draws the report of a run as SVG: what share of answers was within which time, and what came when."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from headrace.benchmark.serve.records import OK
from headrace.benchmark.serve.statistics import percentile

_WIDTH, _PANEL_WIDTH, _PANEL_HEIGHT = 960, 430, 150
_LEFT, _STEP_X, _STEP_Y, _TOP = 50, 470, 210, 70
_POINTS = 200  # of a curve
_BINS = 80  # of the time line
_NAMES = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "tpot": "time per output token",
    "e2e": "end-to-end latency",
}
_BLUE, _ORANGE, _GREY, _RED = "#4c78a8", "#f58518", "#666", "#e45756"


def draw(report: dict[str, Any]) -> str:
    """The picture of a report (`report.report`, or the same read from JSON)."""
    settings, height = report["settings"], _TOP + 3 * _STEP_Y
    timed = [r for r in report["requests"] if r["outcome"] == OK and not r["slow"]]
    values = {
        "ttft": [r["ttft"] for r in timed],
        "itl": [b - a for r in timed for a, b in pairwise(r["chunks"])],
        "tpot": [r["tpot"] for r in timed if r["tpot"] is not None],
        "e2e": [r["e2e"] for r in timed],
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 24, f"{settings['url']} ({settings['api']}), model {settings['model']}", weight="bold"),
        _text(_LEFT, 42, _headline(report)),
    ]
    for index, (name, seconds) in enumerate(values.items()):
        x, y = _LEFT + _STEP_X * (index % 2), _TOP + _STEP_Y * (index // 2)
        parts += _distribution(_NAMES[name], seconds, settings["goodput"].get(name), x, y)
    parts += _time_line(report["requests"], _LEFT, _TOP + 2 * _STEP_Y)
    return "\n".join([*parts, "</svg>\n"])


def _headline(report: dict[str, Any]) -> str:
    f = report["figures"]
    return (
        f"{f['ok']} answered, {f['errors']} errors, {f['cancelled']} cancelled in {f['duration']:.1f} s; "
        f"{f['requests_per_s']:.2f} requests/s, {f['output_tokens_per_s']:.1f} output tokens/s"
    )


def _distribution(title: str, seconds: Sequence[float], limit: float | None, x: float, y: float) -> Iterator[str]:
    """The share of values up to each time, in ms."""
    yield _text(x, y, title, weight="bold")
    if not seconds:
        yield _text(x, y + 30, "none", fill=_GREY)
        return
    ascending = sorted(1e3 * value for value in seconds)
    longest = max(min(ascending[-1], 2 * percentile(ascending, 99)), 1e-6)  # a straggler must not flatten the rest
    top, scale = y + 12, _PANEL_WIDTH / longest
    for share in (0.5, 0.9, 0.99):
        value = percentile(ascending, 100 * share)
        level = top + _PANEL_HEIGHT * (1 - share)
        yield _line(x, level, x + _PANEL_WIDTH, level)
        yield _text(x - 30, level + (8 if share == 0.9 else 2), f"p{100 * share:g}", fill=_GREY)
        place = f'cx="{x + value * scale:.1f}" cy="{level:.1f}"'
        yield f'<circle {place} r="4" fill="{_BLUE}"><title>p{100 * share:g}: {value:.2f} ms</title></circle>'
    curve = ((percentile(ascending, 100 * i / _POINTS), i / _POINTS) for i in range(_POINTS + 1))
    points = ((x + value * scale, top + _PANEL_HEIGHT * (1 - share)) for value, share in curve if value <= longest)
    yield _curve(points, _BLUE)
    if limit is not None and limit <= longest:
        yield _line(x + limit * scale, top, x + limit * scale, top + _PANEL_HEIGHT, _RED)
    yield from _axis(longest, "ms", x, top + _PANEL_HEIGHT, _PANEL_WIDTH)


def _time_line(requests: Sequence[dict[str, Any]], x: float, y: float) -> Iterator[str]:
    """Chunks with output per second, and requests under way, over the run."""
    end = max((r["end"] for r in requests), default=0.0)
    if end <= 0:
        return
    width, top, bin_seconds = _STEP_X + _PANEL_WIDTH, y + 12, end / _BINS
    counts = [0] * _BINS
    for moment in (moment for r in requests for moment in r["chunks"]):
        counts[min(int(moment / bin_seconds), _BINS - 1)] += 1
    changes = sorted([(r["start"], 1) for r in requests] + [(r["end"], -1) for r in requests])
    running, steps = 0, [(0.0, 0)]
    for moment, change in changes:
        steps.append((moment, running))
        steps.append((moment, running := running + change))
    most_chunks, most_running = max([*counts, 1]), max(number for _, number in steps)
    rate = f"{most_chunks / bin_seconds:,.0f} output chunks/s"
    yield _text(x, y, f"up to {rate}", weight="bold", fill=_BLUE)
    yield _text(x + 300, y, f"up to {most_running} requests under way", weight="bold", fill=_ORANGE)
    for index, count in enumerate(counts):
        height = _PANEL_HEIGHT * count / most_chunks
        yield (
            f'<rect x="{x + width * index / _BINS:.1f}" y="{top + _PANEL_HEIGHT - height:.1f}" '
            f'width="{width / _BINS - 1:.1f}" height="{height:.1f}" fill="{_BLUE}" opacity="0.6"/>'
        )
    points = ((x + width * t / end, top + _PANEL_HEIGHT * (1 - n / most_running)) for t, n in steps)
    yield _curve(points, _ORANGE)
    yield from _axis(end, "s", x, top + _PANEL_HEIGHT, width)


def _axis(longest: float, unit: str, x: float, y: float, width: float) -> Iterator[str]:
    """Round numbers from 0, at most six."""
    yield _line(x, y, x + width, y, _GREY)
    power = 10.0 ** math.floor(math.log10(longest))
    step = next(power * f for f in (0.2, 0.5, 1.0, 2.0) if longest / (power * f) <= 5)
    for index in range(int(longest / step) + 1):
        place = x + width * index * step / longest
        yield _line(place, y, place, y + 4, _GREY)
        yield _text(place, y + 18, f"{index * step:g}" + (f" {unit}" if not index else ""), fill=_GREY)


def _curve(points: Any, colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#ddd") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, weight: str = "normal", fill: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" fill="{fill}">{html.escape(text)}</text>'
