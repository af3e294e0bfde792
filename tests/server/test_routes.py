"""Every route with every key and every method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import pytest

from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from server.scripted import scripted_engine

KEY, ADMIN = "sk-right", "sk-admin"
SECOND_KEY = "sk-second"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
STATES = {"none": {}, "wrong": {"authorization": "Bearer sk-wrong"}, "right": KEY, "admin": ADMIN}


@dataclass(frozen=True)
class Row:
    """One route.

    Attributes:
        methods: method -> status of an answer to `path`, with `body`, for who may ask.
        needs: whose key.
        path: to ask for, where it is not the route's own.
    """

    methods: dict[str, int]
    needs: Literal["nothing", "key", "admin"] = "key"
    path: str | None = None
    body: dict[str, Any] = field(default_factory=dict)


MESSAGE = {"role": "user", "content": "a"}
COMPLETION = {"model": "tiny", "prompt": "a", "max_tokens": 1}
ROUTES = {
    "/v1/completions": Row({"POST": 200}, body=COMPLETION),
    "/v1/chat/completions": Row({"POST": 200}, body={"messages": [MESSAGE], "max_tokens": 1}),
    "/v1/responses": Row({"POST": 200}, body={"input": "a", "max_output_tokens": 1}),
    "/v1/responses/input_tokens": Row({"POST": 200}, body={"input": "a"}),
    "/v1/messages": Row({"POST": 200}, body={"model": "tiny", "messages": [MESSAGE], "max_tokens": 1}),
    "/v1/messages/count_tokens": Row({"POST": 200}, body={"model": "tiny", "messages": [MESSAGE]}),
    "/v1/embeddings": Row({"POST": 400}, body={"model": "tiny"}),
    "/tokenize": Row({"POST": 200}, body={"prompt": "a"}),
    "/detokenize": Row({"POST": 200}, body={"tokens": [5]}),
    "/v1/models": Row({"GET": 200}),
    "/v1/models/{model:path}": Row({"GET": 200}, path="/v1/models/tiny"),
    "/openapi.json": Row({"GET": 200}),
    "/metrics": Row({"GET": 200}),
    "/status": Row({"GET": 200}),
    "/": Row({"GET": 200}, needs="nothing"),
    "/page/{name}": Row({"GET": 200}, needs="nothing", path="/page/index.html"),
    "/version": Row({"GET": 200}, needs="nothing"),
    "/health": Row({"GET": 200}, needs="nothing"),
    "/ready": Row({"GET": 200}, needs="nothing"),
    "/admin/weights": Row({"POST": 400}, needs="admin", body={"path": "/there/is/none"}),
    "/admin/pause": Row({"POST": 200}, needs="admin", body={"mode": "keep"}),
    "/admin/resume": Row({"POST": 200}, needs="admin"),
    "/admin/prefix-cache/reset": Row({"POST": 200}, needs="admin"),
}
NOWHERE = (
    "/nowhere",
    "/v1",
    "/v1/",
    "/v1/completions/",
    "/v1/nowhere",
    "/admin",
    "/admin/",
    "/admin/nowhere",
    "/health/",
)


@pytest.fixture(scope="module")
def locked(smol_tokenizer: Tokenizer) -> Iterator[Running]:
    """A server with two keys and one for its operator."""
    with running(scripted_engine(smol_tokenizer, "yes"), api_keys=(KEY, SECOND_KEY), admin_key=ADMIN) as one:
        yield one


@pytest.fixture(scope="module")
def unlocked(smol_tokenizer: Tokenizer) -> Iterator[Running]:
    """A server without any."""
    with running(scripted_engine(smol_tokenizer, "yes")) as one:
        yield one


def assert_error(response: httpx.Response, code: str | None = None) -> None:
    body = response.json()
    error = body["error"]
    assert error["message"]
    if response.request.url.path.startswith("/v1/messages"):  # Anthropic's form
        assert body["type"] == "error"
        assert set(error) == {"message", "type"}
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert code in (None, error["code"])


def ask(server: Running, method: str, path: str, key: Any = None, **given: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if isinstance(key, str) else key or {}
    response = server.client.request(method, path, headers=headers, **given)
    if response.status_code >= 400 and method != "HEAD":
        assert_error(response)
    return response


def paths(routes: Iterable[Any]) -> set[str]:
    """Of some routes, and of routers among them."""
    inner = {id(route): getattr(route, "original_router", None) for route in routes}
    below = [paths(router.routes) for router in inner.values() if router is not None]
    return {route.path for route in routes if inner[id(route)] is None}.union(*below)


def expected(row: Row, method: str) -> int:
    """The status for who may ask."""
    return row.methods.get("GET" if method == "HEAD" else method, 405)


def test_the_table_has_every_route(locked: Running, unlocked: Running) -> None:
    assert paths(locked.http.config.app.routes) == set(ROUTES)
    assert paths(unlocked.http.config.app.routes) == {path for path, row in ROUTES.items() if row.needs != "admin"}


@pytest.mark.parametrize("path", ROUTES)
def test_a_route_answers_who_may_ask_and_no_other(locked: Running, unlocked: Running, path: str) -> None:
    row = ROUTES[path]
    where = row.path or path
    opening = {"nothing": set(STATES), "key": {"right"}, "admin": {"admin"}}[row.needs]
    for method in METHODS:
        given = {"json": row.body} if method == "POST" else {}
        for state, key in STATES.items():
            answered = ask(locked, method, where, key, **given)
            assert answered.status_code == (expected(row, method) if state in opening else 401), (method, state)
            if answered.status_code == 401 and method != "HEAD":
                assert_error(answered, "invalid_api_key")
                assert answered.headers["www-authenticate"] == "Bearer"
                assert "sk-" not in answered.text
            free = ask(unlocked, method, where, key, **given)
            assert free.status_code == (404 if row.needs == "admin" else expected(row, method)), (method, state)


@pytest.mark.parametrize("path", NOWHERE)
def test_what_does_not_exist_is_told_to_those_with_a_key(locked: Running, unlocked: Running, path: str) -> None:
    admin = path.startswith("/admin/")
    for method in METHODS:
        for state, key in STATES.items():
            found = ask(locked, method, path, key).status_code
            assert found == (404 if state == ("admin" if admin else "right") else 401), (method, state)
            assert ask(unlocked, method, path, key).status_code == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": f"Bearer {SECOND_KEY}"}, 200),
        ({"authorization": f"bearer  {KEY}"}, 200),
        ({"x-api-key": KEY}, 200),
        ({"x-api-key": KEY, "authorization": "Bearer sk-wrong"}, 200),
        ({"authorization": KEY}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": f"Bearer {KEY.upper()}"}, 401),
        ({"authorization": f"Bearer {KEY},{SECOND_KEY}"}, 401),
        ({"x-api-key": "", "authorization": ""}, 401),
        ([("authorization", b"Bearer \xff\xfe")], 401),
        ({"cookie": f"api_key={KEY}"}, 401),
    ],
)
def test_api_17_a_key_is_shown_as_openai_and_anthropic_do(locked: Running, headers: Any, status: int) -> None:
    assert locked.client.get("/v1/models", headers=headers).status_code == status
    assert locked.client.get(f"/v1/models?api_key={KEY}&key={KEY}").status_code == 401


def test_metrics_may_be_left_open(smol_tokenizer: Tokenizer) -> None:
    engine = scripted_engine(smol_tokenizer, "yes")
    with running(engine, api_keys=(KEY,), metrics_without_key=True) as server:
        assert ask(server, "GET", "/metrics").status_code == 200
        assert ask(server, "GET", "/v1/models").status_code == 401


OWN_NAMES = ("localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "[::1]")
FOREIGN_NAMES = ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "")


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        ({}, OWN_NAMES, FOREIGN_NAMES),
        ({"allowed_hosts": ("llm.example",)}, (*OWN_NAMES, "llm.example:443"), FOREIGN_NAMES),
        ({"allowed_hosts": ("*",)}, FOREIGN_NAMES, ()),
        ({"api_keys": (KEY,)}, FOREIGN_NAMES, ()),
        ({"host": "0.0.0.0"}, FOREIGN_NAMES, ()),
        ({"api_keys": (KEY,), "allowed_hosts": ("llm.example",)}, ("llm.example",), FOREIGN_NAMES),
    ],
)
def test_a_name_that_was_pointed_here_is_not_answered(
    smol_tokenizer: Tokenizer, options: dict[str, Any], good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    with running(scripted_engine(smol_tokenizer, "yes"), **options) as server:
        for host in good:
            assert server.client.get("/health", headers={"host": host}).status_code == 200, host
        for host in bad:
            response = server.client.get("/health", headers={"host": host})
            assert response.status_code == 403
            assert_error(response, "host_not_allowed")


def test_pages_of_other_origins_may_ask_only_where_they_are_allowed(smol_tokenizer: Tokenizer, locked: Running) -> None:
    asking = {"origin": "https://good.example", "access-control-request-method": "POST"}
    asking["access-control-request-headers"] = "authorization, content-type"
    assert not [h for h in ask(locked, "OPTIONS", "/v1/models", asking).headers if h.startswith("access-control")]
    engine = scripted_engine(smol_tokenizer, "yes")
    with running(engine, api_keys=(KEY,), cors_origins=("https://good.example",)) as server:
        # A preflight brings no key.
        before = server.client.options("/v1/completions", headers=asking)
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == "https://good.example"
        for key in (None, KEY):  # also errors can be read by the page
            headers = {"origin": "https://good.example", **({"x-api-key": key} if key else {})}
            response = server.client.post("/v1/completions", json=COMPLETION, headers=headers)
            assert response.status_code == (200 if key else 401)
            assert response.headers["access-control-allow-origin"] == "https://good.example"
        other = server.client.options("/v1/completions", headers={**asking, "origin": "https://evil.example"})
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers
