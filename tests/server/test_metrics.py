"""GET /metrics of a real server: the names that dashboards know, true values, and idle again after anything."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.engine.engine import Engine
from headrace.server.families import MODEL_LABELS
from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from server.scripted import scripted_engine

ROOT = Path(__file__).parents[2]
MODEL = set(MODEL_LABELS)
# What vLLM 0.1x exports after "vllm:", from its vllm/v1/metrics/loggers.py and vllm/v1/spec_decode/metrics.py.
VLLM = {
    "num_requests_running": ("gauge", MODEL),
    "num_requests_waiting": ("gauge", MODEL),
    "kv_cache_usage_perc": ("gauge", MODEL),
    "prefix_cache_queries": ("counter", MODEL),
    "prefix_cache_hits": ("counter", MODEL),
    "num_preemptions": ("counter", MODEL),
    "prompt_tokens": ("counter", MODEL),
    "prompt_tokens_cached": ("counter", MODEL),
    "generation_tokens": ("counter", MODEL),
    "request_success": ("counter", MODEL | {"finished_reason"}),
    "iteration_tokens_total": ("histogram", MODEL),
    "time_to_first_token_seconds": ("histogram", MODEL),
    "inter_token_latency_seconds": ("histogram", MODEL),
    "request_time_per_output_token_seconds": ("histogram", MODEL),
    "e2e_request_latency_seconds": ("histogram", MODEL),
    "request_queue_time_seconds": ("histogram", MODEL),
    "request_inference_time_seconds": ("histogram", MODEL),
    "request_prefill_time_seconds": ("histogram", MODEL),
    "request_decode_time_seconds": ("histogram", MODEL),
    "request_prompt_tokens": ("histogram", MODEL),
    "request_generation_tokens": ("histogram", MODEL),
    "request_max_num_generation_tokens": ("histogram", MODEL),
    "request_params_n": ("histogram", MODEL),
    "request_params_max_tokens": ("histogram", MODEL),
    "spec_decode_num_drafts": ("counter", MODEL),
    "spec_decode_num_draft_tokens": ("counter", MODEL),
    "spec_decode_num_accepted_tokens": ("counter", MODEL),
    "cache_config_info": ("gauge", {"engine", "block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype"}),
}


@pytest.fixture(scope="module")
def metered(smol_tokenizer: Tokenizer) -> Iterator[Running]:
    """A scripted engine, served, with few pages, a short queue and drafts."""
    engine = scripted_engine(
        smol_tokenizer, "one two three one two three one two", max_queued_requests=24, speculative_tokens=2
    )
    with running(engine) as one:
        one.post("/v1/completions", prompt="warm", max_tokens=9)
        yield one


def families(server: Running) -> dict[str, Metric]:
    answer = server.client.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def values(server: Running) -> dict[str, float]:
    """By name after "headrace:" and what labels there are besides those of the model."""
    found = {}
    for family in families(server).values():
        for sample in family.samples:
            labels = [f",{name}={value}" for name, value in sorted(sample.labels.items()) if name not in MODEL]
            found[sample.name.removeprefix("headrace:") + "".join(labels)] = sample.value
    return found


def ended(server: Running) -> dict[str, float]:
    name = "request_success_total,finished_reason="
    return {key.removeprefix(name): value for key, value in values(server).items() if key.startswith(name)}


def idle(server: Running) -> dict[str, float]:
    """The figures once nothing is under way but the question for them; within a second or so."""
    for _ in range(200):
        now = values(server)
        if now["num_requests_running"] == now["num_requests_waiting"] == 0 and now["http_requests_open"] == 1:
            break
        time.sleep(0.02)
    assert (now["num_requests_running"], now["num_requests_waiting"], now["http_requests_open"]) == (0, 0, 1)
    assert now["kv_cache_usage_perc"] == 0
    assert not server.server.bridge._generations
    return now


def test_names_types_and_labels_are_those_that_dashboards_for_vllm_know(metered: Running) -> None:
    exported = families(metered)
    for name, (kind, labels) in VLLM.items():
        family = exported[f"headrace:{name}"]
        assert family.type == kind, name
        for sample in family.samples:
            assert labels <= set(sample.labels), name
            assert sample.labels["engine"] == "0"
            assert sample.labels.get("model_name") == "tiny"
    assert {s.labels["finished_reason"] for s in exported["headrace:request_success"].samples} == {
        *("stop", "length", "abort", "error")
    }


def test_the_dashboard_uses_what_is_exported_and_the_docs_explain_it(metered: Running) -> None:
    exported = {sample.name for family in families(metered).values() for sample in family.samples}
    dashboard = json.loads((ROOT / "deploy/grafana.json").read_text())
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    used = {name for expr in targets for name in re.findall(r"\b(?:headrace:|http_|process_)\w+", expr)}
    assert len(used) > 40
    assert used <= exported
    told = (ROOT / "docs/deploy.md").read_text()
    told += (ROOT / "deploy/prometheus.yml").read_text()
    for name in families(metered):
        if not name.startswith(("python_", "process_")):
            short = name.removeprefix("headrace:").replace("spec_decode", "")
            assert short in told or short in told.replace("`…", "`"), name


def test_figures_are_true(metered: Running) -> None:
    before = idle(metered)
    whole = metered.post("/v1/completions", prompt=["a b c", "d e"], max_tokens=3, n=2).json()
    events = [
        json.loads(event)
        for event in metered.stream(
            "/v1/completions", prompt="f g", max_tokens=50, stream_options={"include_usage": True}
        )[:-1]
    ]
    metered.client.delete("/v1/completions")
    metered.client.get("/v1/secrets")
    refused = metered.post("/v1/completions", prompt="x", max_tokens=-1)
    full = metered.post("/v1/completions", prompt="x", n=25)
    assert (refused.status_code, full.status_code) == (400, 400)
    after = idle(metered)
    new = {name: value - before.get(name, 0) for name, value in after.items()}
    usages = whole["usage"], events[-1]["usage"]
    assert new["generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages)
    # A choice is a request, so a prompt counts for each of its choices.
    prompts = 2 * usages[0]["prompt_tokens"] + usages[1]["prompt_tokens"]
    assert new["prompt_tokens_total"] == new["request_prompt_tokens_sum"] == prompts
    assert (new["request_success_total,finished_reason=length"], new["request_success_total,finished_reason=stop"]) == (
        4,
        1,
    )
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "time_to_first_token"):
        assert new[f"{name}_seconds_count"] == 5, name
    assert (new["request_params_n_count"], new["request_params_n_sum"]) == (3, 2 + 2 + 1)
    assert new["request_params_max_tokens_sum"] == 3 + 3 + 50
    assert new["inter_token_latency_seconds_count"] == new["generation_tokens_total"] - 5
    assert new["http_requests_total,handler=/v1/completions,method=POST,status=200"] == 2
    assert new["http_requests_total,handler=/v1/completions,method=POST,status=400"] == 2
    assert new["http_request_duration_seconds_count,handler=/v1/completions,method=POST"] == 4
    assert new["http_requests_total,handler=/v1/completions,method=DELETE,status=405"] == 1
    assert new["http_requests_total,handler=none,method=GET,status=404"] == 1
    steps = sum(value for name, value in new.items() if name.startswith("steps_total"))
    assert steps == new["step_seconds_count"] == new["iteration_tokens_total_count"]
    assert new["computed_tokens_total"] - new["padding_tokens_total"] == new["iteration_tokens_total_sum"]
    assert after["spec_decode_num_accepted_tokens_total"] > 0
    assert after["spec_decode_num_draft_tokens_total"] >= after["spec_decode_num_drafts_total"] > 0
    assert (after["compilations_after_warmup_total"], after["queue_limit"], after["engine_paused"]) == (0, 24, 0)
    prompt = list(range(3, 3 + 40))
    for _ in range(2):
        usage = metered.post("/v1/completions", prompt=prompt, max_tokens=0, echo=True).json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached == 32, "two full pages"
    assert values(metered)["prompt_tokens_cached_total"] == after["prompt_tokens_cached_total"] + cached
    assert [after[f"engine_state,state={state}"] for state in ("serving", "draining", "dead")] == [1, 0, 0]
    assert 0 <= after["device_idle_seconds_total"] <= after["step_seconds_sum"]


async def _leave(client: httpx.AsyncClient, rng: random.Random) -> str:
    """One request, of which the client may hear all, a part, or nothing."""
    body = {
        "prompt": f"{rng.random()} " * rng.randint(1, 40),
        "max_tokens": rng.randint(0, 40),
        "n": rng.randint(1, 3),
        "temperature": 1,
    }
    patience = rng.choice([None, None, 0.1, 0.3, 0.5])
    try:
        async with asyncio.timeout(patience):
            if rng.random() < 0.5:
                return str((await client.post("/v1/completions", json=body)).status_code)
            async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                left = rng.choice([0, 1, 3, 1000])
                async for _ in answer.aiter_lines():
                    left -= 1
                    if left < 0:
                        return "left"
                return str(answer.status_code)
    except TimeoutError:
        return "left"


def test_whatever_clients_do_the_figures_are_idle_again(metered: Running) -> None:
    before = idle(metered)
    rng = random.Random(5)

    async def crowd() -> list[str]:
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(base_url=metered.url, timeout=30, limits=limits, trust_env=False) as client:
            return await asyncio.gather(*(_leave(client, rng) for _ in range(150)))

    got = asyncio.run(crowd())
    assert {"200", "left"} <= set(got) <= {"200", "left", "429"}
    after = idle(metered)
    new = {name: value - before.get(name, 0) for name, value in after.items()}
    assert new["request_success_total,finished_reason=abort"] > 0
    assert new["request_success_total,finished_reason=error"] == 0
    total = sum(new[f"request_success_total,finished_reason={reason}"] for reason in ("stop", "length", "abort"))
    assert total == new["request_params_n_sum"], "each choice that came has ended, and only once"
    answered = sum(
        value for name, value in new.items() if name.startswith("http_requests_total,handler=/v1/completions")
    )
    assert answered <= 150  # a connection may be closed before it is read


def test_a_dead_engine_shows_and_its_requests_end_with_an_error(smol_tokenizer: Tokenizer) -> None:
    engine = scripted_engine(smol_tokenizer, "a b c d e f g h")
    steps = iter(range(100))

    def step() -> Any:
        if next(steps) == 5:
            raise RuntimeError("device lost")
        return Engine.step(engine)

    engine.step = step  # type: ignore[method-assign]
    with running(engine) as server:
        answer = server.post("/v1/completions", prompt="x", max_tokens=30, n=2)
        assert answer.status_code == 503
        assert "device lost" not in answer.text
        now = values(server)
        assert ended(server) == {"stop": 0, "length": 0, "abort": 0, "error": 2}
        assert [now[f"engine_state,state={state}"] for state in ("serving", "draining", "dead")] == [0, 0, 1]


class _Collector(BaseHTTPRequestHandler):
    """Takes what an exporter of spans sends."""

    spans: list[Any]

    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        self.spans += [
            span for resource in sent.resource_spans for scope in resource.scope_spans for span in scope.spans
        ]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_request_leaves_a_span_and_a_line_in_the_log(
    smol_tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    collector = HTTPServer(("127.0.0.1", 0), _Collector)
    _Collector.spans = []
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    with running(scripted_engine(smol_tokenizer, "a b"), otlp_traces_endpoint=endpoint) as server:
        trace = "0af7651916cd43dd8448eb211c80319c"
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "x-request-id": "mine"}
        body = {"prompt": "the secret", "max_tokens": 9}
        answer = server.client.post("/v1/completions", json=body, headers=headers)
        usage = answer.json()["usage"]
        assert answer.headers["x-request-id"] == "mine"
        server.client.get("/health")
    collector.shutdown()
    collector.server_close()
    [span] = _Collector.spans  # sent at the end at the latest
    assert (span.name, span.trace_id.hex()) == ("text_completion tiny", trace)
    attributes = {a.key: a.value for a in span.attributes}
    assert attributes["gen_ai.usage.input_tokens"].int_value == usage["prompt_tokens"]
    assert attributes["gen_ai.usage.output_tokens"].int_value == usage["completion_tokens"]
    [line] = [record for record in caplog.records if record.name == "headrace.server.requests"]
    fields: dict[str, Any] = line.fields  # type: ignore[attr-defined]
    times = ("seconds", "scheduled_seconds", "first_token_seconds")
    assert {name: value for name, value in fields.items() if name not in times} == {
        "client": "127.0.0.1",
        "method": "POST",
        "route": "/v1/completions",
        "status": 200,
        "stream": False,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": 0,
        "output_tokens": usage["completion_tokens"],
        "finish_reasons": ["stop"],
    }
    assert 0 < fields["scheduled_seconds"] <= fields["first_token_seconds"] <= fields["seconds"]
    assert "secret" not in caplog.text


def test_a_timeout_and_a_shutdown_end_requests_and_show(smol_tokenizer: Tokenizer) -> None:
    engine = scripted_engine(smol_tokenizer, "a " * 500)

    def step() -> Any:
        time.sleep(0.01)
        return Engine.step(engine)

    engine.step = step  # type: ignore[method-assign]
    with running(engine, request_timeout_s=0.8, grace_s=20.0) as server:
        answer = server.post("/v1/completions", prompt="x", max_tokens=900)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "timeout")
        assert ended(server) == {"stop": 0, "length": 0, "abort": 1, "error": 0}
        body = {"prompt": "x", "max_tokens": 900, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as stream:
            events = stream.iter_lines()
            next(events)
            server.http.loop.call_soon_threadsafe(server.http.drain)
            while (now := values(server))["engine_state,state=draining"] == 0 or now["num_requests_running"] == 0:
                time.sleep(0.01)
            assert (now["engine_state,state=serving"], now["engine_state,state=dead"]) == (0, 0)
            assert (now["num_requests_running"], now["http_requests_open"]) == (1, 2)
            assert 0 < now["kv_cache_usage_perc"] < 0.2
            assert "timeout" in [*events][-4]  # it had its time; a data line, an empty one, [DONE], an empty one
        assert server.server.metrics.requests.finished == {"stop": 0, "length": 0, "abort": 2, "error": 0}
