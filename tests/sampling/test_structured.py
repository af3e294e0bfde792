from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from headrace.errors import RequestError
from headrace.sampling.structured import MAX_CHOICES, MAX_GRAMMAR_CHARS, StructuredOutputs


def test_a_schema_is_kept_as_text_in_the_order_of_its_properties() -> None:
    schema = {"type": "object", "properties": {"z": {"const": "grün"}, "a": True}}
    kept = StructuredOutputs(json=schema).json
    assert kept == '{"type": "object", "properties": {"z": {"const": "grün"}, "a": true}}'
    assert StructuredOutputs(json=MappingProxyType(schema)).json == kept
    assert StructuredOutputs(json=kept).json == kept
    schema["type"] = "string"
    assert StructuredOutputs(json=kept) == StructuredOutputs(json=kept)
    assert StructuredOutputs(json=True).json == "true"
    assert hash(StructuredOutputs(choice=["a", "b"])) == hash(StructuredOutputs(choice=("a", "b")))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "structured_outputs: must have exactly one of json, json_object, regex, choice, grammar; has none"),
        ({"json": True, "regex": "a"}, "structured_outputs: .* has json, regex"),
        ({"json_object": 1}, "structured_outputs.json_object: must be true or false"),
        ({"json": False}, "structured_outputs.json: is false"),
        ({"json": "false"}, "structured_outputs.json: is false"),
        ({"json": "{"}, "structured_outputs.json: is not JSON: .* line 1 column 2"),
        ({"json": '{"const": NaN}'}, "structured_outputs.json: is not JSON: NaN"),
        ({"json": "[" * 100_000}, "structured_outputs.json: is not JSON: .*recursion"),
        ({"json": "[1]"}, "structured_outputs.json: must be a JSON schema, .* not list"),
        ({"json": np.array([1, 2])}, "structured_outputs.json: cannot be written as JSON: ndarray"),
        ({"regex": np.array([1, 2])}, "structured_outputs.regex: must be a string"),
        ({"choice": np.array(["a", "b"])}, "structured_outputs.choice: must be a list"),
        ({"json": 0}, "structured_outputs.json: must be a JSON schema, .* not int"),
        ({"json": 1}, "structured_outputs.json: must be a JSON schema, .* not int"),
        ({"json": {"const": float("nan")}}, "structured_outputs.json: cannot be written as JSON"),
        ({"json": {"const": {1}}}, "structured_outputs.json: cannot be written as JSON: set"),
        ({"json": {"const": "\ud800"}}, "structured_outputs.json: holds a lone surrogate"),
        ({"regex": ""}, "structured_outputs.regex: is empty"),
        ({"regex": b"a"}, "structured_outputs.regex: must be a string"),
        (
            {"grammar": "x" * (MAX_GRAMMAR_CHARS + 1)},
            "structured_outputs.grammar: has 262145 characters, at most",
        ),
        ({"choice": "abc"}, "structured_outputs.choice: must be a list"),
        ({"choice": []}, "structured_outputs.choice: is empty"),
        ({"choice": ["a", ""]}, "structured_outputs.choice: must not hold an empty string"),
        ({"choice": ["a", 1]}, "structured_outputs.choice: must be a string"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "structured_outputs.choice: holds 4097 strings, at most 4096"),
        ({"choice": ["a" * MAX_GRAMMAR_CHARS, "b"]}, "structured_outputs.choice: has 262145 characters"),
    ],
)
def test_what_is_refused_names_the_field(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(RequestError, match=error):
        StructuredOutputs(**fields)


def test_a_schema_that_holds_itself_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    with pytest.raises(RequestError, match=r"structured_outputs.json: .* Circular"):
        StructuredOutputs(json=schema)


def test_the_longest_grammar_and_the_most_choices_are_taken() -> None:
    StructuredOutputs(regex="x" * MAX_GRAMMAR_CHARS)
    StructuredOutputs(choice=["a"] * MAX_CHOICES)
