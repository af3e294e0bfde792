"""How the runners are spoken to: a task as a line of JSON on stdin, its answer as one on stdout.

Tasks are `{"do": "load", …}` (the fields of `Settings`), `{"do": "run", "prompts": …, "outputs": …}` and
`{"do": "usage"}`. A process that was asked nothing waits for its next line, and takes no time of the processor.
Nothing but the standard library is needed, as each engine has an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What an engine is to serve.

    Attributes:
        model: GGUF file, or folder of the same values in bfloat16.
        cpus: processors to compute on, a thread each; the process has no others.
        max_requests: at once.
        max_tokens: of one request, prompt and output.
        kv_tokens: that the KV cache holds in all.
        kv_bytes: the same in bytes, with two per number.
    """

    model: str
    cpus: list[int]
    max_requests: int
    max_tokens: int
    kv_tokens: int
    kv_bytes: int


# After each step: which requests got a token in it, and which token. Generate takes prompts and their output tokens.
Steps = Iterator[list[tuple[int, int]]]
Generate = Callable[[list[list[int]], list[int]], Steps]


def serve(load: Callable[[Settings], Generate]) -> None:
    """Answers tasks until stdin ends. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    generate: Generate | None = None
    for line in sys.stdin:
        task = json.loads(line)
        kind = task.pop("do")
        begin = time.perf_counter()
        if kind == "load":
            generate = load(Settings(**task))
            answer: dict[str, Any] = {"seconds": time.perf_counter() - begin}
        elif kind == "run":
            assert generate is not None
            answer = _timed(generate, task["prompts"], task["outputs"])
        else:
            answer = _usage()
        print(json.dumps(answer), file=answers, flush=True)


def _timed(generate: Generate, prompts: list[list[int]], outputs: list[int]) -> dict[str, Any]:
    started = generate(prompts, outputs)
    begin = time.perf_counter()
    steps = [(time.perf_counter() - begin, got) for got in started]
    answer = timing([(moment, [request for request, _ in got]) for moment, got in steps], outputs)
    return {**answer, "first_tokens": [token for _, got in steps for request, token in got if request == 0]}


def timing(steps: Sequence[tuple[float, Sequence[int]]], outputs: Sequence[int]) -> dict[str, Any]:
    """What a run came to.

    Args:
        steps: when each ended, in seconds, and which requests got a token in it.
        outputs: tokens that each request was to get.

    Returns:
        `seconds` of all; `first_s` until each request had a token; and what came while all of them decoded:
        `together_tokens` in `together_s`, from the step after which each has a token to the first step after which
        one has all of its own. Both are 0 where there is no such time.

    Raises:
        RuntimeError: a request got more or fewer tokens.
    """
    counts = [0] * len(outputs)
    first = end = None
    tokens = 0
    for moment, got in steps:
        if first is not None and end is None:
            tokens += len(got)
        for request in got:
            counts[request] += 1
        if first is None and all(counts):
            first = moment
        if end is None and any(counts[request] == outputs[request] for request in got):
            end = moment
    if counts != list(outputs):
        raise RuntimeError(f"requests got {counts} tokens, not {list(outputs)}")
    assert first is not None
    assert end is not None
    together = max(end - first, 0.0)
    return {
        "seconds": steps[-1][0],
        "first_s": first,
        "together_s": together,
        "together_tokens": tokens if together else 0,
    }


def _usage() -> dict[str, Any]:
    """`peak_bytes` and `cpu_s` (processor time so far) of this process and its children."""
    peak, ticks = 0, 0
    processes = [Path("/proc/self")]
    while processes:
        process = processes.pop()
        status = (process / "status").read_text()
        peak += next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        for task in (process / "task").iterdir():
            processes += [Path("/proc", child) for child in (task / "children").read_text().split()]
    return {"peak_bytes": peak, "cpu_s": ticks / os.sysconf("SC_CLK_TCK")}
