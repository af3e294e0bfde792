"""/tokenize and /detokenize in vLLM's forms, against the tokenizers library and the chat template's own tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM
from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from server.scripted import scripted_engine
from text.vocabularies import gguf_definition

JSON = {"content-type": "application/json"}
TEXTS = ["river", " river", "Grüße, 世界! 🫨\n\n\tx", "<|im_start|>user\nHi<|im_end|>", "a  b", "'tis 1234567"]
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def paper(smol_tokenizer: Tokenizer) -> Any:
    with running(scripted_engine(smol_tokenizer, "hi")) as one:
        yield one


def test_texts_become_the_librarys_tokens_and_come_back(paper: Running, smol_tokenizer: Tokenizer) -> None:
    backend = smol_tokenizer._backend
    for text in TEXTS:
        want = backend.encode(text, add_special_tokens=False)
        answer = paper.post("/tokenize", model="tiny", prompt=text, return_token_strs=True)
        assert answer.json() == {
            "count": len(want.ids),
            "max_model_len": 1024,
            "tokens": want.ids,
            "token_strs": [backend.id_to_token(token) for token in want.ids],
        }
        assert paper.post("/detokenize", model="tiny", tokens=want.ids).json() == {"prompt": text}
    assert paper.post("/tokenize", prompt="").json() == {
        "count": 0,
        "max_model_len": 1024,
        "tokens": [],
        "token_strs": None,
    }
    assert paper.post("/detokenize", tokens=[]).json() == {"prompt": ""}


def test_chats_become_what_the_model_reads(server: Running, tiny_llm: LLM) -> None:
    answer = server.post("/tokenize", messages=HI).json()
    assert answer["tokens"] == tiny_llm.encode_chat(HI)
    assert answer["count"] == 31  # SmolLM2's template adds its own system message
    short = server.post("/tokenize", messages=HI, add_generation_prompt=False).json()["tokens"]
    assert answer["tokens"][: len(short)] == short
    assert tiny_llm.tokenizer.decode(answer["tokens"][len(short) :], skip_special=False) == "<|im_start|>assistant\n"
    open_ended = server.post("/tokenize", messages=HI, continue_final_message=True).json()["tokens"]
    assert short[: len(open_ended)] == open_ended
    assert tiny_llm.tokenizer.decode(short[len(open_ended) :], skip_special=False) == "<|im_end|>\n"
    forged = server.post("/tokenize", messages=[{"role": "user", "content": "<|im_end|>"}], chat_template_kwargs={})
    assert forged.json()["tokens"].count(2) == 2  # those of the template alone
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    with_tools = {"model": "tiny", "messages": HI, "tools": tools}
    count = server.post("/tokenize", **with_tools).json()["count"]
    usage = server.post("/v1/chat/completions", **with_tools, max_tokens=1).json()["usage"]
    assert count == usage["prompt_tokens"] > answer["count"]


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/tokenize", {}, "prompt", "invalid_value"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt", "invalid_value"),
        ("/tokenize", {"prompt": 5}, "prompt", "invalid_type"),
        ("/tokenize", {"messages": []}, "messages", "invalid_value"),
        ("/tokenize", {"messages": [{"content": "a"}]}, "messages", "invalid_value"),
        (
            "/tokenize",
            {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "invalid_value",
        ),
        ("/tokenize", {"messages": HI, "chat_template": "x"}, "chat_template", None),
        ("/tokenize", {"messages": HI, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "invalid_value"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens", "invalid_type"),
        ("/detokenize", {}, "tokens", "missing_required_parameter"),
        ("/detokenize", {"tokens": [5, -1]}, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": [49_152]}, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": [1.5]}, "tokens", "invalid_type"),
        ("/detokenize", {"tokens": "abc"}, "tokens", "invalid_type"),
    ],
)
def test_wrong_requests_are_refused_by_name(
    server: Running, path: str, body: dict[str, Any], param: str, code: str | None
) -> None:
    answer = server.client.post(path, content=json.dumps(body), headers=JSON)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"].partition(".")[0] == param, error
    assert error["code"] == (code or "unsupported_parameter")


def test_the_last_id_has_a_text_and_another_model_is_not_found(server: Running) -> None:
    assert server.post("/detokenize", tokens=[49_151]).status_code == 200
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [5]})):
        answer = server.post(path, model="other", **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_beginning_token_and_a_missing_template(gemma3_path: Path) -> None:
    definition = gguf_definition(gemma3_path)
    with running(scripted_engine(Tokenizer(definition), "hi")) as one:
        assert one.post("/tokenize", prompt="Hello").json()["tokens"] == [2, 9259]
        assert one.post("/tokenize", prompt="Hello", add_special_tokens=False).json()["tokens"] == [9259]
        assert one.post("/detokenize", tokens=[2, 9259]).json() == {"prompt": "<bos>Hello"}
        answer = one.post("/tokenize", messages=HI)
        if definition.chat_template is None:
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_by_model")
        else:
            tokens = answer.json()["tokens"]
            assert tokens[0] == 2
            assert one.post("/tokenize", messages=HI, add_special_tokens=True).json()["tokens"] == [2, *tokens]
