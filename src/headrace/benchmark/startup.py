"""How long a start takes, from a new process to a compiled engine: with an empty cache, then with a full one."""

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

from headrace.errors import HeadraceError


def measure(model: Path, options: Mapping[str, Any], runs: int) -> dict[str, Any]:
    """Starts `runs` processes with an empty cache each, then as many with the cache that the last of them left.

    Args:
        model: `.gguf` file or Hugging Face folder; nothing is fetched.
        options: fields of `EngineConfig`.

    Returns:
        `model`, `variants` (the compiled (tokens, requests)), and for `cold` and `warm` a list with each process's
        seconds: `total` from the start of the process until it is ready, and of that `import` and the phases of
        `Built.phases`.

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
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "HEADRACE_CACHE": cache})
    assert child.stdout is not None
    line = child.stdout.readline()  # written once the engine is ready
    total = time.perf_counter() - begin
    child.communicate()
    if child.returncode or not line:
        raise HeadraceError(f"{model}: a process that was to start with it failed; see above")
    return {"total": round(total, 3), **json.loads(line)}


def format_report(report: Mapping[str, Any]) -> str:
    """The medians as a table for the terminal."""
    names = list(report["cold"][0])
    lines = [
        f"{report['model']}: {len(report['variants'])} compiled steps (tokens x requests), "
        + ", ".join(f"{tokens}x{requests}" for tokens, requests in report["variants"]),
        " " * 14 + "".join(f"{name:>11}" for name in names),
    ]
    for kind, label in (("cold", "empty cache"), ("warm", "full cache")):
        medians = (statistics.median(one[name] for one in report[kind]) for name in names)
        lines.append(f"{label:<14}" + "".join(f"{seconds:>9.2f} s" for seconds in medians))
    return "\n".join(lines)


def _main() -> None:
    """The process that is measured."""
    begin = time.perf_counter()
    from headrace.llm import LLM

    imported = time.perf_counter() - begin
    try:
        built = LLM(sys.argv[1], **json.loads(sys.argv[2])).built
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")
    seconds = {"import": imported, **built.phases}
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    print(json.dumps({**rounded, "variants": built.engine.manager.buckets}), flush=True)


if __name__ == "__main__":
    _main()
