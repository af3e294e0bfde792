"""One request on its way through the engine. All of its state is here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from headrace.engine.lookup import PromptLookup
from headrace.engine.pooling import Pooler
from headrace.engine.prefix import CacheScope, PrefixNode
from headrace.sampling.params import SamplingParams
from headrace.sampling.scores import TokenLogprobs, token_logprobs
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.stop import StopMatcher

if TYPE_CHECKING:
    from headrace.engine.rules import TokenRules

FinishReason = Literal["stop", "length", "abort", "error"]


NO_FINITE_HIDDEN = "the model produced no finite hidden states; its weights may be damaged"
NO_FINITE_LOGITS = "the model produced no finite logits; its weights may be damaged"


@dataclass(eq=False)
class Request:
    """A prompt, what is to be done with it, and what has come of it.

    Attributes:
        request_id: the caller's name for it.
        token_ids: prompt and generated tokens.
        num_prompt: how many of them are the prompt.
        max_total: `token_ids` may grow to this length.
        end_ids: tokens that end generation.
        seed: of the request's draws, 64 bits.
        choice: which of the choices of the caller's request it is.
        rules: what its tokens must not be; None for nothing.
        lookup: guesses its next tokens; None before the first guess.
        num_unscored: prompt tokens whose log-probabilities are wanted and not known.
        prompt_logprobs: those of the prompt's tokens so far, None for the first; None as a whole if nobody asks.
        pooler: takes its prompt's hidden states, if it is for an embedding.
        priority: the lower, the sooner; see `Scheduler`.
        scope: with whom it may share pages.
        order: its place among waiting and running requests; the scheduler's.
        slot: the line in the device's tables while running, else None.
        pages: KV pages held, in order.
        num_sent_pages: how many of them the device's page table knows.
        num_computed: tokens whose keys and values are in those pages once the launched steps have run.
        num_registered_pages: how many of them others can find, or could not be added.
        node: the last of those in the prefix cache; None while waiting.
        num_cached: tokens that were found in the prefix cache at first; None while it has never run.
        scheduled: when it first got a slot, in seconds of `time.perf_counter`.
        was_preempted: it gave its pages back because there were too few.
        has_all_pages: it holds pages for all that it may become.
        num_in_flight: tokens that launched steps sample but the host has not read.
        finish_reason: None while unfinished.
        error: what went wrong, when the reason is "error".
    """

    request_id: str
    token_ids: list[int]
    num_prompt: int
    params: SamplingParams
    max_total: int
    end_ids: frozenset[int]
    seed: int
    detokenizer: IncrementalDetokenizer
    stop: StopMatcher
    choice: int = 0
    rules: TokenRules | None = None
    lookup: PromptLookup | None = None
    num_unscored: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    pooler: Pooler | None = None
    priority: int = 0
    scope: CacheScope = field(default_factory=CacheScope)
    order: tuple[int, int] = (0, 0)
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    num_sent_pages: int = 0
    num_registered_pages: int = 0
    node: PrefixNode | None = None
    num_cached: int | None = None
    scheduled: float | None = None
    was_preempted: bool = False
    has_all_pages: bool = False
    num_computed: int = 0
    num_in_flight: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens known so far, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        """Generated tokens known so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_sampled(self) -> int:
        """Tokens known so far, and those that are being sampled."""
        return len(self.token_ids) + self.num_in_flight

    @property
    def num_pending(self) -> int:
        """Tokens to compute: the rest of the prompt, or the one sampled last, or all after a preemption.

        0 when the token in flight is the last that there is room for: that is known without reading it.
        """
        if self.num_in_flight and self.num_sampled >= self.max_total:
            return 0
        return self.num_sampled - self.num_computed

    @property
    def num_reusable(self) -> int:
        """Most of the first tokens that need not be computed where their keys and values are known: what is still
        wanted of the prompt comes from computing those after them."""
        if self.pooler is not None:
            return self.pooler.num_taken
        return self.num_prompt - self.num_unscored - 1 if self.num_unscored else self.num_tokens

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string, or the one of `stop_token_ids`, that ended the request; None for any other end."""
        if self.stop.found is not None:
            return self.stop.found
        last = self.token_ids[-1]
        return last if self.finish_reason == "stop" and last in self.params.stop_token_ids else None

    def append(self, token: int) -> str:
        """Takes a sampled token: adds it, sees whether the request ends, and returns the text that became final.

        An end token, a stop string in the text or a complete structure ends the request; the first two do not show in
        the text, but for `include_stop_str_in_output`, nor does what follows. Within the first `min_tokens` tokens no
        end token or stop string does.
        """
        self.token_ids.append(token)
        if self.rules is not None:
            self.rules.accept(token)
        is_end = self._may_end and token in self.end_ids
        hidden = is_end and not self.params.include_stop_str_in_output
        delta, stopped = self.stop.push("" if hidden else self.detokenizer.push(token), counts=self._may_end)
        if stopped:
            self.finish_reason = "stop"
        elif is_end or (self.rules is not None and self.rules.is_complete):
            delta += self._end("stop")
        elif self.rules is not None and self.rules.error is not None:
            self.error = self.rules.error
            delta += self._end("error")
        elif self.num_tokens >= self.max_total:
            delta += self._end("length")
        return delta

    def end_with_prompt(self) -> None:
        """Ends a request that generates nothing, as all of its prompt is computed."""
        self.finish_reason = "length" if self.pooler is None else "stop"
        if self.pooler is not None and self.pooler.embedding() is None:
            self.finish_reason = "error"
            self.error = NO_FINITE_HIDDEN

    def end_without_token(self) -> str:
        """Ends the request where no token could be sampled, and returns the text that was held back.

        That is its end if the structure is complete, and an error if the rules, or the model, left nothing.
        """
        if self.rules is not None and self.rules.is_complete:
            return self._end("stop")
        of_rules = None if self.rules is None else self.rules.error
        self.error = of_rules or NO_FINITE_LOGITS
        return self._end("error")

    def take_prompt_scores(self, start: int, scores: np.ndarray) -> None:
        """Takes the log-probabilities [tokens, …] of the prompt tokens after those from position `start` on, see
        `StepResult.prompt_scores`; what is known already, or does not continue what is known, is left aside."""
        top = self.params.num_prompt_logprobs
        if self.prompt_logprobs is None or top is None:
            return
        first = self.num_prompt - self.num_unscored - 1
        if start <= first:
            for line in scores[first - start : self.num_prompt - 1 - start]:
                token = self.token_ids[len(self.prompt_logprobs)]
                self.prompt_logprobs.append(token_logprobs(line, token, top))
                self.num_unscored -= 1

    def cut_off(self) -> str:
        """Ends the request as aborted and returns the text that was held back."""
        return self._end("abort")

    @property
    def _may_end(self) -> bool:
        """Whether the token taken last may end the request."""
        return self.num_output > self.params.min_tokens

    def _end(self, reason: FinishReason) -> str:
        """Ends the request; text held back for an unfinished character or a possible stop string. The character may
        complete a stop string."""
        self.finish_reason = reason
        delta, stopped = self.stop.push(self.detokenizer.finish(), counts=self._may_end)
        if not stopped:
            return delta + self.stop.finish()
        if reason == "length":
            self.finish_reason = "stop"
        return delta
