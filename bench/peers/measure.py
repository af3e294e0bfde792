"""One interleaved run of all engines on one model."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.engines import Engine
from peers.process import Process, RunnerError, first_token
from peers.workload import (
    ANSWER,
    COLD_START,
    KV_TOKENS,
    MAX_REQUESTS,
    MAX_TOKENS,
    MEMORY,
    RATES,
    WARM_START,
    Figure,
    sample,
)
from peers.workload import warm_up as warm_up_engine


@dataclass(frozen=True)
class Model:
    """A model in both forms.

    Attributes:
        name: in tables and files.
        gguf: its file.
        folder: the same values in bfloat16.
        vocab_size: number of its tokens.
        prompt: tokens of a text that all engines continue, to see that they compute the same.
        kv_bytes: of a token's keys and values in all layers, at two bytes per number.
    """

    name: str
    gguf: Path
    folder: Path
    vocab_size: int
    prompt: list[int]
    kv_bytes: int


@dataclass
class Results:
    """What came out for one model.

    Attributes:
        samples: by figure's name, then engine's: a value per round.
        others: the same, with the largest share of the machine that other processes took while a value was taken.
        failures: by engine's name, why it has no figures, or no more.
        answers: by engine's name, the first tokens after the model's prompt.
        idle_cpu: by engine's name, the processors that it kept busy while it waited for its turn.
    """

    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    others: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)
    idle_cpu: dict[str, float] = field(default_factory=dict)

    def add(self, figure: Figure, engine: Engine, value: float, others: float | None = None) -> None:
        """Notes a value."""
        self.samples.setdefault(figure.name, {}).setdefault(engine.name, []).append(value)
        if others is not None:
            self.others.setdefault(figure.name, {}).setdefault(engine.name, []).append(others)


class Comparison:
    """What an interleaved run needs: the engines with their Pythons, and a folder for logs.

    The engines compute on the processors of this process.
    """

    def __init__(self, pythons: Mapping[Engine, Path], logs: Path) -> None:
        self._pythons, self._logs = pythons, logs

    def measure(self, model: Model, rounds: int, starts: int, figures: Sequence[Figure] = RATES) -> Results:
        """Every figure of every engine, by turns.

        First come the starts, while nothing else of it runs: `starts` with an empty cache and as many with the cache
        of the last. Then all engines live side by side and wait for their turns; in each round each figure goes
        around, and each round begins with another engine. An engine that fails is left out from then on.
        """
        results = Results()
        with ExitStack() as stack:
            caches = {
                engine: Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"compare-{engine.name}-")))
                for engine in self._pythons
            }
            for number in range(2 * starts):
                for engine in self._living(results):
                    self._start(model, engine, caches[engine] / str(min(number, starts - 1)), number < starts, results)
            live = {}
            for engine in self._living(results):
                self._say(f"{model.name}: {engine.name} loads and warms up")
                if process := self._load(model, engine, caches[engine] / str(starts - 1), results):
                    live[engine] = stack.enter_context(process)
            for number in range(rounds):
                for figure in (one for one in figures if number % one.every == 0):
                    for engine in rotated(list(live), number):
                        self._sample(figure, model, engine, live[engine], number, results)
            for engine, process in live.items():
                if engine.name not in results.failures:
                    results.add(MEMORY, engine, process.peak_bytes() / 1e6)
                    results.idle_cpu[engine.name] = process.idle_cpu_s / max(process.idle_s, 1e-9)
        return results

    def _living(self, results: Results) -> list[Engine]:
        return [engine for engine in self._pythons if engine.name not in results.failures]

    def _settings(self, model: Model, engine: Engine) -> dict[str, Any]:
        return {
            "model": str(model.gguf if engine.reads_gguf else model.folder),
            "cpus": sorted(os.sched_getaffinity(0)),
            "max_requests": MAX_REQUESTS,
            "max_tokens": MAX_TOKENS,
            "kv_tokens": KV_TOKENS,
            "kv_bytes": KV_TOKENS * model.kv_bytes,
        }

    def _start(self, model: Model, engine: Engine, cache: Path, cold: bool, results: Results) -> None:
        self._say(f"{model.name}: {engine.name} starts with {'an empty' if cold else 'a full'} cache")
        cache.mkdir(exist_ok=True)
        settings = self._settings(model, engine)
        try:
            seconds = first_token(engine, self._pythons[engine], cache, self._log(engine), settings)
        except RunnerError as error:
            self._fail(engine, error, results)
        else:
            results.add(COLD_START if cold else WARM_START, engine, seconds)

    def _load(self, model: Model, engine: Engine, cache: Path, results: Results) -> Process | None:
        process = Process(engine, self._pythons[engine], cache, self._log(engine))
        try:
            process.ask("load", **self._settings(model, engine))
            warm_up_engine(process.run, model.vocab_size)
            results.answers[engine.name] = process.run([model.prompt], [ANSWER])["first_tokens"]
        except RunnerError as error:
            process.close()
            self._fail(engine, error, results)
            return None
        return process

    def _sample(
        self, figure: Figure, model: Model, engine: Engine, process: Process, number: int, results: Results
    ) -> None:
        if engine.name in results.failures or (figure.kind == "mixed" and not engine.batches_continuously):
            return
        try:
            value, others = sample(figure, process.run, model.vocab_size, number)
        except RunnerError as error:
            self._fail(engine, error, results)
            return
        results.add(figure, engine, value, others)
        self._say(f"{model.name}, round {number + 1}: {figure.name}: {engine.name} {value:.1f} {figure.unit}")

    def _log(self, engine: Engine) -> Path:
        return self._logs / f"{engine.name}.log"

    def _fail(self, engine: Engine, error: RunnerError, results: Results) -> None:
        results.failures[engine.name] = str(error)
        self._say(f"{error}; it is left out; its output is in {self._log(engine)}")

    @staticmethod
    def _say(text: str) -> None:
        print(f"compare: {text}", file=sys.stderr, flush=True)


def rotated(engines: list[Engine], number: int) -> list[Engine]:
    """The engines from the `number`-th on, around."""
    first = number % len(engines) if engines else 0
    return engines[first:] + engines[:first]
