"""Where keys come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.server.keys import KeyRing, keys_of
from headrace.server.options import ServerOptions


def test_keys_of_all_places_count_and_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\nsk-file-1\n\n  sk-file-2  \r\nsk-line\n")
    environ = {"HEADRACE_API_KEY": "sk-a, sk-b\nsk-c\n", "HEADRACE_ADMIN_KEY": " sk-admin\n"}
    given = keys_of({"port": 1, "api_key": ("sk-line",), "api_key_file": file}, environ)
    assert given["api_keys"] == ("sk-line", "sk-a", "sk-b", "sk-c", "sk-file-1", "sk-file-2")
    assert (given["admin_key"], given["port"]) == ("sk-admin", 1)
    options = ServerOptions(**given)
    assert "sk-" not in repr(options)
    assert keys_of({"admin_key": "sk-x"}, environ)["admin_key"] == "sk-x"
    assert keys_of({}, {}) == {"api_keys": (), "admin_key": None}


def test_a_file_without_keys_does_not_open_the_server(tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("# none yet\n\n")
    for file in (empty, tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="api_key_file"):
            keys_of({"api_key_file": file}, {})


def test_a_ring_knows_its_keys_alone() -> None:
    ring = KeyRing(["one", "two"])
    assert ring.has_one_of([b"one"])
    assert ring.has_one_of([b"three", b"two"])
    for wrong in ([], [b""], [b"three"], [b"on"], [b"onee"], [b"one "], [b"onetwo"], [b"\xff"]):
        assert not ring.has_one_of(wrong)
    assert not KeyRing([]).has_one_of([b""])
