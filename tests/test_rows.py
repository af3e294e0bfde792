"""Every behaviour (X1 to X16) and known fault (1 to 24) of the execution layer has a test that bears its number."""

from __future__ import annotations

import re
from pathlib import Path

NAMES = [
    name
    for file in Path(__file__).parent.rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
]


def numbered(pattern: str) -> set[int]:
    return {int(number) for name in NAMES for number in re.findall(pattern, name)}


def test_every_row_has_a_test() -> None:
    assert numbered(r"_x(\d+)_") == set(range(1, 17))


def test_every_fault_has_a_test() -> None:
    assert numbered(r"_fault_(\d\d)_") | numbered(r"_and_(\d\d)_") == set(range(1, 25))
