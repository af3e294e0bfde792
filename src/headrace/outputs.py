"""What a finished request returns."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine.request import FinishReason


@dataclass(frozen=True)
class RequestOutput:
    """The result of one prompt.

    Attributes:
        prompt: the prompt's text, when it was given as text.
        prompt_token_ids: the prompt's tokens, BOS included where the model wants one.
        text: generated text; it holds neither an end token nor a stop string.
        token_ids: every generated token, the one that ended the text included.
        finish_reason: "stop" (end token or stop string), "length" (max_tokens or the context is full), "abort", or
            "error".
        error: what went wrong, when the reason is "error".
        num_cached_tokens: tokens of the prompt whose keys and values were there already.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    error: str | None = None
    num_cached_tokens: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens."""
        return len(self.token_ids)
