"""One call in JSON, read as its text arrives."""

from __future__ import annotations

import json
import re
from typing import Any

from headrace.text.tools.calls import Arguments, CallStart, Piece

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_AFTER_SCALAR = re.compile(r"[\s,}\]]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ARGUMENTS = ("arguments", "parameters")
NAME = re.compile(r"[\w.:/-]{1,128}")  # what is taken for a tool's name where the tools are not asked


class ValueScanner:
    """Finds where a JSON value ends, by its quotes and brackets alone; the value begins with the first character."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = self._is_scalar = False
        self._has_begun = False

    def end(self, text: str) -> int | None:
        """How much of the next text still belongs to the value; None for all of it, and the value goes on."""
        position = 0
        if text and not self._has_begun:
            self._has_begun = True
            self._is_scalar = text[0] not in '"{['
        if self._is_scalar:
            found = _AFTER_SCALAR.search(text)
            return None if found is None else found.start()
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, position)
            if found is None:
                return None
            position = found.end()
            if self._takes_last(found.group()):
                return position
        return None

    def _takes_last(self, char: str) -> bool:
        """Reads a quote, backslash or bracket; returns whether the value ends with it."""
        if char == "\\":
            self._is_escaped = True
            return False
        if char == '"':
            self._in_string = not self._in_string
            return not self._in_string and self._depth == 0
        self._depth += 1 if char in "{[" else -1
        return self._depth <= 0


class CallScanner:
    """Reads one call, `{"name": "…", "arguments": {…}}`, in any order and with whatever else stands in it. See `Body`.

    "parameters" is as good as "arguments"; without either there are none, and a string in their place is taken for
    their JSON text. If the name comes first, the arguments are passed on while they are written. From then on there is
    no way back: however the object ends, the call stands.

    Args:
        names: other names are no calls; None takes every name.
    """

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self.is_done = self.has_failed = False
        self._names = names
        self._read: list[str] = []  # until the call is certain
        self._buffer = ""
        self._step = self._open
        self._value: ValueScanner | None = None
        self._text: list[str] = []  # of the value
        self._key = ""
        self._name: str | None = None
        self._arguments: str | None = None
        self._has_started = False
        self._pieces: list[Piece] = []

    @property
    def held(self) -> str:
        return "" if self._has_started else "".join(self._read) + self._buffer

    def push(self, text: str) -> tuple[list[Piece], str]:
        self._buffer += text
        while not (self.is_done or self.has_failed) and self._step():
            pass
        pieces, self._pieces = self._pieces, []
        if not (self.is_done or self.has_failed):
            return pieces, ""
        rest, self._buffer = self._buffer, ""
        return pieces, rest

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        if not self._has_started:
            self._read.append(taken)
        return taken

    def _next(self) -> str:
        """The next character that is no space; empty if it is yet to come."""
        self._take(len(self._buffer) - len(self._buffer.lstrip()))
        return self._buffer[:1]

    def _fail(self) -> bool:
        # After the arguments have begun, a flaw of what follows them is none of the call's.
        self.is_done, self.has_failed = self._has_started, not self._has_started
        return False

    def _open(self) -> bool:
        char = self._next()
        if char == "{":
            self._take(1)
            self._step = self._member
            return True
        return self._fail() if char else False

    def _member(self) -> bool:
        char = self._next()
        if char == "}":  # of an empty object, or after a comma too many
            return self._close()
        if char == '"':
            self._value, self._text, self._step = ValueScanner(), [], self._in_key
            return True
        return self._fail() if char else False

    def _in_key(self) -> bool:
        if not self._complete():
            return False
        key = _loads("".join(self._text))
        if not isinstance(key, str):
            return self._fail()
        self._key, self._step = key, self._colon
        return True

    def _colon(self) -> bool:
        char = self._next()
        if char == ":":
            self._take(1)
            self._step = self._before_value
            return True
        return self._fail() if char else False

    def _before_value(self) -> bool:
        char = self._next()
        if not char:
            return False
        if char in ",:}]":
            return self._fail()
        self._value, self._text = ValueScanner(), []
        fresh = self._arguments is None and not self._has_started
        if self._key in _ARGUMENTS and char == "{" and self._name is not None and fresh:
            self._start(self._name)
            self._step = self._in_arguments
        else:
            self._step = self._in_value
        return True

    def _in_value(self) -> bool:
        if not self._complete():
            return False
        text = "".join(self._text)
        value = _loads(text)
        if self._key == "name" and self._name is None:
            if not self._is_name(value):
                return self._fail()
            self._name = value
        elif self._key in _ARGUMENTS and self._arguments is None and not self._has_started:
            self._arguments = _arguments_text(text, value)
            if self._arguments is None:
                return self._fail()
        elif value is _NO_JSON:
            return self._fail()
        self._step = self._after_value
        return True

    def _in_arguments(self) -> bool:
        assert self._value is not None
        end = self._value.end(self._buffer)
        text = self._take(len(self._buffer) if end is None else end)
        if text:
            self._pieces.append(Arguments(text))
        self._step = self._in_arguments if end is None else self._after_value
        return end is not None

    def _after_value(self) -> bool:
        char = self._next()
        if char == ",":
            self._take(1)
            self._step = self._member
            return True
        if char == "}":
            return self._close()
        return self._fail() if char else False

    def _complete(self) -> bool:
        """Reads on in a value that is wanted whole."""
        assert self._value is not None
        end = self._value.end(self._buffer)
        self._text.append(self._take(len(self._buffer) if end is None else end))
        return end is not None

    def _is_name(self, value: Any) -> bool:
        if self._names is not None:
            return isinstance(value, str) and value in self._names
        return isinstance(value, str) and NAME.fullmatch(value) is not None

    def _start(self, name: str) -> None:
        self._has_started = True
        self._read.clear()
        self._pieces.append(CallStart(name))

    def _close(self) -> bool:
        """Ends the object; the call may begin only here."""
        if not self._has_started:
            if self._name is None:
                return self._fail()
            self._start(self._name)
            self._pieces.append(Arguments("{}" if self._arguments is None else self._arguments))
        self._take(1)
        self.is_done = True
        return False


_NO_JSON = object()


def _loads(text: str) -> Any:
    """A JSON value; `_NO_JSON` for what is none. Line breaks within strings, which models write, are let through."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return _NO_JSON


def _arguments_text(text: str, value: Any) -> str | None:
    """The text of arguments that were not passed on as they came; None if they are no arguments."""
    if isinstance(value, dict):
        return text
    if value is None:
        return "{}"
    if isinstance(value, str) and isinstance(_loads(value), dict) and not _SURROGATE.search(value):
        return value
    return None
