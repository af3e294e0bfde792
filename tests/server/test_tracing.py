"""Spans as the semantic conventions for generative AI name things, and nothing of OpenTelemetry without them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as names
from opentelemetry.trace import SpanKind, StatusCode

from headrace.errors import ConfigError
from headrace.sampling.params import SamplingParams
from headrace.server.request_context import RequestContext
from headrace.server.tracing import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # the example of W3C's recommendation


def answered(status: int = 200, **fields: object) -> RequestContext:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    context = RequestContext("r1", "POST", "/v1/chat/completions", "::1", headers, status=status)
    for name, value in fields.items():
        setattr(context, name, value)
    return context


def recorded(*requests: tuple[RequestContext, str]) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, "smollm2")
    for context, route in requests:
        tracing.record(context, route)
    tracing.close()
    return list(exporter.get_finished_spans())


def test_a_request_is_one_span_in_its_clients_trace() -> None:
    params = SamplingParams(max_tokens=64, temperature=0, top_k=40, n=2, seed=3)
    context = answered(params=params, streams=True, prompt_tokens=17, cached_tokens=16, output_tokens=5)
    context.scheduled, context.first_token = context.started + 0.25, context.started + 0.5
    context.finish_reasons += ["stop", "length"]
    [span] = recorded((context, "/v1/chat/completions"))
    assert (span.name, span.kind, span.status.status_code) == ("chat smollm2", SpanKind.SERVER, StatusCode.UNSET)
    assert format(span.context.trace_id, "032x") == TRACE
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == PARENT
    assert span.attributes is not None
    want = {
        names.GEN_AI_OPERATION_NAME: "chat",
        names.GEN_AI_PROVIDER_NAME: "headrace",
        names.GEN_AI_REQUEST_MODEL: "smollm2",
        names.GEN_AI_RESPONSE_MODEL: "smollm2",
        names.GEN_AI_REQUEST_STREAM: True,
        names.GEN_AI_REQUEST_MAX_TOKENS: 64,
        names.GEN_AI_REQUEST_TEMPERATURE: 0.0,
        names.GEN_AI_REQUEST_TOP_K: 40,
        names.GEN_AI_REQUEST_TOP_P: 1.0,
        names.GEN_AI_REQUEST_CHOICE_COUNT: 2,
        names.GEN_AI_REQUEST_SEED: 3,
        names.GEN_AI_USAGE_INPUT_TOKENS: 17,
        names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: 16,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: 5,
        names.GEN_AI_RESPONSE_FINISH_REASONS: ("stop", "length"),
        names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: pytest.approx(0.5),
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
    }
    assert {name: span.attributes[name] for name in want} == want
    assert span.start_time == context.started_ns
    assert [(event.name, event.timestamp - context.started_ns) for event in span.events] == [
        ("first token", pytest.approx(5e8, abs=1e3))
    ]


def test_failures_are_errors_and_what_is_no_model_call_has_no_model() -> None:
    refused, dead = answered(status=400), answered(status=503)
    broke = answered(params=SamplingParams(seed=2**63), finish_reasons=["error"])
    listed = answered(trace_headers={})
    spans = recorded(
        (refused, "/v1/completions"), (dead, "/v1/completions"), (broke, "/v1/completions"), (listed, "/v1/models")
    )
    assert [span.status.status_code for span in spans] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    attributes = [span.attributes or {} for span in spans]
    assert [a.get("error.type") for a in attributes] == [None, "503", "engine_error", None]
    assert names.GEN_AI_REQUEST_SEED not in attributes[2], "2^63 is no 64-bit integer of the protocol"
    assert spans[3].name == "POST /v1/models"
    assert not [name for name in attributes[3] if name.startswith("gen_ai.")]
    assert spans[3].parent is None


def test_an_endpoint_must_be_a_url_and_the_extra_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="otlp_traces_endpoint: 'localhost:4318' must begin with http"):
        Tracing.to("localhost:4318", "m")
    Tracing.to("http://127.0.0.1:9/v1/traces", "m").close()
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[otel\]'"):
        Tracing.to("http://127.0.0.1:9/v1/traces", "m")


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    code = "import sys, headrace.server.observe; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert out.stdout.strip() == "[]"
