"""What a start takes, from a new process to its first token: with an empty cache, then with a full one."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.benchmark.memory import peak_memory
from headrace.errors import HeadraceError


def measure(model: Path, options: Mapping[str, Any], runs: int) -> dict[str, Any]:
    """Starts `runs` processes with an empty cache each, then as many with the cache that the last of them left.

    Args:
        model: `.gguf` file or Hugging Face folder; nothing is fetched.
        options: fields of `EngineConfig`.

    Returns:
        `model`, `variants` (the compiled (tokens, requests)), and for `cold` and `warm` a list of processes, each with
        its seconds: `first_token` from its start until it has a token for a short prompt, `total` until it was ready
        for it, and of that `import` and the phases of `Built.phases`; and `peak_bytes`, the most memory it ever had.

    Raises:
        HeadraceError: a process failed; its own message stands above.
    """
    cold, warm = [], []
    with tempfile.TemporaryDirectory(prefix="headrace-startup-") as folder:
        for run in range(runs):
            cold.append(_start(model, options, f"{folder}/{run}"))
        for _ in range(runs):
            warm.append(_start(model, options, f"{folder}/{runs - 1}"))
    variants = [one.pop("variants") for one in (*cold, *warm)]
    return {"model": str(model), "variants": variants[0], "cold": cold, "warm": warm}


def _start(model: Path, options: Mapping[str, Any], cache: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "headrace.benchmark.startup", str(model), json.dumps(options)]
    begin = time.perf_counter()
    environment, lines, moments = {**os.environ, "HEADRACE_CACHE": cache}, [], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:  # one once the engine is ready, one with the first token
            lines.append(line)
            moments.append(round(time.perf_counter() - begin, 3))
    if child.returncode or len(lines) != 2:
        raise HeadraceError(f"{model}: a process that was to start with it failed; see above")
    return {"first_token": moments[1], "total": moments[0], **json.loads(lines[0]), **json.loads(lines[1])}


def format_report(report: Mapping[str, Any]) -> str:
    """The medians as a table for the terminal."""
    names = [name for name in report["cold"][0] if name != "peak_bytes"]
    lines = [
        f"{report['model']}: {len(report['variants'])} compiled steps (tokens x requests), "
        + ", ".join(f"{tokens}x{requests}" for tokens, requests in report["variants"]),
        " " * 12 + "".join(f"{name:>13}" for name in names) + f"{'peak memory':>14}",
    ]
    for kind, label in (("cold", "empty cache"), ("warm", "full cache")):
        medians = (statistics.median(one[name] for one in report[kind]) for name in names)
        peak = statistics.median(one["peak_bytes"] for one in report[kind])
        lines.append(f"{label:<12}" + "".join(f"{s:>11.2f} s" for s in medians) + f"{peak / 1e6:>11.0f} MB")
    return "\n".join(lines)


def _main() -> None:
    """The process that is measured."""
    begin = time.perf_counter()
    from headrace.benchmark.workload import greedy
    from headrace.llm import LLM

    imported = time.perf_counter() - begin
    try:
        llm = LLM(sys.argv[1], **json.loads(sys.argv[2]))
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")
    built = llm.built
    seconds = {"import": imported, **built.phases}
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    print(json.dumps({**rounded, "variants": built.engine.manager.buckets}), flush=True)
    llm.generate("The capital of France is", greedy(1))
    print(json.dumps({"peak_bytes": peak_memory()}), flush=True)


if __name__ == "__main__":
    _main()
