"""The body of /v1/embeddings."""

from __future__ import annotations

from typing import Any

from headrace.engine.pooling import PoolingParams
from headrace.errors import RequestError
from headrace.server.errors import unsupported
from headrace.server.schema.lists import Listed
from headrace.server.schema.sampling import RequestModel

FORMATS = ("float", "base64")
_PARAMS = ("pooling", "normalize", "truncate_prompt_tokens", "priority")


class EmbeddingsRequest(RequestModel):
    """A text, or several, to be made vectors of."""

    model: str | None = None
    input: str | Listed[str] | Listed[int] | Listed[Listed[int]]
    encoding_format: str | None = None
    dimensions: int | None = None
    pooling: str | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    user: str | None = None

    def inputs(self, most: int) -> list[str | list[int]]:
        """The inputs, each a text or token ids.

        Raises:
            RequestError: there is none, one is empty, or there are more than `most`.
        """
        given: Any = self.input
        single = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
        listed: list[str | list[int]] = [given] if single else given
        if not listed or not all(listed):
            raise RequestError("input", "is empty; give a text, token ids, or a list of either, none of them empty")
        if len(listed) > most:
            raise RequestError("input", f"has {len(listed)} inputs, at most {most} are allowed")
        return listed

    def check(self, hidden_size: int) -> None:
        """Refuses another form of the vectors than there is.

        Args:
            hidden_size: numbers in each.
        """
        if (self.encoding_format or "float") not in FORMATS:
            raise RequestError("encoding_format", f"must be one of {', '.join(FORMATS)}")
        if self.dimensions not in (None, hidden_size):
            raise unsupported(
                "dimensions",
                f"must be {hidden_size} or left out: a part of this model's vectors means nothing by itself",
            )

    def pooling_params(self) -> PoolingParams:
        """What the engine is asked for.

        Raises:
            RequestError: a value is wrong.
        """
        given = {name: getattr(self, name) for name in _PARAMS}
        return PoolingParams(**{name: value for name, value in given.items() if value is not None})
