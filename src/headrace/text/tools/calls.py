"""What a tool parser makes of a model's text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins; what `Arguments` follow are its own.

    Attributes:
        name: of the tool, as the model wrote it.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A fragment of the JSON text of the newest call's arguments; a call's fragments joined are that text.

    Attributes:
        text: as the model wrote it. It is JSON as far as the model writes JSON.
    """

    text: str


Piece = str | CallStart | Arguments  # a text is content


class ToolParser(Protocol):
    """Tells calls from content in text that arrives in pieces. However it is cut, the result is the same."""

    def push(self, text: str) -> list[Piece]:
        """Takes the next text and returns what has become certain."""

    def finish(self) -> list[Piece]:
        """Returns what the end of the text makes certain: what is no call by now is content."""


class Body(Protocol):
    """Reads what follows a marker; of use for one marker only."""

    @property
    def is_done(self) -> bool:
        """The calls are complete."""

    @property
    def has_failed(self) -> bool:
        """This is no call, or no further call."""

    @property
    def held(self) -> str:
        """What was read and is in no piece: content, if it failed or the text ends."""

    def push(self, text: str) -> tuple[list[Piece], str]:
        """Takes the next text; returns pieces, and what of the text comes after the end. Not to be called after it."""
