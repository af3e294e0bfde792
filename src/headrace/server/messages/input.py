"""The input of /v1/messages as a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.errors import RequestError
from headrace.server.fields import name_at, object_at, objects, text_at, unknown_type
from headrace.server.history import History

ID_PREFIX = "toolu_"  # of the ids that clients get
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_KEPT_SECRET = "redacted_thinking"  # nobody but who wrote it can read it


def chat_messages(system: str | list[dict[str, Any]] | None, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation in chat form.

    Raises:
        RequestError: a message or block is malformed.
        APIError: a block is of a kind that is not supported.
    """
    history = History()
    if isinstance(system, str):
        history.say("system", system)
    elif system is not None:
        for block, place in objects(system, "system"):
            history.say("system", _block_text(block, place))
    if not messages:
        raise RequestError("messages", "is empty; give at least one message")
    for message, place in objects(messages, "messages"):
        _add(history, message, place)
    return history.messages


def _add(history: History, message: Mapping[str, Any], place: str) -> None:
    role, content = text_at(message, "role", place), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise RequestError(f"{place}.role", f"must be user, assistant or system, not {role!r}")
    place += ".content"
    if isinstance(content, str):
        history.say(role, content)
        return
    said: list[str] = []  # text blocks that follow each other are one text
    for block, where in objects(content, place):
        if block.get("type") == "text":
            said.append(text_at(block, "text", where))
            continue
        if said:
            history.say(role, "".join(said))
            said = []
        if role == "assistant":
            _add_own(history, block, where)
        elif role == "user":
            _add_result(history, block, where)
        else:
            raise unknown_type(block, where, "text")
    if said or not content:
        history.say(role, "".join(said))


def _add_own(history: History, block: Mapping[str, Any], place: str) -> None:
    """Adds a block of the assistant's other than text."""
    kind = block.get("type")
    if kind == "thinking":
        if text := text_at(block, "thinking", place):
            history.think(text)
    elif kind == "tool_use":
        arguments = json.dumps(object_at(block, "input", place), ensure_ascii=False)
        history.call(_call_id(block, "id", place), name_at(block, "name", place), arguments)
    elif kind != _KEPT_SECRET:
        raise unknown_type(block, place, "text, thinking, tool_use")


def _add_result(history: History, block: Mapping[str, Any], place: str) -> None:
    """Adds a block of the user's other than text."""
    if block.get("type") != "tool_result":
        raise unknown_type(block, place, "text, tool_result")
    content = block.get("content")
    if content is None:
        text = ""
    elif isinstance(content, str):
        text = content
    else:
        text = "".join(_block_text(part, where) for part, where in objects(content, f"{place}.content"))
    history.result(_call_id(block, "tool_use_id", place), text, f"{place}.tool_use_id")


def _call_id(block: Mapping[str, Any], name: str, place: str) -> str:
    """The id as the chat template's family makes them: some are particular about it."""
    return name_at(block, name, place).removeprefix(ID_PREFIX) or ID_PREFIX


def _block_text(block: Mapping[str, Any], place: str) -> str:
    if block.get("type") != "text":
        raise unknown_type(block, place, "text")
    return text_at(block, "text", place)


def function_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools in chat form.

    Raises:
        RequestError: a tool is malformed.
        APIError: a tool is none of the caller's own.
    """
    return [_function(tool, place) for tool, place in objects(tools, "tools")]


def _function(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise unknown_type(tool, place, "custom; nothing is built in")
    function: dict[str, Any] = {"name": name_at(tool, "name", place)}
    if tool.get("description") is not None:
        function["description"] = text_at(tool, "description", place)
    function["parameters"] = object_at(tool, "input_schema", place)
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def chosen_tool(choice: Mapping[str, Any]) -> tuple[str, bool]:
    """How a tool is chosen, as `Turn.tool_choice`, and whether there may be several calls.

    Raises:
        RequestError: the choice is malformed.
    """
    kind = text_at(choice, "type", "tool_choice")
    parallel = choice.get("disable_parallel_tool_use") is not True
    if kind == "tool":
        return f"function:{name_at(choice, 'name', 'tool_choice')}", parallel
    if kind not in _CHOICES:
        raise RequestError("tool_choice.type", f"must be auto, any, tool or none, not {kind!r}")
    return _CHOICES[kind], parallel
