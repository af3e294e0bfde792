"""Earlier calls and their results in a conversation, as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import RequestError
from headrace.text.messages import normalize_messages

Message = dict[str, Any]

_INSTRUCTIONS = """You can call these tools:

{tools}

To call tools, answer with nothing but a JSON array of calls, with arguments that fit the tool's parameters:
[{{"name": "<name of the tool>", "arguments": {{<arguments>}}}}]
You get their results in the next message. If no tool helps, answer without one."""


def parsed_history(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Returns copies of the messages, normalised, in which the arguments of tool calls are mappings.

    That is the form of which transformers' templates make JSON themselves. OpenAI's form has their text.

    Raises:
        RequestError: a message is malformed, or its arguments are no JSON object; the field is "messages".
    """
    parsed = normalize_messages(messages)
    for index, message in enumerate(parsed):
        if not isinstance(message.get("tool_call_id"), str | None):
            raise RequestError("messages", f"the tool_call_id of message {index} must be a string")
        if "tool_calls" in message:
            calls = message["tool_calls"]
            if not isinstance(calls, list):
                raise RequestError("messages", f"the tool_calls of message {index} must be a list")
            message["tool_calls"] = [_parsed_call(call, f"message {index}") for call in calls]
            if not calls:
                del message["tool_calls"]
    return parsed


def _parsed_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise RequestError("messages", f"a tool call in {where} has no function")
    if not isinstance(call.get("id"), str | None):
        raise RequestError("messages", f"a tool call in {where} has an id that is not a string")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestError("messages", f"a tool call in {where} has no name")
    return {**call, "function": {**function, "arguments": _parsed_arguments(function, where)}}


def _parsed_arguments(function: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(
            "messages",
            f"the arguments of the call of {function['name']!r} in {where} are not the text of a JSON object",
        )
    return arguments


def written_out(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, into_user: bool = False
) -> list[Message]:
    """Returns messages of plain text for templates that know nothing of tools.

    The tools and how to call them are told in the system message, calls are the JSON that it asks for, and results are
    the user's.

    Args:
        messages: of `parsed_history`.
        tools: what the model may call; empty if nothing.
        into_user: tell of the tools in the first user message, for templates that take no system message.
    """
    told = _plain(messages)
    if not tools:
        return told
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _INSTRUCTIONS.format(tools=lines)
    role = "user" if into_user else "system"
    place = next((index for index, message in enumerate(told) if message["role"] == role), None)
    if place is not None and (into_user or place == 0):
        given = told[place]["content"]
        joined = [text, given] if into_user else [given, text]
        told[place] = {**told[place], "content": "\n\n".join(part for part in joined if part)}
    else:
        told.insert(0, {"role": role, "content": text})
    return told


def _plain(messages: Sequence[Message]) -> list[Message]:
    """Calls and results as text. Results, and what the user says after them, are one message: many templates want
    user and assistant by turns."""
    told: list[Message] = []
    texts: list[list[str]] = []  # of each; joined once, or many would take a time that grows with the square
    names: dict[Any, str] = {}
    after_result = False
    for message in messages:
        calls = message.get("tool_calls", [])
        names.update((call.get("id"), call["function"]["name"]) for call in calls)
        content, role = message["content"], message["role"]
        if calls:
            parts = [content, _calls_text(calls)]
            content = "\n".join(part for part in parts if part)
        if role == "tool":
            name = names.get(message.get("tool_call_id"), message.get("name"))
            content = f"Result of {name or 'the tool'}:\n{content}"
        if after_result and role in ("tool", "user"):
            texts[-1].append(content)
        else:
            dropped = ("tool_calls", "tool_call_id", *(("name",) if role == "tool" else ()))
            kept = {key: value for key, value in message.items() if key not in dropped}
            told.append({**kept, "role": "user" if role == "tool" else role})
            texts.append([content])
        after_result = role == "tool"
    return [{**one, "content": "\n\n".join(parts)} for one, parts in zip(told, texts, strict=True)]


def _calls_text(calls: Sequence[Mapping[str, Any]]) -> str:
    listed = [{"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in calls]
    return json.dumps(listed, ensure_ascii=False)
