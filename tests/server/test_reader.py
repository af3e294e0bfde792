"""Reasoning, content and calls told apart, however the text is cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.reader import AnswerReader
from headrace.text.reasoning import ReasoningSplitter
from headrace.text.tools.formats import TOOL_FORMATS

CALL = '{"name": "note", "arguments": {"a": "}<é"}}'
BITS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    CALL,
    "[",
    "]",
    ", ",
    "\n",
    " a",
    "<",
    '{"name": "note"',
    "é",
]


def reader(form: str, *, hides: bool, is_open: bool, most: int | None = None) -> AnswerReader:
    splitter = ReasoningSplitter(is_open=is_open, keep_tags=not hides)
    parser = TOOL_FORMATS[form].new_parser(frozenset({"note"}))
    ids = itertools.count()
    return AnswerReader(splitter, parser, lambda: f"id{next(ids)}", shows_reasoning=not hides, max_calls=most)


def read(one: AnswerReader, deltas: Sequence[str]) -> tuple[str, str, list[list[Any]]]:
    content = reasoning = ""
    calls: list[list[Any]] = []
    for parts in [parts for delta in deltas for parts in one.push(delta)] + one.finish():
        content, reasoning = content + parts.content, reasoning + parts.reasoning
        for call in parts.calls:
            if call.id is not None:
                assert call.index == len(calls)
                calls.append([call.id, call.name, ""])
            calls[call.index][2] += call.arguments
    return content, reasoning, calls


@pytest.mark.parametrize("form", ["hermes", "json"])
@settings(deadline=None, max_examples=80)
@given(
    bits=st.lists(st.sampled_from(BITS), max_size=10),
    hides=st.booleans(),
    is_open=st.booleans(),
    most=st.sampled_from([None, 1]),
)
def test_however_a_text_is_cut(form: str, bits: list[str], hides: bool, is_open: bool, most: int | None) -> None:
    text = "".join(bits)
    whole, *others = (
        read(reader(form, hides=hides, is_open=is_open, most=most), deltas) for deltas in ([text], bits, [*text])
    )
    assert others == [whole, whole]
    content, reasoning, calls = whole
    if not hides:
        assert reasoning == ""
        assert calls or content == text
    assert len(calls) <= (most or len(calls))


def test_what_a_batch_brought_is_one_delta_per_call() -> None:
    text = f"<think>a</think>b<tool_call>{CALL}</tool_call>\nc"
    [parts, after] = reader("hermes", hides=True, is_open=False).push(text)
    assert (parts.reasoning, parts.content) == ("a", "b")
    [call] = parts.calls
    assert (call.index, call.id, call.name, call.arguments) == (0, "id0", "note", '{"a": "}<é"}')
    assert (after.content, after.calls) == ("c", [])
