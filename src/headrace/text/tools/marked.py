"""Content up to a marker, calls after it: the part that all formats share."""

from __future__ import annotations

from collections.abc import Callable

from headrace.text.tools.calls import Body, Piece


class MarkedParser:
    """Passes content on, and gives what follows a marker to a reader of its own. See `ToolParser`.

    Space right before and after calls is dropped. A marker after which there is no call is content.

    Args:
        marker: what announces calls anywhere in the text; None for nothing.
        body: makes a reader for what comes after a marker.
        bare: makes one for an answer that begins with a bracket, or a code fence of JSON, which then needs no marker;
            None if it does.
    """

    def __init__(self, marker: str | None, body: Callable[[], Body], bare: Callable[[], Body] | None = None) -> None:
        self._marker, self._new_body, self._new_bare = marker, body, bare
        self._text = ""  # not yet known for what it is
        self._body: Body | None = None
        self._opening = ""  # what led to the body, until its first call
        self._at_start = bare is not None
        self._after_calls = False
        self._fence = ""

    def push(self, text: str) -> list[Piece]:
        self._text += text
        pieces: list[Piece] = []
        while self._advance(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        left = self._opening + (self._body.held if self._body is not None else "") + self._text
        self._opening = self._text = ""
        self._body = None
        if self._after_calls:
            left = left.lstrip()
        return [left] if left else []

    def _advance(self, pieces: list[Piece]) -> bool:
        """Takes one step; returns whether another may follow before more text comes."""
        if self._body is not None:
            return self._in_body(self._body, pieces)
        if self._at_start:
            return self._begin()
        return self._in_content(pieces)

    def _in_body(self, body: Body, pieces: list[Piece]) -> bool:
        if not self._text:
            return False
        new, self._text = body.push(self._text)
        if new:
            pieces += new
            self._opening = ""
            self._after_calls = True
        if not (body.is_done or body.has_failed):
            return False
        if body.has_failed:
            self._release(self._opening + body.held, pieces)
        self._opening, self._body = "", None
        return True

    def _begin(self) -> bool:
        """Looks whether the answer begins with calls."""
        assert self._new_bare is not None
        start = self._text.lstrip()
        if not start or _is_partial(start, _FENCES):
            return False
        self._at_start = False
        self._fence = next((fence for fence in _FENCES if start.startswith(fence)), "")
        if self._fence or start[0] in "{[":
            cut = len(self._text) - len(start) + len(self._fence)
            self._opening, self._text = self._text[:cut], self._text[cut:]
            self._body = self._new_bare()
        return True

    def _in_content(self, pieces: list[Piece]) -> bool:
        if self._after_calls:
            self._text = self._text.lstrip()
            if self._fence:
                if _is_partial(self._text, ("```",)):
                    return False
                self._text, self._fence = self._text.removeprefix("```").lstrip(), ""
        found = -1 if self._marker is None else self._text.find(self._marker)
        if self._marker is not None and found >= 0:
            content = self._text[:found].rstrip()
            end = found + len(self._marker)
            self._release(content, pieces)
            self._opening, self._text = self._text[len(content) : end], self._text[end:]
            self._body = self._new_body()
            return True
        safe = len(self._text) if self._marker is None else _num_safe(self._text, self._marker)
        self._release(self._text[:safe], pieces)
        self._text = self._text[safe:]
        return False

    def _release(self, content: str, pieces: list[Piece]) -> None:
        if self._after_calls:
            content = content.lstrip()
        if content:
            pieces.append(content)
            self._after_calls = False


_FENCES = ("```json\n", "```\n")


def _is_partial(text: str, wholes: tuple[str, ...]) -> bool:
    """Whether the text may still become one of these."""
    return any(whole.startswith(text) and whole != text for whole in wholes)


def _num_safe(text: str, marker: str) -> int:
    """Characters that are content whatever follows: not the beginning of a marker, nor the space before it."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return len(text[:-length].rstrip())
    return len(text.rstrip())
