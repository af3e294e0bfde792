"""Reads optimised HLO: which instructions make an array as large as a pool of pages, and what shares memory."""

from __future__ import annotations

import math
import re

_COMPUTATION = re.compile(r"(?:ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?P<root>ROOT )?%?[\w.-]+ = \w+\[(?P<dims>[\d,]*)\]\S* (?P<op>[\w-]+)\(")
_CALLS = re.compile(r"calls=%?([\w.-]+)")

# These make no array of their own, or write into the one that they are given.
_NO_COPY = {"parameter", "get-tuple-element", "bitcast", "scatter", "dynamic-update-slice"}
_IN_PLACE = {"scatter", "dynamic-update-slice"}


def pool_copies(hlo: str, num_elements: int) -> list[str]:
    """The instructions that make a new array of so many elements, of any type and shape."""
    roots: dict[str, str] = {}
    suspects: list[tuple[str, str]] = []
    computation = ""
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header["name"]
        elif instruction := _INSTRUCTION.match(line):
            if instruction["root"]:
                roots[computation] = instruction["op"]
            size = math.prod(int(dim) for dim in instruction["dims"].split(",") if dim)
            if size == num_elements and instruction["op"] not in _NO_COPY:
                suspects.append((instruction["op"], line.strip()))
    assert roots, "this is not the text of an HLO module"
    return [line for op, line in suspects if not (op == "fusion" and _root_of(line, roots) in _IN_PLACE)]


def _root_of(fusion: str, roots: dict[str, str]) -> str | None:
    calls = _CALLS.search(fusion)
    return roots.get(calls[1]) if calls else None


def aliased_parameters(hlo: str) -> set[int]:
    """Numbers of the parameters whose memory an output takes over."""
    header = hlo[: hlo.index("\n")]
    start = header.find("input_output_alias={")
    return {int(number) for number in re.findall(r"\}: \((\d+), \{\}", header[start:])} if start >= 0 else set()


def parameter_shapes(hlo: str) -> list[str]:
    """Type and dimensions of the entry's parameters, in order, as in f32[2,3]."""
    layout = hlo[: hlo.index("\n")].partition("entry_computation_layout={(")[2].partition(")->")[0]
    return re.findall(r"\w+\[[\d,]*\]", layout)
