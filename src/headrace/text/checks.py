"""The check that every text from outside passes first."""

from __future__ import annotations

from headrace.errors import RequestError


def check_text(param: str, text: object) -> None:
    """Refuse what is not text, or not Unicode text.

    Raises:
        RequestError: `text` is not a string, or holds half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise RequestError(param, f"must be a string, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(param, f"holds a lone surrogate at position {error.start}") from None
