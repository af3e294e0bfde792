"""The form that a request's output has to have. What it says is checked when the engine compiles it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from headrace.errors import RequestError
from headrace.sampling.checks import texts
from headrace.text.checks import check_text

MAX_GRAMMAR_CHARS = 1 << 18
MAX_CHOICES = 4096


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """What an output must match as a whole; exactly one field is given. Wrong values raise RequestError, which names
    the field.

    Attributes:
        json: a JSON schema, as a mapping or as its text; True for any JSON value. Kept as text.
        json_object: any JSON object.
        regex: a regular expression.
        choice: the output is one of these texts, at most 4,096.
        grammar: a grammar in llguidance's variant of Lark, whose first rule is `start`.
    """

    json: str | Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            raise RequestError(_name("json_object"), "must be true or false")
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        # Not by `==`, which an array answers with an array, and which takes 0 for False.
        given = [name for name, value in values.items() if value is not None and value is not False]
        if self.json is False:
            raise RequestError(_name("json"), "is false, which no value fits")
        if len(given) != 1:
            names, found = ", ".join(values), ", ".join(given) or "none"
            raise RequestError("structured_outputs", f"must have exactly one of {names}; has {found}")
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name in ("json", "regex", "grammar"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))


def _name(field: str) -> str:
    return f"structured_outputs.{field}"


def _check_size(field: str, text: Any) -> None:
    check_text(_name(field), text)
    if not text:
        raise RequestError(_name(field), "is empty")
    if len(text) > MAX_GRAMMAR_CHARS:
        raise RequestError(_name(field), f"has {len(text)} characters, at most {MAX_GRAMMAR_CHARS} are allowed")


def _schema_text(schema: Any) -> str:
    """A schema as text, in which the order of its properties is kept."""
    name = _name("json")
    if isinstance(schema, str):
        _check_size("json", schema)
        try:
            value = json.loads(schema, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(name, f"is not JSON: {error}") from None
        text = schema
    else:
        value = schema
        try:
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False, default=_as_dict)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(name, f"cannot be written as JSON: {error}") from None
    if value is False:
        raise RequestError(name, "is false, which no value fits")
    if value is not True and not isinstance(value, Mapping):
        raise RequestError(name, f"must be a JSON schema, which is an object or true, not {type(value).__name__}")
    return text


def _as_dict(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON type")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _choices(choice: Any) -> tuple[str, ...]:
    name = _name("choice")
    listed = texts(name, choice, MAX_CHOICES)
    if not listed:
        raise RequestError(name, "is empty, so that nothing could be generated")
    if (size := sum(map(len, listed))) > MAX_GRAMMAR_CHARS:
        raise RequestError(name, f"has {size} characters, at most {MAX_GRAMMAR_CHARS} are allowed")
    return listed
