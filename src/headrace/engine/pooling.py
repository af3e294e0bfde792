"""Embeddings: what a request may ask of the hidden states of its prompt, and their sum on its way there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from headrace.errors import RequestError
from headrace.sampling.checks import check_boolean, shown
from headrace.sampling.params import SamplingParams

if TYPE_CHECKING:
    from headrace.engine.request import Request
    from headrace.execution.manager import ExecutionManager
    from headrace.execution.schedule import ScheduledStep
    from headrace.execution.step import StepResult

Pooling = Literal["mean", "last"]


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """How the hidden states of a prompt become one vector; nothing is generated. Wrong values raise RequestError, which
    names the field.

    The hidden states are those after the final norm, from which the model takes its logits.

    Attributes:
        pooling: "mean" of all the prompt's tokens, summed up in float64, or that of the "last" one.
        normalize: scale the vector to length 1.
        truncate_prompt_tokens: keep this many of the prompt's last tokens, or with −1 as many as the engine takes.
            None refuses a prompt that is too long.
        priority: the lower, the sooner the request runs.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    truncate_prompt_tokens: int | None = None
    priority: int = 0

    n: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise RequestError("pooling", f"must be one of {', '.join(get_args(Pooling))}, not {shown(self.pooling)}")
        check_boolean("normalize", self.normalize)
        self.as_sampling()

    def as_sampling(self) -> SamplingParams:
        """The parameters of a request that computes its prompt and samples nothing."""
        return SamplingParams(
            max_tokens=0, seed=0, truncate_prompt_tokens=self.truncate_prompt_tokens, priority=self.priority
        )


@dataclass
class Pooler:
    """The sum of a request's hidden states so far.

    They are added token by token in float64, so that its bits do not depend on the chunks they came in.

    Attributes:
        params: what is asked for.
        num_prompt: tokens of the prompt.
        num_taken: so many first tokens are in the sum, or are not asked for.
    """

    params: PoolingParams
    num_prompt: int
    num_taken: int = field(init=False)
    _total: np.ndarray | None = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forgets the sum."""
        self.num_taken, self._total = self._first, None

    @property
    def _first(self) -> int:
        """The first token that counts."""
        return 0 if self.params.pooling == "mean" else self.num_prompt - 1

    def take(self, start: int, hidden: np.ndarray) -> None:
        """Takes the hidden states [tokens, hidden] float32 of the tokens from position `start` on; what is known
        already, or does not continue what is known, is left aside."""
        if start > self.num_taken:
            return
        wide = hidden[self.num_taken - start : self.num_prompt - start].astype(np.float64)
        self.num_taken += len(wide)
        # Sums along the first of two axes are taken line after line.
        self._total = np.add.reduce(wide if self._total is None else np.vstack([self._total, wide]), axis=0)

    def embedding(self) -> np.ndarray | None:
        """The vector [hidden] float32 of all that is asked for; None if a number in it is not finite."""
        assert self._total is not None
        assert self.num_taken == self.num_prompt
        vector: np.ndarray = self._total / (self.num_prompt - self._first)
        if self.params.normalize:
            vector = vector / np.maximum(np.sqrt(np.add.reduce(vector * vector)), np.finfo(np.float32).tiny)
        return vector.astype(np.float32) if np.isfinite(vector).all() else None


def take_hidden(requests: Sequence[Request], step: ScheduledStep, result: StepResult, read: ExecutionManager) -> None:
    """Hands the hidden states of a step to those of its requests that pool them. Nothing is read where none does."""
    if all(request.pooler is None for request in requests):
        return
    of_tokens, of_rows = (
        cache(lambda: read.read_token_hidden(result, step)),
        cache(lambda: read.read_hidden(result, step)),
    )
    row = position = 0
    for request, computed, count, lines in zip(
        requests, *(x.tolist() for x in (step.num_computed, step.num_tokens, step.num_logits)), strict=True
    ):
        pooler = request.pooler
        if pooler is not None and request.finish_reason is None and pooler.num_taken < computed + count:
            if pooler.params.pooling == "mean":
                pooler.take(computed, of_tokens()[position : position + count])
            else:
                pooler.take(computed + count - 1, of_rows()[row : row + lines])
        row, position = row + lines, position + count
