"""Parts of pictures as SVG."""

from __future__ import annotations

import html

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")
GREY = "#666"


def bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "#222") -> str:
    """A line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def text(x: float, y: float, words: str, weight: str = "normal", fill: str = "black", anchor: str = "start") -> str:
    """A line of text; `y` is its base line."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}">'
        f"{html.escape(words)}</text>"
    )
