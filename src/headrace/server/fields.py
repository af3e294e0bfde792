"""Values inside a request's free-form parts, read with errors that name their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import RequestError
from headrace.server.errors import APIError, unsupported

_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


def _is_wrong(place: str, wanted: str, value: object) -> RequestError:
    return RequestError(place, f"must be {wanted}, not {_NAMES.get(type(value), 'number')}")


def text_at(item: Mapping[str, Any], name: str, place: str) -> str:
    """The text in a field that has to be there."""
    value = item.get(name)
    if not isinstance(value, str):
        raise _is_wrong(f"{place}.{name}", "a string", value)
    return value


def name_at(item: Mapping[str, Any], name: str, place: str) -> str:
    """The text in a field that has to be there and not to be empty."""
    value = text_at(item, name, place)
    if not value:
        raise RequestError(f"{place}.{name}", "is empty")
    return value


def object_at(item: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    """The object in a field that has to be there."""
    value = item.get(name)
    if not isinstance(value, dict):
        raise _is_wrong(f"{place}.{name}", "an object", value)
    return value


def objects(value: object, place: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each object of a list, with its place."""
    if not isinstance(value, list):
        raise _is_wrong(place, "an array", value)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise _is_wrong(f"{place}.{index}", "an object", item)
        yield item, f"{place}.{index}"


def unknown_type(item: Mapping[str, Any], place: str, known: str) -> APIError:
    """A type that is not supported, or none at all."""
    return unsupported(f"{place}.type", f"{item.get('type')!r} is not supported; supported: {known}")
