"""Decode over contexts, batches, threads and models, each figure against what the machine allows.

    python bench/scaling.py                                        # all; a quarter of an hour on two cores
    python bench/scaling.py --models smollm2 --threads 2 --contexts 128 4096 --batches 1 8

Each model and number of threads is one run of `headrace bench roofline` in a process of its own, on so many processors.
A figure that an earlier run wrote to the same folder stays until it is measured again. It needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scaling_plot import draw

Record = dict[str, Any]  # a result of `headrace bench roofline`, and whose it is


def main() -> None:
    """The program."""
    options = _options()
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    file = output / "scaling.json"
    report: Record = json.loads(file.read_text()) if file.exists() else {"runs": [], "skipped": [], "results": []}
    cpus = sorted(os.sched_getaffinity(0))
    for model in options.models:
        for threads in options.threads:
            begin = time.perf_counter()
            run = _run(model, cpus[:threads], options)
            print(f"scaling: {model}, {threads} threads: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
            _add(report, _name(model), threads, run)
            file.write_text(json.dumps(report, indent=1) + "\n")
        _write(_name(model), report, output)


def _options() -> argparse.Namespace:
    most = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2", "gemma3-270m"], help="as `headrace` takes them")
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, min(2, most)}), help="processors")
    parser.add_argument("--contexts", nargs="+", type=int, default=[128, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64, 128], help="requests at once")
    parser.add_argument("--prefill", nargs="*", type=int, default=[512, 2048], help="tokens of prompts")
    parser.add_argument("--steps", type=int, default=24, help="decode steps of each figure")
    parser.add_argument("--kv-cache-bytes", type=int, help="memory for pages; what does not fit is left out")
    parser.add_argument("--output", default="build/scaling", help="folder for tables, figures and pictures")
    options = parser.parse_args()
    for threads in options.threads:
        if not 1 <= threads <= most:
            parser.error(f"--threads: must be 1 … {most}, not {threads}")
    return options


def _name(model: str) -> str:
    return Path(model).name.removesuffix(".gguf")


def _run(model: str, cpus: list[int], options: argparse.Namespace) -> Record:
    """The report of `headrace bench roofline` on these processors."""
    before = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        lists = {"batch-sizes": options.batches, "contexts": options.contexts, "prefill": options.prefill}
        command = [sys.executable, "-c", "from headrace.cli import main; main()", "bench", "roofline", model]
        command += [f"--{name}={','.join(map(str, values))}" for name, values in lists.items()]
        command += [f"--steps={options.steps}", f"--json={file}"]
        if options.kv_cache_bytes is not None:
            command.append(f"--kv-cache-bytes={options.kv_cache_bytes}")
        os.sched_setaffinity(0, cpus)  # the process inherits it
        try:
            done = subprocess.run(command, stdout=sys.stderr, check=False)
        finally:
            os.sched_setaffinity(0, before)
        if done.returncode:
            sys.exit(f"scaling: {model} on {len(cpus)} threads failed; see above")
        report: Record = json.loads(file.read_text())
        return report


def _add(report: Record, model: str, threads: int, run: Record) -> None:
    """Adds the figures of a run, in place of earlier ones."""
    mine = {"model": model, "threads": threads}
    report["runs"] = [r for r in report["runs"] if (r["model"], r["threads"]) != (model, threads)]
    told = {name: value for name, value in run.items() if name not in ("results", "skipped")}
    report["runs"].append({**told, **mine, "date": time.strftime("%Y-%m-%d")})
    results = {_key(r): r for r in report["results"]}
    results.update({_key(r): r for r in ({**one, **mine} for one in run["results"])})
    report["results"] = [results[key] for key in sorted(results)]
    skipped = {_key(s): s for s in report["skipped"]}
    skipped.update({_key(s): s for s in ({**one, **mine} for one in run["skipped"])})
    report["skipped"] = [s for key, s in skipped.items() if key not in results]


def _key(record: Record) -> tuple[Any, ...]:
    """Of a result, or of what was left out, which is always decoding."""
    asked = record["asked"] if "asked" in record else record["context"]
    return record["model"], record["threads"], record.get("kind", "decode"), record["batch_size"], asked


def _write(model: str, report: Record, output: Path) -> None:
    """Table and picture of one model."""
    results = [r for r in report["results"] if r["model"] == model]
    parts = [f"## {model}"]
    for run in (r for r in report["runs"] if r["model"] == model):
        own = [r for r in results if r["threads"] == run["threads"]]
        parts += [_limits(run), _table(own), *_prefill(own)]
    reasons = {f"{s['batch_size']} x {s['context']}" for s in report["skipped"] if s["model"] == model}
    if reasons:
        parts.append(f"Not measured (requests x context): {', '.join(sorted(reasons, key=_by_numbers))}.")
    text = "\n\n".join(parts) + "\n"
    (output / f"{model}.md").write_text(text)
    (output / f"{model}.svg").write_text(draw(model, results))
    print(text)


def _by_numbers(text: str) -> list[int]:
    return [int(word) for word in text.split() if word.isdecimal()]


def _limits(run: Record) -> str:
    machine = run["machine"]
    rates = [f"{rate['all'] / 1e9:.0f} billion multiply-adds/s {kind}" for kind, rate in machine["operations"].items()]
    bandwidth = f"{machine['bandwidth']['all'] / 1e9:.1f} GB/s read from memory"
    return f"**{run['threads']} thread{'s' * (run['threads'] > 1)}**; limits: {', '.join([bandwidth, *rates])}"


def _table(results: Iterable[Record]) -> str:
    """Contexts down, batches across: tokens per second, the share of the limit, and what sets it."""
    decoded = {(r["asked"], r["batch_size"]): r for r in results if r["kind"] == "decode"}
    batches = sorted({batch for _, batch in decoded})
    names = [f"{batch} request{'s' * (batch > 1)}" for batch in batches]
    lines = [f"| context | {' | '.join(names)} |", "|---|" + "---|" * len(batches)]
    for context in sorted({context for context, _ in decoded}):
        cells = [_cell(decoded.get((context, batch))) for batch in batches]
        lines.append(f"| {context:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(result: Record | None) -> str:
    return "–" if result is None else f"{result['tok_s']:,.0f} tok/s, {result['share']:.0%} {result['bound']}"


def _prefill(results: Iterable[Record]) -> list[str]:
    return [f"Prefill of {r['asked']:,} tokens: {_cell(r)}." for r in results if r["kind"] == "prefill"]


if __name__ == "__main__":
    main()
