"""The load generator against a server that writes what it is told."""

from __future__ import annotations

import json
import math
import random
import socket
import statistics
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any

import pytest

from benchmark.serve.scripted_server import (
    DONE,
    END,
    Asked,
    ScriptedServer,
    Step,
    chunk,
    completion,
    document,
    event,
    head,
    scripted,
    text,
)
from headrace.benchmark.serve.datasets import Dataset
from headrace.benchmark.serve.load import arrivals, run
from headrace.benchmark.serve.options import LoadOptions
from headrace.benchmark.serve.records import CANCELLED, ERROR, OK, RequestRecord
from headrace.errors import HeadraceError


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedServer]:
    """A server that answers as it should."""
    with scripted(completion) as server:
        yield server


def load(server: ScriptedServer, **given: Any) -> list[RequestRecord]:
    """The records of a run."""
    options = {"num_requests": 4, "warmup": 0, "model": "m", "dataset": Dataset(max_tokens=3, input_tokens=5)}
    return run(LoadOptions(url=server.url, **{**options, **given})).records


def one(*steps: Step, **given: Any) -> RequestRecord:
    """The record of one request that is answered so."""
    with scripted(lambda asked: steps) as server:
        [record] = load(server, num_requests=1, **given)
    return record


def test_an_answer_and_its_record(model: ScriptedServer) -> None:
    before = len(model.asked)
    records = load(model, model=None, temperature=0.5, ignore_eos=True, extra_body={"top_p": 0.5, "model": "other"})
    assert [r.index for r in records] == [0, 1, 2, 3]
    for record in records:
        assert (record.outcome, record.finish_reason, record.kind, record.error) == (OK, "length", None, None)
        assert (record.input_tokens, record.output_tokens, record.counted_by) == (7, 3, "usage")
        assert len(record.chunks) == 3  # the last event has no text, and that of usage no choice
        moments = [record.due, record.start, *record.chunks, record.end]
        assert moments == sorted(moments)
    models, *asked = model.asked[before:]
    assert (models.method, models.path) == ("GET", "/v1/models")
    for request in asked:
        assert (request.method, request.path) == ("POST", "/v1/completions")
        assert request.headers["accept"] == "text/event-stream"
        assert "authorization" not in request.headers
        assert len(request.body.pop("prompt").split()) == 5
        assert request.body == {
            "model": "other",
            "max_tokens": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "ignore_eos": True,
            "top_p": 0.5,
        }


def chat_answer(asked: Asked) -> Iterable[Step]:
    deltas = [
        {"role": "assistant", "content": ""},  # no output yet
        {"reasoning_content": "so"},
        {"content": "a"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"content": None},
    ]
    yield head()
    for delta in deltas:
        yield event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
        yield 0.002
    yield event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) + DONE + END


def test_chat_and_what_counts_as_output() -> None:
    with scripted(chat_answer) as server:
        options = {"api_key": "sk-secret", "extra_body": {"stream_options": None}, "num_requests": 1}
        for url in (f"{server.url}/proxy/v1/chat/completions", f"{server.url}/proxy"):
            [record] = run(LoadOptions(url=url, api="chat", model="m", warmup=0, **options)).records
            assert (record.outcome, record.output_tokens, record.counted_by) == (OK, 3, "chunks")
            assert len(record.chunks) == 3
            assert record.end > record.chunks[-1]
        for asked in server.asked:
            assert asked.path == "/proxy/v1/chat/completions"
            assert asked.headers["authorization"] == "Bearer sk-secret"
            assert "stream_options" not in asked.body
            assert asked.body["messages"][0]["role"] == "user"


def test_a_stream_in_pieces_with_comments_and_any_line_ends() -> None:
    data = ": hello\r\n\r\ndata: " + json.dumps({"choices": [{"text": "é", "finish_reason": None}]}) + "\r\n\r\n"
    data += ': ping\r\rdata: {"choices": [\rdata: {"text": "b", "finish_reason": "stop"}]}\r\rdata: [DONE]\n\n'
    pieces = [piece for byte in data.encode() for piece in (chunk(bytes([byte])), 0.0)]
    record = one(head(), *pieces, END)
    assert (record.outcome, len(record.chunks), record.finish_reason) == (OK, 2, "stop")


def test_without_streams_an_answer_comes_at_once(model: ScriptedServer) -> None:
    answer = {"choices": [{"index": 0, "text": "a b", "finish_reason": "stop"}]}
    counted = {**answer, "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    record = one(document(counted), stream=False)
    assert (record.outcome, record.output_tokens, record.counted_by) == (OK, 2, "usage")
    assert record.chunks == [record.end]
    body = json.dumps(answer).encode()
    closing = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + body  # the end is the connection's
    record = one(closing, 0.01, None, stream=False)
    assert (record.outcome, record.output_tokens, record.counted_by) == (OK, 1, "chunks")


STREAM = (head(), text("a"))
DETAIL = {"error": {"message": "out of room", "type": "server_error"}}


@pytest.mark.parametrize(
    ("steps", "kind", "error"),
    [
        ([document(DETAIL, "503 Service Unavailable")], "HTTP 503", "out of room"),
        ([document({"detail": "no"}, "404 Not Found")], "HTTP 404", '{"detail": "no"}'),
        ([document(b"<html>", "502 Bad Gateway")], "HTTP 502", "<html>"),
        ([document(b"[]", "429 Too Many Requests")], "HTTP 429", "[]"),
        ([head(status="500 No"), chunk(b"oh"), chunk(b" no"), END], "HTTP 500", "oh no"),
        ([*STREAM, event(**DETAIL), DONE, END], "error event", "out of room"),
        ([*STREAM, event(error="flat"), DONE, END], "error event", '"flat"'),
        ([*STREAM, text("", "error"), DONE, END], "finish_reason error", "error"),
        ([*STREAM, text("b", "stop"), END], "truncated", "the stream ended without [DONE]"),
        ([*STREAM, DONE, END], "no finish_reason", "no finish_reason came"),
        ([head(), DONE, END], "no finish_reason", "no finish_reason came"),
        ([head(), event(choices=[{"index": 0, "text": "a", "finish_reason": "stop"}, {"index": 1, "text": "b"}]), DONE,
          END], "no finish_reason", "no finish_reason came"),
        ([*STREAM, chunk(b"data: {\n\n"), DONE, END], "malformed", "no answer of this API: {"),
        ([*STREAM, chunk(b"data: \xff\n\n"), DONE, END], "malformed", "no answer of this API: \ufffd"),
        ([*STREAM, chunk(b"data: [1]\n\n"), DONE, END], "malformed", "[1]"),
        ([*STREAM, event(choices=[7]), DONE, END], "malformed", "7"),
        ([*STREAM, None], "disconnected", "closed within the answer"),
        ([head(), chunk(b"")[:1], None], "disconnected", "closed within the answer"),
        ([None], "disconnected", "closed before an answer came"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n", 0.1], "malformed", "no HTTP/1.1 answer"),
        ([head(), b"zz\r\n", 0.1], "malformed", "no HTTP/1.1 answer"),
        ([*STREAM, 1.0], "timeout", "no whole answer within 0.2 s"),
        ([1.0], "timeout", "no whole answer within 0.2 s"),
    ],
)  # fmt: skip
def test_an_error_is_counted_by_kind_and_is_no_success(steps: list[Step], kind: str, error: str) -> None:
    record = one(*steps, timeout=0.2 if kind == "timeout" else 60.0)
    assert (record.outcome, record.kind) == (ERROR, kind)
    assert error in (record.error or "")
    assert record.start <= record.end


def test_a_connection_is_used_again_and_replaced_when_the_server_closed_it() -> None:
    def answer(asked: Asked) -> Iterable[Step]:
        yield head() + text("a", "stop") + DONE + END
        if len(server.asked) in (3, 6):
            yield None

    with scripted(answer) as server:
        assert {r.outcome for r in load(server, num_requests=8, concurrency=1, request_rate=200)} == {OK}
        assert [asked.connection for asked in server.asked] == [1, 1, 1, 2, 2, 2, 3, 3]


def test_no_connection_is_an_error_too() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        records = run(LoadOptions(url=url, model="m", warmup=0, num_requests=3)).records
        assert {(r.outcome, r.kind) for r in records} == {(ERROR, "connect")}
        with pytest.raises(HeadraceError, match=f"url: {url} does not tell its models: .*refused"):
            run(LoadOptions(url=url))
        with pytest.raises(HeadraceError, match=f"a warm-up request to {url} failed: connect: .*refused"):
            run(LoadOptions(url=url, model="m"))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (document({"data": []}), "lists no models; give one with --model"),
        (document(b"[]"), "lists no models; give one with --model"),
        (document(b"nothing"), "lists no models; give one with --model"),
        (document(DETAIL, "401 Unauthorized"), "does not tell its models: HTTP 401: .*out of room"),
    ],
)
def test_a_server_without_models(answer: bytes, message: str) -> None:
    with scripted(lambda asked: [answer]) as server, pytest.raises(HeadraceError, match=message):
        load(server, model=None)


def test_warm_up_is_not_counted(model: ScriptedServer) -> None:
    before = len(model.asked)
    assert len(load(model, warmup=3, num_requests=2)) == 2
    assert len(model.asked) - before == 5


def test_at_most_so_many_at_once(model: ScriptedServer) -> None:
    for limit in (1, 3):
        model.most_running = 0
        assert len(load(model, concurrency=limit, num_requests=12)) == 12
        assert model.most_running == limit


def test_a_run_ends_after_its_duration(model: ScriptedServer) -> None:
    records = load(model, num_requests=None, duration=0.2, concurrency=2)
    assert {r.outcome for r in records} == {OK}
    assert len(records) > 2
    assert all(r.due < 0.2 for r in records)
    assert len(load(model, num_requests=3, duration=60.0)) == 3


def test_hanging_up_at_random() -> None:
    def answer(asked: Asked) -> Iterable[Step]:
        yield 0.1 * len(server.asked) / 60
        yield from completion(asked)

    with scripted(answer) as server:
        records = load(server, num_requests=60, cancel=0.5, dataset=Dataset(max_tokens=40))
        outcomes = [r.outcome for r in records]
        cancelled = [r for r in records if r.outcome == CANCELLED]
        assert 15 <= len(cancelled) <= 45
        assert outcomes.count(OK) == 60 - len(cancelled)
        assert {len(r.chunks) for r in records if r.outcome == OK} == {40}
        partial = [len(r.chunks) for r in cancelled]
        assert 0 in partial  # before anything came
        assert len(set(partial)) > 5
        assert records[0].outcome == load(server, num_requests=1, cancel=0.5)[0].outcome  # the seed decides
        assert {r.outcome for r in load(server, num_requests=5, cancel=1.0)} == {CANCELLED}
    assert server.left > 0


def test_slow_readers_get_all_of_it_slowly() -> None:
    with scripted(completion) as server:
        records = load(server, num_requests=6, slow_readers=0.5, dataset=Dataset(max_tokens=30))
    assert {r.outcome for r in records} == {OK}
    assert {len(r.chunks) for r in records} == {30}
    slow = [r for r in records if r.slow]
    assert 0 < len(slow) < 6
    # An event takes some 100 bytes, and 512 come at a time, at least 50 ms apart.
    for record in slow:
        assert record.e2e > 0.2
        assert sum(gap > 0.04 for gap in record.itls) >= 4


def test_requests_arrive_as_the_rate_says() -> None:
    for rate, burstiness in ((10.0, 1.0), (200.0, 0.25), (0.5, 4.0)):
        moments = list(islice(arrivals(rate, burstiness, random.Random(1), None), 40_001))
        assert moments[0] == 0
        gaps = [b - a for a, b in pairwise(moments)]
        # Gamma of mean 1/rate and shape k: the coefficient of variation is 1/sqrt(k). Errors of 40,000 draws are small.
        mean = statistics.fmean(gaps)
        assert mean == pytest.approx(1 / rate, rel=0.05)
        assert statistics.pstdev(gaps) / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)
        if burstiness == 1.0:  # memoryless: exponential
            assert sum(gap > 1 / rate for gap in gaps) / 40_000 == pytest.approx(math.exp(-1), rel=0.05)
        # Of a run that has a length the mean is the rate itself; the shape stays.
        stretched = list(arrivals(rate, burstiness, random.Random(1), 40_001))
        assert stretched == pytest.approx([moment / (mean * rate) for moment in moments], rel=1e-6)
        assert list(arrivals(rate, burstiness, random.Random(1), 2)) == pytest.approx([0, 1 / rate])
        assert list(arrivals(rate, burstiness, random.Random(1), 1)) == [0]
    assert list(islice(arrivals(math.inf, 1.0, random.Random(1), 9), 3)) == [0, 0, 0]


def test_requests_are_sent_when_they_are_due(model: ScriptedServer) -> None:
    records = load(model, num_requests=20, request_rate=400.0, seed=3)
    dues = [r.due for r in records]
    assert dues == sorted(dues)
    assert len(set(dues)) == 20
    assert all(r.start >= r.due - 0.002 for r in records)  # the loop's clock counts milliseconds


def test_the_clients_own_lag_is_noted(model: ScriptedServer) -> None:
    result = run(LoadOptions(url=model.url, num_requests=20, request_rate=100.0))
    assert result.model == "m"
    assert result.lags
    assert min(result.lags) >= 0
    assert result.cpu_share > 0
