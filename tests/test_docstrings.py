"""Docstrings speak of what is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import headrace

ROOT = Path(headrace.__file__).parent
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, Function):
                yield f"{file.relative_to(ROOT)}:{node.name}", node


def section(docstring: str, title: str) -> list[str]:
    """The names that a section of a docstring explains."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)*)", docstring + "\n", re.MULTILINE)
    lines = found.group(1).splitlines() if found else []
    heads = [line.strip().split(":")[0] for line in lines if re.match(r"    \w[\w, ]*: ", line)]
    return [name.strip() for head in heads for name in head.split(",")]


def test_the_reader_of_docstrings_reads() -> None:
    text = "Does.\n\nArgs:\n    a: one.\n        More: of it.\n    b, c: two.\n\nReturns:\n    d: no argument.\n"
    assert section(text, "Args") == ["a", "b", "c"]


def test_fault_18_every_argument_that_is_explained_exists() -> None:
    wrong, explained = [], 0
    for where, node in functions():
        names = section(ast.get_docstring(node) or "", "Args")
        a = node.args
        have = {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if p is not None}
        explained += len(names)
        wrong += [f"{where}: {name}" for name in names if name not in have]
    assert wrong == []
    assert explained > 50


def test_fault_18_no_function_returns_more_than_three_things() -> None:
    wide = []
    for where, node in functions():
        returns = node.returns
        if isinstance(returns, ast.Subscript) and ast.unparse(returns.value) == "tuple":
            parts = returns.slice.elts if isinstance(returns.slice, ast.Tuple) else [returns.slice]
            wide += [where] if len(parts) > 3 else []
    assert wide == []


def test_fault_18_every_attribute_that_is_explained_exists() -> None:
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                text = ast.unparse(node)
                names = section(ast.get_docstring(node) or "", "Attributes")
                body = text.split('"""', 2)[-1]
                wrong += [f"{file.name}:{node.name}.{name}" for name in names if not re.search(rf"\b{name}\b", body)]
    assert wrong == []
