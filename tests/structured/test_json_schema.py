"""Whatever a grammar lets through of a JSON schema fits the schema, by the jsonschema package's word."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import jsonschema
import pytest

from headrace.sampling.structured import StructuredOutputs
from headrace.structured.compiler import GrammarCompiler
from headrace.text.definition import TokenizerDefinition
from headrace.text.tokenizer import Tokenizer
from structured.documents import check_document
from structured.schemas import COLLECTION, Schema, random_schema
from structured.walks import Walker
from text.vocabularies import byte_level_backend, gguf_tokenizer, sentencepiece_backend


def check_walks(tokenizer: Tokenizer, schemas: Iterable[Schema]) -> None:
    """One random output of each schema; hardly any fails to come to an end, and all that do are right."""
    vocab_size = tokenizer.vocab_size + 70  # wider than the tokenizer, and no multiple of 32
    compiler, walker = GrammarCompiler(tokenizer, vocab_size), Walker(tokenizer, vocab_size)
    finished = unfinished = 0
    for schema in schemas:
        walk = walker.walk(compiler.compile(StructuredOutputs(json=schema)))
        if walk.is_finished:
            check_document(schema, walk.text.decode())
        finished, unfinished = finished + walk.is_finished, unfinished + (not walk.is_finished)
    assert unfinished <= finished // 9


@pytest.mark.parametrize("schema", COLLECTION, ids=range(len(COLLECTION)))
def test_the_collection_is_of_valid_schemas(schema: Schema) -> None:
    jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator).check_schema(schema)


def test_outputs_fit_in_few_byte_level_tokens() -> None:
    definition = TokenizerDefinition(byte_level_backend(), 0, 1, frozenset({1, 2}), False, None)
    check_walks(Tokenizer(definition), map(random_schema, range(110)))


def test_outputs_fit_in_few_sentencepiece_tokens() -> None:
    definition = TokenizerDefinition(sentencepiece_backend(), 1, 2, frozenset({2}), False, None)
    check_walks(Tokenizer(definition), map(random_schema, range(110, 200)))


def test_outputs_fit_in_the_tokens_of_smollm2(smollm2_path: Path) -> None:
    check_walks(gguf_tokenizer(smollm2_path), [*COLLECTION, *map(random_schema, range(200, 380))])


def test_outputs_fit_in_the_tokens_of_gemma3(gemma3_path: Path) -> None:
    check_walks(gguf_tokenizer(gemma3_path), [*COLLECTION[::3], *map(random_schema, range(380, 440))])


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"exclusiveMaximum": -10}, ["-10.1", "-10.000000001", "-11"], ["-10.0", "-10.00000000000000000001", "-9"]),
        ({"exclusiveMinimum": 0}, ["1", "0.1", "0.000000001"], ["0", "-0", "0.0", "0." + "0" * 330 + "1", "-1"]),
        ({"exclusiveMinimum": 0.1, "maximum": 0.3}, ["0.2", "0.100000001"], ["0.1", "0.10000000000000000001", "0.31"]),
        ({"exclusiveMaximum": -22.9}, ["-22.91", "-22.900000001", "-23"], ["-22.9", "-22.90", "-22.90000000000000001"]),
        ({"exclusiveMaximum": 1}, ["0.9", "0.99", "0", "-7.25"], ["1", "1.0", "0." + "9" * 20]),
        ({"exclusiveMinimum": 2**40}, ["1099511627776.001", "1099511627777"], ["1099511627776." + "0" * 9 + "1"]),
        ({"allOf": [{"type": "integer"}, {"exclusiveMinimum": 1}]}, ["2", "37"], ["1"]),
        ({"allOf": [{"type": "number", "multipleOf": 0.5}, {"exclusiveMaximum": 1}]}, ["0.5", "-2"], ["1"]),
        ({"exclusiveMinimum": 1, "minimum": 2}, ["2", "2.0", "3"], ["1.5", "1.99"]),
        ({"exclusiveMinimum": 1, "minimum": 0}, ["1.5"], ["0.5", "1", "1.0"]),
        ({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 8}, ["6", "7"], ["5", "8"]),
        ({"type": ["null", "number"], "exclusiveMinimum": 5}, ["null", "5.5"], ["5", "5.00000000000000000001"]),
        ({"exclusiveMinimum": 1, "enum": ["a", 1.1, 2, 1e-12]}, ['"a"', "1.1", "2"], ["1.2", "1", "1e-12"]),
        ({"exclusiveMaximum": 1, "const": "a"}, ['"a"'], ['"b"', "0.5"]),
        ({"exclusiveMinimum": 0, "enum": [1e-12, 0]}, ["0.000000000001"], ["0", "1"]),
        ({"exclusiveMinimum": 0, "const": 1.0000000000001}, ["1.0000000000001"], ["1"]),
        ({"const": {"exclusiveMinimum": 5}}, ['{"exclusiveMinimum":5}'], ['{"minimum":5}']),
    ],
)  # fmt: skip
def test_numbers_are_inside_exclusive_bounds_also_when_read_as_doubles(
    schema: Schema, inside: list[str], outside: list[str]
) -> None:
    tokenizer = Tokenizer(TokenizerDefinition(byte_level_backend(), 0, 1, frozenset({1, 2}), False, None))
    validator = jsonschema.Draft202012Validator(schema)
    grammar = GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(StructuredOutputs(json=schema))
    for text in (*inside, *outside):
        state = grammar.start()
        for byte in text:
            state.accept(tokenizer.encode(byte)[0])
        assert (state.error is None and state.is_accepting) == (text in inside), text
        assert validator.is_valid(json.loads(text)) == (text in inside), text
