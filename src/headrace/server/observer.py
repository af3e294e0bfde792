"""What the bridge tells of a prompt's way through the engine."""

from __future__ import annotations

from typing import Protocol

from headrace.engine.engine import TokenOutput
from headrace.engine.intake import RequestParams


class PromptObserver(Protocol):
    """Is told what becomes of one prompt and its choices, in the thread of the event loop."""

    def on_output(self, output: TokenOutput, now: float) -> None:
        """The engine said this at `now`, in seconds of `time.perf_counter`: a token of a choice, its end, or both."""

    def on_finish(self, reason: str, now: float) -> None:
        """Nothing more will come: choices that have not ended are taken to end for that reason, "abort" or "error".

        Where all choices have ended it does nothing. A prompt that the engine refuses ends without this.
        """


class Observer(Protocol):
    """Is told of each prompt that goes to the engine."""

    def on_arrival(self, num_prompt_tokens: int, params: RequestParams) -> PromptObserver:
        """The engine is given a prompt of so many tokens. Called in the task of the request that it belongs to.

        Nothing may be counted yet: the engine may refuse it.
        """
