"""Thoughts told from answers, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.text.reasoning import ReasoningSplitter


def split(deltas: list[str], *, is_open: bool = False, keep_tags: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(is_open=is_open, keep_tags=keep_tags)
    parts = [splitter.push(delta) for delta in deltas] + [splitter.finish()]
    return "".join(thoughts for thoughts, _ in parts), "".join(answer for _, answer in parts)


@pytest.mark.parametrize(
    ("text", "is_open", "thoughts", "answer"),
    [
        ("<think>\nHm.\n\nYes.\n</think>\n\nIt is.\n", False, "Hm.\n\nYes.", "It is.\n"),
        ("\n <think>Hm</think>It", False, "Hm", "It"),
        ("Hm.\n</think>\n\nIt is.", True, "Hm.", "It is."),
        ("<think>Hm. </th", False, "Hm. </th", ""),
        ("Hm. \n", True, "Hm.", ""),
        ("It is.", False, "", "It is."),
        (" It <think>is</think>.", False, "", " It <think>is</think>."),
        ("<thin", False, "", "<thin"),
        ("\n", False, "", "\n"),
        ("<think></think>It", False, "", "It"),
        ("<think>\n\n</think>\n\n", False, "", ""),
        ("<think>a</think>b</think>", False, "a", "b</think>"),
        ("a </thinker> b</think> c", True, "a </thinker> b", "c"),
    ],
)
def test_thoughts_and_answers(text: str, is_open: bool, thoughts: str, answer: str) -> None:
    assert split([text], is_open=is_open) == (thoughts, answer)
    assert split([*text], is_open=is_open) == (thoughts, answer)


BITS = st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think>", "a", " ", "\n", "é"]), max_size=10)


@settings(deadline=None, max_examples=300)
@given(deltas=BITS, is_open=st.booleans(), keep_tags=st.booleans())
def test_however_a_text_is_cut(deltas: list[str], is_open: bool, keep_tags: bool) -> None:
    text = "".join(deltas)
    whole = split([text], is_open=is_open, keep_tags=keep_tags)
    assert split(deltas, is_open=is_open, keep_tags=keep_tags) == whole
    assert split([*text], is_open=is_open, keep_tags=keep_tags) == whole
    if keep_tags:
        assert "".join(whole) == text
