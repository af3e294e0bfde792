"""Cases of public bug reports about structured output, on the grammars alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import RequestError
from headrace.sampling.structured import StructuredOutputs
from headrace.structured.compiler import Grammar, GrammarCompiler
from structured.documents import check_document
from structured.schemas import NODE
from structured.walks import Walker
from text.vocabularies import gguf_tokenizer

COLOUR = {"enum": ["red", "grün", "未定"]}
Outputs = Callable[..., set[str]]


@pytest.fixture(scope="module")
def compiler(smollm2_path: Path) -> GrammarCompiler:
    tokenizer = gguf_tokenizer(smollm2_path)
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


@pytest.fixture
def texts(compiler: GrammarCompiler, smollm2_path: Path) -> Callable[[Grammar], set[str]]:
    """The different outputs of forty random walks, all of which end."""
    walker = Walker(gguf_tokenizer(smollm2_path), gguf_tokenizer(smollm2_path).vocab_size)

    def walk(grammar: Grammar) -> set[str]:
        walks = [walker.walk(grammar) for _ in range(40)]
        assert all(one.is_finished for one in walks)
        return {one.text.decode() for one in walks}

    return walk


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/C", "$defs": {"C": COLOUR}},
        {"$defs": {"C": COLOUR}, "$ref": "#/$defs/C"},
        {
            "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"allOf": [{"$ref": "#/$defs/C"}]}, "C": COLOUR},
            "$ref": "#/$defs/A",
        },
        json.dumps({"$ref": "#/$defs/C", "$defs": {"C": COLOUR}}, ensure_ascii=True),  # "gr\u00fcn"
    ],
)  # fmt: skip
def test_api_07_refs_in_any_order_and_enums_beyond_ascii(schema: Any, compiler: Any, texts: Any) -> None:
    assert texts(compiler.compile(StructuredOutputs(json=schema))) == {'"red"', '"grün"', '"未定"'}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": [1, "1", None, True]}, {"1", '"1"', "null", "true"}),
        ({"type": "object", "additionalProperties": False}, {"{}"}),
        ({"const": 'a"b\\c'}, {r'"a\"b\\c"'}),
    ],
)
def test_api_07_exactly_these_outputs(schema: Any, expected: set[str], compiler: Any, texts: Any) -> None:
    assert texts(compiler.compile(StructuredOutputs(json=schema))) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
        {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": "x"}, "c": {"enum": [1, 2]}},
         "additionalProperties": False},
    ],
    ids=["recursive", "optional"],
)  # fmt: skip
def test_api_07_outputs_fit_and_end_with_the_closing_brace(schema: Any, compiler: Any, texts: Any) -> None:
    outputs = texts(compiler.compile(StructuredOutputs(json=schema)))
    assert len(outputs) > 5
    for text in outputs:
        check_document(schema, text)
        assert text.endswith("}")


def test_api_07_an_object_without_a_schema(compiler: GrammarCompiler, texts: Any) -> None:
    assert all(isinstance(json.loads(t), dict) for t in texts(compiler.compile(StructuredOutputs(json_object=True))))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"json": {"type": "string", "pattern": "(a"}}, r"structured_outputs.json: .*unclosed group"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, r"structured_outputs.json: .*look-around"),
        ({"json": {"type": "array", "uniqueItems": True}}, r'structured_outputs.json: .*\["uniqueItems"\]'),
        ({"json": {"not": {"type": "string"}}}, r'structured_outputs.json: .*\["not"\]'),
        ({"json": {"x-guidance": {"lenient": True}, "not": {}}}, r'structured_outputs.json: .*\["not"\]'),
        ({"json": {"type": "object", "propertyNames": {}}}, r"structured_outputs.json: Unimplemented"),
        ({"json": {"type": "object", "minProperties": 2}}, r"structured_outputs.json: minProperties is 2"),
        ({"json": {"properties": {"const": {"minProperties": 2}}}}, r"structured_outputs.json: minProperties is 2"),
        ({"json": {"exclusiveMinimum": 1, "minimum": "0"}}, r"structured_outputs.json: .*minimum"),
        ({"json": {"minProperties": 3, "required": ["a", "a"]}}, r"structured_outputs.json: minProperties is 3"),
        ({"json": {"minProperties": 4, "required": ["a", "b"]}}, r"structured_outputs.json: minProperties is 4"),
        ({"json": '{"exclusiveMinimum":1e400}'}, r"structured_outputs.json: exclusiveMinimum is too large"),
        ({"json": {"type": "integer", "exclusiveMaximum": 10**400}}, r"structured_outputs.json: exclusiveMaximum is"),
        ({"json": {"type": "string", "format": "colour"}}, r"structured_outputs.json: Unknown format: colour"),
        ({"json": {"type": "text"}}, r"structured_outputs.json: Invalid type: text"),
        ({"json": {"$ref": "#/$defs/none"}}, r"structured_outputs.json: Pointer '/\$defs/none' does not exist"),
        ({"json": {"$ref": "https://example.com/s.json"}}, r"structured_outputs.json: .*not present"),
        ({"json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, r"structured_outputs.json: oneOf"),
        ({"json": {"type": "integer", "minimum": 2, "maximum": 1}}, r"structured_outputs.json: Unsatisfiable"),
        ({"json": {"enum": []}}, r"structured_outputs.json: Unsatisfiable"),
        ({"regex": "a(b"}, r"structured_outputs.regex: .*unclosed group"),
        ({"regex": "(?<=a)b"}, r"structured_outputs.regex: .*look-around"),
        ({"grammar": "begin: 'a'"}, r"structured_outputs.grammar: "),
        ({"grammar": "start: missing"}, r"structured_outputs.grammar: .*missing"),
        ({"grammar": '{"grammars": []}'}, r"structured_outputs.grammar: is not a Lark grammar"),
    ],
)  # fmt: skip
def test_api_07_what_cannot_be_held_to_is_refused_with_the_reason(
    fields: dict[str, Any], error: str, compiler: GrammarCompiler
) -> None:
    with pytest.raises(RequestError, match=error):
        compiler.compile(StructuredOutputs(**fields))
