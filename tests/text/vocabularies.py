"""Tokenizers for tests: the real models', and small ones trained on the spot."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from headrace.text.definition import TokenizerDefinition
from headrace.text.gguf_tokenizer import read_gguf_tokenizer
from headrace.text.tokenizer import Tokenizer
from headrace.weights.gguf import GGUFFile

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox doesn't.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy – 1234567890 €.",
    "def f(x):\n    return x + 1\n\n\nprint(f(41))\n",
    "日本語の文章です。これは試験です。",
]

# SmolLM2's vocabulary lacks the first byte of planes 4 to 11, where no character is assigned, and a few ASCII controls.
SMOLLM2_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], max_codepoint=0x3FFFF, exclude_characters="\x04\x06\x13\x14\x16\x1d"),
    max_size=60,
)
# SentencePiece spells a space as U+2581, so the two are the same to it.
GEMMA3_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=60)


@cache
def gguf_definition(path: Path) -> TokenizerDefinition:
    """Return what a GGUF file's metadata says about its tokenizer, read once per test run."""
    return read_gguf_tokenizer(GGUFFile.open(path).metadata)


@cache
def gguf_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a GGUF file."""
    return Tokenizer(gguf_definition(path))


def wrap(backend: Any) -> Tokenizer:
    """Return a tokenizer of which nothing is known but its backend."""
    return Tokenizer(TokenizerDefinition(backend, None, None, frozenset(), False, None))


@cache
def byte_level_backend() -> Any:
    """Train a byte-level BPE tokenizer with one user-defined token, whose post-processor adds BOS."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("naïve  ", normalized=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return backend


@cache
def sentencepiece_backend() -> Any:
    """Train a BPE tokenizer in SentencePiece's style: spaces as U+2581, a space in front, bytes for the rest."""
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *bytes_], max_token_length=8, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    # The trainer registers the bytes as special; a model's file has them in its vocabulary only.
    parts = json.loads(backend.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["id"] < 3]
    backend = tokenizers.Tokenizer.from_str(json.dumps(parts))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def save_folder(folder: Path, backend: Any, **files: Any) -> Path:
    """Write a model folder: tokenizer.json, and a JSON file for each keyword argument."""
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
