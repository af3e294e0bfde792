"""Which requests advance in the next step, and by how many tokens. Pure host policy; no arrays of the device."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from headrace.engine.pages import PagePool
from headrace.engine.request import Request
from headrace.execution.schedule import ScheduledStep
from headrace.execution.sequences import SequenceTable


@dataclass(frozen=True)
class Schedule:
    """The requests of one step, row by row, and the step itself.

    A step may be launched before the tokens of the last are read: the host knows what the device samples one step late.
    """

    requests: list[Request]
    step: ScheduledStep


class Scheduler:
    """Continuous batching, first come first served, with prefill in chunks and preemption by recomputation.

    Each step first takes one token of every request that decodes, then chunks of prompts that are under way, then new
    requests while tokens, slots and pages last. A request gets the pages of all its known tokens when it is admitted
    and one at a time after that. When none is left the latest request gives its pages back and waits; its tokens stay
    known and are computed anew. The earliest request is never preempted by another, so there is always progress.

    Attributes:
        waiting: requests without a slot, earliest first.
        running: requests with a slot, earliest first.
        num_preemptions: how often a running request was sent back to wait.
    """

    def __init__(
        self, pool: PagePool, sequences: SequenceTable, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._pool, self._sequences = pool, sequences
        self._max_tokens = max_num_batched_tokens
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    def add(self, request: Request) -> None:
        """Queues a request. It must fit into the empty pool when it is alone and as long as it can get."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Takes out a request that has ended, wherever it is, and frees what it holds."""
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self._release(request)

    def schedule(self) -> Schedule | None:
        """The next step, or None when there is nothing to do. Requests advance when the step is launched."""
        chosen: dict[Request, int] = {}
        budget, preemptions = self._max_tokens, self.num_preemptions
        for request in sorted(self.running, key=lambda r: r.num_pending > 1):
            if request.slot is None:
                continue  # preempted for the sake of one before it
            count = min(request.num_pending, budget)
            if count > 0 and self._grow(request, request.num_computed + count, chosen):
                chosen[request] = count
                budget -= count
        if self.num_preemptions == preemptions:
            self._admit(chosen, budget)
        return self._as_step(chosen) if chosen else None

    def launched(self, schedule: Schedule) -> None:
        """Advances the requests of a step that the device has been given."""
        step = schedule.step
        for request, count, samples in zip(
            schedule.requests, step.num_tokens.tolist(), step.samples.tolist(), strict=True
        ):
            request.num_computed += count
            request.num_in_flight += samples
        self._sequences.launched(step.slots[step.samples], (step.num_computed + step.num_tokens)[step.samples])

    def preempt_all(self) -> None:
        """Sends every running request back to wait and forgets what is in flight; for use when the device lost its
        state."""
        while self.running:
            self._preempt(self.running[-1])
        for request in self.waiting:
            request.num_in_flight = 0

    def _grow(self, request: Request, num_tokens: int, chosen: dict[Request, int]) -> bool:
        """Gives a running request pages for so many tokens; False when it had to give up its own instead."""
        missing = self._pool.pages_for(num_tokens) - len(request.pages)
        while missing > self._pool.num_free:
            victim = self.running[-1]
            chosen.pop(victim, None)
            self._preempt(victim)
            if victim is request:
                return False
        if missing > 0:
            request.pages += self._pool.allocate(missing)
        return True

    def _admit(self, chosen: dict[Request, int], budget: int) -> None:
        while self.waiting and self._free_slots and budget > 0:
            request = self.waiting[0]
            if request.num_in_flight:
                return  # preempted while its newest token was being sampled; known in the next step
            pages = self._pool.pages_for(request.num_tokens)
            # A page beyond what it needs now, lest it be preempted for its neighbours' next tokens at once.
            if pages + (1 if self.running else 0) > self._pool.num_free:
                return
            self.waiting.popleft()
            self.running.append(request)
            request.pages = self._pool.allocate(pages)
            request.slot = self._free_slots.pop()
            self._sequences.load(request.slot, request.token_ids, request.num_prompt, request.params, request.seed)
            chosen[request] = min(request.num_pending, budget)
            budget -= chosen[request]

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.num_computed = 0
        self.waiting.appendleft(request)
        self.num_preemptions += 1

    def _release(self, request: Request) -> None:
        assert request.slot is not None
        self.running.remove(request)
        self._pool.free(request.pages)
        self._free_slots.append(request.slot)
        request.slot, request.pages, request.num_sent_pages = None, [], 0

    def _as_step(self, chosen: dict[Request, int]) -> Schedule:
        # Rows with one token first, longest context first: what the attention kernels count on.
        requests = sorted(chosen, key=lambda r: (chosen[r] > 1, -(r.num_computed + chosen[r])))
        counts = np.array([chosen[r] for r in requests], np.int32)
        computed = np.array([r.num_computed for r in requests], np.int32)
        sampled = np.array([r.num_sampled for r in requests], np.int32)
        slots = np.array([r.slot for r in requests], np.int32)
        updates = [update for r in requests for update in self._new_pages(r, r.num_computed + chosen[r])]
        return Schedule(requests, ScheduledStep(slots, computed, counts, computed + counts == sampled, updates))

    def _new_pages(self, request: Request, num_tokens: int) -> list[tuple[int, int, int]]:
        """(slot, index, page) of the pages up to so many tokens that the device has not been told of."""
        assert request.slot is not None
        first, last = request.num_sent_pages, self._pool.pages_for(num_tokens)
        request.num_sent_pages = last
        return [(request.slot, index, request.pages[index]) for index in range(first, last)]
