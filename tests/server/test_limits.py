"""What is too long, too deep, too large or no text: refused in OpenAI's form, with the server as it was."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.errors import ConfigError
from headrace.server import body
from headrace.server.options import ServerOptions
from headrace.server.schema.sampling import RequestModel
from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from server.scripted import scripted_engine

MOST = 4096
JSON = {"content-type": "application/json"}
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def narrow(smol_tokenizer: Tokenizer) -> Iterator[Running]:
    """A server with low limits."""
    limits = {"max_body_bytes": MOST, "max_n": 3, "max_stops": 2, "max_schema_chars": 60, "max_prompts": 4}
    engine = scripted_engine(smol_tokenizer, "yes", max_queued_requests=9)
    with running(engine, **limits) as one:
        yield one


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    told: dict[str, Any] = response.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return told


def padded(size: int) -> bytes:
    """A request of so many bytes."""
    body = json.dumps({"prompt": "a", "max_tokens": 1, "user": ""}).encode()
    return body.replace(b'"user": ""', b'"user": "' + b"x" * (size - len(body)) + b'"')


@pytest.mark.parametrize("chunk", [None, 1000, MOST + 1])
def test_a_body_is_as_long_as_allowed(narrow: Running, chunk: int | None) -> None:
    def send(size: int) -> httpx.Response:
        body = padded(size)
        assert len(body) == size
        content = body if chunk is None else (body[i : i + chunk] for i in range(0, size, chunk))
        return narrow.client.post(PATH, content=content, headers=JSON)

    assert send(MOST - 1).status_code == send(MOST).status_code == 200
    for size in (MOST + 1, 100 * MOST):
        told = send(size)
        assert error(told, 413)["code"] == "body_too_long"
        assert told.headers["connection"] == "close"
    assert send(MOST).status_code == 200


def test_what_a_server_will_not_read_is_not_sent(narrow: Running) -> None:
    url = httpx.URL(narrow.url)
    for size in (str(MOST + 1), str(1 << 60)):
        with socket.create_connection((url.host, url.port), timeout=20) as one:
            lines = (f"POST {PATH} HTTP/1.1", "host: localhost", "expect: 100-continue", f"content-length: {size}")
            one.sendall("\r\n".join((*lines, "content-type: application/json", "", "")).encode())
            answer = b"".join(iter(lambda: one.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 413 ")  # and no 100 before it


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("n", [1, 2, 3], [4, 128, 129, 1 << 40]),
        ("stop", ["a", ["a", "b"]], [["a", "b", "c"]]),
        ("prompt", [["a"] * 4], [["a"] * 5]),
        ("response_format", [{"type": "text", "x": "y" * 38}], [{"type": "text", "x": "y" * 39}]),
        ("guided_regex", ["a" * 60], ["a" * 61]),
        ("guided_grammar", [], ["a" * 61]),
        ("structured_outputs", [{"regex": "a" * 48}], [{"regex": "a" * 49}]),
    ],
)
def test_a_request_asks_for_as_much_as_allowed(narrow: Running, field: str, good: list[Any], bad: list[Any]) -> None:
    body = {"prompt": "a", "max_tokens": 1, "temperature": 1}
    for value in good:
        answered = narrow.post(PATH, **{**body, field: value})
        # The engine on paper knows no grammars.
        assert answered.status_code == 200 or "grammar" in field or "regex" in field or "outputs" in field, (
            answered.text
        )
        assert answered.status_code == 200 or "allows" not in answered.text
    for value in bad:
        told = error(narrow.post(PATH, **{**body, field: value}), 400)
        assert told["param"] == field
        assert "allow" in told["message"]


def test_what_could_never_be_queued_is_refused_for_good(narrow: Running) -> None:
    body = {"max_tokens": 1, "temperature": 1}
    assert narrow.post(PATH, prompt=["a"] * 3, n=3, **body).status_code == 200
    told = error(narrow.post(PATH, prompt=["a"] * 4, n=3, **body), 400)
    assert told["param"] == "prompt"
    assert "12 answers" in told["message"]


NUMBERS = ("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs", "priority", "best_of")
FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
HUGE = (1 << 63, -(1 << 63) - 1, (1 << 64) - 1, 1 << 64, -(1 << 64), 10**30, 10**400)


@pytest.mark.parametrize("name", [*NUMBERS, *FLOATS, "truncate_prompt_tokens"])
def test_no_number_is_too_large_to_be_refused(server: Running, name: str) -> None:
    prompt = [5] * 511  # one more token fits
    for value in HUGE:
        response = server.post(PATH, prompt=prompt, **{"max_tokens": 1, name: value})
        if response.status_code == 200:  # it means something: a seed of 64 bits, more tokens than fit
            assert -(1 << 63) <= value < 1 << 64
            assert name in ("seed", "max_tokens", "top_k", "priority", "truncate_prompt_tokens", "temperature")
        else:
            error(response, 400)
    for text in ("1e400", "-1e400", "NaN", "Infinity", "1" * 5000):
        body = f'{{"prompt": "a", "max_tokens": 1, "{name}": {text}}}'
        error(server.client.post(PATH, content=body, headers=JSON), 400)


@pytest.mark.parametrize("value", [[1 << 31], [1 << 32], [1 << 63], [1 << 64], [[1 << 70]], [-(1 << 40)]])
def test_ids_beyond_the_vocabulary_are_refused(server: Running, value: Any) -> None:
    error(server.post(PATH, prompt=value, max_tokens=1), 400)
    flat = value[0] if isinstance(value[0], list) else value
    for name in ("allowed_token_ids", "stop_token_ids"):
        error(server.post(PATH, prompt="a", max_tokens=1, **{name: flat}), 400)
    error(server.post(PATH, prompt="a", max_tokens=1, logit_bias={str(flat[0]): 1}), 400)


@pytest.mark.parametrize(
    "options",
    [
        {"api_keys": ("",)},
        {"api_keys": ("a b",)},
        {"api_keys": ("a,b",)},
        {"api_keys": ("schlüssel",)},
        {"admin_key": ""},
        {"admin_key": "a", "api_keys": ("b", "a")},
        {"max_n": 0},
        {"max_stops": 0},
        {"max_schema_chars": 0},
        {"max_body_bytes": 0},
        {"cors_origins": ("example.com",)},
        {"cors_origins": ("https://example.com/",)},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerOptions(**options)
    assert "schlüssel" not in str(caught.value)  # a key is shown nowhere
    assert "a b" not in str(caught.value)


def request_models(base: type[RequestModel] = RequestModel) -> list[type[RequestModel]]:
    return [base, *(model for each in base.__subclasses__() for model in request_models(each))]


def holders(schema: Any) -> Iterator[dict[str, Any]]:
    """The lists in pydantic's own form of a model, and the mappings whose entries are checked."""
    if isinstance(schema, dict):
        checked = schema.get("values_schema", {}).get("type") != "any"
        if schema.get("type") == "list" or (schema.get("type") == "dict" and checked):
            yield schema
        for part in schema.values():
            yield from holders(part)
    elif isinstance(schema, (list, tuple)):
        for part in schema:
            yield from holders(part)


def test_a_list_is_wrong_as_soon_as_one_entry_is(server: Running) -> None:
    models = request_models()
    assert len(models) > 8  # of all routes, which the server has imported
    for model in models:
        for holder in holders(model.__pydantic_core_schema__):
            assert holder.get("fail_fast"), (model, holder)
    told = error(server.post(PATH, prompt=[5] * 10_000 + [None]), 400)
    assert told["param"] == "prompt"
    assert error(server.post(PATH, prompt="a", **{f"k{i}": 1 for i in range(512)}), 400)["code"] == "invalid_value"


def test_a_long_body_is_read_beside_the_event_loop(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    read = body.read_json

    def reading(text: bytes) -> Any:
        threads.append(threading.get_ident())
        return read(text)

    monkeypatch.setattr(body, "read_json", reading)
    for size in (100, body.LONG_BYTES):
        assert server.post(PATH, prompt="a", max_tokens=1, user="x" * size).status_code == 200
    loop = asyncio.run_coroutine_threadsafe(_this_thread(), server.http.loop).result(10)
    assert threads[0] == loop
    assert threads[1] != loop


async def _this_thread() -> int:
    return threading.get_ident()
