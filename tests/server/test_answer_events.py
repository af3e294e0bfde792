"""Answers as events: valid by the client libraries' types, and the same whole however the deltas were cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

import anthropic.types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from headrace.sampling.scores import TokenLogprobs
from headrace.server.errors import APIError
from headrace.server.messages.output import MessageOutput
from headrace.server.responses.output import ResponseOutput
from headrace.server.schema.messages import MessagesRequest
from headrace.server.schema.responses import ResponsesRequest
from headrace.server.turn import AnswerDelta, CallDelta
from headrace.text.tokenizer import Tokenizer

Event = dict[str, Any]

# The library's unions are told apart by `type`.
RESPONSE_EVENTS = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}
MESSAGE_EVENTS = {
    "message_start": anthropic.types.RawMessageStartEvent,
    "content_block_start": anthropic.types.RawContentBlockStartEvent,
    "content_block_delta": anthropic.types.RawContentBlockDeltaEvent,
    "content_block_stop": anthropic.types.RawContentBlockStopEvent,
    "message_delta": anthropic.types.RawMessageDeltaEvent,
    "message_stop": anthropic.types.RawMessageStopEvent,
}


def check(event: Event, kinds: dict[str, Any]) -> None:
    """Validates an event and each object in it strictly."""
    kinds[event["type"]].model_validate_json(json.dumps(event), strict=True)


# What a model says, piece by piece: (kind, text), of which calls are ("call", name) and ("arguments", text).
Said = list[tuple[str, str]]


def deltas(said: Said, finish_reason: str, *, merge: Sequence[bool] = (), **last: Any) -> list[AnswerDelta]:
    """One delta for each piece, of one token; where `merge` says so, a piece joins the one before if it may."""
    made: list[dict[str, Any]] = []
    calls = 0
    for position, (kind, text) in enumerate(said):
        one: dict[str, Any] = {"content": "", "reasoning": "", "calls": (), "token_ids": (5,)}
        one["logprobs"] = (TokenLogprobs(5, -0.5, 1, ((5, -0.5),)),)
        if kind == "call":
            one["calls"] = (CallDelta(calls, f"call_{calls}", text, ""),)
            calls += 1
        elif kind == "arguments":
            one["calls"] = (CallDelta(calls - 1, None, None, text),)
        else:
            one[kind] = text
        order = ["reasoning", "content", "calls"]
        before = made[-1] if made else None
        if before is not None and position < len(merge) and merge[position]:
            latest = max(index for index, name in enumerate(order) if before[name])
            if min(index for index, name in enumerate(order) if one[name]) >= latest:
                made[-1] = {name: before[name] + one[name] for name in one}
                continue
        made.append(one)
    end: dict[str, Any] = {"content": "", "reasoning": "", "calls": (), "token_ids": (0,), "logprobs": ()}
    made.append({**end, "finish_reason": finish_reason, **last})
    empty = {"finish_reason": None, "error": None, "stop_reason": None}
    return [AnswerDelta(index=0, **{**empty, **one}) for one in made]


def response_events(tokenizer: Tokenizer, given: list[AnswerDelta], **request: Any) -> list[Event]:
    body = ResponsesRequest.model_validate({"input": "Hi", **request})
    output = ResponseOutput("tiny", body.echo(body.turn(9).params), tokenizer, 11)
    events = [*output.begin()]
    try:
        for delta in given:
            events += output.take(delta)
        events += output.finish(4, 2)
    except APIError as error:
        events += output.fail(error)
    return json.loads(json.dumps(events))  # type: ignore[no-any-return]


def without_ids(value: Any) -> Any:
    """A copy in which what is different each time is the same."""
    unique = ("id", "call_id", "created_at", "completed_at")
    if isinstance(value, dict):
        return {key: "…" if key in unique else without_ids(part) for key, part in value.items()}
    return [without_ids(part) for part in value] if isinstance(value, list) else value


def check_response(events: list[Event]) -> Event:
    """Validates a stream of events, builds the output from their deltas and compares it; returns the response."""
    for number, event in enumerate(events):
        check(event, RESPONSE_EVENTS)
        assert event["sequence_number"] == number
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    texts: dict[tuple[int, str], str] = {}
    items, ids = [], []
    for event in events[2:-1]:
        kind, index = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert index == len(items) == len(ids)  # the one before has ended
            assert event["item"]["status"] == "in_progress"
            ids.append(event["item"]["id"])
        elif kind == "response.output_item.done":
            assert event["item"]["id"] == ids[index]
            items.append(event["item"])
        else:
            assert event["item_id"] == ids[index]
            name = kind.rpartition(".")[0]
            if kind.endswith(".delta"):
                texts[index, name] = texts.get((index, name), "") + event["delta"]
            elif kind.endswith("text.done"):
                assert texts[index, name] == event["text"]
            elif kind == "response.function_call_arguments.done":
                assert texts.get((index, name), "") == event["arguments"]
    response: Event = events[-1]["response"]
    assert len(ids) == len({*ids})
    Response.model_validate_json(json.dumps(response), strict=True)
    assert response["output"][: len(items)] == items
    for index, item in enumerate(response["output"]):
        if item["type"] == "function_call":
            assert item["arguments"] == texts.get((index, "response.function_call_arguments"), "")
        else:
            kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
            assert [part["text"] for part in item["content"]] == [texts[index, f"response.{kind}"]]
    return response


SAID: Said = [
    ("reasoning", "Let "),
    ("reasoning", "me."),
    ("content", "I "),
    ("content", "look."),
    ("call", "weather"),
    ("arguments", '{"city": '),
    ("arguments", '"Ulm"}'),
    ("call", "other"),
    ("arguments", "{}"),
]


def test_a_response_with_all_kinds_of_items(smol_tokenizer: Tokenizer) -> None:
    events = response_events(smol_tokenizer, deltas(SAID, "tool_calls"))
    response = check_response(events)
    names = [event["type"].removeprefix("response.") for event in events]
    assert names == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    token = smol_tokenizer.token_bytes(5)
    score = {"token": token.decode(), "logprob": -0.5, "bytes": [*token]}
    scores = [score | {"top_logprobs": [score]}] * 2
    text = {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": scores}
    call = {"id": "…", "type": "function_call", "status": "completed"}
    assert without_ids(response["output"]) == [
        {"id": "…", "type": "reasoning", "status": "completed", "summary": [], "encrypted_content": None}
        | {"content": [{"type": "reasoning_text", "text": "Let me."}]},
        {"id": "…", "type": "message", "status": "completed", "role": "assistant", "content": [text]},
        call | {"call_id": "…", "name": "weather", "arguments": '{"city": "Ulm"}'},
        call | {"call_id": "…", "name": "other", "arguments": "{}"},
    ]
    assert response["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 21,
    }
    assert (response["status"], response["error"], response["incomplete_details"]) == ("completed", None, None)


@pytest.mark.parametrize(
    ("count", "reason", "statuses"),
    [
        (0, "stop", ["completed"]),  # nothing at all is an empty text
        (0, "length", ["incomplete"]),
        (1, "length", ["incomplete"]),
        (1, "stop", ["completed"]),
        (4, "length", ["completed", "incomplete"]),
        (6, "length", ["completed", "completed", "incomplete"]),
        (9, "length", ["completed", "completed", "completed", "incomplete"]),
        (4, "abort", ["completed", "incomplete"]),
        (6, "error", ["completed", "completed", "incomplete"]),
    ],
)
def test_how_a_response_ends(smol_tokenizer: Tokenizer, count: int, reason: str, statuses: list[str]) -> None:
    last = {"error": "broken"} if reason == "error" else {}
    response = check_response(response_events(smol_tokenizer, deltas(SAID[:count], reason, **last)))
    assert [item["status"] for item in response["output"]] == statuses
    status = {"stop": "completed", "length": "incomplete"}.get(reason, "failed")
    assert response["status"] == status
    assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if status == "incomplete" else None)
    assert (response["error"] or {}).get("code") == ("server_error" if status == "failed" else None)


def test_a_response_repeats_its_request(smol_tokenizer: Tokenizer) -> None:
    tool = {"type": "function", "name": "w", "description": "d", "parameters": {"type": "object"}, "strict": True}
    form = {"type": "json_schema", "name": "f", "description": "d", "schema": {"type": "object"}, "strict": True}
    given: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 5,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": None},
        "temperature": 0.25,
        "text": {"format": form, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "w"},
        "tools": [tool],
        "top_logprobs": 3,
        "top_p": 0.5,
        "user": "u",
    }
    response = check_response(response_events(smol_tokenizer, deltas([], "stop"), **given, store=True))
    assert {name: response[name] for name in given} == given
    assert response["store"] is False


STREAMS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["reasoning", "content"]), st.text(min_size=1, max_size=4)),
        st.tuples(st.just("call"), st.sampled_from(["a", "b"])),
    ),
    max_size=8,
).map(lambda said: [piece for one in said for piece in _with_arguments(one)])


def _with_arguments(piece: tuple[str, str]) -> Said:
    return [piece, ("arguments", '{"x"'), ("arguments", ": [1, 2]}")] if piece[0] == "call" else [piece]


@settings(deadline=None, max_examples=30)
@given(said=STREAMS, merge=st.lists(st.booleans(), max_size=30), reason=st.sampled_from(["stop", "length"]))
def test_the_whole_does_not_depend_on_the_cuts(
    smol_tokenizer: Tokenizer, said: Said, merge: list[bool], reason: str
) -> None:
    one, other = deltas(said, reason), deltas(said, reason, merge=merge)
    first, second = (check_response(response_events(smol_tokenizer, given)) for given in (one, other))
    for response in (first, second):
        for item in response["output"]:
            for part in item.get("content", ()):
                part.pop("logprobs", None)  # tokens that have them come one by one
    assert without_ids(first) == without_ids(second)
    assert without_ids(check_message(message_events(one))) == without_ids(check_message(message_events(other)))


# -- Messages


def message_events(given: list[AnswerDelta], **request: Any) -> list[Event]:
    messages = [{"role": "user", "content": "Hi"}]
    body = MessagesRequest.model_validate({"model": "m", "max_tokens": 9, "messages": messages, **request})
    output = MessageOutput("tiny", 11, body.max_tokens, body.stop_sequences or ())
    events = [*output.begin()]
    for delta in given:
        events += output.take(delta)
    events += output.finish(4, 2)
    events.append(output.message)
    return json.loads(json.dumps(events))  # type: ignore[no-any-return]


def check_message(events: list[Event]) -> Event:
    """Validates a stream of events, builds the message as the client library does, and compares it with the whole."""
    from anthropic.lib.streaming._messages import accumulate_event

    *events, whole = events
    anthropic.types.Message.model_validate_json(json.dumps(whole), strict=True)
    snapshot, buffers, is_open = None, {}, False  # type: ignore[var-annotated]
    for event in events:
        check(event, MESSAGE_EVENTS)
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(snapshot.content)  # type: ignore[union-attr]
        is_open = event["type"] in ("content_block_start", "content_block_delta")
        parsed = TypeAdapter(anthropic.types.RawMessageStreamEvent).validate_python(event)
        snapshot = accumulate_event(event=parsed, current_snapshot=snapshot, json_bufs=buffers)  # type: ignore[assignment]
    assert snapshot is not None
    built = anthropic.types.Message.model_validate(snapshot.to_dict(), strict=True)
    assert built == anthropic.types.Message.model_validate(whole, strict=True)
    return whole


def test_a_message_with_all_kinds_of_blocks() -> None:
    events = message_events(deltas(SAID, "tool_calls"))
    whole = check_message(events)
    assert whole["content"] == [
        {"type": "thinking", "thinking": "Let me.", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_call_0", "name": "weather", "input": {"city": "Ulm"}},
        {"type": "tool_use", "id": "toolu_call_1", "name": "other", "input": {}},
    ]
    usage = {"input_tokens": 7, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 10}
    usage |= {"output_tokens_details": {"thinking_tokens": 2}}
    assert whole["usage"] == events[-3]["usage"] == usage
    start = {"input_tokens": 11, "cache_read_input_tokens": 0, "output_tokens": 0}
    assert events[0]["message"]["usage"] == usage | start | {"output_tokens_details": {"thinking_tokens": 0}}
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("tool_use", None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        ('{"a": 1, "b": "x', {"a": 1}),
        ("{a: 1}", {"INVALID_JSON": "{a: 1}"}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ('{"a": 1e999}', {"INVALID_JSON": '{"a": 1e999}'}),
        ("[1]", {"INVALID_JSON": "[1]"}),
    ],
)
def test_arguments_that_are_no_object_are_kept_in_one(arguments: str, expected: dict[str, Any]) -> None:
    output = MessageOutput("tiny", 9, 99, ())
    call = CallDelta(0, "1", "note", arguments)
    events = [*output.take(AnswerDelta(0, "", "", (call,), (5,), (), "stop", None)), *output.finish(0, 0)]
    assert events[-1]["type"] == "message_stop"
    assert output.message["content"][0]["input"] == expected


@pytest.mark.parametrize(
    ("said", "end", "reason", "sequence"),
    [
        ([], {"finish_reason": "stop"}, "end_turn", None),
        (SAID[2:4], {"finish_reason": "stop"}, "end_turn", None),
        (SAID[2:4], {"finish_reason": "stop", "stop_reason": "b"}, "stop_sequence", "b"),
        (SAID[2:4], {"finish_reason": "stop", "stop_reason": 7}, "end_turn", None),
        (SAID[2:4], {"finish_reason": "length", "token_ids": (1,) * 7}, "max_tokens", None),
        (SAID[2:4], {"finish_reason": "length", "token_ids": (1,) * 6}, "model_context_window_exceeded", None),
        (SAID[4:7], {"finish_reason": "stop"}, "tool_use", None),  # a call that was asked for by name
        (SAID[4:6], {"finish_reason": "length", "token_ids": (1,) * 7}, "max_tokens", None),
    ],
)
def test_how_a_message_ends(said: Said, end: dict[str, Any], reason: str, sequence: str | None) -> None:
    whole = check_message(message_events(deltas(said, **end), stop_sequences=["a", "b"]))
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize("end", [{"finish_reason": "abort"}, {"finish_reason": "error", "error": "broken"}])
def test_a_message_that_failed_is_an_error(end: dict[str, Any]) -> None:
    with pytest.raises(APIError):
        message_events(deltas(SAID, **end))
