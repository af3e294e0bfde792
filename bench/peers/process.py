"""A live engine: its process, asked by lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.engines import Engine

_RUNNERS = Path(__file__).parent / "runners"
_TICKS = os.sysconf("SC_CLK_TCK")


class RunnerError(Exception):
    """An engine's process ended or did not answer; the message has its last words."""


class Process:
    """An engine's process, on the processors of this one.

    Attributes:
        engine: which.
        idle_s, idle_cpu_s: how long it waited for its next task so far, and its processor time in that.
    """

    def __init__(self, engine: Engine, python: Path, cache: Path, log: Path) -> None:
        """Starts it.

        Args:
            cache: folder for what it compiles.
            log: file for what it prints.
        """
        self.engine, self._log, self._log_start = engine, log, log.stat().st_size if log.exists() else 0
        self.idle_s = self.idle_cpu_s = 0.0
        self._rested: tuple[float, float] | None = None
        environment = {**os.environ, **dict.fromkeys(engine.cache_variables, str(cache))}
        if engine.requirements:  # a peer's own packages, and nothing else
            environment.pop("PYTHONPATH", None)
        if engine.preloaded:
            environment["LD_PRELOAD"] = str(python.parents[1] / engine.preloaded)
        with log.open("a") as errors:
            self._child = subprocess.Popen(
                [str(python), str(_RUNNERS / engine.runner)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, do: str, timeout: float = 1800.0, **task: Any) -> dict[str, Any]:
        """Gives it a task and returns its answer.

        Raises:
            RunnerError: it ended, or took longer than `timeout` seconds.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps({"do": do, **task}).encode() + b"\n")
            self._child.stdin.flush()
            ready = select.select([self._child.stdout], [], [], timeout)[0]
        except BrokenPipeError:
            ready = [self._child.stdout]
        line = self._child.stdout.readline() if ready else b""
        if not line:
            self.close()
            raise RunnerError(f"{self.engine.name}: {self._last_words() if ready else f'no answer in {timeout:g} s'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, prompts: Sequence[Sequence[int]], outputs: Sequence[int]) -> dict[str, Any]:
        """Runs requests, as `protocol.timing` tells, and adds `others`: the share of the machine that others took."""
        before = self._usage()
        if self._rested:
            self.idle_s += before[0] - self._rested[0]
            self.idle_cpu_s += before[1] - self._rested[1]
        answer = self.ask("run", prompts=prompts, outputs=outputs)
        self._rested = after = self._usage()
        wall, own, busy = (b - a for a, b in zip(before, after, strict=True))
        return {**answer, "others": max(busy - own, 0.0) / (wall * (os.cpu_count() or 1))}

    def peak_bytes(self) -> int:
        """Most memory that it has had so far."""
        return int(self.ask("usage")["peak_bytes"])

    def close(self) -> None:
        """Ends it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def _usage(self) -> tuple[float, float, float]:
        """The moment, its processor time so far, and the whole machine's."""
        own = self.ask("usage")["cpu_s"]
        with open("/proc/stat") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        idle, waiting = fields[3], fields[4]
        return time.perf_counter(), own, (sum(fields) - idle - waiting) / _TICKS

    def _last_words(self) -> str:
        with self._log.open(errors="replace") as file:
            file.seek(self._log_start)
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1] if lines else f"ended with {self._child.returncode}, and said nothing"


def first_token(engine: Engine, python: Path, cache: Path, log: Path, settings: dict[str, Any]) -> float:
    """Seconds from the start of a process to the first token of a prompt of 16."""
    begin = time.perf_counter()
    with Process(engine, python, cache, log) as process:
        process.ask("load", **settings)
        process.ask("run", prompts=[list(range(100, 116))], outputs=[1])
        return time.perf_counter() - begin
