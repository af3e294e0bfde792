"""The order of what a model writes, and how many of its tokens are reasoning."""

from __future__ import annotations

import itertools

import pytest

from headrace.server.reader import AnswerReader, CallDelta, Parts, joined
from headrace.text.reasoning import ReasoningSplitter
from headrace.text.tools.hermes import hermes_parser

CALLS = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in "ab")


def reader() -> AnswerReader:
    ids = map(str, itertools.count())
    return AnswerReader(ReasoningSplitter(), hermes_parser(frozenset("ab")), lambda: next(ids))


@pytest.mark.parametrize("end", ["", "Done."])
def test_content_after_calls_is_told_after_them(end: str) -> None:
    calls = [CallDelta(0, "0", "a", "{}"), CallDelta(1, "1", "b", "{}")]
    one = reader()
    parts = one.push(f"<think>Hm.</think>\n\nI look. {CALLS}\n{end}")
    parts = joined(parts, one.finish())
    assert parts == [Parts("I look.", "Hm.", calls), *([Parts("Done.")] if end else [])]


def test_reasoning_tokens_are_those_up_to_its_end() -> None:
    one = reader()
    for count, text in enumerate(["<", "think>", "H", "m.", "</think", ">"], 1):
        assert one.is_thinking
        one.push(text)
        assert one.num_reasoning_tokens == (count if count > 1 else 0)
    assert not one.is_thinking
    one.push(" Yes.")
    assert one.num_reasoning_tokens == 6
    one = reader()
    one.push("<")
    one.push("b>")
    assert (one.is_thinking, one.num_reasoning_tokens) == (False, 0)
