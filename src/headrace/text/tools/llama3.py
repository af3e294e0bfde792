"""Calls as Llama 3 writes them: `{"name": …, "parameters": {…}}` as the whole answer, or after `<|python_tag|>`."""

from __future__ import annotations

from functools import partial

from headrace.text.tools.marked import MarkedParser
from headrace.text.tools.sequence import CallSequence

MARKER = "<|python_tag|>"


def llama3_parser(names: frozenset[str]) -> MarkedParser:
    """A parser of such text. Without the marker, JSON with other names than these is content."""
    return MarkedParser(MARKER, CallSequence, partial(CallSequence, names))
