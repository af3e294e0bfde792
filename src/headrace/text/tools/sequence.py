"""Several calls in JSON, one after the other."""

from __future__ import annotations

from headrace.text.tools.calls import CallStart, Piece
from headrace.text.tools.scanner import CallScanner


class CallSequence:
    """Reads an array of calls, or calls with nothing, a comma or a semicolon in between. See `Body`.

    Args:
        names: other names are no calls; None takes every name.
        only_array: calls are in an array.
    """

    def __init__(self, names: frozenset[str] | None = None, *, only_array: bool = False) -> None:
        self.is_done = self.has_failed = False
        self._names, self._only_array = names, only_array
        self._between = ""  # what was read before the call that is being read
        self._call: CallScanner | None = None
        self._is_array: bool | None = None
        self._num_calls = 0

    @property
    def held(self) -> str:
        within = "" if self._call is None else self._call.held
        # A list that ended in the middle, or separators after the last call, are part of the calls.
        return self._between + within if within or not self._num_calls else ""

    def push(self, text: str) -> tuple[list[Piece], str]:
        pieces: list[Piece] = []
        while text and not (self.is_done or self.has_failed):
            call = self._call
            text = self._read_between(text) if call is None else self._read_call(call, text, pieces)
        return pieces, text

    def _read_call(self, call: CallScanner, text: str, pieces: list[Piece]) -> str:
        new, text = call.push(text)
        pieces += new
        if any(isinstance(piece, CallStart) for piece in new):
            self._num_calls += 1
            self._between = ""
        if call.has_failed:
            self.has_failed = True
        elif call.is_done:
            self._call = None
        return text

    def _read_between(self, text: str) -> str:
        for position, char in enumerate(text):
            if char == "{" and (self._is_array or not self._only_array):
                self._is_array = self._is_array or False
                self._call = CallScanner(self._names)
                self._between += text[:position]
                return text[position:]
            if char == "[" and self._is_array is None:
                self._is_array = True
            elif char == "]" and self._is_array and self._num_calls:
                self.is_done = True
                return text[position + 1 :]
            elif not char.isspace() and not (char in ",;" and self._num_calls):
                self._between += text[:position]
                return self._stop(text[position:])
        self._between += text
        return ""

    def _stop(self, text: str) -> str:
        """Comes to something that belongs to no sequence."""
        if self._num_calls:
            self.is_done = True
            separators = "" if self._is_array else self._between.lstrip()
            return separators + text
        self.has_failed = True
        return text
