"""The body of /v1/completions."""

from __future__ import annotations

from typing import Any

from headrace.errors import RequestError
from headrace.server.schema.lists import Listed
from headrace.server.schema.sampling import SamplingFields, StreamOptions

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields):
    """A prompt, or several, to be continued."""

    model: str | None = None
    prompt: str | Listed[str] | Listed[int] | Listed[Listed[int]]
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    user: str | None = None

    def prompts(self, most: int) -> list[str | list[int]]:
        """The prompts, each a text or token ids.

        Raises:
            RequestError: there is none, or more than `most`.
        """
        given: Any = self.prompt
        if not given and not isinstance(given, str):
            raise RequestError("prompt", "is empty; give a text, token ids, or a list of either")
        single = isinstance(given, str) or isinstance(given[0], int)
        listed: list[str | list[int]] = [given] if single else given
        if len(listed) > most:
            raise RequestError("prompt", f"has {len(listed)} prompts, at most {most} are allowed")
        return listed

    def check(self) -> None:
        """Refuses what is known and not implemented, and fields that do not fit each other."""
        if self.suffix:
            raise RequestError("suffix", "is not supported: the model cannot fill in the middle")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise RequestError("best_of", "is supported only where it equals n; ask for n choices and pick one")
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options", "is only allowed with stream: true")
