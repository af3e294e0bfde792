"""Token counts as answers give them."""

from __future__ import annotations

from typing import Any


class Usage:
    """Counts the tokens of one request.

    Attributes:
        prompt_tokens: of all its prompts, each once.
        completion_tokens: generated, of all choices.
        cached_tokens: of the prompts, whose keys and values were there already.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.cached_tokens = 0

    def body(self) -> dict[str, Any]:
        """OpenAI's "usage" object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
