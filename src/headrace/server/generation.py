"""One request on its way through the engine, as the event loop sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.engine.engine import TokenOutput
from headrace.engine.intake import RequestParams
from headrace.errors import HeadraceError
from headrace.server.errors import EngineDeadError, UnavailableError
from headrace.server.observer import PromptObserver

if TYPE_CHECKING:
    from headrace.server.bridge import Bridge


@dataclass(frozen=True)
class Prompt:
    """One prompt of a request.

    Attributes:
        ids: its tokens.
        params: how it is continued.
        cache_salt: cached prefixes are shared with those of the same salt.
    """

    ids: Sequence[int]
    params: RequestParams
    cache_salt: str | None = None


class Generation:
    """One request's outputs as an async iterator, inside `async with`.

    Entering waits until the engine has taken the prompts. Each item is a list of (index of the prompt, output): all
    that became known since the last one, so a slow reader gets longer lists and loses nothing. The end comes when all
    choices of all prompts have ended. Leaving early aborts what still runs before the engine's next step.

    Raises, on entering:
        RequestError, QueueFullError: the engine refuses the request; nothing of it is queued.
        UnavailableError: the server is shutting down or the engine is dead; also while iterating.
    """

    def __init__(self, bridge: Bridge, prompts: Sequence[Prompt]) -> None:
        self.prompts = prompts
        self.request_ids: list[str] = []
        self.observers: list[PromptObserver] = []  # of the prompts, or none at all
        self._bridge = bridge
        self._waiting: list[tuple[int, TokenOutput]] = []
        self._open = sum(prompt.params.n for prompt in prompts)  # choices that have not ended
        self._news = asyncio.Event()
        self._error: UnavailableError | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        try:
            self._timer = self._bridge._start_timer(self)
            await self._bridge._begin(self)
        except BaseException as error:
            if isinstance(error, HeadraceError):
                self.observers = []  # refused
            self._bridge._end(self)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bridge._end(self)
        if self._timer is not None:
            self._timer.cancel()

    def __aiter__(self) -> AsyncIterator[list[tuple[int, TokenOutput]]]:
        return self

    async def __anext__(self) -> list[tuple[int, TokenOutput]]:
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self.is_over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        waiting, self._waiting = self._waiting, []
        return waiting

    @property
    def is_over(self) -> bool:
        """Whether all choices have ended by themselves."""
        return self._open == 0

    def receive(self, index: int, output: TokenOutput, now: float) -> None:
        """An output of one of the prompts, which the engine had at `now`; from the bridge."""
        if self.observers:
            self.observers[index].on_output(output, now)
        if output.finish_reason is not None:
            self._open -= 1
        self._waiting.append((index, output))
        self._news.set()

    def end_observation(self) -> None:
        """Whatever has not ended is not going to."""
        reason = "error" if isinstance(self._error, EngineDeadError) else "abort"
        for observer in self.observers:
            observer.on_finish(reason, time.perf_counter())

    def fail(self, error: UnavailableError) -> None:
        """Nothing more will come; no matter, where all has come and only was not read yet."""
        if self.is_over:
            return
        self._error = error
        self._news.set()
