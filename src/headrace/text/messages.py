"""The messages of a chat request, checked and brought to the one form that chat templates expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import RequestError


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of the messages in which every content is a string.

    A list of text parts becomes their concatenation, with nothing in between; null becomes the empty string, and so
    does the content that an assistant message with tool calls leaves out. Keys whose value is null are dropped.

    Raises:
        RequestError: a message has no role or no content, or content that is not text.
    """
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise RequestError("messages", f"must be a list, not {type(messages).__name__}")
    if not messages:
        raise RequestError("messages", "must hold at least one message")
    return [_normalize(message, f"message {index}") for index, message in enumerate(messages)]


def _normalize(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError("messages", f"{where} must be an object, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError("messages", f"{where} has no role")
    if "content" not in message and not message.get("tool_calls"):
        raise RequestError("messages", f"{where} has no content")
    kept = {key: value for key, value in message.items() if value is not None}
    return kept | {"content": _content_text(message.get("content"), where)}


def _content_text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part, where) for part in content)
    raise RequestError(
        "messages", f"the content of {where} must be a string or a list of parts, not {type(content).__name__}"
    )


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise RequestError("messages", f"{where} has a content part that is not an object")
    if part.get("type") != "text":
        raise RequestError(
            "messages", f"{where} has a content part of type {part.get('type')!r}; only text is supported"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError("messages", f"{where} has a text part without text")
    return text
