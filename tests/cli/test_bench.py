"""`headrace bench steps` and `headrace bench trace`, on a tiny model."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cli.command import QUICK, Cli, cli
from headrace.benchmark.roofline import measure as measure_roofline
from headrace.benchmark.steps import measure
from headrace.execution.metrics import PHASES

__all__ = ["cli"]

PLOT = Path(__file__).parents[2] / "bench" / "plot_trace.py"
# The same compiled steps in each test.
RUN = ("--requests", "2", "--prompt-tokens", "8", "--max-model-len", "64")


@pytest.mark.parametrize("overlap", [True, False])
def test_x13_bench_steps_writes_its_figures(cli: Cli, tiny_folder: Path, tmp_path: Path, overlap: bool) -> None:
    file, mode = tmp_path / "steps.json", [] if overlap else ["--no-overlap"]
    outcome = cli("bench", "steps", tiny_folder, *QUICK, *RUN, "--output-tokens", 12, *mode, "--json", file)
    assert outcome.code == 0
    report = json.loads(file.read_text())
    promised = (inspect.getdoc(measure) or "").partition("Returns:")[2]
    assert set(re.findall(r"`(\w+)`", promised)) == set(report) | set(report["buckets"][0])
    assert (report["model"], report["dtype"], report["requests"]) == (str(tiny_folder), "float32", 2)
    assert (report["overlap"], report["max_model_len"]) == (overlap, 64)
    assert report["h2d_transfers_per_step"] == report["d2h_transfers_per_step"] == 1
    assert report["d2h_bytes_per_step"] == 2 * 4
    assert report["compilations_after_warmup"] == report["preemptions"] == 0
    assert 0 <= report["device_idle_share"] < 1
    for name in (*PHASES, "step", "device"):
        assert report[f"{name}_ms_median"] > 0
    # 16 prompt tokens in the bucket of 64, then 11 steps of two tokens in that of 8.
    assert [(b["tokens"], b["requests"], b["steps"], b["padding_share"]) for b in report["buckets"]] == [
        (8, 2, 11, 0.75),
        (64, 2, 1, 0.75),
    ]
    assert report["buckets"][0]["h2d_bytes_per_step"] == report["h2d_bytes_per_step"]
    assert f"overlap {'on' if overlap else 'off'}" in outcome.out
    assert "1 transfers in" in outcome.out


def test_x13_bench_trace_shows_host_and_device(cli: Cli, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    outcome = cli("bench", "trace", tiny_folder, *QUICK, *RUN, "--steps", 6, "--output", file)
    assert outcome.code == 0
    trace = json.loads(file.read_text())
    events = trace["traceEvents"]
    names = {(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert names == {
        (pid, tid, name)
        for pid, mode in ((1, "on"), (2, "off"))
        for tid, name in ((0, f"overlap {mode}"), (1, "host"), (2, "device"))
    }
    for process, mode in zip((1, 2), trace["otherData"]["modes"], strict=True):
        host, device = (track(events, process, thread) for thread in (1, 2))
        assert [e["name"] for e in device] == [f"step {i}" for i in range(7)]  # prefill, then six
        assert [e["args"]["bucket"] for e in device] == ["64x2"] + ["8x2"] * 6
        assert sorted(e["name"] for e in host) == sorted(7 * PHASES)
        for one, other in [*pairwise(device), *pairwise(host)]:
            assert one["ts"] + one["dur"] <= other["ts"] + 0.01  # a track does one thing at a time
        assert mode["overlap"] is (process == 1)
        assert mode["gap_share"] == pytest.approx(mode["gap_ms_median"] / mode["device_step_ms_median"], rel=0.02)
        assert f"{mode['gap_share']:.2%}" in outcome.out
        gaps = [b["ts"] - a["ts"] - a["dur"] for a, b in pairwise(device[1:])]
        assert len(gaps) == 5
    picture = tmp_path / "trace.svg"
    subprocess.run([sys.executable, PLOT, file, picture], check=True)
    root = ElementTree.parse(picture).getroot()
    titles = {title.text for title in root.iter("{http://www.w3.org/2000/svg}title")}
    assert {f"step {i}" for i in range(1, 7)} <= {(title or "").partition(",")[0] for title in titles}


def track(events: list[Any], process: int, thread: int) -> list[Any]:
    chosen = [e for e in events if (e["ph"], e["pid"], e["tid"]) == ("X", process, thread)]
    for event in chosen:
        assert set(event) == {"ph", "pid", "tid", "name", "ts", "dur", "args"}
        assert event["dur"] >= 0
    return sorted(chosen, key=lambda e: e["ts"])


def test_x13_bench_trace_of_one_mode(cli: Cli, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    outcome = cli("bench", "trace", tiny_folder, *QUICK, *RUN, "--steps", 2, "--no-overlap", "--output", file)
    assert [mode["overlap"] for mode in json.loads(file.read_text())["otherData"]["modes"]] == [False]
    assert outcome.out.count("overlap") == 1


def test_bench_roofline_holds_figures_against_limits(cli: Cli, tiny_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "roofline.json"
    few = ("--batch-sizes", "1,2", "--contexts", "40,250,257", "--prefill", "100", "--steps", 3)
    outcome = cli("bench", "roofline", tiny_folder, *QUICK, *few, "--json", file)
    assert outcome.code == 0
    report = json.loads(file.read_text())
    promised = (inspect.getdoc(measure_roofline) or "").partition("Returns:")[2].partition("Raises:")[0]
    fields = set(report) | set(report["results"][0]) | set(report["skipped"][0])
    assert set(re.findall(r"`([a-z]\w+)`", promised)) == fields
    assert report["compilations_after_warmup"] == 0
    # 40 tokens are two pages of 16 and 8 more: one step computes these and the next, then there are 41, 42 and 43. Of
    # the 256 tokens of the longest sequence those are kept free that a request may get meanwhile.
    results = {(r["kind"], r["batch_size"], r["asked"]): r for r in report["results"]}
    assert [(*key, r["context"]) for key, r in results.items()][:2] == [("decode", 1, 40, 42), ("decode", 2, 40, 42)]
    assert results["decode", 2, 250]["context"] == 256 - (1 + 1 + 2 + 5) + 1
    assert [(s["batch_size"], s["context"]) for s in report["skipped"]] == [(1, 257), (2, 257)]
    machine = report["machine"]
    for r in report["results"]:
        moved = r["weight_bytes"] + r["page_bytes"]
        assert r["memory_ms"] == pytest.approx(1e3 * moved / machine["bandwidth"]["all"], abs=1e-4)
        computed = sum(n / machine["operations"][kind]["all"] for kind, n in r["operations"].items())
        assert r["arithmetic_ms"] == pytest.approx(1e3 * computed, abs=1e-4 if r["kind"] == "decode" else 2e-4)
        assert r["share"] == pytest.approx(r["limit_ms"] / r["ms"], rel=0.05, abs=1e-3)
        assert r["tok_s"] == pytest.approx(
            1e3 * (100 if r["kind"] == "prefill" else r["batch_size"]) / r["ms"], rel=0.01
        )
    assert "left out: 2 requests, context 257: the longest sequence has 256 tokens" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["steps", "--requests", "0"], "Invalid value for '--requests'"),
        (["steps", "--output-tokens", "2"], "Invalid value for '--output-tokens'"),
        (["steps", "--requests", "3", "--max-num-seqs", "2"], "max_num_seqs: 2 is less than the 3 that"),
        (["steps", "--max-model-len", "100"], "max_model_len: 100 is less than the 128 that 32 requests of 128 need"),
        (["steps", "--prompt-tokens", "250"], "max_model_len: 314 is more than the model's 256"),
        (["steps", "--json", "/nowhere/x.json"], "/nowhere/x.json: cannot be written"),
        (["roofline", "--batch-sizes", "0"], "batch_sizes: must be positive, not [0]"),
        (["roofline", "--contexts", "1,x"], "'1,x' is not a list of numbers"),
        (["roofline", "--contexts", "300", "--prefill", ""], "contexts: nothing can be measured; the longest sequence"),
        (["roofline", "--prefill", "256"], "prefill: 256 tokens and the next are more than the longest sequence (256)"),
        (["roofline", "--data-parallel", "2"], "data_parallel: must be 1 for a roofline"),
        (["roofline", "--no-prefix-caching"], "prefix_caching: must be on for a roofline"),
        (["trace"], "Missing option '--output'"),
        (["trace", "--output", "/nowhere/x.json"], "/nowhere/x.json: cannot be written"),
        (["trace", "--output", "/dev/null", "--steps", "1"], "Invalid value for '--steps'"),
        (["trace", "--output", "/dev/null", "--requests", "2", "--max-num-seqs", "1"], "max_num_seqs: 1 is less than"),
    ],
)
def test_x13_a_wrong_option_of_the_benchmarks(cli: Cli, tiny_folder: Path, arguments: list[str], message: str) -> None:
    command, *options = arguments
    few = ("--num-tokens-paddings", "64", "--max-num-batched-tokens", "64")
    assert message in cli("bench", command, tiny_folder, *few, *options).error
