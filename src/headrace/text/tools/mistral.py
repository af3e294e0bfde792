"""Calls as Mistral's models write them: `[TOOL_CALLS]` and an array, or `[TOOL_CALLS]name[ARGS]{…}` for each."""

from __future__ import annotations

import re

from headrace.text.tools.calls import Arguments, CallStart, Piece
from headrace.text.tools.marked import MarkedParser
from headrace.text.tools.scanner import NAME, ValueScanner
from headrace.text.tools.sequence import CallSequence

MARKER = "[TOOL_CALLS]"
_HEAD = re.compile(rf"\s*({NAME.pattern})\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\]\s*)?")
_LONGEST_HEAD = 256


def mistral_parser(names: frozenset[str]) -> MarkedParser:
    """A parser of such text; every name is taken for a call."""
    return MarkedParser(MARKER, _Calls)


class _Calls:
    """Reads what follows a marker, in the older form or in the newer. See `Body`."""

    def __init__(self) -> None:
        self._reader: CallSequence | _NamedCall | None = None
        self._space = ""

    @property
    def is_done(self) -> bool:
        return self._reader is not None and self._reader.is_done

    @property
    def has_failed(self) -> bool:
        return self._reader is not None and self._reader.has_failed

    @property
    def held(self) -> str:
        return self._space + ("" if self._reader is None else self._reader.held)

    def push(self, text: str) -> tuple[list[Piece], str]:
        if self._reader is None:
            start = text.lstrip()
            self._space += text[: len(text) - len(start)]
            if not start:
                return [], ""
            text = start
            self._reader = CallSequence() if start[0] in "[{" else _NamedCall()
        pieces, rest = self._reader.push(text)
        if pieces:
            self._space = ""
        return pieces, rest


class _NamedCall:
    """Reads `name[ARGS]{…}`; the newest models leave out `[ARGS]`, others put `[CALL_ID]…` before it."""

    def __init__(self) -> None:
        self.is_done = self.has_failed = False
        self.held = ""
        self._value: ValueScanner | None = None

    def push(self, text: str) -> tuple[list[Piece], str]:
        pieces: list[Piece] = []
        if self._value is None:
            self.held += text
            start = self.held.find("{", 0, _LONGEST_HEAD)
            if start < 0 and len(self.held) < _LONGEST_HEAD:
                return [], ""
            end = start if start >= 0 else _LONGEST_HEAD
            head = _HEAD.fullmatch(self.held, 0, end)
            text, self.held = self.held[end:], self.held[:end]
            if head is None or start < 0:
                self.has_failed = True
                return [], text
            self.held = ""
            self._value = ValueScanner()
            pieces.append(CallStart(head[1]))
        length = self._value.end(text)
        self.is_done = length is not None
        if arguments := text[:length]:
            pieces.append(Arguments(arguments))
        return pieces, "" if length is None else text[length:]
