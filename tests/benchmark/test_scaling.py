"""`bench/scaling.py` on a tiny model: figures, table and picture, and a second run that adds to the first."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "bench" / "scaling.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it needs Linux")
def test_figures_of_several_runs_are_one_table(tiny_folder: Path, tmp_path: Path) -> None:
    common = ("--models", tiny_folder, "--threads", 1, "--steps", 2, "--output", tmp_path)
    first = ("--contexts", 16, 300, "--batches", 1, 2, "--prefill", 20)
    for rest in (first, ("--contexts", 16, "--batches", 2, 4, "--prefill")):
        command = [sys.executable, PROGRAM, *common, *rest]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "scaling.json").read_text())
    results = report["results"]
    measured = [(r["kind"], r["batch_size"], r["asked"]) for r in results]
    assert measured == [("decode", 1, 16), ("decode", 2, 16), ("decode", 4, 16), ("prefill", 1, 20)]
    assert [(s["batch_size"], s["context"], s["reason"]) for s in report["skipped"]] == [
        (1, 300, "the longest sequence has 256 tokens"),
        (2, 300, "the longest sequence has 256 tokens"),
    ]
    one, two, four = (f"{r['tok_s']:,.0f} tok/s, {r['share']:.0%} {r['bound']}" for r in results[:3])
    table = (tmp_path / f"{tiny_folder.name}.md").read_text()
    assert (
        f"| context | 1 request | 2 requests | 4 requests |\n|---|---|---|---|\n| 16 | {one} | {two} | {four} |"
        in table
    )
    assert "Not measured (requests x context): 1 x 300, 2 x 300." in table
    picture = ET.parse(tmp_path / f"{tiny_folder.name}.svg").getroot()
    heights = [float(e.get("cy", "")) for e in picture if e.tag.endswith("circle")]
    lines = [float(e.get("y1", "")) for e in picture if e.tag.endswith("line")][:5]  # of 0, 25, … 100 %
    expected = [lines[0] + (lines[4] - lines[0]) * r["share"] for r in results[:3]]
    assert heights == pytest.approx(expected, abs=0.2)
