"""OpenTelemetry spans of requests, by the semantic conventions for generative AI. Needs the extra `headrace[otel]`."""

from __future__ import annotations

from threading import Timer
from time import time_ns
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.sampling.params import SamplingParams
from headrace.server.request_context import RequestContext

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExporter

CLOSE_S = 3.0
_MOST = 1 << 63
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


def exporter_type(endpoint: str) -> type[OTLPSpanExporter]:
    """What sends spans to an endpoint; cheap enough to be asked for before a model is loaded.

    Raises:
        ConfigError: the extra is not installed, or the endpoint is no URL.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"otlp_traces_endpoint: {endpoint!r} must begin with http:// or https://")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            f"otlp_traces_endpoint: {error.name} is not installed; run pip install 'headrace[otel]'"
        ) from None
    return OTLPSpanExporter


class Tracing:
    """Records each request as one span, under the trace that the client's `traceparent` names."""

    def __init__(self, exporter: SpanExporter, model_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._exporter = exporter
        self._provider = TracerProvider(resource=Resource.create({"service.name": "headrace"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("headrace")
        self._propagator = TraceContextTextMapPropagator()
        self._model = model_name

    @classmethod
    def to(cls, endpoint: str, model_name: str) -> Tracing:
        """Spans are sent to an OTLP endpoint over HTTP, such as http://localhost:4318/v1/traces.

        Raises:
            ConfigError: the extra is not installed, or the endpoint is no URL.
        """
        return cls(exporter_type(endpoint)(endpoint=endpoint), model_name)

    def record(self, context: RequestContext, route: str) -> None:
        """Records a request that has just ended."""
        from opentelemetry.trace import SpanKind, StatusCode

        operation = OPERATIONS.get(route)
        model = self._model
        span = self._tracer.start_span(
            f"{operation} {model}" if operation else f"{context.method} {route}",
            context=self._propagator.extract(context.trace_headers),
            kind=SpanKind.SERVER,
            start_time=context.started_ns,
            attributes=_sendable(_http(context, route) | (_gen_ai(context, operation, model) if operation else {})),
        )
        if context.first_token is not None:
            since = int((context.first_token - context.started) * 1e9)
            span.add_event("first token", timestamp=context.started_ns + since)
        assert context.status is not None
        failed = context.status >= 500 or "error" in context.finish_reasons
        if failed:
            span.set_attribute("error.type", str(context.status) if context.status >= 500 else "engine_error")
            span.set_status(StatusCode.ERROR)
        span.end(time_ns())

    def close(self) -> None:
        """Sends what has not been sent, for some seconds; then it is lost."""
        # Left alone the SDK tries for half a minute to reach a collector that is not there.
        timer = Timer(CLOSE_S, self._exporter.shutdown)
        timer.start()
        self._provider.shutdown()
        timer.cancel()


def _http(context: RequestContext, route: str) -> dict[str, Any]:
    return {
        "http.request.method": context.method,
        "http.route": route,
        "http.response.status_code": context.status,
        "client.address": context.client,
        "headrace.request_id": context.request_id,
    }


def _gen_ai(context: RequestContext, operation: str, model: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": model,
        "gen_ai.request.stream": context.streams,
    }
    params = context.params
    if params is None:
        return attributes
    attributes |= {
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": context.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": context.cached_tokens,
    }
    if context.scheduled is not None:
        attributes["gen_ai.latency.time_in_queue"] = context.scheduled - context.started
    if not isinstance(params, SamplingParams):
        return attributes
    attributes |= {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": float(params.temperature),
        "gen_ai.request.top_p": float(params.top_p),
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.frequency_penalty": float(params.frequency_penalty),
        "gen_ai.request.presence_penalty": float(params.presence_penalty),
        "gen_ai.request.choice.count": params.n,
        "gen_ai.usage.output_tokens": context.output_tokens,
        "gen_ai.response.finish_reasons": list(context.finish_reasons),
    }
    if params.seed is not None:
        attributes["gen_ai.request.seed"] = params.seed
    if context.first_token is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = context.first_token - context.started
    return attributes


def _sendable(attributes: dict[str, Any]) -> dict[str, Any]:
    """Without integers of more than 64 bits, which the protocol does not have."""
    return {name: value for name, value in attributes.items() if not isinstance(value, int) or -_MOST <= value < _MOST}
