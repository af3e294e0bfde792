"""Tokenizers from the metadata of a GGUF file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from headrace.errors import ModelError
from headrace.text.definition import TokenizerDefinition
from headrace.text.merges import kept_merges
from headrace.text.pretokenizers import pre_rule

_PREFIX = "tokenizer.ggml."
_MERGES_VERSION = 1  # of what `_merges_from_scores` gives: to be raised with it
_LARGE = 65_536  # tokens, from which on merges are kept on disk

# Control tokens that end a turn or a text in every model that has them. Files often name only one of theirs.
_END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
)


class _TokenType(IntEnum):
    """`tokenizer.ggml.token_type`; 0 (undefined) and 5 (unused) mark ids that no text encodes to."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    BYTE = 6


def read_gguf_tokenizer(metadata: Mapping[str, Any], cache: Path | None = None) -> TokenizerDefinition:
    """Build a tokenizer from GGUF metadata.

    Args:
        metadata: the file's keys and values; token types and scores as NumPy arrays, or as lists.
        cache: folder for what takes long to work out of a large vocabulary.

    Raises:
        ModelError: a key is missing, or names a kind of tokenizer that is not supported.
    """
    vocabulary = _Vocabulary(metadata)
    model = metadata.get(_PREFIX + "model")
    match model:
        case "gpt2":
            rule = pre_rule(metadata.get(_PREFIX + "pre"))
            adds_bos = rule.adds_bos
            backend = Tokenizer(vocabulary.byte_level_bpe(ignore_merges=rule.ignore_merges))
            if rule.nfc:
                backend.normalizer = rule.normalizer()
            backend.pre_tokenizer = rule.split()
            backend.decoder = decoders.ByteLevel()
        case "llama":
            adds_bos = True
            backend = Tokenizer(vocabulary.sentencepiece_bpe(cache))
            _use_sentencepiece_spaces(backend, prefix=bool(metadata.get(_PREFIX + "add_space_prefix", True)))
        case _:
            raise ModelError(f"tokenizer.ggml.model is {model!r}, which is not supported (supported: gpt2, llama)")
    vocabulary.register_added_tokens(backend)

    bos_id = vocabulary.named_id("bos")
    eos_id = vocabulary.named_id("eos")
    ends = {eos_id, vocabulary.named_id("eot"), vocabulary.named_id("eom")}
    # In OpenAI's harmony format <|end|> only closes one message of several, and others end the turn.
    harmony = "<|return|>" in vocabulary.ids
    well_known = (*_END_TOKENS, *(("<|return|>", "<|call|>") if harmony else ("<|end|>",)))
    ends.update(id for token in well_known if vocabulary.is_control(id := vocabulary.ids.get(token)))
    return TokenizerDefinition(
        backend=backend,
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(id for id in ends if id is not None),
        adds_bos=bos_id is not None and bool(metadata.get(_PREFIX + "add_bos_token", adds_bos)),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _use_sentencepiece_spaces(backend: Any, *, prefix: bool) -> None:
    """Spell a space as U+2581, and put one before every run of ordinary text if the model was trained that way."""
    to_mark = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), to_mark]) if prefix else to_mark
    from_mark = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*from_mark, decoders.Strip(" ", 1, 0)] if prefix else from_mark)


class _Vocabulary:
    """The tokens of a GGUF file: their ids, types, scores and merges."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.tokens: Sequence[str] = self._required("tokens")
        count = len(self.tokens)
        self._types = _as_list(metadata.get(_PREFIX + "token_type", [_TokenType.NORMAL] * count))
        if len(self._types) != count:
            raise ModelError(f"tokenizer.ggml.token_type has {len(self._types)} entries for {count} tokens")
        defined = {int(kind) for kind in _TokenType}
        # Ids without a text (type undefined or unused) stay out: nothing encodes to them and they decode to nothing.
        self.ids = {token: id for id, token in enumerate(self.tokens) if self._types[id] in defined}
        if len(self.ids) != sum(kind in defined for kind in self._types):
            raise ModelError("tokenizer.ggml.tokens lists a token twice")

    def is_control(self, id: int | None) -> bool:
        return id is not None and self._types[id] == _TokenType.CONTROL

    def named_id(self, name: str) -> int | None:
        """Return the id in `tokenizer.ggml.<name>_token_id`, if there is one and it is a token."""
        id = self._metadata.get(f"{_PREFIX}{name}_token_id")
        return int(id) if id is not None and 0 <= int(id) < len(self.tokens) else None

    def byte_level_bpe(self, *, ignore_merges: bool) -> Any:
        merges = []
        for line in self._required("merges"):
            left, _, right = line.partition(" ")
            merges.append((left, right))
        return _bpe(vocab=self.ids, merges=merges, ignore_merges=ignore_merges)

    def sentencepiece_bpe(self, cache: Path | None) -> Any:
        unknown = self.named_id("unknown")
        if cache is None or len(self.tokens) < _LARGE:
            merges = self._merges_from_scores()
        else:
            merges = kept_merges(cache / self._digest(), self.tokens, self._merges_from_scores)
        return _bpe(
            vocab=self.ids,
            merges=merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else self.tokens[unknown],
        )

    def _merges_from_scores(self) -> list[tuple[str, str]]:
        """Return the merges that make BPE pick pairs as SentencePiece does: the best-scored result first.

        Every way to cut a normal token into two normal tokens is a merge. Control, user-defined and byte tokens take
        no part: text never merges into them.
        """
        scores = _as_list(self._required("scores"))
        if len(scores) != len(self.tokens):
            raise ModelError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(self.tokens)} tokens")
        ids = {token: id for token, id in self.ids.items() if self._types[id] == _TokenType.NORMAL}
        merges: list[tuple[str, str]] = []
        for token in sorted(ids, key=lambda token: -scores[ids[token]]):
            pairs = [
                (left, right)
                for cut in range(1, len(token))
                if (left := token[:cut]) in ids and (right := token[cut:]) in ids
            ]
            if len(pairs) > 1:
                pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
            merges += pairs
        return merges

    def _digest(self) -> str:
        """Of all that merges depend on."""
        digest = hashlib.sha256(f"{_MERGES_VERSION}".encode())
        digest.update("\0".join(self.tokens).encode("utf-8", "surrogatepass"))
        digest.update(np.array([len(token) for token in self.tokens], np.int32).tobytes())
        digest.update(np.asarray(self._types, np.int32).tobytes())
        digest.update(np.asarray(self._required("scores"), np.float32).tobytes())
        return digest.hexdigest()

    def register_added_tokens(self, backend: Any) -> None:
        """Make the backend match control and user-defined tokens whole, before anything else looks at the text."""
        special = (_TokenType.CONTROL, _TokenType.UNKNOWN)
        backend.add_tokens(
            [
                AddedToken(token, normalized=False, special=self._types[id] in special)
                for token, id in self.ids.items()
                if self._types[id] in special or self._types[id] == _TokenType.USER_DEFINED
            ]
        )

    def _required(self, name: str) -> Any:
        value = self._metadata.get(_PREFIX + name)
        if value is None:
            raise ModelError(f"the GGUF file has no {_PREFIX}{name}, so it holds no usable tokenizer")
        return value


def _as_list(values: Any) -> list[Any]:
    """Return plain Python numbers: looking them up one by one is several times faster than in a NumPy array."""
    return list(values.tolist()) if hasattr(values, "tolist") else list(values)


def _bpe(**options: Any) -> Any:
    try:
        return models.BPE(**options)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"the GGUF file's tokenizer is inconsistent: {error}") from error
