"""The keys that clients show: where they come from, and their comparison in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError

API_KEY_VARIABLE, ADMIN_KEY_VARIABLE = "HEADRACE_API_KEY", "HEADRACE_ADMIN_KEY"

_KEY = re.compile(r"[\x21-\x2b\x2d-\x7e]+")  # what a header can carry and a list in a variable can hold
_BETWEEN = re.compile(r"[,\s]+")


class KeyRing:
    """Some keys, of which only hashes are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __len__(self) -> int:
        return len(self._digests)

    def has_one_of(self, given: Iterable[bytes]) -> bool:
        """Whether one of these is one of the keys; how long it takes tells nothing of them."""
        digests = [hashlib.sha256(key).digest() for key in given]
        return sum(hmac.compare_digest(digest, known) for digest in digests for known in self._digests) > 0


def read_keys(given: Iterable[str], file: Path | None, variable: str | None) -> tuple[str, ...]:
    """The keys of the command line, of a file with one on each line, and of an environment variable's value, which has
    commas or line ends between them.

    Raises:
        ConfigError: the file cannot be read or holds no key.
    """
    keys = [*given, *filter(None, _BETWEEN.split(variable or ""))]
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"api_key_file: {file} cannot be read: {reason}") from None
        listed = [line for line in lines if line and not line.startswith("#")]
        if not listed:
            raise ConfigError(f"api_key_file: {file} holds no key")
        keys += listed
    return tuple(dict.fromkeys(keys))


def keys_of(options: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Options of the command line with the keys of all places in them, ready for `ServerOptions`."""
    options = dict(options)
    given, file = options.pop("api_key", ()), options.pop("api_key_file", None)
    keys = read_keys(given, file, environ.get(API_KEY_VARIABLE))
    admin = options.pop("admin_key", None) or environ.get(ADMIN_KEY_VARIABLE, "").strip() or None
    return {**options, "api_keys": keys, "admin_key": admin}


def check_key(name: str, key: str) -> None:
    """Refuses, without showing it, a key that no header can carry."""
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{name}: a key is empty, or has other characters than printable ASCII, or a comma or space")
