"""Draws the figures of one model as SVG: a panel for each, a bar for each engine, and its least and largest value."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence

from peers.engines import Engine
from peers.table import Samples, Spread
from peers.workload import FIGURES, Figure

_COLUMNS, _WIDTH, _PANEL_WIDTH, _PANEL_HEIGHT = 4, 1000, 220, 130
_LEFT, _TOP, _STEP_X, _STEP_Y = 20, 84, 245, 200
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")
_GREY = "#666"


def draw(title: str, samples: Mapping[str, Samples], engines: Sequence[Engine]) -> str:
    """The picture. `samples` by figure's name and engine's name."""
    figures = [figure for figure in FIGURES if figure.name in samples]
    height = _TOP + _STEP_Y * -(-len(figures) // _COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 24, title, weight="bold"),
        *_legend(engines),
    ]
    for index, figure in enumerate(figures):
        x, y = _LEFT + _STEP_X * (index % _COLUMNS), _TOP + _STEP_Y * (index // _COLUMNS)
        parts += _panel(figure, samples[figure.name], engines, x, y)
    return "\n".join([*parts, "</svg>\n"])


def _legend(engines: Sequence[Engine]) -> Iterator[str]:
    for index, engine in enumerate(engines):
        x = _LEFT + _STEP_X * index
        yield _bar(x, 38, 12, 12, _COLOURS[index])
        yield _text(x + 18, 48, engine.title)


def _panel(figure: Figure, taken: Samples, engines: Sequence[Engine], x: float, y: float) -> Iterator[str]:
    better = "more" if figure.more_is_better else "less"
    yield _text(x, y, figure.name, weight="bold")
    yield _text(x, y + 15, f"{figure.unit}, {better} is better", fill=_GREY)
    spreads = {engine.name: Spread.of(values) for engine in engines if (values := taken.get(engine.name))}
    bottom = y + 30 + _PANEL_HEIGHT
    scale = (_PANEL_HEIGHT - 15) / max(max(spread.most for spread in spreads.values()), 1e-9)
    step = _PANEL_WIDTH / len(engines)
    for index, engine in enumerate(engines):
        left, middle = x + index * step, x + index * step + step / 2
        if engine.name not in spreads:
            yield _text(middle, bottom - 4, "–", fill=_GREY, anchor="middle")
            continue
        spread = spreads[engine.name]
        top, least = bottom - scale * spread.most, bottom - scale * spread.least
        yield _bar(left + 5, bottom - scale * spread.median, step - 10, scale * spread.median, _COLOURS[index])
        if spread.most > spread.least:
            for x1, y1, x2, y2 in (
                (middle, top, middle, least),
                (middle - 5, top, middle + 5, top),
                (middle - 5, least, middle + 5, least),
            ):
                yield _line(x1, y1, x2, y2)
        digits = 1 if spread.median < 100 else 0
        yield _text(middle, top - 4, f"{spread.median:,.{digits}f}", anchor="middle")
    yield _line(x, bottom, x + _PANEL_WIDTH, bottom)


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#222"/>'


def _text(x: float, y: float, text: str, weight: str = "normal", fill: str = "black", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )
