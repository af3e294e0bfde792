"""From what an output must match to a grammar that is ready for use."""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Any

import numpy as np
from llguidance import LLMatcher

from headrace.errors import RequestError
from headrace.sampling.structured import StructuredOutputs
from headrace.structured.grammar import field_of, grammar_text
from headrace.structured.state import GrammarState, compute_mask, first_line
from headrace.structured.tokenizer import GrammarTokens
from headrace.structured.trial import GRAMMAR_ITEMS, SCHEMA_ITEMS, GrammarTrial, limits_of
from headrace.text.tokenizer import Tokenizer

MAX_GRAMMARS = 256
MAX_REFUSALS = 64
_MAX_WORKERS = 4


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar, which any number of outputs may follow.

    Attributes:
        matcher: at its start; never advanced.
        first_mask: what an output may begin with, see `GrammarState.mask`.
        tokens: of the model.
        executor: who computes the masks.
    """

    matcher: LLMatcher
    first_mask: np.ndarray
    tokens: GrammarTokens
    executor: Executor

    def start(self) -> GrammarState:
        """The beginning of an output."""
        return GrammarState(self.matcher.deep_copy(), self.first_mask, self.tokens, self.executor)


@dataclass(frozen=True)
class _Refusal:
    """Why there is no grammar: what each request for it is told, in an error of its own."""

    field: str
    reason: str


class _Kept(OrderedDict[StructuredOutputs, Any]):
    """What was found for the outputs asked for last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def find(self, outputs: StructuredOutputs) -> Any:
        if outputs in self:
            self.move_to_end(outputs)
        return self.get(outputs)

    def keep(self, outputs: StructuredOutputs, found: Any) -> None:
        self[outputs] = found
        if len(self) > self._most:
            self.popitem(last=False)


class GrammarCompiler:
    """Compiles grammars for one model and keeps those used last. Any thread may use it, also before the engine does.

    Args:
        tokenizer: of the model.
        vocab_size: of the model, the width of its logits.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._model, self._vocab_size = tokenizer, vocab_size
        self._tokens_lock = Lock()
        self._tokens: GrammarTokens | None = None
        self._trial = GrammarTrial()
        workers = min(os.cpu_count() or 1, _MAX_WORKERS)
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="headrace-grammar")
        # Apart, so that however much is refused, the grammars in use stay.
        self._grammars, self._refusals = _Kept(MAX_GRAMMARS), _Kept(MAX_REFUSALS)
        self._begun: set[StructuredOutputs] = set()
        self._changed = Condition()  # guards the three above

    def compile(self, outputs: StructuredOutputs) -> Grammar:
        """The grammar of an output, compiled in the calling thread unless it is known or another thread is at it.

        Raises:
            RequestError: it is not valid, not supported, too slow, too large or matches nothing; names the field and
                gives the reason.
        """
        with self._changed:
            while outputs in self._begun:
                self._changed.wait()
            found: Grammar | _Refusal | None = self._grammars.find(outputs) or self._refusals.find(outputs)
            if found is None:
                self._begun.add(outputs)
        if found is None:
            found = self._compile_for_all(outputs)
        if isinstance(found, _Refusal):
            raise RequestError(found.field, found.reason)
        return found

    def _compile_for_all(self, outputs: StructuredOutputs) -> Grammar | _Refusal:
        """Compiles and keeps what this gives. Where that fails by no fault of the grammar, who waits tries next."""
        found: Grammar | _Refusal | None = None
        try:
            found = self._compile(outputs)
        except RequestError as error:
            found = _Refusal(error.param, str(error).removeprefix(f"{error.param}: "))
        finally:
            with self._changed:
                if found is not None:
                    (self._refusals if isinstance(found, _Refusal) else self._grammars).keep(outputs, found)
                self._begun.discard(outputs)
                self._changed.notify_all()
        return found

    def _compile(self, outputs: StructuredOutputs) -> Grammar:
        field, text = field_of(outputs), grammar_text(outputs)
        items = SCHEMA_ITEMS if outputs.grammar is None else GRAMMAR_ITEMS
        if (refusal := self._trial.refusal(text, items)) is not None:
            raise RequestError(field, first_line(refusal))
        tokens = self._known_tokens()
        matcher = LLMatcher(tokens.tokenizer, text, log_level=0, limits=limits_of(items))
        mask = compute_mask(matcher, tokens, matcher.is_accepting())
        if matcher.is_error():
            raise RequestError(field, first_line(matcher.get_error()))
        if not mask.any():
            raise RequestError(field, "matches no text that the model's tokens can write")
        return Grammar(matcher, mask, tokens, self._executor)

    def _known_tokens(self) -> GrammarTokens:
        with self._tokens_lock:
            if self._tokens is None:
                self._tokens = GrammarTokens.of(self._model, self._vocab_size)
            return self._tokens
