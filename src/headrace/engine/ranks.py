"""Data parallel ranks as one scheduler: each has slots, pages and cached prefixes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.engine.request import Request
from headrace.engine.scheduler import Schedule, Scheduler
from headrace.execution.schedule import ScheduledStep


@dataclass(frozen=True)
class JointSchedule(Schedule):
    """The rows of all ranks, one rank after the other.

    Attributes:
        parts: what each rank schedules; None where it has nothing to do.
    """

    parts: list[Schedule | None]


class RankedScheduler:
    """Gives each request to one rank for good, and joins what the ranks' schedulers want into one step.

    A new request goes to the rank whose unfinished requests can get the fewest tokens in all, the first of them in a
    tie. Apart from that it is used like a `Scheduler`.
    """

    def __init__(self, ranks: Sequence[Scheduler]) -> None:
        self._ranks = ranks
        self._load = [0] * len(ranks)
        self._rank_of: dict[Request, int] = {}

    @property
    def waiting(self) -> list[Request]:
        """Requests without a slot, rank by rank."""
        return [request for rank in self._ranks for request in rank.waiting]

    @property
    def running(self) -> list[Request]:
        """Requests with a slot, rank by rank."""
        return [request for rank in self._ranks for request in rank.running]

    @property
    def admits_new(self) -> bool:
        """If False, only requests that ran before are admitted."""
        return self._ranks[0].admits_new

    @admits_new.setter
    def admits_new(self, value: bool) -> None:
        for rank in self._ranks:
            rank.admits_new = value

    @property
    def num_preemptions(self) -> int:
        """How often a running request was sent back to wait."""
        return sum(rank.num_preemptions for rank in self._ranks)

    def add(self, request: Request) -> None:
        """Queues a request at the rank with the least to do."""
        rank = self._load.index(min(self._load))
        self._rank_of[request] = rank
        self._load[rank] += request.max_total
        self._ranks[rank].add(request)

    def remove(self, request: Request) -> None:
        """Takes out a request that has ended, wherever it is, and frees what it holds."""
        rank = self._rank_of.pop(request)
        self._load[rank] -= request.max_total
        self._ranks[rank].remove(request)

    def schedule(self) -> JointSchedule | None:
        """The next step, or None when no rank has anything to do."""
        parts = [rank.schedule() for rank in self._ranks]
        present = [part for part in parts if part is not None]
        if not present:
            return None
        requests = [request for part in present for request in part.requests]
        drafts = {request: tokens for part in present for request, tokens in part.drafts.items()}
        return JointSchedule(requests, _joined([part.step for part in present]), drafts, parts)

    def launched(self, schedule: Schedule) -> None:
        """Advances the requests of a step that the device has been given."""
        assert isinstance(schedule, JointSchedule)
        for rank, part in zip(self._ranks, schedule.parts, strict=True):
            if part is not None:
                rank.launched(part)

    def rejected(self, request: Request, count: int) -> None:
        """Takes back the last computed tokens of a running request."""
        self._ranks[self._rank_of[request]].rejected(request, count)

    def preempt_all(self) -> None:
        """Sends every running request back to wait, and forgets what is in flight."""
        for rank in self._ranks:
            rank.preempt_all()


def _joined(steps: Sequence[ScheduledStep]) -> ScheduledStep:
    """The rows of several steps as one step."""
    slots, computed, counts, samples = (
        np.concatenate([getattr(step, name) for step in steps])
        for name in ("slots", "num_computed", "num_tokens", "samples")
    )
    updates = [update for step in steps for update in step.page_updates]
    scores = None
    if any(step.scores_prompt is not None for step in steps):
        none = [np.zeros(len(step.slots), bool) for step in steps]
        scores = np.concatenate(
            [step.scores_prompt if step.scores_prompt is not None else no for step, no in zip(steps, none, strict=True)]
        )
    return ScheduledStep(slots, computed, counts, samples, updates, scores)
