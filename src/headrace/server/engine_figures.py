"""The engine's figures for Prometheus, read from the bridge's snapshot when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from headrace.execution.metrics import EngineMetrics, StepCounters
from headrace.server.bridge import STATES, Bridge
from headrace.server.families import MODEL_LABELS, Labels, counter, gauge, histogram


class EngineFigures:
    """A collector over one bridge; the engine does nothing for it."""

    def __init__(self, bridge: Bridge, labels: Labels) -> None:
        self._bridge, self._labels = bridge, labels

    def collect(self) -> Iterator[Metric]:
        """All of it, for a registry."""
        snapshot, state = self._bridge.snapshot, self._bridge.state
        states = {(*self._labels, name): float(name == state) for name in STATES}
        yield gauge("headrace:engine_state", "1 for the state that the engine is in.", states, (*MODEL_LABELS, "state"))
        paused = float(self._bridge.engine.is_paused)
        yield self._gauge("engine_paused", "1 while nothing runs because an administrator said so.", paused)
        yield self._gauge("queue_limit", "Most requests that may wait; +Inf without a limit.", self._limit)
        yield from self._of_requests(snapshot)
        yield from self._of_steps(snapshot.counters)
        yield self._cache_config(snapshot)
        yield from self._of_drafts(snapshot.counters)

    @property
    def _limit(self) -> float:
        most = self._bridge.engine.config.max_queued_requests
        return float("inf") if most is None else most

    def _of_requests(self, now: EngineMetrics) -> Iterator[Metric]:
        used = 1 - now.free_pages / now.pages
        yield self._gauge("num_requests_running", "Requests that have a slot.", now.running)
        yield self._gauge("num_requests_waiting", "Requests that wait for a slot.", now.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV pages that sequences use, 0 … 1.", used)
        queried, found = now.prefix_queried_tokens, now.prefix_hit_tokens
        yield self._counter("prefix_cache_queries", "Tokens that were looked up in the prefix cache.", queried)
        yield self._counter("prefix_cache_hits", "Tokens that were found in the prefix cache.", found)
        yield self._counter("num_preemptions", "Running requests that were sent back to wait.", now.preemptions)
        text = "Programs that steps compiled after warm-up; 0 when all is well."
        yield self._counter("compilations_after_warmup", text, now.compilations)

    def _of_steps(self, counters: StepCounters) -> Iterator[Metric]:
        padded, computed = counters.padded_tokens, counters.padded_tokens + counters.tokens_computed
        yield self._counter("computed_tokens", "Tokens that steps computed, with padding.", computed)
        yield self._counter("padding_tokens", "Tokens that steps computed for nobody, to fill a bucket.", padded)
        text = "Seconds in which the device had no step while the host worked on one; at least."
        yield self._counter("device_idle_seconds", text, counters.idle_seconds)
        phases = {(*self._labels, phase): seconds for phase, seconds in counters.seconds.items()}
        text = "Seconds of the host in each phase of its steps."
        yield counter("headrace:step_phase_seconds", text, phases, (*MODEL_LABELS, "phase"))
        buckets = {
            (*self._labels, str(tokens), str(requests)): count
            for (tokens, requests), count in sorted(counters.steps_by_bucket.items())
        }
        yield counter("headrace:steps", "Steps by their bucket.", buckets, (*MODEL_LABELS, "tokens", "requests"))
        text = "What a step took; the sum is the time in which there was anything to do."
        yield histogram("headrace:step_seconds", text, {self._labels: counters.step_seconds})
        text = "Tokens of requests that a step computed."
        yield histogram("headrace:iteration_tokens_total", text, {self._labels: counters.step_tokens})

    def _of_drafts(self, counters: StepCounters) -> Iterator[Metric]:
        drafts, guessed, right = counters.drafts, counters.drafted_tokens, counters.accepted_tokens
        yield self._counter("spec_decode_num_drafts", "Rows that had guessed tokens.", drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Tokens that were guessed.", guessed)
        yield self._counter("spec_decode_num_accepted_tokens", "Guessed tokens that turned out right.", right)

    def _cache_config(self, now: EngineMetrics) -> Metric:
        config = self._bridge.engine.config
        values = {
            "block_size": str(config.page_size),
            "num_gpu_blocks": str(now.pages),
            "enable_prefix_caching": str(config.prefix_caching),
            "cache_dtype": config.dtype,
        }
        labels, names = (*self._labels, *values.values()), (*MODEL_LABELS, *values)
        return gauge("headrace:cache_config_info", "The KV cache, in its labels.", {labels: 1.0}, names)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return gauge(f"headrace:{name}", text, {self._labels: value})

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return counter(f"headrace:{name}", text, {self._labels: value})
