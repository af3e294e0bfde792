"""Text token by token, against decoding all ids at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.tokenizer import Tokenizer
from text.vocabularies import (
    GEMMA3_TEXT,
    SMOLLM2_TEXT,
    byte_level_backend,
    gguf_definition,
    gguf_tokenizer,
    sentencepiece_backend,
    wrap,
)

with_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def stream(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    """Return the deltas, the last of them from `finish`."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special)
    return [*(detokenizer.push(id) for id in ids), detokenizer.finish()]


@with_fixtures
@given(ids=st.lists(st.integers(0, 49_151), max_size=40), skip=st.booleans())
def test_any_ids_of_a_byte_level_model(smollm2_path: Path, ids: list[int], skip: bool) -> None:
    tokenizer, backend = gguf_tokenizer(smollm2_path), gguf_definition(smollm2_path).backend
    whole = tokenizer.decode(ids, skip_special=skip)
    assert "".join(stream(tokenizer, ids, skip_special=skip)) == whole
    assert whole == backend.decode(ids, skip_special_tokens=skip)


@with_fixtures
@given(ids=st.lists(st.integers(0, 500) | st.integers(0, 262_143), max_size=40), skip=st.booleans())
def test_any_ids_of_a_model_with_byte_tokens(gemma3_path: Path, ids: list[int], skip: bool) -> None:
    tokenizer, backend = gguf_tokenizer(gemma3_path), gguf_definition(gemma3_path).backend
    whole = tokenizer.decode(ids, skip_special=skip)
    assert "".join(stream(tokenizer, ids, skip_special=skip)) == whole
    if "\ufffd" not in whole:
        assert whole == backend.decode(ids, skip_special_tokens=skip)


@with_fixtures
@given(smollm2_text=SMOLLM2_TEXT, gemma3_text=GEMMA3_TEXT)
def test_no_delta_holds_a_part_of_a_character(
    smollm2_path: Path, gemma3_path: Path, smollm2_text: str, gemma3_text: str
) -> None:
    for path, text in ((smollm2_path, smollm2_text), (gemma3_path, gemma3_text)):
        tokenizer = gguf_tokenizer(path)
        deltas = stream(tokenizer, tokenizer.encode(text, add_bos=False, parse_special=False))
        assert "".join(deltas) == text
        assert sum(delta.count("\ufffd") for delta in deltas) == text.count("\ufffd")


def test_invalid_bytes_become_replacement_characters() -> None:
    backend = byte_level_backend()
    tokenizer = wrap(backend)
    byte = {tokenizer.token_bytes(id): id for id in range(tokenizer.vocab_size)}
    first, second, letter = byte[b"\xc5"], byte[b"\xba"], byte[b"a"]
    assert stream(tokenizer, [first, second]) == ["", "ź", ""]
    assert stream(tokenizer, [first, letter]) == ["", "\ufffda", ""]
    assert stream(tokenizer, [second, letter]) == ["\ufffd", "a", ""]
    assert stream(tokenizer, [letter, first]) == ["a", "", "\ufffd"]
    end = backend.token_to_id("</s>")
    assert stream(tokenizer, [first, end, second]) == ["", "", "ź", ""]
    assert stream(tokenizer, [first, end, second], skip_special=False) == ["", "\ufffd</s>", "\ufffd", ""]


def test_generated_text_keeps_its_leading_space() -> None:
    tokenizer = wrap(sentencepiece_backend())
    ids = tokenizer.encode("dog")
    assert tokenizer.decode(ids) == "dog"
    assert "".join(stream(tokenizer, ids)) == " dog"


@pytest.mark.parametrize("id", [-1, 10**6])
def test_an_id_without_a_token_is_no_text(id: int) -> None:
    tokenizer = wrap(byte_level_backend())
    assert stream(tokenizer, [id]) == ["", ""]
