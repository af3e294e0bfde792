"""What each step took and moved, and the sums over all steps. From the host's clock; nothing waits for the device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

import numpy as np

from headrace.execution.buckets import Bucket
from headrace.execution.histogram import Histogram
from headrace.execution.schedule import ScheduledStep
from headrace.execution.transfer import TransferCounts

PHASES = ("schedule", "prepare", "dispatch", "wait", "commit")
# Upper ends of the ranges that steps are counted in.
STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class StepTimes(NamedTuple):
    """Moments of a step in order, in seconds of `time.perf_counter`.

    Between `dispatched` and `reading` the host may have launched another step.
    """

    start: float
    scheduled: float
    prepared: float
    dispatched: float
    reading: float
    read: float
    committed: float

    @property
    def phases(self) -> dict[str, tuple[float, float]]:
        """Begin and end of each of `PHASES`."""
        return {
            "schedule": (self.start, self.scheduled),
            "prepare": (self.scheduled, self.prepared),
            "dispatch": (self.prepared, self.dispatched),
            "wait": (self.reading, self.read),
            "commit": (self.read, self.committed),
        }


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step, from scheduling to committed tokens.

    Attributes:
        bucket: (tokens, requests) of the compiled step that ran, of each data parallel rank.
        rows: requests that took part.
        tokens: tokens computed.
        sampled: rows that sampled a token.
        drafts: rows with guessed tokens.
        drafted, accepted: tokens that were guessed, and output tokens that they brought besides those of `sampled`.
        times: when what happened.
        h2d_transfers, h2d_bytes: from the host to the device.
        d2h_transfers, d2h_bytes: from the device to the host.
        ranks: data parallel ranks that the step ran on.
    """

    bucket: Bucket
    rows: int
    tokens: int
    sampled: int
    times: StepTimes
    h2d_transfers: int
    h2d_bytes: int
    d2h_transfers: int
    d2h_bytes: int
    ranks: int = 1
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def padding(self) -> int:
        """Tokens that the step computed for nobody."""
        return self.ranks * self.bucket[0] - self.tokens

    @property
    def is_decode(self) -> bool:
        """Whether each row computed a single token."""
        return self.rows == self.tokens

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each of `PHASES`.

        schedule: choose the rows. prepare: fill the packed array and begin its transfer. dispatch: call the compiled
        step. wait: until the tokens are on the host. commit: from there until the outputs are ready.
        """
        return {name: end - begin for name, (begin, end) in self.times.phases.items()}


@dataclass
class StepCounters(TransferCounts):
    """Sums over the steps that were committed.

    Attributes:
        steps: how many.
        tokens_computed: prompt tokens and decoded ones, also those computed anew.
        tokens_sampled: rows that sampled.
        drafts: rows with guessed tokens.
        drafted_tokens, accepted_tokens: tokens that were guessed, and output tokens that they brought besides those of
            `tokens_sampled`. A right guess after a request's end brings nothing.
        padded_tokens: tokens that were computed for nobody.
        seconds: of each of `PHASES`.
        idle_seconds: in which the device had no step while the host worked on one; more may be hidden where the host
            reads a step late.
        step_seconds: what each step took from its start, or the end of the step before, to its end; the sum is the time
            in which there was anything to do.
        step_tokens: what each step computed for somebody.
        steps_by_bucket: steps per (tokens, requests).
    """

    steps: int = 0
    tokens_computed: int = 0
    tokens_sampled: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    padded_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    idle_seconds: float = 0.0
    step_seconds: Histogram = field(default_factory=lambda: Histogram(STEP_SECONDS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKENS))
    steps_by_bucket: Counter[Bucket] = field(default_factory=Counter)
    _read: float = 0.0  # when the tokens of the last step were, and when it was over
    _committed: float = 0.0

    def add(self, step: StepMetrics) -> None:
        """Counts a step."""
        self.steps += 1
        self.tokens_computed += step.tokens
        self.tokens_sampled += step.sampled
        self.drafts += step.drafts
        self.drafted_tokens += step.drafted
        self.accepted_tokens += step.accepted
        self.padded_tokens += step.padding
        self.h2d_transfers += step.h2d_transfers
        self.h2d_bytes += step.h2d_bytes
        self.d2h_transfers += step.d2h_transfers
        self.d2h_bytes += step.d2h_bytes
        self.steps_by_bucket[step.bucket] += 1
        for name, (begin, end) in step.times.phases.items():
            self.seconds[name] += end - begin
        self._add_times(step.times)
        self.step_tokens.observe(step.tokens)

    def _add_times(self, times: StepTimes) -> None:
        if self.steps > 1:
            nothing_to_do = max(times.start - self._committed, 0.0)
            self.idle_seconds += max(times.prepared - self._read - nothing_to_do, 0.0)
        else:
            self.idle_seconds += times.prepared - times.start
        self.step_seconds.observe(times.committed - max(times.start, self._committed))
        self._read, self._committed = times.read, times.committed

    def copy(self) -> StepCounters:
        """The sums of now, which later steps do not change."""
        return replace(
            self,
            seconds=self.seconds.copy(),
            step_seconds=self.step_seconds.copy(),
            step_tokens=self.step_tokens.copy(),
            steps_by_bucket=self.steps_by_bucket.copy(),
        )


@dataclass(frozen=True)
class EngineMetrics:
    """An engine's figures at one moment.

    Attributes:
        last_step: the step committed last; None before the first.
        counters: sums over all steps since the engine was made.
        compilations: programs that steps compiled while serving; 0 when all is well.
        preemptions: how often a running request was sent back to wait.
        waiting, running: requests.
        free_pages, pages: of the KV cache; a page is free if no sequence uses it, whether or not it can be found.
        prefix_queried_tokens, prefix_hit_tokens: tokens looked up in the prefix cache, and those found.
    """

    last_step: StepMetrics | None
    counters: StepCounters
    compilations: int
    preemptions: int
    waiting: int
    running: int
    free_pages: int
    pages: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int

    @property
    def acceptance_rate(self) -> float:
        """Share of the guessed tokens that turned out right; 0 when none was guessed."""
        drafted = self.counters.drafted_tokens
        return self.counters.accepted_tokens / drafted if drafted else 0.0


class StepMeter:
    """Measures one step under way: `mark` after schedule and prepare, `launched` after dispatch, `reading` before the
    tokens are read, `mark` after that, `finish` at the end."""

    __slots__ = ("_bucket", "_d2h", "_h2d", "_marks", "_ranks", "_transfers")

    def __init__(self, transfers: TransferCounts, ranks: int) -> None:
        self._transfers, self._ranks = transfers, ranks
        self._h2d = transfers.h2d_transfers, transfers.h2d_bytes
        self._marks = [perf_counter()]

    def mark(self) -> None:
        """A phase has ended."""
        self._marks.append(perf_counter())

    def launched(self, bucket: Bucket) -> None:
        """The step has been dispatched."""
        self.mark()
        self._bucket, t, (count, size) = bucket, self._transfers, self._h2d
        self._h2d = t.h2d_transfers - count, t.h2d_bytes - size

    def reading(self) -> None:
        """The host begins to wait for the tokens."""
        self.mark()
        self._d2h = self._transfers.d2h_transfers, self._transfers.d2h_bytes

    def finish(self, step: ScheduledStep, accepted: int) -> StepMetrics:
        """The outputs are ready; so many drafts were right."""
        self.mark()
        t, (count, size) = self._transfers, self._d2h
        sampled = int(np.count_nonzero(step.samples))
        return StepMetrics(
            bucket=self._bucket,
            rows=len(step.slots),
            tokens=step.total_tokens,
            sampled=sampled,
            times=StepTimes(*self._marks),
            h2d_transfers=self._h2d[0],
            h2d_bytes=self._h2d[1],
            d2h_transfers=t.d2h_transfers - count,
            d2h_bytes=t.d2h_bytes - size,
            ranks=self._ranks,
            drafts=int(np.count_nonzero(step.samples > 1)),
            drafted=sum(step.samples.tolist()) - sampled,
            accepted=accepted,
        )
