"""What one request may ask for at most, wherever in the API its fields have these names."""

from __future__ import annotations

import json
from typing import Any

from headrace.server.errors import APIError
from headrace.server.options import ServerOptions

MAX_FIELDS = 512  # no API has a tenth of them
_SCHEMAS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "tools",
    "output_config",
    "output_format",
    "text.format",
)


def check_limits(body: Any, options: ServerOptions) -> None:
    """Refuses a JSON body that asks for too much; what is of another type than expected is left to the route.

    Raises:
        APIError: a field is larger than the operator allows.
    """
    if not isinstance(body, dict):
        return
    if len(body) > MAX_FIELDS:
        raise APIError(400, f"the body has {len(body)} fields, at most {MAX_FIELDS} are allowed", code="invalid_value")
    n = body.get("n")
    if isinstance(n, int) and n > options.max_n:
        raise _too_much("n", n, options.max_n, "choices")
    for name in ("stop", "stop_sequences"):
        given = body.get(name)
        if isinstance(given, list) and len(given) > options.max_stops:
            raise _too_much(name, len(given), options.max_stops, "strings")
    for name in _SCHEMAS:
        size = _size(body, name)
        if size > options.max_schema_chars:
            raise _too_much(name, size, options.max_schema_chars, "characters")


def _size(value: Any, name: str) -> int:
    """Characters of a field of a field …, as compact JSON where it is not a text."""
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return 0
    return len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _too_much(name: str, given: int, most: int, what: str) -> APIError:
    return APIError(400, f"{name}: {given} {what}, and this server allows {most}", param=name, code="invalid_value")
