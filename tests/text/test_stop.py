"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import RequestError
from headrace.text.stop import StopMatcher

AB = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def oracle(stops: list[str], text: str, first: int = 0, include: bool = False) -> tuple[str, bool]:
    """Look at every prefix of the text that has a character from `first` on: the first that ends with a stop string is
    where it stops."""
    for end in range(first + 1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - (0 if include else max(lengths))], True
    return text, False


@settings(deadline=None)
@given(stops=STOPS, deltas=st.lists(AB, max_size=12), quiet=st.integers(0, 6), include=st.booleans())
def test_equals_a_search_of_the_whole_text(stops: list[str], deltas: list[str], quiet: int, include: bool) -> None:
    """Of the first pieces, so many do not count."""
    matcher = StopMatcher(stops, include=include)
    shown, seen, first = "", "", len("".join(deltas[:quiet]))
    found = False
    for i, delta in enumerate(deltas):
        emitted, found = matcher.push(delta, counts=i >= quiet)
        shown += emitted
        seen += delta
        if found:
            break
        held = seen[len(shown) :]
        assert shown == seen[: len(shown)]
        assert held == "" or any(stop.startswith(held) and held != stop for stop in stops)
        # The text held back is all that may become a stop string, so no shown text is ever withdrawn.
        longer = [seen[start:] for start in range(len(shown)) if any(s.startswith(seen[start:]) for s in stops)]
        assert [text for text in longer if text not in stops] == []
    shown += matcher.finish()
    assert (shown, found) == oracle(stops, seen, first, include)
    cut_before, _ = oracle(stops, seen, first)
    assert matcher.found == (oracle(stops, seen, first, True)[0][len(cut_before) :] if found else None)
    if found:
        assert matcher.push("more") == ("", True)
        assert matcher.finish() == ""


def test_nothing_is_held_without_a_reason() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hello\n") == ("Hello", False)
    assert matcher.push("\nUse") == ("", False)
    assert matcher.push(" it") == ("\n\nUse it", False)
    assert matcher.finish() == ""


def test_unfinished_stop_text_is_released_at_the_end() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN") == ("the ", False)
    assert matcher.finish() == "EN"
    assert matcher.finish() == ""


def test_the_cost_does_not_grow_with_the_text() -> None:
    matcher = StopMatcher(["a" * 1000 + "b"])
    shown = "".join(matcher.push("aaaaa")[0] for _ in range(20_000))
    assert len(shown) == 100_000 - 1000


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop: a stop string must not be empty"):
        StopMatcher(["a", ""])
