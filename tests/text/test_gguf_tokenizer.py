"""Tokenizers from GGUF metadata."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ModelError
from headrace.text import gguf_tokenizer as module
from headrace.text.gguf_tokenizer import read_gguf_tokenizer
from headrace.text.tokenizer import Tokenizer
from text.vocabularies import GEMMA3_TEXT, SMOLLM2_TEXT, byte_level_backend, gguf_definition, gguf_tokenizer

with_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def gguf_metadata(tokens: list[tuple[str, int, float]], **keys: Any) -> dict[str, Any]:
    """Return metadata for (text, type, score) tokens; the other keys are `tokenizer.ggml` ones."""
    metadata = {
        "tokens": [text for text, _, _ in tokens],
        "token_type": np.array([kind for _, kind, _ in tokens], np.int32),
        "scores": np.array([score for _, _, score in tokens], np.float32),
        **keys,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


def sentencepiece_metadata(**keys: Any) -> dict[str, Any]:
    pieces = [("▁", -9.0), ("a", -10.0), ("b", -11.0), ("ab", -1.0), ("▁a", -2.0), ("ba", 0.0), ("aba", -3.0)]
    tokens = [
        ("<unk>", UNKNOWN, 0.0),
        ("<s>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        *((f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)),
        *((text, NORMAL, score) for text, score in pieces),
        ("[tool]", USER_DEFINED, 0.0),
        ("<turn>", CONTROL, 0.0),
        ("[PAD1]", UNUSED, 0.0),
    ]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return gguf_metadata(tokens, model="llama", **ids | keys)


def byte_level_metadata(**keys: Any) -> dict[str, Any]:
    """Return what a GGUF converter writes for the small trained byte-level tokenizer."""
    parts = json.loads(byte_level_backend().to_str())
    special = {token["content"]: CONTROL if token["special"] else USER_DEFINED for token in parts["added_tokens"]}
    vocab = sorted(byte_level_backend().get_vocab().items(), key=lambda item: item[1])
    tokens = [(text, special.get(text, NORMAL), 0.0) for text, _ in vocab]
    merges = [" ".join(pair) for pair in parts["model"]["merges"]]
    return gguf_metadata(tokens, model="gpt2", pre="gpt-2", merges=merges, **keys)


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[bytes]:
    return [tokenizer.token_bytes(id) for id in tokenizer.encode(text, **options)]


@with_fixtures
@given(text=SMOLLM2_TEXT)
def test_smollm2_round_trip(smollm2_path: Path, text: str) -> None:
    tokenizer = gguf_tokenizer(smollm2_path)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


@with_fixtures
@given(text=GEMMA3_TEXT)
def test_gemma3_round_trip(gemma3_path: Path, text: str) -> None:
    tokenizer = gguf_tokenizer(gemma3_path)
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


@pytest.fixture
def join_by_score(gemma3_path: Path) -> Callable[[str], list[bytes]]:
    """SentencePiece's definition: join the two neighbours that make the best-scored token, leftmost first, for ever."""
    backend = gguf_definition(gemma3_path).backend
    added = backend.get_added_tokens_decoder()
    # In this vocabulary the normal tokens come after the bytes, and their scores fall with their ids.
    rank = {token.replace("▁", " "): id for token, id in backend.get_vocab().items() if id >= 494 and id not in added}

    def join(text: str) -> list[bytes]:
        parts = list(text)
        while True:
            joined = [(rank[pair], i) for i in range(len(parts) - 1) if (pair := parts[i] + parts[i + 1]) in rank]
            if not joined:
                return [part.encode() for part in parts]
            _, i = min(joined)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    return join


@with_fixtures
@given(text=st.text("aehinorstl ,", max_size=40) | st.text("abcdefghijklmnopqrstuvwxyzABCDEÉéжи日本 .-_'", max_size=40))
def test_merges_follow_the_scores(gemma3_path: Path, join_by_score: Callable[[str], list[bytes]], text: str) -> None:
    tokenizer = gguf_tokenizer(gemma3_path)
    text = " ".join(text.split())  # longer runs of spaces are tokens of their own
    assert pieces(tokenizer, text, add_bos=False) == join_by_score(text)


@settings(deadline=None)
@given(text=st.text(max_size=60))
def test_byte_level_equals_the_tokenizer_it_was_converted_from(text: str) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata())
    assert tokenizer.encode(text) == byte_level_backend().encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def backend_of(metadata: dict[str, Any], cache: Path | None = None) -> Any:
    return json.loads(read_gguf_tokenizer(metadata, cache).backend.to_str())


@pytest.mark.parametrize("damage", [None, b"", b"short", "cut", "changed"])
def test_merges_kept_on_disk_are_those_that_scores_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | str | None
) -> None:
    monkeypatch.setattr(module, "_LARGE", 1)
    metadata = sentencepiece_metadata()
    expected = backend_of(metadata)
    assert expected["model"]["merges"]
    assert backend_of(metadata, tmp_path / "new") == expected
    (file,) = (tmp_path / "new").iterdir()
    whole = file.read_bytes()
    if damage is None:  # from disk alone
        monkeypatch.setattr(module._Vocabulary, "_merges_from_scores", lambda self: pytest.fail("anew"))
    else:
        changed = {"cut": whole[:-1], "changed": whole[:-1] + bytes([whole[-1] ^ 1])}
        file.write_bytes(damage if isinstance(damage, bytes) else changed[damage])
    assert backend_of(metadata, tmp_path / "new") == expected
    assert file.read_bytes() == whole
    assert list((tmp_path / "new").iterdir()) == [file]


def test_other_scores_have_other_merges_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 1)
    metadata = sentencepiece_metadata()
    other = {**metadata, "tokenizer.ggml.scores": -metadata["tokenizer.ggml.scores"]}
    for each in (metadata, other, metadata):
        assert backend_of(each, tmp_path) == backend_of(each)
    assert backend_of(metadata) != backend_of(other)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 1)
    (tmp_path / "file").touch()
    metadata = sentencepiece_metadata()
    assert backend_of(metadata, tmp_path / "file") == backend_of(metadata)


def test_sentencepiece_prefix_bos_and_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata())
    assert pieces(tokenizer, "aba") == [b"<s>", b" a", b"ba"]
    assert pieces(tokenizer, "bab") == [b"<s>", b" ", b"ba", b"b"]
    assert pieces(tokenizer, "é") == [b"<s>", b" ", b"\xc3", b"\xa9"]
    assert tokenizer.decode(tokenizer.encode("a é b")) == "a é b"
    assert tokenizer.encode("") == [1]
    plain = Tokenizer.from_gguf(sentencepiece_metadata(add_space_prefix=False, add_bos_token=False))
    assert pieces(plain, "aba") == [b"aba"]
    assert plain.decode(plain.encode(" a")) == " a"


def test_control_user_defined_and_unused_tokens() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(add_space_prefix=False))
    assert pieces(tokenizer, "a<turn>[tool]", add_bos=False) == [b"a", b"<turn>", b"[tool]"]
    literal = tokenizer.encode("<turn>[tool]<unk>[PAD1]", add_bos=False, parse_special=False)
    assert [id for id in literal if tokenizer.is_special(id)] == []
    assert b"[tool]" in map(tokenizer.token_bytes, literal)
    assert tokenizer.decode(literal) == "<turn>[tool]<unk>[PAD1]"
    # The last id is a padding entry: not a token, so out of the vocabulary.
    assert tokenizer.vocab_size == len(sentencepiece_metadata()["tokenizer.ggml.tokens"]) - 1
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


def test_end_tokens_are_the_named_ones_and_the_well_known_control_tokens() -> None:
    tokens = [(text, CONTROL, 0.0) for text in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|x|>", "<|y|>")]
    keys = {"model": "gpt2", "pre": "qwen2", "merges": []}
    metadata = gguf_metadata([*tokens, ("<|eot_id|>", NORMAL, 0.0)], **keys, bos_token_id=0, eos_token_id=1)
    assert Tokenizer.from_gguf(metadata).eos_ids == {1, 2}
    named = {"tokenizer.ggml.eot_token_id": 3, "tokenizer.ggml.eom_token_id": 4}
    assert Tokenizer.from_gguf(metadata | named).eos_ids == {1, 2, 3, 4}
    assert Tokenizer.from_gguf(metadata | {"tokenizer.ggml.eos_token_id": 999}).eos_ids == {1, 2}


@pytest.mark.parametrize(("others", "ends"), [((), {0}), (("<|return|>", "<|call|>"), {1, 2})])
def test_end_is_an_end_except_where_return_is(others: tuple[str, ...], ends: set[int]) -> None:
    tokens = [(text, CONTROL, 0.0) for text in ("<|end|>", *others)]
    assert Tokenizer.from_gguf(gguf_metadata(tokens, model="gpt2", pre="gpt-4o", merges=[])).eos_ids == ends


@with_fixtures
@given(text=st.lists(st.sampled_from(["<|im_end|>", "<|im_", "end|>", "<", "a", " "])).map("".join))
def test_splitting_at_control_tokens(smollm2_path: Path, text: str) -> None:
    tokenizer = gguf_tokenizer(smollm2_path)
    assert tokenizer.split_special(text) == re.split(r"(<\|im_end\|>)", text)


def test_several_threads_may_use_one_tokenizer(smollm2_path: Path) -> None:
    shared = Tokenizer(gguf_definition(smollm2_path))
    texts = [f"thread {i}: Žluť <|im_end|> 🎈 {i * 7919}" for i in range(64)]

    def round_trip(text: str) -> str:
        return shared.decode(shared.encode(text, parse_special=False))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(round_trip, texts)) == texts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "rwkv"}, r"tokenizer\.ggml\.model is 'rwkv', which is not supported \(supported: gpt2, llama\)"),
        ({"model": None}, r"tokenizer\.ggml\.model is None"),
        ({"pre": "klingon"}, r"tokenizer\.ggml\.pre is 'klingon'.*known: .*gpt-2, .*smollm.*tekken"),
        ({"pre": None}, r"tokenizer\.ggml\.pre is None"),
        ({"merges": None}, r"no tokenizer\.ggml\.merges"),
        ({"tokens": None}, r"no tokenizer\.ggml\.tokens"),
        ({"merges": ["no such"]}, "inconsistent"),
        ({"token_type": [1]}, r"token_type has 1 entries"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "lists a token twice"),
        ({"model": "llama", "scores": None}, r"no tokenizer\.ggml\.scores"),
        ({"model": "llama", "scores": [0.0]}, r"scores has 1 entries"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_in_one_line(change: dict[str, Any], message: str) -> None:
    metadata = byte_level_metadata() | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(ModelError, match=message) as error:
        Tokenizer.from_gguf(metadata)
    assert "\n" not in str(error.value)


def test_other_threads_run_while_a_long_text_is_encoded(smollm2_path: Path) -> None:
    """A server's event loop and its engine are such threads: a prompt of 5 MB held them up for 7 seconds."""
    tokenizer, text = Tokenizer(gguf_definition(smollm2_path)), "hello wörld foo " * 100_000
    done, turns = threading.Event(), 0

    def encode() -> None:
        assert len(tokenizer.encode(text)) > 100_000
        assert tokenizer.split_special(text) == [text]
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 20
