"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from headrace.config import EngineConfig
from headrace.engine.intake import Intake, RequestParams
from headrace.engine.pages import PagePool
from headrace.engine.pooling import take_hidden
from headrace.engine.prefix import PrefixCache
from headrace.engine.ranks import RankedScheduler
from headrace.engine.request import FinishReason, Request
from headrace.engine.scheduler import Schedule, Scheduler
from headrace.engine.speculation import Speculation, num_right
from headrace.errors import QueueFullError, RequestError
from headrace.execution.manager import ExecutionManager
from headrace.execution.metrics import EngineMetrics, StepCounters, StepMeter, StepMetrics
from headrace.execution.step import StepResult
from headrace.sampling.checks import shown
from headrace.sampling.sampler import BAD_LOGITS
from headrace.sampling.scores import TokenLogprobs, token_logprobs
from headrace.text.tokenizer import Tokenizer

PauseMode = Literal["wait", "abort", "keep"]


@dataclass(frozen=True)
class TokenOutput:
    """What one step brought for one request.

    Attributes:
        request_id: which request.
        token_id: the new token; None when the request ended without one.
        text: the text that became final with it, possibly empty.
        finish_reason: set when the request has ended; then it is no longer in the engine.
        error: what went wrong, when the reason is "error".
        num_cached_tokens: tokens of the prompt that were found in the prefix cache.
        index: which of the request's choices.
        logprobs: of the token, where they are asked for.
        prompt_logprobs: of the prompt's tokens, None for the first, where they are asked for; with the first output of
            choice 0.
        embedding: [hidden] float32, for a request with `PoolingParams`: with its only output, which has no token.
        scheduled: when the request first got a slot, in seconds of `time.perf_counter`; None if it never did.
        stop_reason: the stop string, or the one of `stop_token_ids`, that ended the request.
    """

    request_id: str
    token_id: int | None
    text: str
    finish_reason: FinishReason | None
    error: str | None = None
    num_cached_tokens: int = 0
    index: int = 0
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    embedding: np.ndarray | None = field(default=None, compare=False)
    scheduled: float | None = field(default=None, compare=False)
    stop_reason: str | int | None = None


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
        pools, prefixes: of each data parallel rank, the KV pages and what is known to be in them.
        scheduler: who runs next; of all ranks.
        is_paused: between `pause` and `resume`; `step` does nothing then.
        is_pausing: after `begin_pause`, until what had begun has ended.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer, manager: ExecutionManager) -> None:
        self.config, self.tokenizer, self.manager = config, tokenizer, manager
        o, seqs = manager.options, manager.options.max_num_seqs
        self.pools = [PagePool(o.num_pages, o.page_size) for _ in range(manager.num_ranks)]
        self.prefixes = [PrefixCache(pool, enabled=config.prefix_caching) for pool in self.pools]
        most, longest, shortest = config.speculative_tokens, config.prompt_lookup_max, config.prompt_lookup_min
        speculation = Speculation(most, longest, shortest, manager.bucket_for) if most else None
        ranks = [
            Scheduler(pool, prefix, manager.sequences, seqs, o.max_num_batched_tokens, rank * seqs, speculation)
            for rank, (pool, prefix) in enumerate(zip(self.pools, self.prefixes, strict=True))
        ]
        self.scheduler: Scheduler | RankedScheduler = ranks[0] if len(ranks) == 1 else RankedScheduler(ranks)
        self.is_paused = self.is_pausing = False
        self._intake = Intake(config, tokenizer, manager)
        self._requests: dict[str, list[Request]] = {}  # the choices that have not ended
        self._in_flight: _Launched | None = None
        self._outputs: list[TokenOutput] = []  # committed and not yet returned: what a failed step leaves is not lost
        self.last_step: StepMetrics | None = None
        self._counters = StepCounters()

    @property
    def metrics(self) -> EngineMetrics:
        """The figures of now, as a copy."""
        return EngineMetrics(
            last_step=self.last_step,
            counters=self._counters.copy(),
            compilations=self.manager.compilations_while_serving,
            preemptions=self.scheduler.num_preemptions,
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
            free_pages=sum(pool.num_available for pool in self.pools),
            pages=sum(pool.num_pages for pool in self.pools),
            prefix_queried_tokens=sum(prefix.num_queried_tokens for prefix in self.prefixes),
            prefix_hit_tokens=sum(prefix.num_hit_tokens for prefix in self.prefixes),
        )

    @property
    def pool(self) -> PagePool:
        """The pages of the first rank."""
        return self.pools[0]

    @property
    def prefix(self) -> PrefixCache:
        """The cached prefixes of the first rank."""
        return self.prefixes[0]

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is waiting or running, or something of one is still to be returned."""
        return bool(self._requests or self._outputs)

    def has_room(self, params: RequestParams) -> bool:
        """Whether as many more requests may wait as this one has choices."""
        most = self.config.max_queued_requests
        return most is None or len(self.scheduler.waiting) + params.n <= most

    def has_request(self, request_id: str) -> bool:
        """Whether a request is waiting or running, or something of it is still to be returned."""
        return request_id in self._requests or any(output.request_id == request_id for output in self._outputs)

    def add(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: RequestParams,
        *,
        cache_salt: str | None = None,
    ) -> None:
        """Queues a request; each of its `n` choices waits and runs by itself.

        Args:
            params: `SamplingParams`, or `PoolingParams` for an embedding of the prompt.
            cache_salt: requests share cached prefixes only with those of the same salt.

        Raises:
            RequestError: what `check` refuses, or the request id is in use.
            QueueFullError: with it more than `max_queued_requests` would wait. Nothing is queued in either case.
        """
        if not isinstance(request_id, str):
            raise RequestError("request_id", f"must be a text, not {shown(request_id)}")
        if self.has_request(request_id):
            raise RequestError("request_id", f"{request_id!r} is in use")
        requests = self._intake.requests(request_id, prompt_ids, params, cache_salt)
        if not self.has_room(params):
            waiting, most = len(self.scheduler.waiting), self.config.max_queued_requests
            raise QueueFullError(f"{waiting} requests are waiting, and max_queued_requests is {most}; try again later")
        self._requests[request_id] = requests
        for request in requests:
            self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Ends a request now with all its choices, frees what it holds and drops what was not yet returned of it; an
        id that is not in the engine is ignored."""
        self._outputs = [output for output in self._outputs if output.request_id != request_id]
        for request in self._requests.pop(request_id, []):
            request.finish_reason = "abort"
            self.scheduler.remove(request)

    def step(self) -> list[TokenOutput]:
        """Schedules, executes and commits one step; returns what it brought.

        With overlap the step that is launched and the one that is committed are two: the device goes on with the
        tokens that it has just sampled while the host reads those of the step before. A request may then end while a
        further token of it is in flight; that token is dropped.

        A step that fails leaves every request with the tokens it had: they wait, and the next step computes them anew.
        What had become known before the failure is returned by the next call.
        """
        if not self.is_paused:
            self._step()
        return self._take_outputs()

    def pause(self, mode: PauseMode = "wait") -> list[TokenOutput]:
        """Lets nothing run until `resume`, so that weights can be changed between two states that are known.

        Requests may still be added; they wait.

        Args:
            mode: what becomes of the requests. "wait": those that have begun run to their end first, the others stay
                queued. "abort": all end now. "keep": the running ones stay where they are and go on later.

        Returns:
            What became known meanwhile: all tokens that were in flight, and the ends of requests.

        Raises:
            ValueError: unknown mode.
        """
        outputs = self.begin_pause(mode)
        try:
            while not self.is_paused:
                self._step()
        except BaseException:
            self._outputs = outputs + self._outputs
            self.resume()
            raise
        return outputs + self._take_outputs()

    def begin_pause(self, mode: PauseMode = "wait") -> list[TokenOutput]:
        """`pause` for who goes on calling `step`: with "wait" the engine `is_pausing` until what has begun has ended,
        and only then `is_paused`."""
        if mode not in get_args(PauseMode):
            raise ValueError(f"mode: {mode!r} is not one of {', '.join(get_args(PauseMode))}")
        self._drain()
        if mode == "abort":
            for request in self._unfinished:
                self._outputs.append(_output(request, None, request.cut_off()))
                self._end(request)
        self.is_pausing, self.scheduler.admits_new = mode == "wait", mode != "wait"
        self.is_paused = not self.is_pausing
        self._end_pausing()
        return self._take_outputs()

    def resume(self) -> None:
        """Goes on after `pause`."""
        self.is_paused = self.is_pausing = False
        self.scheduler.admits_new = True

    def _end_pausing(self) -> None:
        """Is paused as soon as nothing that has begun is left."""
        if self.is_pausing and all(request.num_cached is None for request in self._unfinished):
            self.is_paused, self.is_pausing, self.scheduler.admits_new = True, False, True

    def reset_prefix_cache(self, *, recompute_running: bool = False) -> list[TokenOutput]:
        """Forgets all cached prefixes, so that later prompts are computed with the present weights.

        Args:
            recompute_running: compute the keys and values of running requests anew as well; without it they go on
                with those they have, and nothing of theirs is shared.

        Returns:
            Tokens that were in flight.
        """
        if recompute_running:
            self._drain()
            self.scheduler.preempt_all()
            for request in self._unfinished:
                if request.pooler is not None:
                    request.pooler.restart()
        self._forget_prefixes()
        return self._take_outputs()

    def update_graphs(self, *args: Any, **kwargs: Any) -> None:
        """New weights from the next step on, see `ExecutionManager.update_graphs`; cached prefixes are forgotten."""
        self.manager.update_graphs(*args, **kwargs)
        self._forget_prefixes()

    def _forget_prefixes(self) -> None:
        for prefix in self.prefixes:
            prefix.reset()

    @property
    def _unfinished(self) -> list[Request]:
        return [request for choices in self._requests.values() for request in choices]

    def _step(self) -> None:
        with self._recovery():
            # Drafts begin after the newest token.
            if self._in_flight is not None and (
                self.config.speculative_tokens or self._in_flight.schedule.waits_for_tokens
            ):
                self._commit_in_flight()
            launched = self._launch()
            if launched is not None and not self.config.overlap:
                self._commit(launched)
            else:
                committed, self._in_flight = self._in_flight, launched
                if committed is not None:
                    self._commit(committed)
        self._end_pausing()

    def _drain(self) -> None:
        """Reads what is in flight."""
        with self._recovery():
            self._commit_in_flight()

    def _commit_in_flight(self) -> None:
        committed, self._in_flight = self._in_flight, None
        if committed is not None:
            self._commit(committed)

    def _take_outputs(self) -> list[TokenOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs

    @contextmanager
    def _recovery(self) -> Iterator[None]:
        """After a failure the device state may have been consumed: nothing in it counts as computed any more."""
        try:
            yield
        except BaseException:
            self._in_flight = None
            self.scheduler.preempt_all()
            self._forget_prefixes()
            self.manager.reset_state()
            raise

    def _launch(self) -> _Launched | None:
        """Gives the device its next step, if there is one."""
        meter = StepMeter(self.manager.transfers.counts, self.manager.num_ranks)
        schedule = self.scheduler.schedule()
        if schedule is None:
            return None
        schedule.constrain()
        meter.mark()
        self.manager.start_async_prep(schedule.step)
        prepared = self.manager.get_async_prep_result()
        assert prepared is not None
        meter.mark()
        result = self.manager.execute(prepared)
        self.scheduler.launched(schedule)
        meter.launched(prepared.bucket)
        return _Launched(schedule, result, meter)

    def _commit(self, launched: _Launched) -> None:
        """Waits for a step's tokens and hands them to its requests."""
        step, result, read = launched.schedule.step, launched.result, self.manager
        requests = launched.schedule.requests
        launched.meter.reading()
        tokens = read.read_tokens(result, step).tolist()
        scored = any(
            samples and r.params.logprobs is not None for r, samples in zip(requests, step.samples, strict=True)
        )
        scores = read.read_scores(result, step) if scored else None
        prompt_scores = None if step.scores_prompt is None else read.read_prompt_scores(result, step)
        take_hidden(requests, step, result, read)
        read.release(result)
        launched.meter.mark()
        row = position = accepted = 0
        for request, computed, count, samples, lines in zip(
            requests,
            *(x.tolist() for x in (step.num_computed, step.num_tokens, step.samples, step.num_logits)),
            strict=True,
        ):
            # A request that ended, or was aborted, in the meantime gets nothing more.
            if request.finish_reason is None:
                if prompt_scores is not None:
                    request.take_prompt_scores(computed, prompt_scores[position : position + count])
                if samples:
                    drafts, end = launched.schedule.drafts.get(request, []), row + samples
                    ahead = None if scores is None else scores[row:end]
                    accepted += self._take_samples(request, drafts, tokens[row:end], ahead)
                elif request.max_total == request.num_prompt == computed + count:
                    request.end_with_prompt()
                    self._outputs.append(_output(request, None, ""))
                    self._end(request)
            row, position = row + lines, position + count
        self.last_step = launched.meter.finish(step, accepted)
        self._counters.add(self.last_step)

    def _take_samples(self, request: Request, drafts: list[int], tokens: list[int], scores: np.ndarray | None) -> int:
        """Hands a request what was sampled for it, up to the first draft that was wrong or its end, and returns how
        many tokens that is besides the one that it would have got without drafts."""
        right = num_right(drafts, tokens)
        request.num_in_flight -= len(tokens)
        if right < len(drafts):
            self.scheduler.rejected(request, len(drafts) - right)
        for index in range(right + 1):
            self._take_token(request, tokens[index], None if scores is None else scores[index])
            if request.finish_reason is not None:
                return index  # drafts after the end became no output
        return right

    def _take_token(self, request: Request, token: int, scores: np.ndarray | None) -> None:
        token_id, logprobs = None, None
        if token == BAD_LOGITS:
            text = request.end_without_token()
        else:
            if request.slot is not None:
                self.manager.sequences.learned(request.slot, request.num_tokens, token)
            text, token_id = request.append(token), token
            if scores is not None and request.params.logprobs is not None:
                logprobs = token_logprobs(scores, token, request.params.logprobs)
        self._outputs.append(_output(request, token_id, text, logprobs))
        if request.finish_reason is not None:
            self._end(request)

    def _end(self, request: Request) -> None:
        choices = self._requests[request.request_id]
        choices.remove(request)
        if not choices:
            del self._requests[request.request_id]
        self.scheduler.remove(request)

    def check(
        self,
        prompt_ids: Sequence[int],
        params: RequestParams,
        *,
        cache_salt: str | None = None,
    ) -> None:
        """Raises RequestError if this engine cannot take a request.

        The prompt is empty, holds an id that is no token, or leaves no room in the context; a parameter names an id
        that is no token, or more log probabilities than `max_logprobs`; the output's form cannot be compiled; or an
        argument is of the wrong type. Any thread may call this, so that a slow grammar is ready when `add` needs it.
        """
        self._intake.check(prompt_ids, params, cache_salt)

    def kept_prompt(self, prompt_ids: Sequence[int], params: RequestParams) -> list[int]:
        """The part of a prompt that `truncate_prompt_tokens` keeps: its last tokens."""
        return self._intake.kept(prompt_ids, params)


def _output(request: Request, token_id: int | None, text: str, logprobs: TokenLogprobs | None = None) -> TokenOutput:
    cached = request.num_cached or 0
    scored, request.prompt_logprobs = request.prompt_logprobs, None
    return TokenOutput(
        request.request_id,
        token_id,
        text,
        request.finish_reason,
        request.error,
        cached,
        request.choice,
        logprobs,
        None if request.num_unscored else scored,  # of a request that was aborted not all may be known
        request.pooler.embedding() if request.pooler is not None and request.finish_reason == "stop" else None,
        request.scheduled,
        request.stop_reason,
    )
