"""What form a request's output must have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """The form of the output; exactly one of these is given.

    Attributes:
        json: a JSON schema, as text or as the object that it describes.
        json_object: any JSON object.
        regex: a regular expression that the whole output matches.
        choice: one of these texts.
        grammar: a grammar in Lark's notation.
    """

    json: str | Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
