"""The bodies of /tokenize and /detokenize, which are vLLM's."""

from __future__ import annotations

from typing import Any

from headrace.errors import RequestError
from headrace.server.errors import unsupported
from headrace.server.schema.sampling import RequestModel

# What the template is given under names of its own.
_RESERVED = ("messages", "tools", "add_generation_prompt")


class TokenizeRequest(RequestModel):
    """A text, or a chat, to be made tokens of."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None

    def check(self) -> None:
        """Refuses what is not implemented, and fields that do not fit each other."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("prompt", "give either prompt or messages")
        if self.continue_final_message:
            raise unsupported("continue_final_message", "is not supported; send the text as prompt instead")
        if self.chat_template is not None:
            raise unsupported("chat_template", "is not supported: the model's own template is used")
        for name in self.chat_template_kwargs or {}:
            if name in _RESERVED:
                raise RequestError("chat_template_kwargs", f"must not hold {name}, which is a field of its own")


class DetokenizeRequest(RequestModel):
    """Tokens to be made a text of."""

    model: str | None = None
    tokens: list[int]
