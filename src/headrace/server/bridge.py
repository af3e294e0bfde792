"""The engine in a thread of its own, and what the event loop sees of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from headrace.engine.engine import Engine, PauseMode, TokenOutput
from headrace.errors import QueueFullError, RequestError
from headrace.execution.metrics import EngineMetrics
from headrace.server.errors import ConflictError, DeadlineError, DrainingError, EngineDeadError, UnavailableError
from headrace.server.generation import Generation, Prompt
from headrace.server.observer import Observer

log = logging.getLogger(__name__)

T = TypeVar("T")
State = Literal["serving", "paused", "draining", "dead"]
STATES: tuple[State, ...] = get_args(State)

SNAPSHOT_S = 0.05  # the figures are at most so old while the engine works
PAUSE_POLL_S = 0.02
COMMANDS_S = 0.01  # so long the engine takes what was posted before it does its next step
_WORKERS = 4  # threads for tokenising
_COMPILERS = 2  # threads for requests with grammars, which are compiled one at a time


class Bridge:
    """Drives an engine in its own thread. All methods are for the event loop's thread.

    Between two steps the engine's thread takes what was posted: new requests, aborts, calls. After a step it hands all
    outputs to the loop at once. Nothing on the loop ever waits for a step by blocking.

    Attributes:
        engine: whose `config`, `tokenizer` and `check` any thread may use; the rest belongs to the engine's thread.
        snapshot: the engine's figures, refreshed while it works and when it becomes idle.
        when_dead: called when the engine has died.
        observer: is told of every prompt; None for nobody.
    """

    def __init__(
        self, engine: Engine, *, step_timeout_s: float = 300.0, request_timeout_s: float | None = None
    ) -> None:
        self.engine = engine
        self._is_draining = False
        self.when_dead: Callable[[], None] = lambda: None
        self.snapshot: EngineMetrics = engine.metrics
        self.observer: Observer | None = None
        self._step_timeout_s, self._request_timeout_s = step_timeout_s, request_timeout_s
        self._preparing = 0  # requests whose prompts are being made
        self._ids = itertools.count()
        self._generations: dict[str, tuple[Generation, int]] = {}  # engine request id -> whose, and which prompt
        self._calls: set[asyncio.Future[Any]] = set()
        self._commands: deque[Callable[[], None]] = deque()
        self._wanted = threading.Condition()
        self._stopping = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="prepare")
        self._compilers = ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile")
        self._death: EngineDeadError | None = None
        self._snapshot_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Starts the engine's thread; its outputs go to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._watchdog = self._loop.create_task(self._watch())

    async def drain(self, grace_s: float) -> None:
        """Takes no more requests, waits for those that are there, and after `grace_s` seconds ends them."""
        self._is_draining = True
        if not self._idle.is_set():
            log.info(
                "draining: %d running have %g s to end; a second signal ends them now", len(self._generations), grace_s
            )
        try:
            await asyncio.wait_for(self._idle.wait(), grace_s)
        except TimeoutError:
            self._fail_all(DrainingError("the server is shutting down; the answer is not complete"))

    async def stop(self) -> bool:
        """Ends the engine's thread and returns whether it did end: a step that hangs cannot be stopped."""
        self._watchdog.cancel()
        self._stopping = True
        self._wake()
        await asyncio.to_thread(self._thread.join, 5.0)
        for workers in (self._workers, self._compilers):
            workers.shutdown(wait=False, cancel_futures=True)
        return not self._thread.is_alive()

    def generate(self, prompts: Sequence[Prompt]) -> Generation:
        """A request of one or more prompts; see `Generation`."""
        return Generation(self, prompts)

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Runs a function in the engine's thread between two steps.

        Raises:
            UnavailableError: the engine is dead. And what the function raises, which does not harm the engine.
        """
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = function(self.engine)
            except Exception as error:  # the caller's, not the engine's
                self._on_loop(_set_exception, future, error)
            else:
                self._on_loop(_set_result, future, result)

        self._calls.add(future)
        try:
            self._post(run)
            return await future
        finally:
            self._calls.discard(future)

    async def prepare(self, function: Callable[..., T], *args: Any, compiles: bool = False) -> T:
        """Runs host work such as tokenising in a worker thread.

        Args:
            compiles: a grammar may be compiled, for which others, without one, should not have to wait: a bad one takes
                seconds until it is given up.

        Raises:
            QueueFullError: more is being prepared and waits than the engine would take in any case.
        """
        self._check_room()
        workers = self._compilers if compiles else self._workers
        self._preparing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(workers, function, *args)
        finally:
            self._preparing -= 1

    def _check_room(self) -> None:
        """What cannot be queued afterwards need not be prepared; the engine itself decides about the rest."""
        config = self.engine.config
        if config.max_queued_requests is None:
            return
        most = config.max_queued_requests + config.max_num_seqs * config.data_parallel
        if self._preparing + self.snapshot.waiting >= most:
            raise QueueFullError(f"{self._preparing} requests are being prepared and {self.snapshot.waiting} wait")

    async def pause(self, mode: PauseMode) -> None:
        """Lets nothing run until `resume`; see `Engine.pause`. With "wait" it comes back when what had begun has ended,
        whose clients get their tokens meanwhile.

        Raises:
            ConflictError: `resume` came first.
            UnavailableError: the engine is dead.
        """

        def begin(engine: Engine) -> None:
            self._on_loop(self._deliver, engine.begin_pause(mode), time.perf_counter())

        await self.call(begin)
        while not self.engine.is_paused:
            if not await self.call(lambda engine: engine.is_pausing or engine.is_paused):
                raise ConflictError("the pause was ended before all that had begun came to its end")
            await asyncio.sleep(PAUSE_POLL_S)

    async def reset_prefix_cache(self, *, recompute_running: bool) -> None:
        """Forgets cached prefixes; see `Engine.reset_prefix_cache`."""

        def reset(engine: Engine) -> None:
            outputs = engine.reset_prefix_cache(recompute_running=recompute_running)
            self._on_loop(self._deliver, outputs, time.perf_counter())

        await self.call(reset)

    @property
    def state(self) -> State:
        """ "serving", also "paused" takes requests; "draining" does not; "dead" after a step failed or did not end."""
        if self._death is not None:
            return "dead"
        if self._is_draining:
            return "draining"
        return "paused" if self.engine.is_paused else "serving"

    def check_available(self) -> None:
        """Raises UnavailableError where no new request can be taken."""
        if self._death is not None:
            raise self._death
        if self._is_draining:
            raise DrainingError("the server is shutting down")

    # -- requests, called by Generation

    def _begin(self, generation: Generation) -> asyncio.Future[None]:
        """Posts a generation's prompts; the future tells whether the engine took them."""
        self.check_available()
        self._check_fits(generation.prompts)
        generation.request_ids = [f"g{next(self._ids)}" for _ in generation.prompts]
        if self.observer is not None:
            generation.observers = [self.observer.on_arrival(len(p.ids), p.params) for p in generation.prompts]
        self._generations.update({name: (generation, i) for i, name in enumerate(generation.request_ids)})
        self._idle.clear()
        accepted: asyncio.Future[None] = self._loop.create_future()
        self._calls.add(accepted)
        accepted.add_done_callback(self._calls.discard)

        added: list[str] = []

        def add(request_id: str, prompt: Prompt) -> None:
            if len(added) != generation.request_ids.index(request_id):
                return  # one before it was refused
            try:
                self.engine.add(request_id, prompt.ids, prompt.params, cache_salt=prompt.cache_salt)
                added.append(request_id)
            except Exception as error:  # then all of them are
                self._abort(added)
                self._on_loop(_set_exception, accepted, error)
            if len(added) == len(generation.prompts):
                self._on_loop(_set_result, accepted, None)

        for request_id, prompt in zip(generation.request_ids, generation.prompts, strict=True):
            self._post(partial(add, request_id, prompt))
        return accepted

    def _check_fits(self, prompts: Sequence[Prompt]) -> None:
        """Refuses what could not be queued even if nobody else were there, instead of telling to try again."""
        most, answers = self.engine.config.max_queued_requests, sum(prompt.params.n for prompt in prompts)
        if most is not None and answers > most:
            param = "n" if len(prompts) == 1 else "prompt"
            raise RequestError(param, f"asks for {answers} answers in all, at most {most} may wait; ask for fewer")

    def _start_timer(self, generation: Generation) -> asyncio.TimerHandle | None:
        limit = self._request_timeout_s
        if limit is None:
            return None
        error = DeadlineError(f"the request took longer than the {limit:g} s that the server allows")
        return self._loop.call_later(limit, generation.fail, error)

    def _end(self, generation: Generation) -> None:
        """Forgets a generation; what still runs of it is aborted before the next step."""
        generation.end_observation()
        left = [i for i in generation.request_ids if self._generations.pop(i, None) is not None]
        if left and not generation.is_over and self._death is None:
            self._post(lambda: self._abort(left))
        if not self._generations:
            self._idle.set()

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.engine.abort(request_id)

    # -- the loop's side of what the engine's thread says

    def _deliver(self, outputs: list[TokenOutput], now: float) -> None:
        for output in outputs:
            generation, index = self._generations.get(output.request_id, (None, 0))
            if generation is not None:
                generation.receive(index, output, now)

    def _fail_all(self, error: UnavailableError) -> None:
        for generation in {generation for generation, _ in self._generations.values()}:
            generation.fail(error)
        for future in [*self._calls]:
            _set_exception(future, error)

    def _die(self, error: EngineDeadError) -> None:
        if self._death is None:
            self._death = error
            self._fail_all(error)
            self.when_dead()

    async def _watch(self) -> None:
        """Declares the engine dead when a step does not end."""
        while True:
            await asyncio.sleep(min(1.0, self._step_timeout_s / 4))
            began = self._busy_since
            if began is not None and time.monotonic() - began > self._step_timeout_s:
                log.error("a step has not ended for %.0f s: the engine is dead", self._step_timeout_s)
                self._die(EngineDeadError("the engine hangs; the server must be started again"))
                return

    def _on_loop(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop was closed: nobody is there to be told
            if not self._loop.is_closed():
                raise

    # -- the engine's thread

    def _post(self, command: Callable[[], Any]) -> None:
        if self._death is not None:
            raise self._death
        with self._wanted:
            self._commands.append(command)
            self._wanted.notify()

    def _wake(self) -> None:
        with self._wanted:
            self._wanted.notify()

    def _run(self) -> None:
        try:
            while not self._stopping and self._death is None:
                self._take_commands()
                self._step()
        except BaseException as error:
            self._busy_since = None
            log.exception("a step failed: the engine is dead")
            self._on_loop(
                self._die,
                EngineDeadError(f"the engine has failed ({type(error).__name__}); the server must be started again"),
            )

    @property
    def _has_work(self) -> bool:
        return (self.engine.has_unfinished or self.engine.is_pausing) and not self.engine.is_paused

    def _take_commands(self) -> None:
        """Runs what was posted, but not for long while there are steps to do; waits if there is nothing to do."""
        if not self._has_work and not self._commands:
            self.snapshot = self.engine.metrics
            with self._wanted:
                self._wanted.wait_for(lambda: self._commands or self._stopping)
        self._busy_since = began = time.monotonic()
        while self._commands and not (self._has_work and time.monotonic() - began > COMMANDS_S):
            self._commands.popleft()()
        self._busy_since = None

    def _step(self) -> None:
        if not self._has_work:
            return
        self._busy_since = now = time.monotonic()
        outputs = self.engine.step()
        self._busy_since = None
        if outputs:
            self._on_loop(self._deliver, outputs, time.perf_counter())
        if now - self._snapshot_at > SNAPSHOT_S:
            self.snapshot, self._snapshot_at = self.engine.metrics, now


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
