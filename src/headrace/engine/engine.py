"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

from headrace.config import EngineConfig
from headrace.engine.pages import PagePool
from headrace.engine.request import FinishReason, Request
from headrace.engine.scheduler import Schedule, Scheduler
from headrace.errors import RequestError
from headrace.execution.manager import ExecutionManager
from headrace.execution.metrics import EngineMetrics, StepCounters, StepMeter, StepMetrics
from headrace.execution.step import StepResult
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import BAD_LOGITS
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.stop import StopMatcher
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenOutput:
    """What one step brought for one request.

    Attributes:
        request_id: which request.
        token_id: the new token; None when the request ended without one.
        text: the text that became final with it, possibly empty.
        finish_reason: set when the request has ended; then it is no longer in the engine.
        error: what went wrong, when the reason is "error".
    """

    request_id: str
    token_id: int | None
    text: str
    finish_reason: FinishReason | None
    error: str | None = None


@dataclass(frozen=True)
class _Launched:
    """A step that the device has been given, and its result, which may not be there yet."""

    schedule: Schedule
    result: StepResult
    meter: StepMeter


class Engine:
    """Runs requests through the ExecutionManager with continuous batching. Not thread-safe: one thread drives it.

    Attributes:
        config: all options, filled in.
        tokenizer: of the model.
        manager: the execution layer, compiled.
        last_step: the metrics of the step that was committed last.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, manager: ExecutionManager) -> None:
        self.config, self.tokenizer, self.manager = config, tokenizer, manager
        o = manager.options
        self.pool = PagePool(o.num_pages, o.page_size)
        self.scheduler = Scheduler(self.pool, manager.sequences, o.max_num_seqs, o.max_num_batched_tokens)
        self._requests: dict[str, Request] = {}
        self._seeds = random.Random(config.seed)
        self._in_flight: _Launched | None = None
        self.last_step: StepMetrics | None = None
        self._counters = StepCounters()

    @property
    def metrics(self) -> EngineMetrics:
        """The figures of now, as a copy."""
        return EngineMetrics(
            last_step=self.last_step,
            counters=deepcopy(self._counters),
            compilations=self.manager.compilations_while_serving,
            preemptions=self.scheduler.num_preemptions,
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
            free_pages=self.pool.num_free,
            pages=self.pool.num_pages,
        )

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._requests)

    def add(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        """Queues a request.

        Raises:
            RequestError: what `check` refuses, or the request id is in use. Nothing is queued then.
        """
        if request_id in self._requests:
            raise RequestError("request_id", f"{request_id!r} is in use")
        self.check(prompt_ids, params)
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.tokenizer.eos_ids)
        request = Request(
            request_id=request_id,
            token_ids=list(prompt_ids),
            num_prompt=len(prompt_ids),
            params=params,
            max_total=min(len(prompt_ids) + params.max_tokens, self.manager.options.max_model_len),
            end_ids=ends,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed,
            detokenizer=IncrementalDetokenizer(self.tokenizer),
            stop=StopMatcher(params.stops),
        )
        self._requests[request_id] = request
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Ends a request now and frees what it holds; an id that is not in the engine is ignored."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.finish_reason = "abort"
            self.scheduler.remove(request)

    def step(self) -> list[TokenOutput]:
        """Schedules, executes and commits one step; returns what it brought.

        With overlap the step that is launched and the one that is committed are two: the device goes on with the
        tokens that it has just sampled while the host reads those of the step before. A request may then end while a
        further token of it is in flight; that token is dropped.

        A step that fails leaves every request with the tokens it had: they wait, and the next step computes them anew.
        """
        try:
            launched = self._launch()
            if launched is not None and not self.config.overlap:
                return self._commit(launched)
            committed, self._in_flight = self._in_flight, launched
            return [] if committed is None else self._commit(committed)
        except BaseException:
            # The step may have consumed the device state: nothing in it counts as computed any more.
            self._in_flight = None
            self.scheduler.preempt_all()
            self.manager.reset_state()
            raise

    def _launch(self) -> _Launched | None:
        """Gives the device its next step, if there is one."""
        meter = StepMeter(self.manager.transfers.counts)
        schedule = self.scheduler.schedule()
        if schedule is None:
            return None
        meter.mark()
        self.manager.start_async_prep(schedule.step)
        prepared = self.manager.get_async_prep_result()
        assert prepared is not None
        meter.mark()
        result = self.manager.execute(prepared)
        self.scheduler.launched(schedule)
        meter.launched(prepared.bucket)
        return _Launched(schedule, result, meter)

    def _commit(self, launched: _Launched) -> list[TokenOutput]:
        """Waits for a step's tokens and hands them to its requests."""
        step, outputs = launched.schedule.step, []
        launched.meter.reading()
        tokens = self.manager.read_tokens(launched.result, step).tolist()
        launched.meter.mark()
        for request, samples, token in zip(launched.schedule.requests, step.samples.tolist(), tokens, strict=True):
            # A request that ended, or was aborted, in the meantime gets nothing more.
            if samples and request.finish_reason is None:
                request.num_in_flight -= 1
                outputs.append(self._take_token(request, token))
        self.last_step = launched.meter.finish(step)
        self._counters.add(self.last_step)
        return outputs

    def _take_token(self, request: Request, token: int) -> TokenOutput:
        text, token_id = "", None
        if token == BAD_LOGITS:
            request.finish_reason = "error"
            request.error = "the model produced no finite logits; its weights may be damaged"
        else:
            if request.slot is not None:
                self.manager.sequences.learned(request.slot, request.num_tokens, token)
            text, token_id = request.append(token), token
        if request.finish_reason is not None:
            del self._requests[request.request_id]
            self.scheduler.remove(request)
        return TokenOutput(request.request_id, token_id, text, request.finish_reason, request.error)

    def check(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        """Raises RequestError if this engine cannot take a request.

        The prompt is empty, holds an id that is no token, or leaves no room in the context; or a parameter names an
        id that is no token.
        """
        params.check_vocabulary(self.manager.options.vocab_limit)
        # A tokenizer may know more tokens than the model has embeddings; the device would read another one's.
        vocab_size, longest = self.manager.options.vocab_limit, self.manager.options.max_model_len
        if not prompt_ids:
            raise RequestError("prompt", "is empty; it must have at least one token")
        for token in prompt_ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise RequestError("prompt", f"{token!r} is not a token id; ids are 0 … {vocab_size - 1}")
        if len(prompt_ids) >= longest:
            raise RequestError(
                "prompt",
                f"has {len(prompt_ids)} tokens, but the context holds {longest} and must have room for at least one "
                "more; shorten it or raise max_model_len",
            )
