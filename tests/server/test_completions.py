"""/v1/completions over a real server, against the offline API and the client library's types."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import openai
import pytest
from openai.types import Completion

from headrace import LLM, SamplingParams
from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from server.scripted import scripted_engine

GREEDY = {"model": "tiny", "temperature": 0}


def validate(body: dict[str, Any]) -> None:
    """Holds an answer, or a chunk, to the client library's types. Those know neither that a choice goes on nor that the
    first token of a prompt has no probability, both of which OpenAI's API answers with null."""
    body = deepcopy(body)
    for choice in body["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for name, neutral in (("token_logprobs", 0.0), ("top_logprobs", {})):
            if (choice["logprobs"] or {}).get(name) and choice["logprobs"][name][0] is None:
                choice["logprobs"][name][0] = neutral
    Completion.model_validate(body, strict=True)


def merged(events: list[str]) -> dict[int, dict[str, Any]]:
    """Per choice what its chunks say together."""
    choices: dict[int, dict[str, Any]] = {}
    for event in map(json.loads, events[:-1]):
        validate(event)
        for choice in event["choices"]:
            one = choices.setdefault(choice["index"], {"text": "", "finish_reason": [], "logprobs": {}})
            one["text"] += choice["text"]
            one["finish_reason"] += [choice["finish_reason"]] if choice["finish_reason"] else []
            for key, value in (choice["logprobs"] or {}).items():
                one["logprobs"][key] = one["logprobs"].get(key, []) + value if value is not None else None
    return choices


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": "river river", "max_tokens": 5},
        {"prompt": ["A", "B B", "C"], "max_tokens": 3, "n": 2, "echo": True, "temperature": 1, "seed": 3},
        {"prompt": "The sea is", "max_tokens": 4, "echo": True, "logprobs": 2, "n": 2, "temperature": 1, "seed": 1},
        {"prompt": [[7, 8], [9]], "max_tokens": 0, "echo": True, "logprobs": 1},
        {"prompt": "a", "max_tokens": 6, "logprobs": 0, "stop": ["e", "a"]},
    ],
)
def test_streamed_and_whole_answers_are_those_of_the_offline_api(
    server: Running, tiny_llm: LLM, given: dict[str, Any]
) -> None:
    body = {**GREEDY, **given}
    whole = server.post("/v1/completions", **body)
    assert whole.status_code == 200, whole.text
    validate(whole.json())
    events = server.stream("/v1/completions", **body)
    assert events[-1] == "[DONE]"
    assert len({json.loads(event)["id"] for event in events[:-1]}) == 1
    streamed = merged(events)
    choices = whole.json()["choices"]
    assert [choice["index"] for choice in choices] == [*range(len(choices))] == sorted(streamed)

    prompts = body.pop("prompt")
    params = SamplingParams(**{name: value for name, value in body.items() if name != "model"})
    expected = server.offline(lambda: tiny_llm.generate(prompts, params))
    outputs = [output for result in expected for output in result.outputs]
    for choice, output in zip(choices, outputs, strict=True):
        other = streamed[choice["index"]]
        assert choice["text"] == other["text"] == output.text
        assert [choice["finish_reason"]] == other["finish_reason"] == [output.finish_reason]
        assert (choice["logprobs"] or {}) == other["logprobs"]
        if output.logprobs is not None:
            assert choice["logprobs"]["token_logprobs"] == [s and s.logprob for s in output.logprobs]
    usage = whole.json()["usage"]
    assert usage["prompt_tokens"] == sum(result.num_prompt_tokens for result in expected)
    assert usage["completion_tokens"] == sum(result.num_output_tokens for result in expected)


def test_usage_comes_once_at_the_end_of_a_stream_that_asks_for_it(server: Running) -> None:
    body = {**GREEDY, "prompt": "a", "max_tokens": 3, "n": 2, "temperature": 1}
    events = [
        json.loads(e) for e in server.stream("/v1/completions", **body, stream_options={"include_usage": True})[:-1]
    ]
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"] == []
    assert (events[-1]["usage"]["completion_tokens"], events[-1]["usage"]["prompt_tokens"]) == (6, 1)
    assert all("usage" not in json.loads(event) for event in server.stream("/v1/completions", **body)[:-1])


def test_usage_so_far_comes_with_each_chunk_that_asks_for_it(server: Running) -> None:
    wanted = {"include_usage": True, "continuous_usage_stats": True}
    body = {**GREEDY, "prompt": "a", "max_tokens": 5, "ignore_eos": True}
    events = [json.loads(event) for event in server.stream("/v1/completions", **body, stream_options=wanted)[:-1]]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 5
    assert all(event["usage"]["prompt_tokens"] == 1 for event in events)


def test_offsets_point_at_the_tokens_texts(server: Running) -> None:
    prompt = "Příliš 😀 <|im_start|>user"
    choice = server.post("/v1/completions", **GREEDY, prompt=prompt, echo=True, logprobs=1, max_tokens=8).json()[
        "choices"
    ][0]
    logprobs = choice["logprobs"]
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert "\ufffd" in token or token.startswith("<|") or choice["text"].startswith(token, offset)


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        ({}, 400, "prompt", "missing_required_parameter"),
        ({"prompt": None}, 400, "prompt", "invalid_type"),
        ({"prompt": 1}, 400, "prompt", "invalid_type"),
        ({"prompt": ["a", 1]}, 400, "prompt", "invalid_type"),
        ({"prompt": [1.5]}, 400, "prompt", "invalid_type"),
        ({"prompt": [True]}, 400, "prompt", "invalid_type"),
        ({"prompt": ""}, 400, "prompt", "invalid_value"),
        ({"prompt": []}, 400, "prompt", "invalid_value"),
        ({"prompt": [[]]}, 400, "prompt", "invalid_value"),
        ({"prompt": [-1]}, 400, "prompt", "invalid_value"),
        ({"prompt": [49152]}, 400, "prompt", "invalid_value"),
        ({"prompt": [5] * 512}, 400, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 257}, 400, "prompt", "invalid_value"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature", "invalid_value"),
        ({"prompt": "a", "temperature": "1"}, 400, "temperature", "invalid_type"),
        ({"prompt": "a", "max_tokens": True}, 400, "max_tokens", "invalid_type"),
        ({"prompt": "a", "n": 0}, 400, "n", "invalid_value"),
        ({"prompt": "a", "stop": 1}, 400, "stop", "invalid_type"),
        ({"prompt": "a", "logprobs": 21}, 400, "logprobs", "invalid_value"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias", "invalid_value"),
        ({"prompt": "a", "suffix": "b"}, 400, "suffix", "invalid_value"),
        ({"prompt": "a", "best_of": 2}, 400, "best_of", "invalid_value"),
        ({"prompt": "a", "stream_options": {}}, 400, "stream_options", "invalid_value"),
        ({"prompt": "a", "response_format": {"type": "xml"}}, 400, "response_format.type", "invalid_value"),
        ({"prompt": "a", "model": "other"}, 404, "model", "model_not_found"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    server: Running, body: dict[str, Any], status: int, param: str, code: str
) -> None:
    for stream in (False, True):
        response = server.post("/v1/completions", **body, **({"stream": True} if stream else {}))
        if stream and "stream_options" in body:
            continue
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, code)
        assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[1]",
        b'{"prompt": "a\xff"}',
        b'{"temperature": NaN}',
        b'{"a":' * 101 + b"1" + b"}" * 101,
        b"1" * 5000,
        b"",
    ],
)
def test_what_is_no_json_object_is_refused(server: Running, body: bytes) -> None:
    response = server.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_the_client_library_raises_its_own_errors(server: Running) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert client.models.list().data[0].id == "tiny"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.completions.create(model="tiny", prompt="a", temperature=-1)
        assert client.completions.create(model="tiny", prompt="a", max_tokens=2).usage.completion_tokens == 2


def test_a_scripted_answer_arrives_as_it_was_told(smol_tokenizer: Tokenizer) -> None:
    said = "One 😀 two.\nThree"
    with running(scripted_engine(smol_tokenizer, said)) as server:
        body = {"prompt": "go", "max_tokens": 50}
        assert server.post("/v1/completions", **body).json()["choices"][0]["text"] == said
        assert merged(server.stream("/v1/completions", **body))[0]["text"] == said
