"""Random outputs that a grammar allows, without a model."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from headrace.structured.compiler import Grammar
from headrace.text.tokenizer import Tokenizer

_STRUCTURE = frozenset(b'"{}[],:0123456789.-truefalsnabcxyz@' + "é".encode())
_CLOSING = (b'"', b"]", b"}", b'"}', b'"]', b"}]", b"]}")


@dataclass
class Walk:
    """An output: its bytes, and whether it has come to an end."""

    text: bytes = b""
    num_tokens: int = 0
    is_finished: bool = False


def allowed_ids(mask: np.ndarray) -> list[int]:
    """The ids in a mask."""
    return [int(id) for id in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


class Walker:
    """Walks with one tokenizer; like a model, it likes to end what it began."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, seed: int = 0) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._rng = random.Random(seed)
        pieces = {id: tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size) if not tokenizer.is_special(id)}
        self._structure = [id for id, piece in pieces.items() if piece and _STRUCTURE.issuperset(piece)]
        self._closing = [id for id, piece in pieces.items() if piece in _CLOSING]

    def walk(self, grammar: Grammar, most: int = 300) -> Walk:
        state, out = grammar.start(), Walk()
        while out.num_tokens < most:
            id = self._draw(state.mask(), out.num_tokens > most // 3)
            assert id < self._vocab_size
            if id in self._tokenizer.eos_ids:
                assert state.is_accepting
                out.is_finished = True
                return out
            piece = self._tokenizer.token_bytes(id)
            assert piece
            assert not self._tokenizer.is_special(id)
            state.accept(id)
            assert state.error is None
            out.text, out.num_tokens = out.text + piece, out.num_tokens + 1
            if state.is_stopped:
                assert state.is_accepting
                assert not state.mask().any()
                out.is_finished = True
                return out
        return out

    def _draw(self, mask: np.ndarray, hurries: bool) -> int:
        shortlist = self._structure if self._rng.random() < 0.6 else range(self._vocab_size)
        for ids, tries in ((self._closing, 20 if hurries else 0), (shortlist, 20)):
            for _ in range(tries):
                id = self._rng.choice(ids)
                if mask[id // 32] >> np.uint32(id % 32) & 1:
                    return id
        return self._rng.choice(allowed_ids(mask))
