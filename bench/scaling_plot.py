"""Draws the share of the machine's limit that decoding reaches over the context: a panel for each number of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from peers.svg import COLOURS, GREY, bar, line, text

_LEFT, _TOP, _WIDTH, _HEIGHT, _STEP = 60, 96, 380, 240, 480
_MOST = 1.0  # share at the top, unless a figure is above it


def draw(model: str, results: Sequence[dict[str, Any]]) -> str:
    """The picture of results of `headrace bench roofline`, each with its `threads`."""
    decoded = [r for r in results if r["kind"] == "decode"]
    threads = sorted({r["threads"] for r in decoded})
    batches = sorted({r["batch_size"] for r in decoded})
    width, height = _LEFT + _STEP * max(len(threads), 1), _TOP + _HEIGHT + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>',
        text(_LEFT, 24, f"{model}: decoding, share of the machine's limit", weight="bold"),
        text(_LEFT, 42, "full points: bound by memory; rings: by arithmetic", fill=GREY),
    ]
    for index, batch in enumerate(batches):
        x = _LEFT + 95 * index
        parts += [bar(x, 52, 12, 12, _colour(index)), text(x + 16, 62, f"{batch} request{'s' * (batch > 1)}")]
    for index, count in enumerate(threads):
        own = [r for r in decoded if r["threads"] == count]
        parts += _panel(f"{count} thread{'s' * (count > 1)}", own, batches, _LEFT + _STEP * index)
    return "\n".join([*parts, "</svg>\n"])


def _panel(title: str, results: Sequence[dict[str, Any]], batches: Sequence[int], x: float) -> Iterator[str]:
    contexts = sorted({r["asked"] for r in results})
    most = max([_MOST, *(r["share"] for r in results)])
    first, last = math.log2(contexts[0]), math.log2(contexts[-1])

    def place(context: int, share: float) -> tuple[float, float]:
        along = (math.log2(context) - first) / (last - first) if last > first else 0.5
        return x + 15 + (_WIDTH - 30) * along, _TOP + _HEIGHT * (1 - share / most)

    yield text(x, _TOP - 12, title, weight="bold")
    for quarter in range(5):
        y = place(contexts[0], quarter / 4)[1]
        yield line(x, y, x + _WIDTH, y, "#ddd")
        yield text(x - 6, y + 4, f"{quarter * 25}%", fill=GREY, anchor="end")
    for context in contexts:
        yield text(place(context, 0)[0], _TOP + _HEIGHT + 18, f"{context:,}", fill=GREY, anchor="middle")
    yield text(x + _WIDTH / 2, _TOP + _HEIGHT + 38, "tokens in the cache of each request", fill=GREY, anchor="middle")
    for index, batch in enumerate(batches):
        own = sorted((r for r in results if r["batch_size"] == batch), key=lambda r: r["asked"])
        points = [place(r["asked"], r["share"]) for r in own]
        for (x1, y1), (x2, y2) in pairwise(points):
            yield line(x1, y1, x2, y2, _colour(index))
        for r, (cx, cy) in zip(own, points, strict=True):
            fill = _colour(index) if r["bound"] == "memory" else "white"
            yield (
                f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{fill}" stroke="{_colour(index)}" stroke-width="2">'
                f"<title>{batch} requests, {r['context']:,} tokens: {r['ms']:.1f} ms, limit {r['limit_ms']:.1f}</title>"
                "</circle>"
            )


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]
