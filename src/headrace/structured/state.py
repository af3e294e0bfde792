"""Where an output is in its grammar."""

from __future__ import annotations

from concurrent.futures import Executor, Future

import numpy as np
from llguidance import LLMatcher


class GrammarState:
    """What may come next in one output. Not thread-safe, but that the next mask is computed in a worker.

    It advances only by `accept`, so it survives preemption, and a step that is computed anew finds the same mask.

    Attributes:
        is_accepting: the output so far matches.
        is_stopped: nothing more can come.
        error: what failed; the output cannot go on.
    """

    def __init__(self, matcher: LLMatcher, first_mask: np.ndarray, vocab_size: int, executor: Executor) -> None:
        """The beginning of an output.

        Args:
            matcher: at its start; it is this object's own.
            first_mask: what may come first; see `mask`.
            vocab_size: of the model.
            executor: who computes masks.
        """
        self._matcher, self._vocab_size, self._executor = matcher, vocab_size, executor
        self._mask: np.ndarray | Future[np.ndarray] = first_mask
        self.is_accepting, self.is_stopped = matcher.is_accepting(), False
        self.error: str | None = None

    def mask(self) -> np.ndarray:
        """What may come next, [ceil(vocab / 32)] uint32 of which bit i of word w allows id 32 w + i; not to be changed.

        The model's end tokens are in it where the output so far matches. After an error nothing is.
        """
        if isinstance(self._mask, Future):
            mask = self._mask.result()
            self._look_for_errors()
            self._mask = mask if self.error is None else np.zeros_like(mask)
        return self._mask

    def accept(self, token_id: int) -> None:
        """Takes the next token, and has what may follow it computed."""
        mask = self.mask()
        if self.error is not None:
            return
        self._matcher.consume_token(token_id)
        self._look_for_errors()
        self.is_accepting = self._matcher.is_accepting()
        self.is_stopped = self.error is None and self._matcher.is_stopped()
        if self.error is None and not self.is_stopped:
            self._mask = self._executor.submit(compute_mask, self._matcher, self._vocab_size)
        else:
            self._mask = np.zeros_like(mask)

    def _look_for_errors(self) -> None:
        if self._matcher.is_error():
            self.error = f"the grammar failed: {first_line(self._matcher.get_error())}"


def compute_mask(matcher: LLMatcher, vocab_size: int) -> np.ndarray:
    """What may come next in a matcher of `grammar_tokenizer`. llguidance lets other threads run meanwhile."""
    mask = np.zeros(vocab_size // 32 + 1, np.uint32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    mask[-1] &= (1 << vocab_size % 32) - 1  # the matcher knows one id more
    return mask[: -(-vocab_size // 32)]


def first_line(error: str, most: int = 300) -> str:
    """An error of llguidance's in few characters."""
    text = " ".join(error.partition("\n<")[0].split())
    return text if len(text) <= most else text[:most] + "…"
