"""What a document has to be, by the jsonschema package's word."""

from __future__ import annotations

import json

import jsonschema

from structured.schemas import Schema


def check_document(schema: Schema, text: str) -> None:
    """Raises unless the text is JSON, fits the schema, and has no whitespace but single spaces after , and :."""
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    value = json.loads(text)
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(value)
    outside = "".join(text.replace('\\"', "").split('"')[::2]) if "\\\\" not in text else ""
    assert "  " not in outside
    assert not set(outside) & set("\n\r\t")
