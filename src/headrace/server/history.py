"""A conversation that is written message by message, in the chat form that templates expect."""

from __future__ import annotations

from typing import Any

from headrace.errors import RequestError


class History:
    """Collects what others said, and the assistant's own reasoning, text and calls, into chat messages.

    Texts that follow each other with the same role become one message, since many templates insist that user and
    assistant take turns.
    """

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []  # without their content
        self._texts: list[list[str]] = []  # of each; joined once, or many would take a time that grows with the square
        self._call_names: dict[str, str] = {}

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What was collected, in OpenAI's chat form."""
        pairs = zip(self._messages, self._texts, strict=True)
        return [{"role": one["role"], "content": "\n\n".join(texts), **one} for one, texts in pairs]

    @property
    def ends_with_assistant(self) -> bool:
        """Whether the assistant spoke last."""
        return bool(self._messages) and self._messages[-1]["role"] == "assistant"

    def _add(self, role: str, text: str, **others: Any) -> None:
        self._messages.append({"role": role, **others})
        self._texts.append([text])

    def say(self, role: str, text: str) -> None:
        """Adds a text of "system", "user" or "assistant"."""
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != role or "tool_calls" in last:
            self._add(role, text)
        elif self._texts[-1] == [""]:
            self._texts[-1] = [text]
        else:
            self._texts[-1].append(text)

    def think(self, text: str) -> None:
        """Adds reasoning, with which a new message of the assistant begins."""
        self._add("assistant", "", reasoning_content=text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """Adds a call of a tool; its arguments are the text of a JSON object."""
        if not self.ends_with_assistant:
            self._add("assistant", "")
        function = {"name": name, "arguments": arguments}
        calls = self._messages[-1].setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})
        self._call_names[call_id] = name

    def result(self, call_id: str, text: str, place: str) -> None:
        """Adds what a tool answered to a call.

        Args:
            place: of the call's id in the request.

        Raises:
            RequestError: there is no such call.
        """
        if call_id not in self._call_names:
            raise RequestError(place, f"{call_id!r} is the id of no tool call before it")
        name = self._call_names[call_id]
        self._add("tool", text, tool_call_id=call_id, name=name)
