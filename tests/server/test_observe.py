"""Around every request: an id, one line in the log, figures, and an end to errors that says nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from headrace.errors import ConfigError
from headrace.server.logs import JsonFormatter, LogLevel, TextFormatter, add_request_id, check_log_options, configure
from headrace.server.metrics import Metrics
from headrace.server.observe import Observe
from headrace.server.request_context import current

SECRET = "sk-secret"


async def plain(request: Request) -> Response:
    await request.body()
    context = current.get()
    assert context is not None
    return PlainTextResponse(context.request_id)


async def broken(request: Request) -> Response:
    raise RuntimeError("the device is lost")


async def broken_stream(request: Request) -> Response:
    async def parts():  # type: ignore[no-untyped-def]
        yield b"data: 1\n\n"
        raise RuntimeError("lost in a stream")

    return StreamingResponse(parts(), media_type="text/event-stream")


def observed() -> tuple[Observe, Metrics]:
    paths = {"/plain": plain, "/items/{item}": plain, "/health": plain, "/stream": broken_stream}
    metrics = Metrics("m", 100)
    routes = [Route(path, of, methods=["GET", "POST"]) for path, of in paths.items()]
    return Observe(Starlette(routes=routes), metrics), metrics


def asked(app: Observe, *requests: tuple[str, str, dict[str, str]]) -> list[httpx.Response]:
    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return [
                await client.request(method, path, headers=headers, content=SECRET)
                for method, path, headers in requests
            ]

    return asyncio.run(ask())


@pytest.fixture(autouse=True)
def with_request_ids(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.handler.addFilter(add_request_id)
    yield
    caplog.handler.removeFilter(add_request_id)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [
        json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name.startswith("headrace")
    ]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-123_:./=+@", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("two words", False),
        ('quote"', False),
        ("é", False),
        ("tab\tbed", False),
    ],
)
def test_a_sane_id_is_kept_and_another_is_made(given: str, kept: bool) -> None:
    app, _ = observed()
    [answer] = asked(app, ("GET", "/plain", {"x-request-id": given.encode("latin-1")}))  # type: ignore[dict-item]
    assert answer.headers["x-request-id"] == answer.text  # what the route sees
    if kept:
        assert answer.text == given
    else:
        assert re.fullmatch(r"req-[0-9a-f]{32}", answer.text)


def test_each_request_is_one_line_that_keeps_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app, metrics = observed()
    headers = {"authorization": f"Bearer {SECRET}", "x-request-id": "r1"}
    asked(
        app,
        ("POST", "/items/7?key=sk-secret", headers),
        ("GET", "/nowhere%1b[31m/" + "x" * 300, {}),
        ("DELETE", "/plain", {}),
        ("BREW", "/plain", {}),
        ("GET", "/health", {}),
    )
    got = lines(caplog)
    assert [line["message"] for line in got[:1]] == ["POST /items/{item} 200"]
    assert [(line["route"], line["status"], line["level"]) for line in got[2:]] == [
        ("/plain", 405, "info"),
        ("/plain", 405, "info"),
        ("/health", 200, "debug"),
    ]
    assert len(str(got[1]["route"])) == 200
    assert got[1]["status"] == 404
    assert SECRET not in json.dumps(got)
    assert got[0] == {
        **got[0],
        "logger": "headrace.server.requests",
        "request_id": "r1",
        "client": "127.0.0.1",
        "method": "POST",
    }
    text = metrics.render().decode()
    seen = set(re.findall(r'http_requests_total\{handler="([^"]*)",method="([^"]*)",status="(\d+)"\}', text))
    assert seen == {
        ("/items/{item}", "POST", "200"),
        ("none", "GET", "404"),
        ("/plain", "DELETE", "405"),
        ("/plain", "other", "405"),
        ("/health", "GET", "200"),
    }
    assert metrics.http_open == 0


def test_an_error_that_nobody_handled_is_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics("m", 100)
    [answer] = asked(Observe(Router([Route("/broken", broken)]), metrics), ("GET", "/broken", {"x-request-id": "r2"}))
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "r2")
    assert answer.json() == {
        "error": {"message": "internal error", "type": "server_error", "param": None, "code": None}
    }
    [error] = [line for line in lines(caplog) if line["level"] == "error"]
    assert error["request_id"] == "r2"
    assert "RuntimeError: the device is lost" in str(error["exception"])
    assert 'handler="/broken",method="GET",status="500"' in metrics.render().decode()


def test_what_is_refused_on_its_way_counts_for_its_route() -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=401)(scope, receive, send)

    metrics = Metrics("m", 100)
    asked(Observe(refuse, metrics, paths=["/v1/models"]), ("GET", "/v1/models", {}), ("GET", "/v1/secrets", {}))
    seen = re.findall(r'http_requests_total\{handler="([^"]*)"', metrics.render().decode())
    assert seen == ["/v1/models", "none"]


async def call(app: Observe, path: str, receive: Callable[[], Awaitable[Message]]) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "client": ("::1", 9)}
    await app({**scope, "http_version": "1.1", "scheme": "http", "server": ("x", 80)}, receive, send)  # type: ignore[arg-type]
    return sent


def test_an_answer_that_breaks_off_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def more() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    app, metrics = observed()
    sent = asyncio.run(call(app, "/stream", more))
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
    asyncio.run(call(app, "/plain", gone))  # the client leaves while its body is being read
    requests = [line for line in lines(caplog) if "route" in line]
    assert [(r["route"], r["status"], r["incomplete"]) for r in requests] == [
        ("/stream", 200, True),
        ("/plain", 499, True),
    ]
    assert metrics.http_open == 0


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("headrace.x", logging.WARNING, "", 0, message, (), None)
    made.__dict__.update(extra)
    return made


def test_text_lines_cannot_be_forged() -> None:
    fields = {"route": "/a b\n2026 INFO forged", "tokens": 3, "reasons": ["stop", "length"], "none": None}
    line = TextFormatter().format(record("one\ntwo\x1b[31m", request_id="r3", fields=fields))
    assert line.splitlines() == [line]
    assert line.endswith(
        r'WARNING one | two\x1b[31m request_id=r3 route="/a b\n2026 INFO forged" tokens=3 reasons=stop,length'
    )


def test_json_lines_are_json_whatever_is_in_them() -> None:
    line = JsonFormatter().format(record('"\n\u2028', fields={"odd": {1}, "number": 1.5}))
    got = json.loads(line)
    assert "\n" not in line
    assert (got["message"], got["number"], got["odd"]) == ('"\n\u2028', 1.5, "{1}")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", got["time"])


@pytest.mark.parametrize(("level", "want"), [("info", ["ours", "uvicorn's", "theirs"]), ("error", ["theirs"])])
def test_whoever_logs_the_lines_have_one_form(
    level: LogLevel, want: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loggers = [logging.getLogger(name) for name in ("", "headrace", "uvicorn")]
    for logger in loggers:
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "disabled", False)
    configure("json", level)
    logging.getLogger("headrace.x").info("ours")
    logging.getLogger("uvicorn.error").info("uvicorn's")
    logging.getLogger("uvicorn.access").error("GET /?key=sk-secret")
    logging.getLogger("somebody").info("too much")
    logging.getLogger("somebody").error("theirs")
    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == want
    for logger in loggers:
        logger.manager._clear_cache()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("log_format", "level"), [("xml", "info"), ("json", "loud")])
def test_unknown_formats_and_levels_are_refused(log_format: str, level: str) -> None:
    with pytest.raises(ConfigError, match=r"log_(format|level): '(xml|loud)' is not one of"):
        check_log_options(log_format, level)
