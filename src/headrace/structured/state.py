"""Where an output is in its grammar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor, Future

import numpy as np
from llguidance import LLMatcher

from headrace.structured.tokenizer import GrammarTokens


class GrammarState:
    """What may come next in one output. Not thread-safe, but that the next mask is computed in a worker.

    It advances only by `accept`, so it survives preemption, and a step that is computed anew finds the same mask.

    Attributes:
        is_accepting: the output so far matches.
        is_stopped: nothing more can come.
        error: what failed; the output cannot go on.
    """

    def __init__(self, matcher: LLMatcher, first_mask: np.ndarray, tokens: GrammarTokens, executor: Executor) -> None:
        """The beginning of an output.

        Args:
            matcher: at its start; it is this object's own.
            first_mask: what may come first; see `mask`.
            tokens: of the model.
            executor: who computes masks.
        """
        self._matcher, self._tokens, self._executor = matcher, tokens, executor
        self._mask: np.ndarray | Future[np.ndarray] = first_mask
        self.is_accepting, self.is_stopped = matcher.is_accepting(), False
        self.error: str | None = None

    def mask(self) -> np.ndarray:
        """What may come next, [ceil(vocab / 32)] uint32 of which bit i of word w allows id 32 w + i; not to be changed.

        The model's end tokens are in it where the output so far matches, and no other control tokens. After an error
        nothing is.
        """
        if isinstance(self._mask, Future):
            with self._failing():
                self._mask = self._mask.result()
                self._raise_errors()
        assert not isinstance(self._mask, Future)
        return self._mask

    def accept(self, token_id: int) -> None:
        """Takes the next token, and has what may follow it computed."""
        self.mask()
        if self.error is not None:
            return
        with self._failing():
            self._matcher.consume_token(token_id)
            self._raise_errors()
            self.is_accepting, self.is_stopped = self._matcher.is_accepting(), self._matcher.is_stopped()
            if self.is_stopped:
                self._mask = np.zeros_like(self._tokens.text)
            else:
                self._mask = self._executor.submit(compute_mask, self._matcher, self._tokens, self.is_accepting)

    def _raise_errors(self) -> None:
        if self._matcher.is_error():
            raise _GrammarError(first_line(self._matcher.get_error()))

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What goes wrong within ends this output, and nothing else."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # panics of Rust are no Exception
            reason = (
                str(error) if isinstance(error, _GrammarError) else f"{type(error).__name__}: {first_line(str(error))}"
            )
            self.error = f"the grammar failed: {reason}"
            self.is_accepting = self.is_stopped = False
            self._mask = np.zeros_like(self._tokens.text)


class _GrammarError(Exception):
    """What llguidance says of a matcher that failed."""


def compute_mask(matcher: LLMatcher, tokens: GrammarTokens, is_accepting: bool) -> np.ndarray:
    """What may come next in a matcher of these tokens. llguidance lets other threads run meanwhile."""
    mask = np.zeros(tokens.vocab_size // 32 + 1, np.uint32)  # the matcher knows one id more
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    allowed = tokens.text_or_end if is_accepting else tokens.text
    mask[: len(allowed)] &= allowed
    return mask[: len(allowed)]


def first_line(error: str, most: int = 300) -> str:
    """An error of llguidance's in few characters."""
    text = " ".join(error.partition("\n<")[0].split())
    return text if len(text) <= most else text[:most] + "…"
