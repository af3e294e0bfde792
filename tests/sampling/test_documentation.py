"""docs/sampling.md against the code: every parameter, its default and a test that exists and uses it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from headrace.sampling.params import SamplingParams

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "docs" / "sampling.md").read_text()


def rows() -> dict[str, list[str]]:
    """The cells of the table of parameters, by name."""
    table = TEXT.partition("## Parameters")[2].partition("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): cells for cells in lines}


def test_the_table_has_every_parameter_in_five_columns() -> None:
    assert {*rows()} == {field.name for field in fields(SamplingParams)}
    assert {len(cells) for cells in rows().values()} == {5}


def test_the_defaults_are_those_of_the_code() -> None:
    defaults = SamplingParams()
    for name, cells in rows().items():
        [default] = re.findall(r"\*\*(.+?)\*\*", cells[1])
        value = getattr(defaults, name)
        assert default == (str(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)), name


def test_the_tests_named_exist_and_one_uses_the_parameter() -> None:
    for name, cells in rows().items():
        texts = [(TESTS / file).read_text() for file in re.findall(r"\w+/test_\w+\.py", cells[4])]
        assert any(re.search(rf"\b{name}\b", text) for text in texts), name
