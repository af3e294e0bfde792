"""The formats of calls, and which of them a chat template speaks."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.text.tools import hermes, llama3, mistral
from headrace.text.tools.calls import ToolParser
from headrace.text.tools.json import json_parser

_ALPHANUMERIC = string.ascii_letters + string.digits


def _long_id() -> str:
    return "call_" + secrets.token_hex(12)


def _short_id() -> str:
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


@dataclass(frozen=True)
class ToolFormat:
    """How a family of models writes calls.

    Attributes:
        name: of the format, as `--tool-parser` takes it.
        new_parser: makes a parser of one answer, from the names of the tools.
        markers: texts that the parser has to see; in some models they are control tokens.
        new_id: makes a call's id, of the form that the family's chat templates take back.
    """

    name: str
    new_parser: Callable[[frozenset[str]], ToolParser]
    markers: tuple[str, ...] = ()
    new_id: Callable[[], str] = _long_id


TOOL_FORMATS = {
    each.name: each
    for each in (
        ToolFormat("hermes", hermes.hermes_parser, (hermes.OPENING, hermes.CLOSING)),
        ToolFormat("llama3", llama3.llama3_parser, (llama3.MARKER,)),
        # Mistral's templates refuse ids that are not 9 letters or digits.
        ToolFormat("mistral", mistral.mistral_parser, (mistral.MARKER, "[ARGS]", "[CALL_ID]"), _short_id),
        ToolFormat("json", json_parser),
    )
}


def tool_format(name: str, template: str) -> ToolFormat:
    """The format of this name; "auto" takes the one whose marker is in the chat template's source, else "json".

    Raises:
        ConfigError: the name is unknown.
    """
    if name == "auto":
        return TOOL_FORMATS[_spoken(template)]
    if name not in TOOL_FORMATS:
        raise ConfigError(f"tool_parser: {name!r} is not one of auto, {', '.join(TOOL_FORMATS)}")
    return TOOL_FORMATS[name]


def _spoken(template: str) -> str:
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template:
        return "hermes"
    if "<|python_tag|>" in template or "ipython" in template:
        return "llama3"
    return "json"
