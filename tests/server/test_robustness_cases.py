"""The robustness cases of public bug reports, over a real server."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from server.running import Running
from smol import RIVER

FORCED = {"temperature": 0, "logit_bias": {str(RIVER): 100}, "max_tokens": 2}
JSON = {"content-type": "application/json"}
LEAK = re.compile(r"Traceback|File \"/|surrogates not allowed|can't encode|codec|UnicodeEncodeError|UnicodeDecodeError")
HALF = r"a\ud800b"


def raw(path_body: dict[str, Any], **escaped: str) -> bytes:
    """A body whose marks are replaced by text as it goes over the wire."""
    text = json.dumps({**FORCED, **path_body})
    for mark, value in escaped.items():
        text = text.replace(mark, value)
    return text.encode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("half", [HALF, r"\udc00", r"\ude00\ud83d", r"x\uD83Dx"])
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "MARK"},
        {"prompt": ["a", "MARK"]},
        {"prompt": "a", "stop": ["MARK"]},
        {"prompt": "a", "user": "MARK"},
        {"prompt": "a", "model": "MARK"},
        {"prompt": "a", "MARK": 1},
        {"prompt": "a", "logit_bias": {"MARK": 1}},
        {"prompt": "a", "bad_words": ["MARK"]},
        {"prompt": "a", "guided_regex": "MARK"},
        {"prompt": "a", "guided_choice": ["MARK"]},
        {"prompt": "a", "guided_json": {"enum": ["MARK"]}},
        {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["MARK"]}}}},
        {"prompt": "a", "cache_salt": "MARK"},
    ],
    ids=str,
)
def test_rob_01_half_a_surrogate_pair_is_refused_and_not_told(
    server: Running, body: dict[str, Any], half: str, stream: bool
) -> None:
    content = raw({**body, "stream": stream}, MARK=half)
    response = server.client.post("/v1/completions", content=content, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"
    assert not LEAK.search(response.text)


def test_rob_01_pairs_nul_and_broken_bytes(server: Running) -> None:
    def ask(prompt: bytes) -> Any:
        content = raw({"prompt": "MARK", "echo": True}).replace(b"MARK", prompt)
        return server.client.post("/v1/completions", content=content, headers=JSON)

    for prompt, text in (
        (rb"\ud83d\ude00", "😀"),
        (rb"a\u0000b", "a\0b"),
        (rb"\\ud800", r"\ud800"),
        (b"\xf0\x9f\x98\x80", "😀"),
    ):
        response = ask(prompt)
        assert response.status_code == 200
        assert response.json()["choices"][0]["text"] == f"{text} river river"
    for prompt in (b"a\xff\xfeb", b"\xed\xa0\x80", b"\xf0\x9f"):
        response = ask(prompt)
        assert response.status_code == 400
        assert not LEAK.search(response.text)


POSTED = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/tokenize")


@pytest.mark.parametrize("path", POSTED)
def test_api_16_errors_have_their_status_and_form(server: Running, path: str) -> None:
    asked = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a", "input": "a"}
    body = {**asked, "model": "no-such-model"}
    answers = [
        (404, "model_not_found", server.post(path, **body)),
        (400, "invalid_json", server.client.post(path, content=b'{"model": ', headers=JSON)),
        (400, "invalid_body", server.client.post(path, content=b"[1, 2]", headers=JSON)),
        (400, None, server.post(path, model="tiny")),
        (405, "method_not_allowed", server.client.get(path)),
        (404, "unknown_url", server.client.post(f"{path}/no-such-route", json={})),
        (404, "unknown_url", server.client.get("/v1/no-such-route")),
    ]
    for status, code, response in answers:
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert code in (None, error["code"])
        assert error["message"]
