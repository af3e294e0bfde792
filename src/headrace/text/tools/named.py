"""The arguments of one call that is known beforehand, for answers that a grammar holds to them."""

from __future__ import annotations

from headrace.text.tools.calls import Arguments, CallStart, Piece


class NamedParser:
    """Takes the whole text for the arguments of one call. See `ToolParser`.

    Args:
        name: of the tool.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_started = False

    def push(self, text: str) -> list[Piece]:
        if not text:
            return []
        start: list[Piece] = [] if self._has_started else [CallStart(self._name)]
        self._has_started = True
        return [*start, Arguments(text)]

    def finish(self) -> list[Piece]:
        return []
