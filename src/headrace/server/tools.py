"""The tools that a model may call: checked, and as the grammar of a call that it has to make."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import RequestError
from headrace.sampling.checks import shown
from headrace.sampling.structured import StructuredOutputs
from headrace.structured.grammar import subschemas

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_COMBINING = ("anyOf", "oneOf", "$ref", "if", "dependentSchemas")
_OTHERS = ("additionalProperties", "patternProperties", "unevaluatedProperties")
MAX_FORCED_CALLS = 16  # small models would go on calling until the context is full

Tool = dict[str, Any]


def checked_tools(tools: Any) -> list[Tool]:
    """Returns copies of tools in OpenAI's form, `{"type": "function", "function": {…}}`, without what is null.

    Raises:
        RequestError: what is wrong with them; the field is "tools".
    """
    if isinstance(tools, (str, bytes)) or not isinstance(tools, Sequence):
        raise RequestError("tools", f"must be a list, not {shown(tools)}")
    checked = [_checked_tool(tool, f"tool {index}") for index, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in checked]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RequestError("tools", f"two tools are called {name!r}")
    return checked


def _checked_tool(tool: Any, where: str) -> Tool:
    if not isinstance(tool, Mapping):
        raise RequestError("tools", f"{where} must be an object, not {shown(tool)}")
    if tool.get("type") != "function":
        raise RequestError("tools", f"{where} is of type {shown(tool.get('type'))}; only 'function' is supported")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError("tools", f"{where} has no function")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError("tools", f"the name of {where} must be 1 to 64 letters, digits, _ or -, not {shown(name)}")
    if not isinstance(function.get("description"), str | None):
        raise RequestError("tools", f"the description of {where} must be a string")
    parameters = function.get("parameters")
    if parameters is not None and (not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object"):
        raise RequestError("tools", f"the parameters of {where} must be a JSON schema of type 'object'")
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def parameters_of(tool: Tool) -> dict[str, Any]:
    """The JSON schema that a call of a checked tool is held to.

    Objects that list their properties have no others unless the schema says so: JSON Schema would allow any, and small
    models go on inventing them.
    """
    schema: dict[str, Any] = {"type": "object", **_copied(tool["function"].get("parameters", _NO_PARAMETERS))}
    parts = [*subschemas(schema)]
    listing = [part for part in parts if isinstance(part.get("properties"), dict)]
    # Parts that are combined may list some of the properties each.
    is_combined = any("allOf" in part for part in parts) or any(name in part for part in listing for name in _COMBINING)
    for part in [] if is_combined else listing:
        if not any(name in part for name in _OTHERS):
            part["additionalProperties"] = False
    return schema


def calls_schema(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
    """The JSON schema of 1 to `MAX_FORCED_CALLS` calls of these tools, as an array; of just one if not `parallel`."""
    definitions, calls = {}, []
    for index, tool in enumerate(tools):
        function = tool["function"]
        place = f"tool{index}"
        definitions[place] = moved(parameters_of(tool), f"#/$defs/{place}")
        properties = {"name": {"const": function["name"]}, "arguments": {"$ref": f"#/$defs/{place}"}}
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    most = MAX_FORCED_CALLS if parallel else 1
    return {"$defs": definitions, "type": "array", "minItems": 1, "maxItems": most, "items": items}


def answer_or_calls_schema(form: StructuredOutputs, tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any] | None:
    """The JSON schema of an answer of this form, or of calls in its place; None if the form is not JSON."""
    if form.json_object:
        answer: Any = {"type": "object"}
    elif isinstance(form.json, str):
        answer = moved(json.loads(form.json), "#/$defs/answer")
    else:
        return None
    calls = calls_schema(tools, parallel=parallel)
    definitions = {**calls.pop("$defs"), "answer": answer}
    return {"$defs": definitions, "anyOf": [{"$ref": "#/$defs/answer"}, calls]}


def moved(schema: Any, place: str) -> Any:
    """A copy of a schema for another place of a larger document: its references to itself lead there."""
    copy = _copied(schema)
    if isinstance(copy, dict):
        copy.pop("$id", None)  # or else they would mean a document of that name
    for part in subschemas(copy):
        reference = part.get("$ref")
        if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
            part["$ref"] = place + reference[1:]
    return copy


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return value
