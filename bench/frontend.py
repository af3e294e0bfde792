"""What a server's front costs: requests, and streamed tokens, per second of its processor time.

python bench/frontend.py [--core N] [--json FILE]     our own server over an engine that answers at once
python bench/frontend.py --url URL --pid PID          any other; PID is the process that speaks HTTP

The server has one core, the load generator another. Three loads, several rounds each, the best one counts: answers of one token, plain and
as a stream, 64 at once; and 64 streams of 256 tokens. What counts is the processor time of the server's process: where
an engine in other processes is slower than the front, the front waits, and requests per second say nothing of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from headrace.benchmark.serve.datasets import Dataset
from headrace.benchmark.serve.load import run
from headrace.benchmark.serve.options import LoadOptions
from headrace.benchmark.serve.report import machine
from headrace.benchmark.serve.statistics import figures

LOADS = {
    "1 token": {"stream": False, "tokens": 1, "requests": 2000},
    "1 token, streamed": {"stream": True, "tokens": 1, "requests": 2000},
    "256 tokens, streamed": {"stream": True, "tokens": 256, "requests": 128},
}
AT_ONCE = 64
ROUNDS = 3


def measure(url: str, pid: int, api: str) -> dict[str, Any]:
    """Every load's figures: medians of the rounds."""
    process = psutil.Process(pid)
    found = {}
    for name, load in LOADS.items():
        rounds = [_round(url, process, api, load) for _ in range(ROUNDS)]
        found[name] = {figure: statistics.median(one[figure] for one in rounds) for figure in rounds[0]}
    return found


def _round(url: str, process: psutil.Process, api: str, load: dict[str, Any]) -> dict[str, float]:
    options = LoadOptions(
        url=url,
        api=api,
        concurrency=AT_ONCE,
        num_requests=load["requests"],
        warmup=AT_ONCE,
        stream=load["stream"],
        temperature=0.0,
        ignore_eos=True,
        dataset=Dataset(input_tokens=32, max_tokens=load["tokens"]),
    )
    before = _cpu(process)
    done = run(options)
    cpu = _cpu(process) - before
    f = figures(done.records, (50.0, 99.0), {})
    if f["errors"]:
        raise SystemExit(f"errors: {f['error_kinds']}")
    requests = load["requests"] + AT_ONCE  # the processor time is that of the warm-up too
    return {
        "requests_per_s": f["requests_per_s"],
        "tokens_per_s": f["output_tokens_per_s"],
        "server_us_per_request": 1e6 * cpu / requests,
        "server_us_per_token": 1e6 * cpu / (requests * load["tokens"]),
        "server_share": cpu / f["duration"],
        "client_share": done.cpu_share,
        "chunks_per_answer": statistics.fmean(len(r.chunks) for r in done.records),
        "ttft_ms_p50": f["ttft"]["p50"],
        "ttft_ms_p99": f["ttft"]["p99"],
    }


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
