"""Server-sent events, against the standard's own examples and streams whose events are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.benchmark.serve.sse import EventParser

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8).map(str.encode)
OTHER = st.sampled_from([b": ping", b":", b"event: delta", b"id: 7", b"retry: 10", b"database: x", b"what"])


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        # The examples of https://html.spec.whatwg.org/multipage/server-sent-events.html
        (b"data: This is the first message.\n\n", [b"This is the first message."]),
        (b"data: This is the second, it\ndata: has two lines.\n\n", [b"This is the second, it\nhas two lines."]),
        (b"event: add\ndata: 73857293\n\nevent: remove\ndata: 2153\n\n", [b"73857293", b"2153"]),
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [b"YHOO\n+2\n10"]),
        (b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
         [b"first event", b"second event", b" third event"]),
        (b"data\n\ndata\ndata\n\ndata:", [b"", b"\n"]),
        (b"data:test\n\ndata: test\n\n", [b"test", b"test"]),
        # A byte order mark is passed over, once.
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\ndata: c\n\n", [b"a", b"c"]),
        (b"\r\n\r\ndata: a\r\n\r\n\n\n", [b"a"]),
        (b"data: not ended\n", []),
    ],
)  # fmt: skip
def test_examples(stream: bytes, events: list[bytes]) -> None:
    assert EventParser().feed(stream) == events
    parser = EventParser()
    assert [one for i in range(len(stream)) for one in parser.feed(stream[i : i + 1])] == events


@given(st.data(), st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=4))
def test_events_survive_any_cut_and_any_line_end(data: st.DataObject, events: list[list[bytes]]) -> None:
    stream = b""
    for lines in events:
        for line in lines:
            written = [*data.draw(st.lists(OTHER, max_size=2)), b"data: " + line]
            stream += b"".join(one + data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"])) for one in written)
        # A lone CR before an LF would be one end, not two.
        stream += data.draw(st.sampled_from([b"\r\n", b"\r"] if stream.endswith(b"\r") else [b"\n", b"\r\n", b"\r"]))
        if stream.endswith(b"\r"):
            stream += b":\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    parser = EventParser()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [one for piece in pieces for one in parser.feed(piece)] == [b"\n".join(lines) for lines in events]
