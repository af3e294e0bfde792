"""What a model thinks before it answers, told from the answer."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.text.tokenizer import Tokenizer

OPENING, CLOSING = "<think>", "</think>"
_TAIL = 16  # of the prompt's last ids, more than the opening and the line breaks after it have


def opens_reasoning(tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends with the opening of the model's thoughts, as some templates' generation prompts do."""
    return tokenizer.decode(prompt_ids[-_TAIL:], skip_special=False).rstrip().endswith(OPENING)


class ReasoningSplitter:
    """Splits `<think>…</think>` off the beginning of a text that arrives in pieces; however it is cut, alike.

    Without the opening at the very beginning there are no thoughts; without the closing there is nothing else.

    Args:
        is_open: the prompt ended with the opening.
        keep_tags: thoughts are returned with their tags and all space, so that both parts joined are the text. Without,
            tags are dropped, and so is space next to them.

    Attributes:
        has_thoughts: there are some.
    """

    def __init__(self, *, is_open: bool = False, keep_tags: bool = False) -> None:
        self._keep = keep_tags
        self._held = ""
        self._state = "thoughts" if is_open else "start"
        self.has_thoughts = is_open
        self._trims = not keep_tags  # space that comes next is dropped

    @property
    def is_done(self) -> bool:
        """What comes is the answer."""
        return self._state == "answer"

    def push(self, text: str) -> tuple[str, str]:
        """Takes the next text; returns what has become certain, of the thoughts and of the answer."""
        self._held += text
        thoughts = ""
        if self._state == "start":
            thoughts += self._begin()
        if self._state == "thoughts":
            thoughts += self._think()
        return thoughts, self._answer() if self._state == "answer" else ""

    def finish(self) -> tuple[str, str]:
        """Returns what the text's end makes certain."""
        held, self._held = self._held, ""
        if self._state == "thoughts":
            return held if self._keep else held.rstrip(), ""
        return "", held

    def _begin(self) -> str:
        start = self._held.lstrip()
        if OPENING.startswith(start) and start != OPENING:
            return ""
        if not start.startswith(OPENING):
            self._state, self._trims = "answer", False
            return ""
        self._state, self.has_thoughts = "thoughts", True
        cut = len(self._held) - len(start) + len(OPENING)
        opening, self._held = self._held[:cut], self._held[cut:]
        return opening if self._keep else ""

    def _think(self) -> str:
        if self._trims:
            self._held = self._held.lstrip()
            self._trims = not self._held
        found = self._held.find(CLOSING)
        if found >= 0:
            thoughts, closing = self._held[:found], self._held[found : found + len(CLOSING)]
            self._held = self._held[found + len(CLOSING) :]
            self._state, self._trims = "answer", not self._keep
            return thoughts + closing if self._keep else thoughts.rstrip()
        safe = len(self._held) - _partial_length(self._held)
        if not self._keep:
            safe = len(self._held[:safe].rstrip())
        thoughts, self._held = self._held[:safe], self._held[safe:]
        return thoughts

    def _answer(self) -> str:
        if self._trims:
            self._held = self._held.lstrip()
            self._trims = not self._held
        answer, self._held = self._held, ""
        return answer


def _partial_length(text: str) -> int:
    """How many of the last characters may be the beginning of the closing."""
    lengths = range(min(len(CLOSING) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(CLOSING[:length])), 0)
