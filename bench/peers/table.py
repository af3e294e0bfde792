"""From samples to a table: medians, ranges, and ratios to the best peer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peers.engines import HEADRACE, Engine
from peers.workload import FIGURES, Figure

Samples = Mapping[str, Sequence[float]]  # by engine's name: a value per round


@dataclass(frozen=True)
class Spread:
    """Median, least and largest of some values."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


def best_peer(figure: Figure, samples: Samples) -> str | None:
    """The peer with the best median; None if no peer has values."""
    medians = {name: statistics.median(values) for name, values in samples.items() if name != HEADRACE.name and values}
    if not medians:
        return None
    return (max if figure.more_is_better else min)(medians, key=lambda name: medians[name])


def ratio(figure: Figure, samples: Samples) -> Spread | None:
    """How many times better Headrace is than the best peer, round by round; None if either has no values.

    Above 1 Headrace is better: faster, or with less time or memory.
    """
    peer, own = best_peer(figure, samples), samples.get(HEADRACE.name)
    if peer is None or not own:
        return None
    pairs = list(zip(own, samples[peer], strict=False))  # a peer that failed midway has fewer
    return Spread.of([a / b if figure.more_is_better else b / a for a, b in pairs])


def markdown(samples: Mapping[str, Samples], engines: Sequence[Engine], failures: Mapping[str, str]) -> str:
    """The table of one model, one line per figure that has values.

    Cells are medians, with the least and the largest value where there are several rounds.
    """
    lines = [
        "| | " + " | ".join(engine.title for engine in engines) + " | times the best peer |",
        "|---|" + "---|" * (len(engines) + 1),
    ]
    for figure in FIGURES:
        if figure.name not in samples:
            continue
        taken = samples[figure.name]
        cells = [_cell(taken.get(engine.name, ())) for engine in engines]
        times = ratio(figure, taken)
        cells.append(_spread(times, 2) + f", {best_peer(figure, taken)}" if times else "–")
        lines.append(f"| {figure.name}, {figure.unit} | " + " | ".join(cells) + " |")
    lines += [f"\n{name} has no figures, or not all: {reason}" for name, reason in failures.items()]
    return "\n".join(lines)


def agreement(answers: Mapping[str, Sequence[int]]) -> str:
    """Which engines continue one text with the tokens that Headrace gives, and from where others differ."""
    own = answers.get(HEADRACE.name)
    if own is None or len(answers) < 2:
        return ""
    differing = []
    for name, tokens in answers.items():
        place = next((i for i, (a, b) in enumerate(zip(own, tokens, strict=True), 1) if a != b), None)
        if place is not None:
            differing.append(f"{name} from token {place} on")
    if differing:
        return f"Of {len(own)} tokens after one text, others than Headrace's: {', '.join(differing)}."
    return f"All continue one text with the same {len(own)} tokens."


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = Spread.of(values)
    return _spread(spread, 1 if spread.median < 100 else 0)


def _spread(spread: Spread, digits: int) -> str:
    text = f"{spread.median:,.{digits}f}"
    if spread.least == spread.most:
        return text
    return f"{text} ({spread.least:,.{digits}f}–{spread.most:,.{digits}f})"
