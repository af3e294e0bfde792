"""/v1/chat/completions over a real server, against the offline API and the client library."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace import LLM, SamplingParams
from headrace.text.chat import ChatTemplate, encode_chat
from headrace.text.tokenizer import Tokenizer
from server.chats import ADD, CHAT, NASTY, NOTE, USER, both, calls_of
from server.running import Running, running
from server.scripted import scripted_engine
from text.vocabularies import gguf_definition

GREEDY = {"temperature": 0}


@pytest.mark.parametrize(
    "body",
    [
        {**GREEDY, "max_tokens": 6},
        {"max_tokens": 5, "n": 3, "seed": 4},
        {"max_tokens": 8, "seed": 5, "logprobs": True, "top_logprobs": 3},
        {"max_tokens": 3, "logprobs": True, "n": 2, "seed": 1},
        {**GREEDY, "max_tokens": 8, "stop": ["e", "a"], "logprobs": True, "top_logprobs": 1},
        {"max_tokens": 30, "seed": 1, "response_format": {"type": "json_object"}},
    ],
)
def test_answers_are_those_of_the_offline_api(server: Running, tiny_llm: LLM, body: dict[str, Any]) -> None:
    choices = both(server, **body)
    names = ("temperature", "max_tokens", "n", "seed", "stop")
    given: dict[str, Any] = {name: body[name] for name in names if name in body}
    if body.get("logprobs"):
        given["logprobs"] = body.get("top_logprobs", 0)
    if "response_format" in body:
        return
    expected = server.offline(lambda: tiny_llm.chat([USER], SamplingParams(**given)))
    for choice, output in zip(choices, expected.outputs, strict=True):
        assert choice["message"] == {"role": "assistant", "content": output.text, "refusal": None}
        assert choice["finish_reason"] == output.finish_reason
        scores = (choice["logprobs"] or {"content": []})["content"]
        assert [s["logprob"] for s in scores] == [s.logprob for s in output.logprobs or [] if s is not None]
        for score, token in zip(scores, output.token_ids, strict=False):
            assert bytes(score["bytes"]) == tiny_llm.tokenizer.token_bytes(token)
            assert score["token"] == bytes(score["bytes"]).decode(errors="replace")
            assert len(score["top_logprobs"]) == body.get("top_logprobs", 0)


def test_prompts_are_counted_and_cached_prefixes_told(server: Running, tiny_llm: LLM) -> None:
    messages = [{"role": "user", "content": "once upon a time " * 20}]
    body = {"messages": messages, "max_tokens": 2, "n": 2, "cache_salt": "told"}
    first, second = (server.post(CHAT, **body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens"] == second["prompt_tokens"] == len(tiny_llm.encode_chat(messages))
    assert first["completion_tokens"] == 4
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert 0 < second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]


def test_the_client_library_reads_a_stream_of_calls(server: Running) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": [USER], "tools": [NOTE], "max_tokens": 200}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with client.chat.completions.stream(**asked, tool_choice="required", parallel_tool_calls=False) as stream:
            kinds = [event.type for event in stream]
            choice = stream.get_final_completion().choices[0]
        assert "tool_calls.function.arguments.delta" in kinds
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("note", {"text": NASTY})
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            client.chat.completions.create(**{**asked, "tools": []}, tool_choice="required")


def test_a_final_message_is_gone_on_with(server: Running, tiny_llm: LLM) -> None:
    messages = [USER, {"role": "assistant", "content": "Once upon a"}]
    body = {"messages": messages, "max_tokens": 4, "continue_final_message": True, **GREEDY}
    [choice] = both(server, **body)
    template = tiny_llm.tokenizer.chat_template
    assert template is not None
    prompt = ChatTemplate(template, bos_token="", eos_token="").render(messages, add_generation_prompt=False)
    ids = tiny_llm.tokenizer.encode(prompt.removesuffix("<|im_end|>\n"))
    [output] = server.offline(lambda: tiny_llm.generate([ids], SamplingParams(temperature=0, max_tokens=4)))
    assert choice["message"]["content"] == output.text
    assert server.post(CHAT, **body).json()["usage"]["prompt_tokens"] == len(ids)


def test_template_variables_reach_the_template(smol_tokenizer: Tokenizer, smollm2_path: Path) -> None:
    source = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ mood }}|{{ messages[0].content }}"
    tokenizer = Tokenizer(replace(gguf_definition(smollm2_path), chat_template=source))
    told = lambda ids: f"<{tokenizer.decode(ids)}>"  # noqa: E731
    with running(scripted_engine(tokenizer, told)) as server:
        [choice] = both(server, chat_template_kwargs={"mood": "calm"}, reasoning_effort="none", max_tokens=50)
        assert choice["message"]["content"] == "<none|False|calm|Hi>"
        [choice] = both(server, max_tokens=50)
        assert choice["message"]["content"] == "<||​|Hi>".replace("\u200b", "")


BLANK = {"role": "user", "content": " "}
UNKNOWN = {"properties": {"a": {"type": "string", "pattern": "(["}}}


def function(**given: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **given}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": None}, "messages", "invalid_type"),
        ({"messages": "Hi"}, "messages", "invalid_type"),
        ({"messages": ["Hi"]}, "messages.0", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages", "unsupported_parameter"),
        ({"messages": [{**USER, "audio": {"id": "a"}}]}, "messages", "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": "x " * 600}]}, "prompt", "invalid_value"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"function_call": "auto"}, "function_call", "unsupported_parameter"),
        ({"audio": {"voice": "a"}, "modalities": ["text", "audio"]}, "audio", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"prediction": {"type": "content"}}, "prediction", "unsupported_parameter"),
        ({"chat_template": "x"}, "chat_template", "unsupported_parameter"),
        ({"documents": [{"text": "x"}]}, "documents", "unsupported_parameter"),
        ({"echo": True}, "echo", "unsupported_parameter"),
        ({"web_search_options": {"user_location": None}}, "web_search_options", "unsupported_parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logprobs": 3}, "logprobs", "invalid_type"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "invalid_value"),
        ({"continue_final_message": True, "messages": [BLANK]}, "continue_final_message", "invalid_value"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "invalid_value"),
        ({"tools": {}}, "tools", "invalid_type"),
        ({"tools": [1]}, "tools.0", "invalid_type"),
        ({"tools": [{"type": "custom"}]}, "tools", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools", "invalid_value"),
        ({"tools": [function(name="a b")]}, "tools", "invalid_value"),
        ({"tools": [function(name="x" * 65)]}, "tools", "invalid_value"),
        ({"tools": [function(parameters={"type": "array"})]}, "tools", "invalid_value"),
        ({"tools": [function(parameters=[])]}, "tools", "invalid_value"),
        ({"tools": [function(description=1)]}, "tools", "invalid_value"),
        ({"tools": [NOTE, ADD, NOTE]}, "tools", "invalid_value"),
        ({"tools": [function(parameters=UNKNOWN)], "tool_choice": "required"}, "tools", "invalid_value"),
        ({"tools": [function(parameters=UNKNOWN)], "tool_choice": named("f")}, "tools", "invalid_value"),
        ({"tools": [NOTE], "tool_choice": "never"}, "tool_choice", "invalid_value"),
        ({"tools": [NOTE], "tool_choice": {"type": "custom"}}, "tool_choice", "unsupported_parameter"),
        ({"tools": [NOTE], "tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        ({"tools": [NOTE], "tool_choice": named("nope")}, "tool_choice", "invalid_value"),
        ({"tools": [NOTE], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "invalid_value"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(server: Running, body: dict[str, Any], param: str, code: str) -> None:
    body = {"messages": [USER], "max_tokens": 2, **body}
    for stream in (False, True) if "stream_options" not in body else (False,):
        response = server.post(CHAT, **body, stream=stream)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, code)


def test_allowed_tools_are_some_of_the_tools(server: Running) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    [answered] = both(server, tools=[NOTE, ADD], tool_choice=choice, parallel_tool_calls=False, max_tokens=100, seed=1)
    assert [name for name, _ in calls_of(answered)] == ["add"]


def test_a_model_without_a_chat_template_takes_no_chats(smollm2_path: Path) -> None:
    tokenizer = Tokenizer(replace(gguf_definition(smollm2_path), chat_template=None))
    with running(scripted_engine(tokenizer, "x")) as server:
        for stream in (False, True):
            response = server.post(CHAT, messages=[USER], stream=stream)
            assert response.status_code == 400
            assert "has no chat template" in response.json()["error"]["message"]


def test_a_failure_inside_a_stream_is_an_event(smol_tokenizer: Tokenizer) -> None:
    """The grammar allows none of what the device on paper says, so the choice ends with an error."""
    with running(scripted_engine(smol_tokenizer, "no digits")) as server:
        body = {"messages": [USER], "max_tokens": 9, "structured_outputs": {"regex": "[0-9]+"}}
        response = server.post(CHAT, **body)
        events = server.client.post(CHAT, json={**body, "stream": True})
        assert response.status_code in (400, 500)
        assert response.json()["error"]["code"] == "generation_failed"
        lines = [line[6:] for line in events.text.splitlines() if line.startswith("data: {")]
        told = [json.loads(line) for line in lines or [events.text]]
        assert told[-1]["error"]["code"] == "generation_failed"


def test_roles_that_a_template_does_not_know(smol_tokenizer: Tokenizer, server: Running) -> None:
    counts = [
        server.post(CHAT, messages=[{"role": role, "content": "Be brief."}, USER], max_tokens=1).json()["usage"]
        for role in ("developer", "system")
    ]
    assert counts[0]["prompt_tokens"] == counts[1]["prompt_tokens"]
    source = smol_tokenizer.chat_template
    assert source is not None
    expected = encode_chat(
        smol_tokenizer,
        ChatTemplate(source, bos_token="", eos_token=""),
        [{"role": "system", "content": "Be brief."}, USER],
    )
    assert counts[0]["prompt_tokens"] == len(expected)
