"""Calls as plain JSON, for models that have no form of their own: an object, several of them, or an array."""

from __future__ import annotations

from functools import partial

from headrace.text.tools.marked import MarkedParser
from headrace.text.tools.sequence import CallSequence


def json_parser(names: frozenset[str]) -> MarkedParser:
    """A parser of answers that consist of calls. JSON with other names than these is content."""
    bare = partial(CallSequence, names)
    return MarkedParser(None, bare, bare)


def array_parser(names: frozenset[str]) -> MarkedParser:
    """A parser that takes only an array for calls, so that an answer may be any object."""
    bare = partial(CallSequence, names, only_array=True)
    return MarkedParser(None, bare, bare)
