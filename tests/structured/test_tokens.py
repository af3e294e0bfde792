"""Masks are exact to the byte, in every kind of vocabulary."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from headrace.errors import RequestError
from headrace.sampling.structured import StructuredOutputs
from headrace.structured.compiler import GrammarCompiler
from headrace.text.definition import TokenizerDefinition
from headrace.text.tokenizer import Tokenizer
from structured.walks import allowed_ids
from text.vocabularies import byte_level_backend, gguf_tokenizer, sentencepiece_backend

CHOICES = [
    *("The dog", "The fox doesn't", " The", "The", "příliš žluťoučký", "日本語", "日本", "🎉🎊", "<|im_end|>", "</s>"),
    *("a\n\n\nb", "1234567890", 'say "hi"\\', " ", "  x", "\u2028", "é", "e\u0301"),
]


@pytest.fixture(params=["byte level", "sentencepiece", "smollm2", "gemma3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    match request.param:
        case "byte level":
            return Tokenizer(TokenizerDefinition(byte_level_backend(), 0, 1, frozenset({1, 2}), False, None))
        case "sentencepiece":
            return Tokenizer(TokenizerDefinition(sentencepiece_backend(), 1, 2, frozenset({2}), False, None))
        case name:
            return gguf_tokenizer(request.getfixturevalue(f"{name}_path"))


def test_a_choice_allows_the_tokens_that_it_goes_on_with_and_no_others(tokenizer: Tokenizer) -> None:
    """Where several texts are possible, exactly those; where only one is, at least one of its ways."""
    vocab_size = tokenizer.vocab_size + 100
    grammar = GrammarCompiler(tokenizer, vocab_size).compile(StructuredOutputs(choice=CHOICES))
    targets = [choice.encode() for choice in CHOICES]
    pieces = {id: tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size) if not tokenizer.is_special(id)}
    ids_of: dict[bytes, set[int]] = {}
    for id, piece in pieces.items():
        ids_of.setdefault(piece, set()).add(id)
    rng, seen = Random(0), set()
    for _ in range(60):
        state, text = grammar.start(), b""
        while not state.is_stopped:
            rest = [target[len(text) :] for target in targets if target.startswith(text)]
            ids = allowed_ids(state.mask())
            ends = {id for id in tokenizer.eos_ids if id in ids}
            assert ends == (tokenizer.eos_ids if b"" in rest else set())
            assert state.is_accepting == (b"" in rest)
            starts = [ids_of.get(one[:length], set()) for one in rest for length in range(1, len(one) + 1)]
            words = set().union(*starts)
            assert {*ids} - ends <= words
            if len({one[:1] for one in rest}) > 1:
                assert {*ids} - ends == words
            id = rng.choice(ids)
            if id in ends:
                break
            text += pieces[id]
            state.accept(id)
            assert state.error is None
        seen.add(text)
    assert seen <= {*targets}
    assert len(seen) > 12


def test_ids_without_a_token_are_never_allowed(tokenizer: Tokenizer) -> None:
    for vocab_size in (tokenizer.vocab_size, tokenizer.vocab_size + 31):
        state = GrammarCompiler(tokenizer, vocab_size).compile(StructuredOutputs(regex="(?s:.*)")).start()
        mask = state.mask()
        assert mask.shape == (-(-vocab_size // 32),)
        assert mask.dtype == np.uint32
        allowed = {*allowed_ids(mask)}
        assert all(tokenizer.token_bytes(id) for id in allowed)
        assert {id for id in allowed if tokenizer.is_special(id)} == tokenizer.eos_ids


def test_a_vocabulary_without_the_bytes_ends_in_an_error(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(tiny_folder)  # which has no 0x9f, the second half of ß
    state = GrammarCompiler(tokenizer, 256).compile(StructuredOutputs(choice=["groß"])).start()
    while ids := allowed_ids(state.mask()):
        assert not state.is_stopped
        state.accept(ids[0])
    assert state.error is not None
    assert not state.mask().any()


def test_a_model_without_an_end_token() -> None:
    tokenizer = Tokenizer(TokenizerDefinition(byte_level_backend(), 0, None, frozenset(), False, None))
    for vocab_size in (tokenizer.vocab_size, 416):  # 416 = 13 words
        state = GrammarCompiler(tokenizer, vocab_size).compile(StructuredOutputs(choice=["a", "ab"])).start()
        state.accept(tokenizer.encode("a")[0])
        assert state.is_accepting
        assert [tokenizer.token_bytes(id) for id in allowed_ids(state.mask())] == [b"b"]


@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        ('start: "a" (<[2]> "b")?', [b"a"]),  # 2 ends it there, and is no way to go on
        ('start: "a" <[2]> | "ab"', [b"ab"]),
        ('start: "a" <[0-255]> "b"', None),  # whatever text these are
        ('start: "a" <[^65]> "b"', None),
    ],
)
def test_control_tokens_that_a_grammar_names_are_not_allowed(grammar: str, texts: list[bytes] | None) -> None:
    tokenizer = Tokenizer(TokenizerDefinition(byte_level_backend(), 0, 1, frozenset({1, 2}), False, None))
    vocab_size = tokenizer.vocab_size + 40
    compiled = GrammarCompiler(tokenizer, vocab_size).compile(StructuredOutputs(grammar=grammar))
    for seed in range(30):
        state, text, rng = compiled.start(), b"", Random(seed)
        while not state.is_stopped:
            ids = allowed_ids(state.mask())
            assert max(ids) < tokenizer.vocab_size
            assert {id for id in ids if tokenizer.is_special(id)} == (
                tokenizer.eos_ids if state.is_accepting else set()
            )
            if (id := rng.choice(ids)) in tokenizer.eos_ids:
                break
            text += tokenizer.token_bytes(id)
            state.accept(id)
            assert state.error is None
        assert texts is None or text in texts


def test_a_grammar_of_control_tokens_is_refused() -> None:
    tokenizer = Tokenizer(TokenizerDefinition(byte_level_backend(), 0, 1, frozenset({1, 2}), False, None))
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    for grammar in ('start: <[2]> "abc"', "start: <[0-2]>"):
        with pytest.raises(RequestError, match=r"structured_outputs.grammar: matches no text"):
            compiler.compile(StructuredOutputs(grammar=grammar))
