"""Names of requests and answers."""

from __future__ import annotations

from random import getrandbits


def new_id(prefix: str) -> str:
    """The prefix and 32 hexadecimal digits. Unique and no secret: the system's entropy would cost a call of the kernel
    each time."""
    return f"{prefix}{getrandbits(128):032x}"
