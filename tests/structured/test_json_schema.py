"""Whatever a grammar lets through of a JSON schema fits the schema, by the jsonschema package's word."""

from __future__ import annotations

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
    check_walks(Tokenizer(definition), map(random_schema, range(60)))


def test_outputs_fit_in_few_sentencepiece_tokens() -> None:
    definition = TokenizerDefinition(sentencepiece_backend(), 1, 2, frozenset({2}), False, None)
    check_walks(Tokenizer(definition), map(random_schema, range(60, 120)))


def test_outputs_fit_in_the_tokens_of_smollm2(smollm2_path: Path) -> None:
    check_walks(gguf_tokenizer(smollm2_path), [*COLLECTION, *map(random_schema, range(120, 300))])


def test_outputs_fit_in_the_tokens_of_gemma3(gemma3_path: Path) -> None:
    check_walks(gguf_tokenizer(gemma3_path), [*COLLECTION, *map(random_schema, range(300, 440))])
