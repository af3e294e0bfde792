"""Figures of requests on their way through the engine: counts of tokens, and how long what took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from time import perf_counter

from prometheus_client.core import Metric

from headrace.engine.engine import TokenOutput
from headrace.engine.intake import RequestParams
from headrace.execution.histogram import Histogram
from headrace.sampling.params import SamplingParams
from headrace.server.families import MODEL_LABELS, Labels, counter, histogram
from headrace.server.request_context import RequestContext, current

FINISH_REASONS = ("stop", "length", "abort", "error")
# Upper ends of ranges, those of vLLM, so that its dashboards compare like with like.
FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
CHOICES = (1, 2, 5, 10, 20)

# Name after "headrace:", what it says, and its ranges; None stands for 1, 2, 5, 10 … up to the context's length.
_HISTOGRAMS: dict[str, tuple[str, Sequence[float] | None]] = {
    "time_to_first_token_seconds": ("From a request's arrival to its first token.", FIRST_TOKEN_SECONDS),
    "inter_token_latency_seconds": ("Between two tokens of a request.", TOKEN_SECONDS),
    "request_time_per_output_token_seconds": ("Mean time per token of a request after its first.", TOKEN_SECONDS),
    "e2e_request_latency_seconds": ("From a request's arrival to its end.", REQUEST_SECONDS),
    "request_queue_time_seconds": ("From a request's entry into the engine to its first slot.", REQUEST_SECONDS),
    "request_inference_time_seconds": ("From a request's first slot to its end.", REQUEST_SECONDS),
    "request_prefill_time_seconds": ("From a request's first slot to its first token.", REQUEST_SECONDS),
    "request_decode_time_seconds": ("From a request's first token to its last.", REQUEST_SECONDS),
    "request_prompt_tokens": ("Tokens of a request's prompt.", None),
    "request_generation_tokens": ("Tokens that a request generated.", None),
    "request_max_num_generation_tokens": ("Most tokens that one choice of a prompt generated.", None),
    "request_params_n": ("Choices that a prompt asks for.", CHOICES),
    "request_params_max_tokens": ("Most tokens that a prompt asks for.", None),
}


class RequestFigures:
    """The `Observer` that Prometheus reads. Each choice of a prompt counts as a request, as vLLM has it.

    One thread tells it of everything. Latencies and sizes are those of requests that ended with "stop" or "length"; the
    others are counted alone.

    Attributes:
        labels: values of model_name and engine.
        histograms: by their names after "headrace:".
        prompt_tokens: of prompts that were read, those in the prefix cache too.
        cached_tokens: those of them that were in the prefix cache.
        generation_tokens: that were generated.
        finished: choices that have ended, by how.
    """

    def __init__(self, labels: Labels, max_model_len: int) -> None:
        self.labels, self.max_model_len = labels, max_model_len
        self.histograms = {
            name: Histogram(bounds or one_two_five(max_model_len)) for name, (_, bounds) in _HISTOGRAMS.items()
        }
        self.inter_token = self.histograms["inter_token_latency_seconds"]
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = 0
        self.finished = Counter(dict.fromkeys(FINISH_REASONS, 0))

    def on_arrival(self, num_prompt_tokens: int, params: RequestParams) -> PromptMeter:
        """See `Observer.on_arrival`."""
        return PromptMeter(self, num_prompt_tokens, params, current.get())

    def collect(self) -> Iterator[Metric]:
        """All of it, for a registry."""
        for name, (text, _) in _HISTOGRAMS.items():
            yield histogram(f"headrace:{name}", text, {self.labels: self.histograms[name]})
        yield counter("headrace:prompt_tokens", "Tokens of prompts that were read.", {self.labels: self.prompt_tokens})
        text = "Tokens of prompts that were in the prefix cache."
        yield counter("headrace:prompt_tokens_cached", text, {self.labels: self.cached_tokens})
        yield counter("headrace:generation_tokens", "Tokens generated.", {self.labels: self.generation_tokens})
        finished = {(*self.labels, reason): count for reason, count in self.finished.copy().items()}
        names = (*MODEL_LABELS, "finished_reason")
        yield counter("headrace:request_success", "Requests that ended, by how.", finished, names)


class PromptMeter:
    """Takes the times of one prompt's choices; the `PromptObserver` of `RequestFigures`."""

    __slots__ = (
        *("_arrived", "_context", "_counts", "_entered", "_figures", "_first", "_last", "_open", "_params", "_prompt"),
    )

    def __init__(
        self, figures: RequestFigures, prompt: int, params: RequestParams, context: RequestContext | None
    ) -> None:
        self._figures, self._prompt, self._params, self._context = figures, prompt, params, context
        self._entered = perf_counter()
        self._arrived = self._entered if context is None else context.started
        self._open = set(range(params.n))
        self._first, self._last, self._counts = [0.0] * params.n, [0.0] * params.n, [0] * params.n
        if context is not None:
            context.prompt_tokens += prompt
            context.params = context.params or params

    def on_output(self, output: TokenOutput, now: float) -> None:
        """See `PromptObserver.on_output`."""
        choice = output.index
        if output.token_id is not None:
            last = self._last[choice]
            self._last[choice] = now
            self._counts[choice] += 1
            self._figures.generation_tokens += 1
            if last:
                self._figures.inter_token.observe(now - last)
            else:
                self._begin(output, now)
        if output.finish_reason is not None and choice in self._open:
            if not self._counts[choice] and output.finish_reason in ("stop", "length"):
                self._read_prompt(output)
            self._end(choice, output.finish_reason, now, output.scheduled)

    def on_finish(self, reason: str, now: float) -> None:
        """See `PromptObserver.on_finish`."""
        for choice in [*self._open]:
            self._end(choice, reason, now, None)

    def _begin(self, output: TokenOutput, now: float) -> None:
        """A choice has its first token."""
        self._first[output.index] = now
        self._figures.histograms["time_to_first_token_seconds"].observe(now - self._arrived)
        if self._context is not None and self._context.first_token is None:
            self._context.first_token = now
        self._read_prompt(output)

    def _read_prompt(self, output: TokenOutput) -> None:
        """The prompt of a choice has been computed, if ever it got a slot."""
        if output.scheduled is None:
            return
        self._figures.prompt_tokens += self._prompt
        self._figures.cached_tokens += output.num_cached_tokens
        context = self._context
        if context is not None and output.index == 0:
            context.cached_tokens += output.num_cached_tokens
            context.scheduled = context.scheduled or output.scheduled

    def _end(self, choice: int, reason: str, now: float, scheduled: float | None) -> None:
        figures, count = self._figures, self._counts[choice]
        self._open.discard(choice)
        figures.finished[reason] += 1
        if reason in ("stop", "length"):
            self._observe(choice, count, now, scheduled)
        if not self._open:
            observed, params = figures.histograms, self._params
            observed["request_max_num_generation_tokens"].observe(max(self._counts))
            observed["request_params_n"].observe(params.n)
            if isinstance(params, SamplingParams):
                # No more than there is room for: a number may be too large for a sum.
                observed["request_params_max_tokens"].observe(min(params.max_tokens, figures.max_model_len))
        if self._context is not None:
            self._context.output_tokens += count
            self._context.finish_reasons.append(reason)

    def _observe(self, choice: int, count: int, now: float, scheduled: float | None) -> None:
        figures, first, last = self._figures, self._first[choice], self._last[choice]
        observed = figures.histograms
        observed["request_prompt_tokens"].observe(self._prompt)
        observed["request_generation_tokens"].observe(count)
        observed["e2e_request_latency_seconds"].observe(now - self._arrived)
        observed["request_decode_time_seconds"].observe(last - first)
        if scheduled is not None:
            observed["request_queue_time_seconds"].observe(max(scheduled - self._entered, 0.0))
            observed["request_prefill_time_seconds"].observe((first or now) - scheduled)
            observed["request_inference_time_seconds"].observe(now - scheduled)
        if count > 1:
            observed["request_time_per_output_token_seconds"].observe((last - first) / (count - 1))


def one_two_five(most: int) -> list[float]:
    """1, 2, 5, 10, 20 … up to `most`."""
    numbers = (digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5))
    return [float(number) for number in numbers if number <= most]
