"""Tokenizers of model folders, against the `tokenizers` library itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from headrace.errors import ModelError, RequestError
from headrace.text.tokenizer import Tokenizer
from text.vocabularies import byte_level_backend, save_folder, sentencepiece_backend, wrap

BACKENDS = {"byte_level": byte_level_backend, "sentencepiece": sentencepiece_backend}


@pytest.mark.parametrize("kind", BACKENDS)
@settings(deadline=None)  # the first example trains the tokenizer
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=60))
def test_equals_the_library(kind: str, text: str) -> None:
    backend = BACKENDS[kind]()
    tokenizer = wrap(backend)
    ids = tokenizer.encode(text)
    assert ids == backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == backend.decode(ids)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


@pytest.mark.parametrize("kind", BACKENDS)
def test_control_tokens_are_parsed_shown_and_skipped_on_request(kind: str) -> None:
    backend = BACKENDS[kind]()
    tokenizer = wrap(backend)
    text = "fox</s>dog"
    ids = tokenizer.encode(text)
    assert backend.token_to_id("</s>") in ids
    assert tokenizer.decode(ids, skip_special=False) == backend.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids) == backend.decode(ids)
    literal = tokenizer.encode(text, parse_special=False)
    assert not any(map(tokenizer.is_special, literal))
    assert tokenizer.decode(literal) == text


def test_user_defined_tokens_match_as_plain_text_too() -> None:
    tokenizer = wrap(byte_level_backend())
    for text in ("<think>", "naïve  "):
        [id] = tokenizer.encode(text, parse_special=False)
        assert [id] == tokenizer.encode(text)
        assert not tokenizer.is_special(id)
        assert tokenizer.token_bytes(id) == text.encode()
        assert tokenizer.decode([id]) == text


def test_the_files_say_which_tokens_start_and_end(tmp_path: Path) -> None:
    save_folder(
        tmp_path,
        byte_level_backend(),
        tokenizer_config={"bos_token": {"content": "<s>"}, "eos_token": "</s>"},
        generation_config={"eos_token_id": [2, 7]},
        config={"eos_token_id": 9, "bos_token_id": 3},
    )
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tokenizer.bos_id, tokenizer.bos_token, tokenizer.eos_token) == (0, "<s>", "</s>")
    assert tokenizer.eos_ids == {1, 2, 7, 9}
    assert tokenizer.vocab_size == byte_level_backend().get_vocab_size()


@pytest.mark.parametrize(("setting", "adds"), [({}, True), ({"add_bos_token": False}, False)])
def test_bos_is_added_once_and_only_if_the_model_wants_it(tmp_path: Path, setting: dict[str, bool], adds: bool) -> None:
    save_folder(tmp_path, byte_level_backend(), tokenizer_config={"bos_token": "<s>", **setting})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.adds_bos is adds
    plain = tokenizer.encode("fox", add_bos=False)
    assert 0 not in plain
    assert 1 not in tokenizer.encode("fox")
    assert tokenizer.encode("fox") == ([0, *plain] if adds else plain)


def test_a_model_without_bos_gets_none(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(save_folder(tmp_path, byte_level_backend()))
    assert tokenizer.bos_id is None
    assert not tokenizer.adds_bos
    assert tokenizer.bos_token == tokenizer.eos_token == ""
    assert tokenizer.eos_ids == frozenset()


def test_a_named_end_token_is_special_even_if_the_file_forgot(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "<e>": 1}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer.from_folder(save_folder(tmp_path, backend, special_tokens_map={"eos_token": "<e>"}))
    assert tokenizer.eos_ids == {1}
    assert tokenizer.encode("a<e>a") == [0, 1, 0]
    assert tokenizer.decode([0, 1]) == "a"


def test_settings_of_the_training_run_do_not_cut_prompts(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level_backend().to_str())
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    tokenizer = Tokenizer.from_folder(save_folder(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode(text := "the quick brown fox")) == text


def test_the_chat_template_may_be_in_several_places(tmp_path: Path) -> None:
    save_folder(tmp_path, byte_level_backend())
    assert Tokenizer.from_folder(tmp_path).chat_template is None
    save_folder(tmp_path, byte_level_backend(), chat_template={"chat_template": "processor"})
    assert Tokenizer.from_folder(tmp_path).chat_template == "processor"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    save_folder(tmp_path, byte_level_backend(), tokenizer_config={"chat_template": named})
    assert Tokenizer.from_folder(tmp_path).chat_template == "named"
    save_folder(tmp_path, byte_level_backend(), tokenizer_config={"chat_template": "string"})
    assert Tokenizer.from_folder(tmp_path).chat_template == "string"
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert Tokenizer.from_folder(tmp_path).chat_template == "file"


def test_ids_without_a_token_decode_to_nothing() -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 7}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    tokenizer = wrap(backend)
    assert tokenizer.vocab_size == 8
    assert [tokenizer.token_bytes(id) for id in (-1, 0, 3, 7, 8, 10**9)] == [b"", b"a", b"", b"b", b"", b""]
    assert tokenizer.decode([0, 3, 99, 7]) == "ab"


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", b"bytes", None])
def test_what_is_not_unicode_text_is_refused(text: Any) -> None:
    with pytest.raises(RequestError, match=r"^prompt: ") as error:
        wrap(byte_level_backend()).encode(text)
    assert error.value.param == "prompt"


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"cannot read .*tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    save_folder(tmp_path, byte_level_backend(), generation_config=[])
    with pytest.raises(ModelError, match=r"generation_config\.json is not a JSON object"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read .*generation_config\.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Strip("x", 1, 1)])
def test_a_decoder_that_does_not_work_token_by_token_is_refused(decoder: Any) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(ModelError, match="decoder"):
        wrap(backend)


def test_metaspace_decoders_work_like_the_library() -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"▁a": 0, "b": 1, "▁": 2}, merges=[]))
    for scheme in ("always", "first", "never"):
        backend.decoder = decoders.Metaspace(prepend_scheme=scheme, split=scheme != "never")
        assert wrap(backend).decode([0, 1, 0, 2]) == backend.decode([0, 1, 0, 2])
