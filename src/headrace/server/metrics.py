"""The server's figures for Prometheus, named as dashboards for vLLM know them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from time import perf_counter

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import Metric

from headrace.execution.histogram import Histogram
from headrace.server.families import Labels, counter, gauge, histogram
from headrace.server.request_figures import RequestFigures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HTTP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LAG_EVERY_S = 0.25


class Metrics:
    """All figures of one server, in a registry of its own, so that several servers may live in one process.

    Attributes:
        registry: what is exported; the engine's figures are registered here too.
        labels: values of model_name and engine, which all figures of the model have.
        requests: what the bridge tells of.
        http_open: HTTP requests that are being answered.
    """

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self.labels = (model_name, "0")
        self.registry = CollectorRegistry()
        self.requests = RequestFigures(self.labels, max_model_len)
        self.http_open = 0
        self._http_requests: Counter[Labels] = Counter()
        self._http_seconds: dict[Labels, Histogram] = {}
        self._loop_lag = Histogram(LAG_SECONDS)
        self.registry.register(self)
        self.registry.register(self.requests)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def on_answer(self, handler: str, method: str, status: int, seconds: float) -> None:
        """An HTTP request has been answered, by a route of this path. The event loop's thread alone calls this."""
        self._http_requests[handler, method, str(status)] += 1
        self._http_seconds.setdefault((handler, method), Histogram(HTTP_SECONDS)).observe(seconds)

    async def watch_loop(self) -> None:
        """Measures for ever how late the event loop runs what is due."""
        while True:
            due = perf_counter() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._loop_lag.observe(max(perf_counter() - due, 0.0))

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """What is HTTP's and the event loop's, for the registry."""
        names = ("handler", "method", "status")
        yield counter("http_requests", "HTTP requests that were answered.", self._http_requests.copy(), names)
        text = "From an HTTP request to the end of its answer."
        yield histogram("http_request_duration_seconds", text, self._http_seconds.copy(), names[:2])
        yield gauge("headrace:http_requests_open", "HTTP requests that are being answered.", {(): self.http_open}, ())
        text = "How late the event loop runs what is due, four times a second."
        yield histogram("headrace:event_loop_lag_seconds", text, {(): self._loop_lag}, ())
