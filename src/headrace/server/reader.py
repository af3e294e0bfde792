"""What a model writes in answer to a chat, told apart: reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.text.reasoning import ReasoningSplitter
from headrace.text.tools.calls import CallStart, Piece, ToolParser


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What is new of one tool call.

    Attributes:
        index: of the call, from 0, within the choice.
        id, name: in a call's first delta only.
        arguments: a fragment of their JSON text.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(slots=True)
class Parts:
    """What a piece of text brought: reasoning, then content, then calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class AnswerReader:
    """Reads one choice's text as it arrives.

    Args:
        splitter: tells reasoning from the rest; None where there is none to tell.
        parser: tells calls from content; None if there can be none.
        new_id: makes a call's id.
        shows_reasoning: reasoning is part of the content.
        only_calls: a grammar holds the answer to calls, so that there is no content.
        max_calls: further calls are left out; None for all.
    """

    def __init__(
        self,
        splitter: ReasoningSplitter | None,
        parser: ToolParser | None,
        new_id: Callable[[], str],
        *,
        shows_reasoning: bool = False,
        only_calls: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self._splitter, self._parser, self._new_id = splitter, parser, new_id
        self._shows_reasoning, self._only_calls, self._max_calls = shows_reasoning, only_calls, max_calls
        self.num_calls = 0  # that have begun, those left out included
        self._num_thinking = 0  # pushes before the answer itself

    def push(self, text: str) -> list[Parts]:
        """Takes the next text; returns what has become certain. Content after calls is in parts of its own."""
        self._num_thinking += self.is_thinking
        reasoning, rest = ("", text) if self._splitter is None else self._splitter.push(text)
        pieces: list[Piece] = [rest] if self._parser is None else self._parser.push(rest)
        return self._parts(reasoning, pieces)

    def finish(self) -> list[Parts]:
        """Returns what the text's end makes certain."""
        reasoning, rest = ("", "") if self._splitter is None else self._splitter.finish()
        pieces: list[Piece] = [rest]
        if self._parser is not None:
            pieces = self._parser.push(rest) + self._parser.finish()
        return self._parts(reasoning, pieces)

    def _parts(self, reasoning: str, pieces: list[Piece]) -> list[Parts]:
        parts = [Parts(content=reasoning) if self._shows_reasoning else Parts(reasoning=reasoning)]
        for piece in pieces:
            if isinstance(piece, str):
                if piece and not self._only_calls:
                    if parts[-1].calls:
                        parts.append(Parts())
                    parts[-1].content += piece
            elif isinstance(piece, CallStart):
                self.num_calls += 1
                if self._is_wanted:
                    parts[-1].calls.append(CallDelta(self.num_calls - 1, self._new_id(), piece.name, ""))
            elif self._is_wanted:
                self._add_arguments(parts[-1].calls, piece.text)
        return parts

    @property
    def is_thinking(self) -> bool:
        """What comes may be reasoning; then it is to be pushed token by token, so that they are counted."""
        return self._splitter is not None and not self._splitter.is_done

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of the reasoning and its tags."""
        return self._num_thinking if self._splitter is not None and self._splitter.has_thoughts else 0

    @property
    def _is_wanted(self) -> bool:
        """Whether the newest call is one that is returned."""
        return self._max_calls is None or self.num_calls <= self._max_calls

    def _add_arguments(self, calls: list[CallDelta], text: str) -> None:
        index = self.num_calls - 1
        if calls and calls[-1].index == index:
            last = calls[-1]
            calls[-1] = CallDelta(index, last.id, last.name, last.arguments + text)
        else:
            calls.append(CallDelta(index, None, None, text))


def joined(parts: list[Parts], more: list[Parts]) -> list[Parts]:
    """Both, in as few as keep the order."""
    last, first = parts[-1], more[0]
    if last.calls and (first.reasoning or first.content):
        return parts + more
    both = Parts(last.content + first.content, last.reasoning + first.reasoning, last.calls + first.calls)
    return [*parts[:-1], both, *more[1:]]
