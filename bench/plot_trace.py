"""Draws a trace of `headrace bench trace` as SVG: some decode steps, and one border between two of them enlarged.

python bench/plot_trace.py trace.json docs/trace.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

STEPS = 10
ZOOM_MS = 8.0
WIDTH, LEFT, RIGHT = 960, 70, 15
ROW, BLOCK = 24, 210
COLOURS = {
    "device": "#4c78a8",
    "schedule": "#e45756",
    "prepare": "#f58518",
    "dispatch": "#eeca3b",
    "wait": "#d9d9d9",
    "commit": "#54a24b",
}
HOST, DEVICE = 1, 2


def draw(trace: dict[str, Any]) -> str:
    """The whole picture."""
    modes = trace["otherData"]["modes"]
    height = BLOCK * len(modes) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{height}" fill="white"/>'
    ]
    for index, mode in enumerate(modes):
        process = 1 if mode["overlap"] else 2
        events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == process and e["args"]["decode"]]
        parts += _block(mode, events, BLOCK * index)
    parts += _legend(BLOCK * len(modes) + 12)
    return "\n".join([*parts, "</svg>\n"])


def _block(mode: dict[str, Any], events: list[dict[str, Any]], top: float) -> Iterator[str]:
    yield _text(
        LEFT,
        top + 20,
        f"overlap {'on' if mode['overlap'] else 'off'}: between two steps the device is idle for "
        f"{mode['gap_ms_median']:.2f} ms, {mode['gap_share']:.1%} of a step ({mode['device_step_ms_median']:.1f} ms)",
        "bold",
    )
    device = sorted((e for e in events if e["tid"] == DEVICE), key=lambda e: e["ts"])
    first = len(device) // 2 - STEPS // 2
    shown = device[max(first, 0) :][:STEPS]
    yield from _rows(events, shown[0]["ts"], shown[-1]["ts"] + shown[-1]["dur"], top + 32)
    end = _middle(shown, mode["gap_ms_median"])
    yield from _rows(events, end - 500 * ZOOM_MS, end + 500 * ZOOM_MS, top + 118)


def _middle(device: list[dict[str, Any]], gap_ms: float) -> float:
    """The middle of the gap that is most like the median, in µs."""
    gaps = [(a["ts"] + a["dur"], b["ts"]) for a, b in pairwise(device)]
    begin, end = min(gaps, key=lambda gap: abs(gap[1] - gap[0] - 1e3 * gap_ms))
    return float(begin + end) / 2


def _rows(events: Iterable[dict[str, Any]], begin: float, end: float, top: float) -> Iterator[str]:
    """Both tracks over a span of µs, with a scale below."""
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    for name, y in (("device", top), ("host", top + ROW + 4)):
        yield _text(4, y + 16, name)
    for e in events:
        left, right = max(e["ts"], begin), min(e["ts"] + e["dur"], end)
        if left >= right:
            continue
        x, width = LEFT + (left - begin) * scale, (right - left) * scale
        on_device = e["tid"] == DEVICE
        y, colour = (top, COLOURS["device"]) if on_device else (top + ROW + 4, COLOURS[e["name"]])
        shape = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="{colour}"'
        title = f"{e['name']}, step {e['args']['step']}: {e['dur'] / 1e3:.3f} ms"
        yield f"<rect {shape}><title>{title}</title></rect>"
        if on_device and width > 45:
            yield _text(x + 4, y + 16, e["name"], fill="white")
    yield _text(LEFT, top + 2 * ROW + 18, "0", fill="#666")
    yield _text(WIDTH - RIGHT - 45, top + 2 * ROW + 18, f"{(end - begin) / 1e3:.0f} ms", fill="#666")


def _legend(top: float) -> Iterator[str]:
    for index, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 120 * index
        yield f'<rect x="{x}" y="{top}" width="14" height="14" fill="{colour}"/>'
        yield _text(x + 20, top + 12, {"device": "device step", "wait": "wait for tokens"}.get(name, name))


def _text(x: float, y: float, text: str, weight: str = "normal", fill: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" fill="{fill}">{text}</text>'


def main() -> None:
    """Reads the trace that the first argument names and writes the picture to the second."""
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw(json.loads(source.read_text())))


if __name__ == "__main__":
    main()
