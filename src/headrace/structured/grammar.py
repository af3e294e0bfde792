"""What an output must match, as llguidance writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher

from headrace.errors import RequestError
from headrace.sampling.structured import StructuredOutputs

# JSON has at most one space, after a comma or a colon: a model that is unsure could go on with whitespace for ever.
# What the schema itself sets under "x-guidance" does not count, nor may it have keywords ignored.
_JSON_OPTIONS: Any = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "coerce_one_of": False,
    "lenient": False,
}
# Of these keywords the value is data.
_DATA = ("const", "enum", "default", "examples")


def field_of(outputs: StructuredOutputs) -> str:
    """The field of the request that gives the form, as errors name it."""
    names = ("json", "json_object", "regex", "choice", "grammar")
    name = next(name for name in names if getattr(outputs, name) not in (None, False))
    return f"structured_outputs.{name}"


def grammar_text(outputs: StructuredOutputs) -> str:
    """The grammar for llguidance; whether it is one is not checked here.

    Raises:
        RequestError: a JSON schema asks for what the grammar would not hold the output to.
    """
    if outputs.json_object:
        return _json_grammar('{"type": "object"}')
    if outputs.json is not None:
        assert isinstance(outputs.json, str)
        schema = json.loads(outputs.json)
        if schema is True:
            return _json_grammar("{}")
        _check_min_properties(schema)
        return _json_grammar(outputs.json)
    if outputs.regex is not None:
        return LLMatcher.grammar_from_regex(outputs.regex)
    if outputs.choice is not None:
        # As one terminal, not as alternatives of a rule: the parser's work does not grow with their number.
        return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, outputs.choice)))
    assert outputs.grammar is not None
    if outputs.grammar.lstrip().startswith("{"):  # which is llguidance's own format, and not checked as a schema is
        raise RequestError("structured_outputs.grammar", "is not a Lark grammar")
    return LLMatcher.grammar_from_lark(outputs.grammar)


def _json_grammar(schema: str) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS)
    except ValueError as error:
        raise RequestError("structured_outputs.json", str(error)) from None


def _check_min_properties(schema: Any) -> None:
    """Refuses a `minProperties` that repeated names could feign: the grammar does not know which of the names that the
    schema leaves open were there already."""
    for part in _objects(schema):
        least, required = part.get("minProperties"), part.get("required", ())
        names = len(required) if isinstance(required, list) else 0
        if isinstance(least, int) and least > names + 1:
            raise RequestError(
                "structured_outputs.json",
                f"minProperties is {least}; more than one above the number of required properties is not supported",
            )


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema that may itself be one."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            yield one
            todo += [part for name, part in one.items() if name not in _DATA]
        elif isinstance(one, list):
            todo += one
