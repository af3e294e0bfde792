"""Headrace, llama.cpp, vLLM and transformers on the same weights, in one interleaved run.

    python bench/compare.py --models smollm2 gemma3-270m --rounds 5
    python bench/compare.py --models smollm2 --engines headrace llama.cpp --quick

Each engine runs in an environment of its own, which is made first (`make compare`). Headrace and llama.cpp take the
GGUF file; vLLM and transformers the same values in bfloat16. It needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.models.spec import DecoderSpec
from headrace.text.tokenizer import Tokenizer
from headrace.weights.gguf import GGUFFile
from headrace.weights.load import open_checkpoint
from headrace.weights.sources import resolve
from peers.engines import ENGINES, TRANSFORMERS, Engine
from peers.environments import SetupError, python_of
from peers.measure import Comparison, Model, Results
from peers.plot import draw
from peers.table import agreement, markdown
from peers.workload import KINDS, KV_TOKENS, MAX_REQUESTS, MAX_TOKENS, RATES

TEXT = "The capital of France is"
CPU_TORCH = "https://download.pytorch.org/whl/cpu"


def main() -> None:
    """The program."""
    options = _options()
    engines = [ENGINES[name] for name in options.engines]
    rounds, starts = (1, 1) if options.quick else (options.rounds, options.starts)
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    os.sched_setaffinity(0, cpus)  # of the engines, which inherit it
    output, environments = Path(options.output).resolve(), Path(options.environments).resolve()
    output.mkdir(parents=True, exist_ok=True)
    pythons, missing = _environments(engines, environments)
    try:
        models = [_model(name, list(pythons), environments) for name in options.models]
    except SetupError as error:
        sys.exit(f"compare: {error}")
    figures = [figure for figure in RATES if not options.figures or figure.kind in options.figures]
    comparison = Comparison(pythons, output)
    report: dict[str, Any] = {"machine": _machine(cpus), "date": time.strftime("%Y-%m-%d"), "settings": vars(options)}
    report["room"] = {"max_requests": MAX_REQUESTS, "max_tokens": MAX_TOKENS, "kv_tokens": KV_TOKENS}
    report["requirements"] = {engine.name: engine.requirements for engine in engines}
    report["models"] = {}
    for model in models:
        results = comparison.measure(model, rounds, starts, figures)
        results.failures.update(missing)
        report["models"][model.name] = asdict(results)
        (output / "samples.json").write_text(json.dumps(report, indent=1) + "\n")
        _write(model, engines, results, report["machine"], output)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2", "gemma3-270m"], help="known names or .gguf files")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--figures", nargs="+", choices=KINDS, help="only these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3, help="with an empty cache, and as many with a full one")
    parser.add_argument("--quick", action="store_true", help="one round, one start")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="processors for each engine")
    parser.add_argument("--environments", default=".venv-compare", help="folder that they are made in")
    parser.add_argument("--output", default="build/compare", help="folder for table, samples and pictures")
    options = parser.parse_args()
    for name, most in (("rounds", 1000), ("starts", 100), ("threads", len(os.sched_getaffinity(0)))):
        if not 1 <= getattr(options, name) <= most:
            parser.error(f"--{name}: must be 1 … {most}, not {getattr(options, name)}")
    return options


def _environments(engines: list[Engine], folder: Path) -> tuple[dict[Engine, Path], dict[str, str]]:
    """The Python of each engine, and by name what those lack that cannot be had here."""
    pythons, missing = {}, {}
    for engine in engines:
        try:
            pythons[engine] = python_of(engine, folder)
        except SetupError as error:
            missing[engine.name] = str(error)
            hint = "" if engine.compiled else f"; if pip finds no torch for CPUs: PIP_EXTRA_INDEX_URL={CPU_TORCH}"
            print(f"compare: {engine.name} is left out: {error}{hint}", file=sys.stderr, flush=True)
    return pythons, missing


def _model(name: str, engines: list[Engine], environments: Path) -> Model:
    """Both forms of a model; the second is written once, if any engine needs it."""
    gguf = resolve(name)
    if gguf.suffix != ".gguf":
        raise SetupError(f"{name}: is no GGUF file, which all engines can be given")
    spec: DecoderSpec = open_checkpoint(gguf).spec
    prompt = Tokenizer.from_gguf(GGUFFile.open(gguf).metadata).encode(TEXT)
    folder = environments / "models" / f"{gguf.stem}-bfloat16"
    if not folder.exists() and not all(engine.reads_gguf for engine in engines):
        print(f"compare: writing {gguf.name} in bfloat16", file=sys.stderr, flush=True)
        script = Path(__file__).parent / "peers" / "runners" / "dequantise.py"
        command = [python_of(TRANSFORMERS, environments), script, gguf, folder]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise SetupError(f"{gguf}: could not be written in bfloat16; see above")
    kv_bytes = 2 * 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim
    return Model(gguf.stem if Path(name).suffix else name, gguf, folder, spec.vocab_size, prompt, kv_bytes)


def _machine(cpus: list[int]) -> dict[str, Any]:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"processor": names[0] if names else platform.machine(), "cores": len(cpus), "memory_gb": memory / 1e9}


def _write(model: Model, engines: list[Engine], results: Results, machine: Mapping[str, Any], output: Path) -> None:
    """Table and picture of one model."""
    table = markdown(results.samples, engines, results.failures)
    others = [value for by in results.others.values() for values in by.values() for value in values]
    where = f"{machine['cores']} cores of {machine['processor']}"
    notes = [f"Other processes took {statistics.fmean(others):.0%} of the machine."] if others else []
    notes.append(agreement(results.answers))
    notes += [
        f"{name} kept {share:.2f} processors busy while it waited for its turn."
        for name, share in results.idle_cpu.items()
        if share > 0.01
    ]
    text = f"## {model.name}, {where}\n\n{table}\n\n" + " ".join(filter(None, notes)) + "\n"
    (output / f"{model.name}.md").write_text(text)
    (output / f"{model.name}.svg").write_text(draw(f"{model.name}, {where}", results.samples, engines))
    print(text)


if __name__ == "__main__":
    main()
