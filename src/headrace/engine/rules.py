"""Which tokens a request may sample next, worked out on the host: one bit for each id of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np

from headrace.errors import RequestError
from headrace.execution.schedule import Constraint
from headrace.sampling.params import SamplingParams
from headrace.structured.state import GrammarState
from headrace.text.tokenizer import Tokenizer


class TokenRules:
    """What one continuation of a request forbids and prefers.

    Its mask is `allowed_token_ids`, or all, without what the grammar, `bad_words` and `min_tokens` forbid. Of a bad
    word of several tokens the last is forbidden where the output ends with the others, as in vLLM.

    Attributes:
        waits_for_tokens: the next mask depends on the newest token.
        is_complete: the grammar allows nothing more: the request has reached its end.
        error: why no token is left, or what failed: the request cannot go on.
    """

    def __init__(
        self, params: SamplingParams, tokenizer: Tokenizer, vocab_size: int, grammar: GrammarState | None
    ) -> None:
        """See `of`."""
        self.is_complete = False
        self.error: str | None = None
        self._grammar, self._min_tokens = grammar, params.min_tokens
        words = _bad_words(params.bad_words, tokenizer, vocab_size)
        single = [word[-1] for word in words if len(word) == 1]
        # By the last token that must be there already: those before it, and what must not follow.
        self._bad_words: dict[int, list[tuple[list[int], int]]] = {}
        for word in words:
            if len(word) > 1:
                self._bad_words.setdefault(word[-2], []).append((word[:-2], word[-1]))
        self.waits_for_tokens = grammar is not None or bool(self._bad_words)

        known = range(min(vocab_size, tokenizer.vocab_size))
        allowed = known if params.allowed_token_ids is None else params.allowed_token_ids
        # The model's own ends too, whether or not they end this request: they are no text.
        self._not_ends = ~_mask({*tokenizer.eos_ids, *params.stop_token_ids}, vocab_size)
        self._stops = _mask(params.stop_token_ids, vocab_size)
        self._base = _mask(allowed, vocab_size) & ~_mask(single, vocab_size)
        if grammar is not None and params.ignore_eos:
            self._base &= ~_mask(tokenizer.eos_ids, vocab_size)
        self._always_masks = self.waits_for_tokens or params.allowed_token_ids is not None or bool(single)
        self._bias = None
        if params.biases:
            self._bias = np.array([*params.biases], np.int32), np.array([*params.biases.values()], np.float32)

    @classmethod
    def of(
        cls, params: SamplingParams, tokenizer: Tokenizer, vocab_size: int, grammar: GrammarState | None
    ) -> TokenRules | None:
        """The rules of a request; None if it asks for nothing of the kind.

        Args:
            params: of the request.
            tokenizer: of the model. An id that it does not know is never allowed.
            vocab_size: of the model, the width of its logits.
            grammar: what the output must match, at its start.

        Raises:
            RequestError: no token is left.
        """
        asks = params.allowed_token_ids is not None or params.bad_words or params.biases or params.min_tokens
        if not asks and grammar is None:
            return None
        rules = cls(params, tokenizer, vocab_size, grammar)
        static = rules._base & rules._not_ends if params.min_tokens else rules._base
        if not static.any():
            if params.allowed_token_ids is not None:
                name, others = "allowed_token_ids", "bad_words, stop_token_ids and min_tokens"
            elif rules._base.any():
                name, others = "stop_token_ids", "bad_words and min_tokens, within which no end token is sampled"
            else:
                name, others = "bad_words", "the tokens of the model"
            raise RequestError(name, f"leaves no token that could be sampled, given {others}")
        return rules

    def another(self, grammar: GrammarState | None) -> TokenRules:
        """The same rules for another continuation, at its start; all that does not change is shared.

        Args:
            grammar: what that must match, at its start; given where these rules have one.
        """
        rules = copy(self)
        rules.is_complete, rules.error, rules._grammar = False, None, grammar
        return rules

    def constraint(self, output_ids: Sequence[int], num_outputs: int, num_samples: int) -> Constraint | None:
        """What the tokens at `num_outputs` … `num_outputs + num_samples − 1` of the output may be; None for anything.

        A grammar can tell only what follows its newest token. Where no token is left, the mask is empty and `error` or
        `is_complete` is set.

        Args:
            output_ids: output tokens, as far as known; rules that wait for tokens need all those before.
            num_outputs: output tokens that there will be by then.
            num_samples: tokens to be sampled.
        """
        positions = range(num_outputs, num_outputs + num_samples)
        allowed = None
        if self._always_masks or num_outputs < self._min_tokens:
            allowed = np.stack([self._allowed(output_ids, position) for position in positions])
        if allowed is None and self._bias is None:
            return None
        return Constraint(allowed, self._bias)

    def accept(self, token_id: int) -> None:
        """Takes a token that became part of the output."""
        if self._grammar is None or not _holds(self._not_ends, token_id):
            return  # after an end nothing comes
        self._grammar.accept(token_id)
        self.is_complete, self.error = self._grammar.is_stopped, self._grammar.error

    def _allowed(self, output_ids: Sequence[int], position: int) -> np.ndarray:
        allowed: np.ndarray = self._base.copy()
        if self._grammar is not None:
            grammar = self._grammar.mask()
            allowed &= grammar | self._stops if self._grammar.is_accepting else grammar
        if position < self._min_tokens:
            allowed &= self._not_ends
        for id in self._banned_after(output_ids, position):
            allowed[id // 32] &= ~np.uint32(1 << id % 32)
        if not allowed.any():
            self._has_nothing_left()
        return allowed

    def _banned_after(self, output_ids: Sequence[int], position: int) -> list[int]:
        """Last tokens of bad words whose other tokens the first `position` output tokens end with."""
        if not self._bad_words or not position:
            return []
        banned = []
        for before, last in self._bad_words.get(output_ids[position - 1], ()):
            start = position - 1 - len(before)
            if start >= 0 and [*output_ids[start : position - 1]] == before:
                banned.append(last)
        return banned

    def _has_nothing_left(self) -> None:
        grammar = self._grammar
        if grammar is not None and grammar.error is not None:
            self.error = grammar.error
        elif grammar is not None and grammar.is_accepting:
            self.is_complete = True
        else:
            asked = "bad_words" if grammar is None else "structured_outputs, with allowed_token_ids and bad_words,"
            self.error = f"{asked} left no token that could be sampled"


def _bad_words(words: Sequence[str], tokenizer: Tokenizer, vocab_size: int) -> list[list[int]]:
    """The tokens of each word, without and with a space before it."""
    texts: set[str] = set()
    for word in words:
        stripped = word.lstrip()
        texts |= {stripped, f" {stripped}"} if stripped else {word}
    ids = [tokenizer.encode(text, add_bos=False) for text in sorted(texts)]
    return [word for word in ids if word and max(word) < vocab_size]


def _mask(ids: Iterable[int], vocab_size: int) -> np.ndarray:
    """One bit for each id, [ceil(vocab_size / 32)] uint32; ids from `vocab_size` on are left out."""
    bits = np.zeros(-(-vocab_size // 32) * 32, bool)
    if isinstance(ids, range):
        bits[ids.start : min(ids.stop, vocab_size)] = True  # all at once: there may be as many as the model has
    else:
        bits[[id for id in ids if id < vocab_size]] = True
    return np.packbits(bits, bitorder="little").view(np.uint32)


def _holds(mask: np.ndarray, id: int) -> bool:
    return bool(mask[id // 32] >> np.uint32(id % 32) & 1)
