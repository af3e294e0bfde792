"""Calls as Hermes and Qwen write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from headrace.text.tools.calls import Piece
from headrace.text.tools.marked import MarkedParser
from headrace.text.tools.scanner import CallScanner

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def hermes_parser(names: frozenset[str]) -> MarkedParser:
    """A parser of such text; every name is taken for a call."""
    return MarkedParser(OPENING, _Element)


class _Element:
    """Reads one call and the closing tag, which models sometimes forget. See `Body`."""

    def __init__(self) -> None:
        self.is_done = False
        self._call = CallScanner()
        self._tail = ""

    @property
    def has_failed(self) -> bool:
        return self._call.has_failed

    @property
    def held(self) -> str:
        return self._call.held

    def push(self, text: str) -> tuple[list[Piece], str]:
        pieces: list[Piece] = []
        if not self._call.is_done:
            pieces, text = self._call.push(text)
            if not self._call.is_done:
                return pieces, text
        # A bracket too many is a common slip.
        self._tail = (self._tail + text).lstrip(" \n\r\t}]")
        if self._tail.startswith(CLOSING) or not CLOSING.startswith(self._tail):
            self.is_done = True
            return pieces, self._tail.removeprefix(CLOSING)
        return pieces, ""
