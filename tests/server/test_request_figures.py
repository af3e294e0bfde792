"""Requests' figures follow from when what happened; every one that began ends once."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.engine.engine import TokenOutput
from headrace.engine.pooling import PoolingParams
from headrace.sampling.params import SamplingParams
from headrace.server.families import MODEL_LABELS
from headrace.server.metrics import Metrics
from headrace.server.request_context import RequestContext, current
from headrace.server.request_figures import one_two_five


def scrape(metrics: Metrics) -> dict[str, float]:
    """Values by name and labels, but for those that every figure of the model has."""
    values = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = [f",{name}={value}" for name, value in sorted(sample.labels.items()) if name not in MODEL_LABELS]
            values[sample.name + "".join(labels)] = sample.value
    return values


def token(choice: int = 0, end: str | None = None, scheduled: float | None = None, cached: int = 0) -> TokenOutput:
    return TokenOutput("r", 7, "x", end, None, cached, choice, scheduled=scheduled)  # type: ignore[arg-type]


def test_the_latencies_of_a_request_follow_from_its_times() -> None:
    metrics = Metrics("m", 100)
    context = RequestContext("id", "POST", "/v1/completions", "::1")
    reset = current.set(context)
    meter = metrics.requests.on_arrival(30, SamplingParams(max_tokens=50, n=2))
    current.reset(reset)
    arrived = context.started
    entered, scheduled = meter._entered, meter._entered + 2.0
    for choice, times in enumerate(([3.0, 3.5, 5.0], [4.0])):
        for i, since in enumerate(times):
            ends = i == len(times) - 1
            output = token(choice, ("stop" if choice else "length") if ends else None, scheduled, 16)
            meter.on_output(output, entered + since)
    meter.on_finish("abort", entered + 9.0)  # too late to mean anything
    got = scrape(metrics)

    wait = entered - arrived
    sums = {
        "time_to_first_token_seconds": (3.0 + wait) + (4.0 + wait),
        "inter_token_latency_seconds": 0.5 + 1.5,
        "request_time_per_output_token_seconds": (5.0 - 3.0) / 2,
        "e2e_request_latency_seconds": (5.0 + wait) + (4.0 + wait),
        "request_queue_time_seconds": 2.0 + 2.0,
        "request_prefill_time_seconds": 1.0 + 2.0,
        "request_inference_time_seconds": 3.0 + 2.0,
        "request_decode_time_seconds": 2.0 + 0.0,
        "request_prompt_tokens": 60,
        "request_generation_tokens": 4,
        "request_max_num_generation_tokens": 3,
        "request_params_n": 2,
        "request_params_max_tokens": 50,
    }
    counts = {"request_time_per_output_token_seconds": 1, "request_max_num_generation_tokens": 1}
    for name, total in sums.items():
        assert got[f"headrace:{name}_sum"] == pytest.approx(total), name
        one = name.startswith("request_params")
        assert got[f"headrace:{name}_count"] == counts.get(name, 1 if one else 2), name
    assert got["headrace:request_success_total,finished_reason=stop"] == 1
    assert got["headrace:request_success_total,finished_reason=length"] == 1
    assert got["headrace:request_success_total,finished_reason=abort"] == 0
    assert (got["headrace:prompt_tokens_total"], got["headrace:generation_tokens_total"]) == (60, 4)
    assert got["headrace:prompt_tokens_cached_total"] == 32
    assert (context.prompt_tokens, context.output_tokens, context.cached_tokens) == (30, 4, 16)
    assert sorted(context.finish_reasons) == ["length", "stop"]
    assert (context.first_token, context.scheduled) == (entered + 3.0, scheduled)
    # 0.5 s and 1.5 s between tokens: "le" takes its own bound in.
    below = [got[f"headrace:inter_token_latency_seconds_bucket,le={le}"] for le in ("0.4", "0.5", "1.0", "2.5", "+Inf")]
    assert below == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_request_that_was_cut_off_is_counted_and_not_timed(reason: str) -> None:
    metrics = Metrics("m", 100)
    meter = metrics.requests.on_arrival(5, SamplingParams(n=3))
    meter.on_output(token(0, "stop", 0.0), 1.0)
    meter.on_output(token(1, None, 0.0), 1.0)
    meter.on_finish(reason, 2.0)
    meter.on_finish(reason, 3.0)
    meter.on_output(token(2, "stop", 0.0), 4.0)  # what the engine had already said
    got = scrape(metrics)
    assert got["headrace:request_success_total,finished_reason=stop"] == 1
    assert got[f"headrace:request_success_total,finished_reason={reason}"] == 2
    assert got["headrace:e2e_request_latency_seconds_count"] == got["headrace:request_prompt_tokens_count"] == 1
    assert got["headrace:request_max_num_generation_tokens_sum"] == 1


def test_a_prompt_that_is_only_scored_counts_as_read() -> None:
    metrics = Metrics("m", 100)
    meter = metrics.requests.on_arrival(5, SamplingParams(max_tokens=0))
    meter.on_output(TokenOutput("r", None, "", "length", scheduled=1.0), 2.0)
    got = scrape(metrics)
    assert (got["headrace:prompt_tokens_total"], got["headrace:generation_tokens_total"]) == (5, 0)
    assert got["headrace:request_success_total,finished_reason=length"] == 1
    assert got["headrace:time_to_first_token_seconds_count"] == 0
    assert got["headrace:request_prefill_time_seconds_sum"] == 1.0


def test_a_number_beyond_all_sense_does_not_stop_the_counting() -> None:
    metrics = Metrics("m", 100)
    metrics.requests.on_arrival(5, SamplingParams(max_tokens=10**400)).on_finish("abort", 1.0)
    assert scrape(metrics)["headrace:request_params_max_tokens_sum"] == 100


def test_two_servers_in_one_process_count_for_themselves() -> None:
    one, other = Metrics("m", 100), Metrics("m", 100)
    one.on_answer("/v1/models", "GET", 200, 0.01)
    key = "http_requests_total,handler=/v1/models,method=GET,status=200"
    assert scrape(one)[key] == 1
    assert key not in scrape(other)


@pytest.mark.parametrize(
    ("most", "want"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2]), (5, [1, 2, 5]), (10, [1, 2, 5, 10]), (100, [1, 2, 5, 10, 20, 50, 100])],
)
def test_ranges_of_tokens_grow_to_the_context(most: int, want: list[int]) -> None:
    assert one_two_five(most) == want  # vLLM's build_1_2_5_buckets
    assert all(math.isfinite(bound) for bound in want)


def test_a_prompt_that_is_embedded_is_a_request_without_tokens() -> None:
    metrics = Metrics("m", 100)
    meter = metrics.requests.on_arrival(5, PoolingParams())
    meter.on_output(TokenOutput("r", None, "", "stop", scheduled=1.0), 2.0)
    got = scrape(metrics)
    assert (got["headrace:prompt_tokens_total"], got["headrace:generation_tokens_total"]) == (5, 0)
    assert got["headrace:request_success_total,finished_reason=stop"] == 1
    assert got["headrace:request_params_max_tokens_count"] == 0
