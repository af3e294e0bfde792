"""Lists and mappings of request bodies, which are wrong as soon as one entry is.

pydantic's own would report every wrong entry, and millions of entries would keep the server busy for minutes.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import GetCoreSchemaHandler


class _FirstError:
    """Like `pydantic.FailFast`, and it has a hash, which unions ask for."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return {**handler(source), "fail_fast": True}


_FIRST = _FirstError()
T = TypeVar("T")

Listed = Annotated[list[T], _FIRST]
Numbers = Annotated[dict[str, float], _FIRST]
Texts = Annotated[dict[str, str], _FIRST]
