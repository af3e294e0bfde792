"""Stop strings, found in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import RequestError


class StopMatcher:
    """Cuts a text off before the first stop string in it, however the text is cut into deltas.

    The stop string that is complete first wins; of several that end at the same character, the longest. Only text that
    may be the start of a stop string is held back: less than the longest of them. Each character costs amortised
    constant time per stop string (Knuth, Morris and Pratt's search).

    Args:
        stops: the stop strings; none at all is fine.
        include: cut the text off after the stop string, not before it.

    Attributes:
        found: the stop string that ended the text.

    Raises:
        RequestError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if "" in stops:
            raise RequestError("stop", "a stop string must not be empty")
        self._stops, self._include = list(stops), include
        self._borders = [_borders(stop) for stop in stops]
        # For each stop string, how many of its characters the text so far ends with.
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.found: str | None = None

    def push(self, delta: str, *, counts: bool = True) -> tuple[str, bool]:
        """Take the next piece of text; return what may be shown of it, and whether a stop string was found.

        A stop string that ends in a piece that does not count is none. After a stop string, there is no more text to
        show.
        """
        if self.found is not None:
            return "", True
        if not self._stops:
            return delta, False
        text = self._held + delta
        for position in range(len(self._held), len(text)):
            length = self._advance(text[position])
            if length and counts:
                self.found = text[position + 1 - length : position + 1]
                self._held = ""
                return text[: position + 1 - (0 if self._include else length)], True
        safe = len(text) - max(self._matched, default=0)
        self._held = text[safe:]
        return text[:safe], False

    def finish(self) -> str:
        """Return the text still held back, which no stop string will complete."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> int:
        """Read one character; return the length of the longest stop string that it completes, or 0."""
        found = 0
        for index, stop in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = self._borders[index][matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                found = max(found, matched)
                matched = self._borders[index][-1]
            self._matched[index] = matched
        return found


def _borders(stop: str) -> list[int]:
    """Return, for each prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders
