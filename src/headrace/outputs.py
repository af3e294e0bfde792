"""What a finished request returns."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine.request import FinishReason
from headrace.sampling.scores import TokenLogprobs


@dataclass(frozen=True)
class CompletionOutput:
    """One of a request's choices.

    Attributes:
        index: which, from 0.
        text: generated text, without the end token or stop string that ended it unless they are asked for; with `echo`
            the prompt before it.
        token_ids: every generated token, the one that ended the text included.
        finish_reason: "stop" (end token, stop string or a complete structure), "length" (max_tokens or the context is
            full), "abort", or "error".
        logprobs: of each of `token_ids`, where they are asked for; with `echo` of the prompt's tokens before them, the
            first of which has None.
        error: what went wrong, when the reason is "error".
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprobs | None] | None = None
    error: str | None = None


@dataclass(frozen=True)
class RequestOutput:
    """The result of one prompt. Its `text`, `token_ids`, `logprobs`, `finish_reason` and `error` are those of the first
    choice.

    Attributes:
        prompt: the prompt's text, when it was given as text.
        prompt_token_ids: the prompt's tokens, BOS included where the model wants one, as far as
            `truncate_prompt_tokens` keeps them.
        outputs: the choices, by index.
        prompt_logprobs: of each of `prompt_token_ids`, where they are asked for; the first has None.
        num_cached_tokens: tokens of the prompt whose keys and values were there already for the first choice.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """The first choice's tokens."""
        return self.outputs[0].token_ids

    @property
    def logprobs(self) -> list[TokenLogprobs | None] | None:
        """The first choice's log-probabilities."""
        return self.outputs[0].logprobs

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first choice ended."""
        return self.outputs[0].finish_reason

    @property
    def error(self) -> str | None:
        """What went wrong with the first choice, if anything."""
        return self.outputs[0].error

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, counted once."""
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens of all choices."""
        return sum(len(choice.token_ids) for choice in self.outputs)
