"""Compiled steps by bucket: a bounded cache, filled in parallel before serving."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from typing import Any

import jax
from tqdm import tqdm

from headrace.errors import ConfigError, StepError
from headrace.execution.buckets import Bucket, select_bucket

Executable = Callable[..., Any]

# With native kernels what is compiled is sampling. XLA:CPU's older emitters give it the same bits and the same speed
# in 60 % of the time and with a quarter of the memory; but plain JAX's attention takes them twice as long.
OLDER_EMITTERS = {"xla_cpu_use_fusion_emitters": False}


@dataclass
class CacheStats:
    """Counters of a `CompiledSteps` since it was made."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0


class CompiledSteps:
    """Least recently used cache of compiled steps, keyed by (tokens, requests)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.stats = CacheStats()
        self._steps: OrderedDict[Bucket, Executable] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets that are compiled, ascending."""
        return sorted(self._steps)

    def get(self, num_tokens: int, num_reqs: int) -> tuple[Bucket, Executable]:
        """The smallest compiled step that holds the batch; StepError that names the choices when none does."""
        try:
            bucket = select_bucket(self._steps, num_tokens, num_reqs)
        except StepError:
            self.stats.misses += 1
            raise
        return bucket, self._use(bucket)

    def find(self, bucket: Bucket) -> Executable | None:
        """The compiled step of just this bucket, if there is one."""
        if bucket not in self._steps:
            self.stats.misses += 1
            return None
        return self._use(bucket)

    def _use(self, bucket: Bucket) -> Executable:
        self.stats.hits += 1
        self._steps.move_to_end(bucket)
        return self._steps[bucket]

    def put(self, bucket: Bucket, executable: Executable) -> None:
        """Adds a compiled step; the least recently used one leaves when the cache is full."""
        self._steps[bucket] = executable
        self._steps.move_to_end(bucket)
        while len(self._steps) > self.capacity:
            self._steps.popitem(last=False)
            self.stats.evictions += 1

    def warm_up(
        self,
        buckets: Sequence[Bucket],
        lower: Callable[[Bucket], Any],
        try_out: Callable[[Bucket, Executable], None],
        *,
        threads: int | None,
        progress: bool,
        meet: Callable[[], None] | None = None,
    ) -> None:
        """Compiles the buckets in parallel, and tries each out as it becomes ready.

        Steps of other buckets are forgotten.

        Args:
            buckets: what to compile; more than the capacity is a ConfigError before anything is compiled.
            lower: bucket -> lowered function.
            try_out: called with each compiled step, one at a time.
            threads: None takes one per core.
            progress: show a bar that names the shapes.
            meet: called once all are compiled and before any is tried out, which then happens in one order: for
                processes that must all run the same.
        """
        if len(buckets) > self.capacity:
            raise ConfigError(
                f"max_compiled_variants: {len(buckets)} steps are to be compiled but the cache holds {self.capacity}; "
                "raise it or give fewer num_tokens_paddings or num_reqs_paddings"
            )
        for bucket in set(self._steps) - set(buckets):
            del self._steps[bucket]  # or the full cache would drop one that is asked for
        # The largest steps take longest, so they start first. Threads help because XLA compiles without the GIL.
        todo = sorted(set(buckets) - set(self._steps), reverse=True)
        with (
            ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool,
            tqdm(
                total=len(todo), desc="compiling", unit="step", disable=None if progress else True, leave=False
            ) as bar,
        ):
            futures = {pool.submit(lambda b: lower(b).compile(), bucket): bucket for bucket in todo}
            if meet is not None:
                wait(futures)
                meet()
            for future in as_completed(futures) if meet is None else futures:
                bucket = futures[future]
                executable = future.result()
                try_out(bucket, executable)
                self.put(bucket, executable)
                bar.set_postfix_str(f"{bucket[0]} tokens x {bucket[1]} requests")
                bar.update()

    def clear(self) -> None:
        """Forgets every compiled step."""
        self._steps.clear()


class _CompileEvents:
    """Counts the programs that XLA compiles or loads in this process. JAX offers no way to remove a listener, so
    there is one for the process."""

    _EVENT = "/jax/core/compile/backend_compile_duration"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._thread = threading.local()
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == self._EVENT:
            self._thread.count = self.in_thread + 1  # XLA is called, and reports, in the thread that wants the program
            with self._lock:
                self._count += 1

    @property
    def in_thread(self) -> int:
        return getattr(self._thread, "count", 0)

    @property
    def count(self) -> int:
        with self._lock:
            return self._count


_events = _CompileEvents()


def compilations() -> int:
    """How many programs XLA has compiled in this process so far, of any kind."""
    return _events.count


def compilations_in_thread() -> int:
    """The same for the calling thread alone: a step's own, whatever else the process compiles meanwhile."""
    return _events.in_thread
