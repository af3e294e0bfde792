"""A model's tokens as llguidance wants them."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper

from headrace.text.tokenizer import Tokenizer


def grammar_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """The tokens' exact bytes. Control tokens are none of a grammar's text, and ids without a token never match.

    Args:
        tokenizer: of the model; whatever of its ids is beyond `vocab_size` is left out.
        vocab_size: of the model, the width of its logits. One id more is there, which ends the text of a model that
            has no end token.
    """
    vocabulary = _Vocabulary(tokenizer, vocab_size)
    return LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=vocab_size + 1, eos_token=vocabulary.end_ids)


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
