"""What an output must match, as llguidance writes it."""

from __future__ import annotations

import json
import math
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
# Of these keywords the value is data, and of those an object of schemas by names that are no keywords.
_DATA = ("const", "enum", "default", "examples")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
# Most decimal places of a number that has an exclusive bound.
_MOST_PLACES = 9


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
        try:
            return _schema_grammar(outputs.json)
        except RecursionError:
            raise RequestError("structured_outputs.json", "is nested too deeply") from None
    if outputs.regex is not None:
        return LLMatcher.grammar_from_regex(outputs.regex)
    if outputs.choice is not None:
        # As one terminal, not as alternatives of a rule: the parser's work does not grow with their number.
        return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, outputs.choice)))
    assert outputs.grammar is not None
    if outputs.grammar.lstrip().startswith("{"):  # which is llguidance's own format, and not checked as a schema is
        raise RequestError("structured_outputs.grammar", "is not a Lark grammar")
    return LLMatcher.grammar_from_lark(outputs.grammar)


def _schema_grammar(text: str) -> str:
    schema = json.loads(text)
    if schema is True:
        return _json_grammar("{}")
    _check_min_properties(schema)
    return _json_grammar(_for_doubles(schema, text))


def _json_grammar(schema: str) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS)
    except ValueError as error:
        raise RequestError("structured_outputs.json", str(error)) from None


def _check_min_properties(schema: Any) -> None:
    """Refuses a `minProperties` that repeated names could feign: the grammar does not know which of the names that the
    schema leaves open were there already."""
    for part in subschemas(schema):
        least, required = part.get("minProperties"), part.get("required", ())
        names = len({name for name in required if isinstance(name, str)}) if isinstance(required, list) else 0
        if isinstance(least, int) and least > names + 1:
            raise RequestError(
                "structured_outputs.json",
                f"minProperties is {least}; more than one above the number of required properties is not supported",
            )


def _for_doubles(schema: Any, text: str) -> str:
    """A schema, or its text, in which numbers with an exclusive bound have few enough decimal places.

    1.00000000000000000001 is more than 1, but who reads it as a double reads 1. Bounds just beside would not do: of
    numbers that begin like its bound llguidance allows only some.
    """
    is_changed = False
    for part in subschemas(schema):
        types = part.get("type")
        is_number = types in (None, "number") or (isinstance(types, list) and "number" in types)
        # Listed values are written as they are, and need not be multiples of anything.
        is_open = is_number and not {"multipleOf", "enum", "const"} & part.keys()
        spacings = [_spacing(name, part[name]) for name in _EXCLUSIVE if _is_number(part.get(name))]
        if is_open and spacings:
            places = min(_MOST_PLACES, math.floor(-math.log10(4 * max(spacings))))
            part["multipleOf"] = float(f"1e-{places}") if places > 0 else 1
            is_changed = True
    return json.dumps(schema, ensure_ascii=False) if is_changed else text


def _spacing(name: str, bound: float) -> float:
    """How far doubles at a bound are apart."""
    try:
        if math.isfinite(spacing := math.ulp(bound)):
            return spacing
    except OverflowError:  # an integer too large for a double
        pass
    raise RequestError("structured_outputs.json", f"{name} is too large: no double has this value")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and every schema within."""
    todo = [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            yield one
            for keyword, value in one.items():
                if keyword in _BY_NAME and isinstance(value, dict):
                    todo += value.values()
                elif keyword not in _DATA:
                    todo.append(value)
        elif isinstance(one, list):
            todo += one
