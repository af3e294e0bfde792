"""The bodies of /tokenize and /detokenize, which are vLLM's."""

from __future__ import annotations

from typing import Any

from headrace.errors import RequestError
from headrace.sampling.params import SamplingParams
from headrace.server.errors import unsupported
from headrace.server.schema.lists import Listed
from headrace.server.schema.sampling import RequestModel
from headrace.server.turn import Turn


class TokenizeRequest(RequestModel):
    """A text, or a chat, to be made tokens of."""

    model: str | None = None
    prompt: str | None = None
    messages: Listed[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Listed[dict[str, Any]] | None = None

    def check(self) -> None:
        """Refuses what is not implemented, and fields that do not fit each other."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("prompt", "give either prompt or messages")
        if self.chat_template is not None:
            raise unsupported("chat_template", "is not supported: the model's own template is used")
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError("continue_final_message", "cannot be given together with add_generation_prompt")

    def turn(self, messages: list[dict[str, Any]]) -> Turn:
        """The chat, as /v1/chat/completions would have it."""
        return Turn(
            messages=messages,
            params=SamplingParams(),
            tools=self.tools or [],
            template_kwargs=self.chat_template_kwargs or {},
            add_generation_prompt=self.add_generation_prompt is not False and not self.continue_final_message,
            continue_final_message=bool(self.continue_final_message),
        )


class DetokenizeRequest(RequestModel):
    """Tokens to be made a text of."""

    model: str | None = None
    tokens: Listed[int]
