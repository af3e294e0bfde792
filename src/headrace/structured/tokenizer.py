"""A model's tokens as llguidance wants them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class GrammarTokens:
    """A model's tokens as llguidance wants them: their exact bytes. Ids without a token never match.

    Attributes:
        tokenizer: whatever of the model's ids is beyond `vocab_size` is left out. One id more is there, which ends the
            text of a model that has no end token.
        vocab_size: of the model, the width of its logits.
        text: tokens that an output may hold, [ceil(vocab / 32)] uint32 of which bit i of word w is of id 32 w + i. A
            grammar can name control tokens by their ids, but they are none of its text.
        text_or_end: these, and the model's end tokens.
    """

    tokenizer: LLTokenizer
    vocab_size: int
    text: np.ndarray
    text_or_end: np.ndarray

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> GrammarTokens:
        """Those of a model."""
        vocabulary = _Vocabulary(tokenizer, vocab_size)
        bits = np.zeros((2, -(-(vocab_size + 1) // 32) * 32), bool)
        bits[:, : vocab_size + 1] = [piece != b"" for piece in vocabulary.tokens]
        bits[:, vocabulary.special_token_ids] = False
        bits[1, [id for id in vocabulary.end_ids if id < vocab_size]] = True
        text, text_or_end = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)[:, : -(-vocab_size // 32)]
        known = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=vocab_size + 1, eos_token=vocabulary.end_ids)
        return cls(known, vocab_size, text, text_or_end)


class _Vocabulary:
    """What `TokenizerWrapper` asks for: names are its own."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        ends = sorted(id for id in tokenizer.eos_ids if id < vocab_size)
        self.end_ids = ends or [vocab_size]
        self.eos_token_id, self.bos_token_id = self.end_ids[0], tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(id) for id in range(vocab_size)] + [b"<end>"]
        special = {*ends, vocab_size, *(id for id in range(vocab_size) if tokenizer.is_special(id))}
        self.special_token_ids = sorted(special)
        self._ids = {piece: id for id, piece in enumerate(self.tokens) if id not in special}

    def __call__(self, text: str) -> list[int]:
        """The tokens that a grammar which leaves no choice goes on with: the model's own way to write the text."""
        data, ids = text.encode(), self._tokenizer.encode(text, add_bos=False, parse_special=False)
        if b"".join(self.tokens[id] for id in ids if id < len(self.tokens)) == data:
            return ids
        return self._longest_matches(data)  # where encoding adds a space, or normalises the text

    def _longest_matches(self, data: bytes) -> list[int]:
        ids = []
        while data:
            length = next((n for n in range(len(data), 0, -1) if data[:n] in self._ids), 0)
            if not length:
                break
            ids.append(self._ids[data[:length]])
            data = data[length:]
        return ids
