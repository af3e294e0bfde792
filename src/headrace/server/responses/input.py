"""The input of /v1/responses as a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import RequestError
from headrace.server.errors import unsupported
from headrace.server.fields import name_at, object_at, objects, text_at, unknown_type
from headrace.server.history import History

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ITEMS = "message, function_call, function_call_output, reasoning"


def chat_messages(instructions: str | None, given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation in chat form.

    Raises:
        RequestError: an item is malformed.
        APIError: an item or a part is of a kind that is not supported.
    """
    history = History()
    if instructions is not None:
        history.say("system", instructions)
    if isinstance(given, str):
        history.say("user", given)
        return history.messages
    if not given:
        raise RequestError("input", "is empty; give a text or at least one item")
    for item, place in objects(given, "input"):
        _add(history, item, place)
    return history.messages


def _add(history: History, item: Mapping[str, Any], place: str) -> None:
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "message":
        role = text_at(item, "role", place)
        if role not in _ROLES:
            raise RequestError(f"{place}.role", f"must be one of {', '.join(_ROLES)}, not {role!r}")
        history.say(_ROLES[role], _text(item.get("content"), f"{place}.content"))
    elif kind == "function_call":
        name, arguments = name_at(item, "name", place), text_at(item, "arguments", place)
        history.call(name_at(item, "call_id", place), name, arguments)
    elif kind == "function_call_output":
        output = _text(item.get("output"), f"{place}.output")
        history.result(name_at(item, "call_id", place), output, f"{place}.call_id")
    elif kind == "reasoning":
        # What others encrypted nobody here can read.
        said = item.get("content") or item.get("summary") or []
        if text := _text(said, f"{place}.content"):
            history.think(text)
    elif kind == "item_reference":
        raise unsupported(
            f"{place}.type", "'item_reference' is not supported, as nothing is stored; send the item itself"
        )
    else:
        raise unknown_type(item, place, _ITEMS)


def _text(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part(part, where) for part, where in objects(content, place))


def _part(part: Mapping[str, Any], place: str) -> str:
    if part.get("type") in _TEXT_PARTS:
        return text_at(part, "text", place)
    if part.get("type") == "refusal":
        return text_at(part, "refusal", place)
    raise unknown_type(part, place, "input_text, output_text")


def function_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools in chat form.

    Raises:
        RequestError: a tool is malformed.
        APIError: a tool is none of the caller's own functions.
    """
    return [_function(tool, place) for tool, place in objects(tools, "tools")]


def _function(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unknown_type(tool, place, "function; nothing is built in")
    function: dict[str, Any] = {"name": name_at(tool, "name", place)}
    if tool.get("description") is not None:
        function["description"] = text_at(tool, "description", place)
    if tool.get("parameters") is not None:
        function["parameters"] = object_at(tool, "parameters", place)
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def chosen_tools(choice: str | dict[str, Any], tools: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """How a tool is chosen, as `Turn.tool_choice`, and the tools (in chat form) among which it is.

    Raises:
        RequestError: the choice is malformed or names no tool.
        APIError: it is of a kind that is not supported.
    """
    place = "tool_choice"
    if isinstance(choice, str):
        return choice, tools
    if choice.get("type") == "function":
        return f"function:{name_at(choice, 'name', place)}", tools
    if choice.get("type") != "allowed_tools":
        raise unknown_type(choice, place, "function, allowed_tools")
    mode = text_at(choice, "mode", place)
    if mode not in ("auto", "required"):
        raise RequestError(f"{place}.mode", f"must be auto or required, not {mode!r}")
    names = [name_at(tool, "name", where) for tool, where in objects(choice.get("tools"), f"{place}.tools")]
    known = {tool["function"]["name"]: tool for tool in tools}
    for name in names:
        if name not in known:
            raise RequestError(f"{place}.tools", f"{name!r} is not among the tools")
    return mode, [known[name] for name in names]
