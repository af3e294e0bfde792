"""From what an output must match to a grammar that is ready for use."""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from headrace.errors import RequestError
from headrace.sampling.structured import StructuredOutputs
from headrace.structured.grammar import field_of, grammar_text
from headrace.structured.state import GrammarState, compute_mask, first_line
from headrace.structured.tokenizer import grammar_tokenizer
from headrace.structured.trial import LIMITS, GrammarTrial
from headrace.text.tokenizer import Tokenizer

MAX_GRAMMARS = 256
_MAX_WORKERS = 4


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar, which any number of outputs may follow.

    Attributes:
        matcher: at its start; never advanced.
        first_mask: what an output may begin with, see `GrammarState.mask`.
        vocab_size: of the model.
        executor: who computes the masks.
    """

    matcher: LLMatcher
    first_mask: np.ndarray
    vocab_size: int
    executor: Executor

    def start(self) -> GrammarState:
        """The beginning of an output."""
        return GrammarState(self.matcher.deep_copy(), self.first_mask, self.vocab_size, self.executor)


class GrammarCompiler:
    """Compiles grammars for one model and keeps those used last. Any thread may use it, also before the engine does.

    Args:
        tokenizer: of the model.
        vocab_size: of the model, the width of its logits.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._model, self._vocab_size = tokenizer, vocab_size
        self._lock, self._tokenizer_lock = Lock(), Lock()
        self._tokenizer: LLTokenizer | None = None
        self._trial = GrammarTrial()
        workers = min(os.cpu_count() or 1, _MAX_WORKERS)
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="headrace-grammar")
        self._grammars: OrderedDict[StructuredOutputs, Future[Grammar]] = OrderedDict()

    def compile(self, outputs: StructuredOutputs) -> Grammar:
        """The grammar of an output, compiled in the calling thread unless it is known.

        Raises:
            RequestError: it is not valid, not supported, too slow, too large or matches nothing; names the field and
                gives the reason.
        """
        with self._lock:
            known = self._grammars.get(outputs)
            found = known or Future[Grammar]()
            self._grammars[outputs] = found
            self._grammars.move_to_end(outputs)
            if len(self._grammars) > MAX_GRAMMARS:
                self._grammars.popitem(last=False)
        if known is None:
            try:
                found.set_result(self._compile(outputs))
            except RequestError as error:
                found.set_exception(error)
            except BaseException as error:
                with self._lock:
                    self._grammars.pop(outputs, None)
                found.set_exception(error)
        return found.result()

    def _compile(self, outputs: StructuredOutputs) -> Grammar:
        field, text = field_of(outputs), grammar_text(outputs)
        if (refusal := self._trial.refusal(text)) is not None:
            raise RequestError(field, first_line(refusal))
        matcher = LLMatcher(self._known_tokenizer(), text, log_level=0, limits=LIMITS)
        mask = compute_mask(matcher, self._vocab_size)
        if matcher.is_error():
            raise RequestError(field, first_line(matcher.get_error()))
        if not mask.any():
            raise RequestError(field, "matches no text that the model's tokens can write")
        return Grammar(matcher, mask, self._vocab_size, self._executor)

    def _known_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = grammar_tokenizer(self._model, self._vocab_size)
            return self._tokenizer
