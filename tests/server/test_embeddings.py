"""/v1/embeddings over a real server, against the offline API and the client library."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jax
import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse

from headrace import LLM
from server.running import Running, running

JSON = {"content-type": "application/json"}
TEXTS = ["The sea is calm.", "A river", "Hello, world! " * 9]


def vectors(answer: Any) -> list[np.ndarray]:
    return [np.array(one["embedding"], np.float32) for one in answer.json()["data"]]


def same(got: list[np.ndarray], want: list[np.ndarray]) -> bool:
    return [v.tobytes() for v in got] == [v.tobytes() for v in want]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_those_of_the_offline_api_in_each_form(server: Running, tiny_llm: LLM, pooling: Any) -> None:
    want = server.offline(lambda: tiny_llm.embed(TEXTS, pooling))
    ids = [tiny_llm.tokenizer.encode(text) for text in TEXTS]
    tokens = sum(map(len, ids))
    for given in (TEXTS, ids):
        answer = server.post("/v1/embeddings", model="tiny", input=given, pooling=pooling)
        assert answer.status_code == 200
        body = answer.json()
        CreateEmbeddingResponse.model_validate(body, strict=True)
        assert [one["index"] for one in body["data"]] == [0, 1, 2]
        assert {one["object"] for one in body["data"]} == {"embedding"}
        assert {**body, "data": None} == {
            "object": "list",
            "data": None,
            "model": "tiny",
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        assert same(vectors(answer), want)
    for given in (TEXTS[0], ids[0]):
        assert same(vectors(server.post("/v1/embeddings", input=given, pooling=pooling)), want[:1])
    packed = server.post("/v1/embeddings", input=TEXTS, pooling=pooling, encoding_format="base64").json()["data"]
    assert [base64.b64decode(one["embedding"]) for one in packed] == [v.astype("<f4").tobytes() for v in want]


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}, {"dimensions": 64}])
def test_the_client_library_gets_the_vectors(server: Running, tiny_llm: LLM, form: Any) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="tiny", input=TEXTS, **form)
    assert same(
        [np.array(one.embedding, np.float32) for one in answer.data], server.offline(lambda: tiny_llm.embed(TEXTS))
    )


def test_other_fields_are_passed_on(server: Running, tiny_llm: LLM) -> None:
    ids = tiny_llm.tokenizer.encode(TEXTS[2])
    assert same(
        vectors(server.post("/v1/embeddings", input=TEXTS[2], truncate_prompt_tokens=3, cache_salt="a", priority=1)),
        server.offline(lambda: tiny_llm.embed([ids[-3:]])),
    )
    assert same(
        vectors(server.post("/v1/embeddings", input=TEXTS[2], normalize=False, pooling=None, user="u")),
        server.offline(lambda: tiny_llm.embed(TEXTS[2], normalize=False)),
    )


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["a", ""]}, "input", "invalid_value"),
        ({"input": [[5], []]}, "input", "invalid_value"),
        ({"input": [5, "a"]}, "input", "invalid_type"),
        ({"input": [5, True]}, "input", "invalid_type"),
        ({"input": [49_152]}, "input", "invalid_value"),
        ({"input": [[5], [-1]]}, "input", "invalid_value"),
        ({"input": [5] * 513}, "input", "invalid_value"),
        ({"input": ["a"] * 9}, "input", "invalid_value"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"input": "a", "dimensions": 63}, "dimensions", "unsupported_parameter"),
        ({"input": "a", "dimensions": 0}, "dimensions", "unsupported_parameter"),
        ({"input": "a", "dimensions": "64"}, "dimensions", "invalid_type"),
        ({"input": "a", "pooling": "max"}, "pooling", "invalid_value"),
        ({"input": "a", "normalize": 1}, "normalize", "invalid_type"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"input": "a", "cache_salt": ""}, "cache_salt", "invalid_value"),
    ],
)
def test_wrong_requests_are_refused_by_name(few: Running, body: dict[str, Any], param: str, code: str) -> None:
    answer = few.client.post("/v1/embeddings", content=json.dumps(body), headers=JSON)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error
    assert error["message"].startswith(f"{param}: ")


@pytest.fixture(scope="module")
def few(tiny_llm: LLM) -> Any:
    with running(tiny_llm.engine, max_prompts=8) as one:
        yield one


def test_as_many_inputs_and_tokens_as_there_may_be_are_taken(few: Running) -> None:
    assert len(vectors(few.post("/v1/embeddings", input=["a"] * 8))) == 8
    assert few.post("/v1/embeddings", input=[5] * 512).json()["usage"]["prompt_tokens"] == 512


def test_another_model_is_not_found(server: Running) -> None:
    answer = server.post("/v1/embeddings", model="other", input="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_model_that_fails_is_an_error_of_the_server(server: Running, tiny_llm: LLM) -> None:
    engine = tiny_llm.engine
    good = engine.manager._weights
    bad = jax.tree.map(lambda leaf: leaf * np.nan, good)
    server.offline(lambda: engine.update_graphs(bad))
    try:
        answer = server.post("/v1/embeddings", input="a")
    finally:
        server.offline(lambda: engine.update_graphs(good))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "generation_failed")


def test_a_client_that_leaves_frees_the_pages(server: Running, tiny_llm: LLM) -> None:
    begun, held = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return held.wait(10)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(server.offline, hold)
        begun.wait(10)
        with pytest.raises(httpx.ReadTimeout):
            server.client.post("/v1/embeddings", json={"input": [[5] * 500] * 20}, timeout=0.3)
        held.set()
        assert future.result(10)
    assert server.post("/v1/embeddings", input="a").status_code == 200
    engine = tiny_llm.engine
    left = server.offline(lambda: (engine.has_unfinished, engine.pool.num_available))
    assert left == (False, engine.pool.num_pages)
