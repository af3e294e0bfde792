"""Draws the figures of one model as SVG: a panel for each, a bar for each engine, and its least and largest value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from peers.engines import Engine
from peers.svg import COLOURS, GREY, bar, line, text
from peers.table import Samples, Spread
from peers.workload import FIGURES, Figure

_COLUMNS, _WIDTH, _PANEL_WIDTH, _PANEL_HEIGHT = 4, 1000, 220, 130
_LEFT, _TOP, _STEP_X, _STEP_Y = 20, 84, 245, 200


def draw(title: str, samples: Mapping[str, Samples], engines: Sequence[Engine]) -> str:
    """The picture. `samples` by figure's name and engine's name."""
    figures = [figure for figure in FIGURES if figure.name in samples]
    height = _TOP + _STEP_Y * -(-len(figures) // _COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{_WIDTH}" height="{height}" fill="white"/>',
        text(_LEFT, 24, title, weight="bold"),
        *_legend(engines),
    ]
    for index, figure in enumerate(figures):
        x, y = _LEFT + _STEP_X * (index % _COLUMNS), _TOP + _STEP_Y * (index // _COLUMNS)
        parts += _panel(figure, samples[figure.name], engines, x, y)
    return "\n".join([*parts, "</svg>\n"])


def _legend(engines: Sequence[Engine]) -> Iterator[str]:
    for index, engine in enumerate(engines):
        x = _LEFT + _STEP_X * index
        yield bar(x, 38, 12, 12, COLOURS[index])
        yield text(x + 18, 48, engine.title)


def _panel(figure: Figure, taken: Samples, engines: Sequence[Engine], x: float, y: float) -> Iterator[str]:
    better = "more" if figure.more_is_better else "less"
    yield text(x, y, figure.name, weight="bold")
    yield text(x, y + 15, f"{figure.unit}, {better} is better", fill=GREY)
    spreads = {engine.name: Spread.of(values) for engine in engines if (values := taken.get(engine.name))}
    bottom = y + 30 + _PANEL_HEIGHT
    scale = (_PANEL_HEIGHT - 15) / max(max(spread.most for spread in spreads.values()), 1e-9)
    step = _PANEL_WIDTH / len(engines)
    for index, engine in enumerate(engines):
        left, middle = x + index * step, x + index * step + step / 2
        if engine.name not in spreads:
            yield text(middle, bottom - 4, "–", fill=GREY, anchor="middle")
            continue
        spread = spreads[engine.name]
        top, least = bottom - scale * spread.most, bottom - scale * spread.least
        yield bar(left + 5, bottom - scale * spread.median, step - 10, scale * spread.median, COLOURS[index])
        if spread.most > spread.least:
            for x1, y1, x2, y2 in (
                (middle, top, middle, least),
                (middle - 5, top, middle + 5, top),
                (middle - 5, least, middle + 5, least),
            ):
                yield line(x1, y1, x2, y2)
        digits = 1 if spread.median < 100 else 0
        yield text(middle, top - 4, f"{spread.median:,.{digits}f}", anchor="middle")
    yield line(x, bottom, x + _PANEL_WIDTH, bottom)
