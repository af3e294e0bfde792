"""Which requests advance in the next step, and by how many tokens. Pure host policy; no arrays of the device."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from headrace.engine.pages import PagePool
from headrace.engine.prefix import PrefixCache
from headrace.engine.request import Request
from headrace.engine.speculation import Speculation
from headrace.execution.schedule import MAX_SHARED_PAGE_UPDATES, ScheduledStep
from headrace.execution.sequences import SequenceTable

# So many steps of waiting count as much as one priority class.
STEPS_PER_PRIORITY = 256


@dataclass(frozen=True)
class Schedule:
    """The requests of one step, row by row, and the step itself.

    A step may be launched before the tokens of the last are read: the host knows what the device samples one step late.
    Where a request has drafts they follow its newest token in the step.
    """

    requests: list[Request]
    step: ScheduledStep
    drafts: dict[Request, list[int]]

    @property
    def waits_for_tokens(self) -> bool:
        """Whether a request cannot be given its next token before the one in flight is known."""
        return any(r.num_in_flight and r.rules is not None and r.rules.waits_for_tokens for r in self.requests)

    def constrain(self) -> None:
        """Adds to the step what the rules of its requests say of the tokens to sample."""
        for request, samples in zip(self.requests, self.step.samples.tolist(), strict=True):
            if samples and request.rules is not None:
                assert request.slot is not None
                outputs, known = request.token_ids[request.num_prompt :], request.num_sampled - request.num_prompt
                constraint = request.rules.constraint(outputs, known, samples)
                if constraint is not None:
                    self.step.constraints[request.slot] = constraint


@dataclass
class _Plan:
    """A step in the making: tokens of each request, and what is left of its room.

    Attributes:
        budget: tokens that may still be added.
        shared_updates: pages that were found in the prefix cache and that the device is told of; see
            `MAX_SHARED_PAGE_UPDATES`.
        drafts: guessed tokens after those of a request.
    """

    budget: int
    chosen: dict[Request, int] = field(default_factory=dict)
    shared_updates: list[tuple[int, int, int]] = field(default_factory=list)
    drafts: dict[Request, list[int]] = field(default_factory=dict)

    def count(self, request: Request) -> int:
        """Tokens of a request with its drafts."""
        return self.chosen[request] + len(self.drafts.get(request, ()))

    def add(self, request: Request) -> None:
        """Takes as many of a request's pending tokens as there is room for."""
        count = min(request.num_pending, self.budget)
        self.chosen[request] = count
        self.budget -= count

    def drop(self, request: Request) -> None:
        """Takes a request out again."""
        self.budget += self.chosen.pop(request, 0)

    def tell_shared(self, request: Request, num_shared: int) -> bool:
        """Adds what the device does not know of a request's first `num_shared` pages; False if there is not room for
        all of it, and the request must wait for the next step."""
        assert request.slot is not None
        room = MAX_SHARED_PAGE_UPDATES - len(self.shared_updates)
        first = request.num_sent_pages
        last = min(num_shared, first + room)
        if last > first:
            self.shared_updates += [(request.slot, index, request.pages[index]) for index in range(first, last)]
            request.num_sent_pages = last
        return num_shared <= request.num_sent_pages


class Scheduler:
    """Continuous batching in order of priority and arrival, with prefill in chunks and preemption by recomputation.

    Each step first takes one token of every request that decodes, then chunks of prompts that are under way, then new
    requests while tokens, slots and pages last. The order is that of `Request.order`: arrival, moved by
    `STEPS_PER_PRIORITY` for each priority class, so that whoever waits long enough comes before a more urgent
    newcomer.

    A request gets the pages of all its known tokens when it is admitted and one at a time after that; its length is
    not known, and most end early. When no page is left the last request in the order gives its pages back and waits;
    its tokens stay known and are computed anew. It is admitted again once there are pages for all that it may still
    become, and keeps them: so a request is preempted at most once for want of pages. There is always progress: a
    request that has all its pages, or else the first in the order.

    Attributes:
        waiting: requests without a slot, in order.
        running: requests with a slot, in order.
        admits_new: if False, only requests that ran before are admitted.
        num_preemptions: how often a running request was sent back to wait.
    """

    def __init__(
        self,
        pool: PagePool,
        prefix: PrefixCache,
        sequences: SequenceTable,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        first_slot: int = 0,
        speculation: Speculation | None = None,
    ) -> None:
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.admits_new = True
        self.num_preemptions = 0
        self._pool, self._prefix, self._sequences, self._speculation = pool, prefix, sequences, speculation
        self._max_tokens = max_num_batched_tokens
        self._free_slots = list(reversed(range(first_slot, first_slot + max_num_seqs)))
        self._num_steps, self._num_added = 0, 0

    def add(self, request: Request) -> None:
        """Queues a request. It must fit into the empty pool when it is alone and as long as it can get."""
        request.order = (self._num_steps + request.priority * STEPS_PER_PRIORITY, self._num_added)
        self._num_added += 1
        insort(self.waiting, request, key=_order)

    def remove(self, request: Request) -> None:
        """Takes out a request that has ended, wherever it is, and frees what it holds."""
        if request.slot is None:
            self.waiting.remove(request)
        else:
            if request.finish_reason == "error":
                self._prefix.forget(request.pages)  # they may hold what led to the error
            else:
                self._register(request, request.num_computed)
            self._release(request)

    def schedule(self) -> Schedule | None:
        """The next step, or None when there is nothing to do. Requests advance when the step is launched."""
        plan, preemptions = _Plan(self._max_tokens), self.num_preemptions
        for request in sorted(self.running, key=lambda r: r.num_pending > 1):
            if request.slot is None:
                continue  # preempted for the sake of one before it
            if request.num_pending and plan.budget and plan.tell_shared(request, self._computed_pages(request)):
                count = min(request.num_pending, plan.budget)
                if self._grow(request, request.num_computed + count, plan):
                    plan.add(request)
        for request, count in plan.chosen.items():  # not earlier: a row that was chosen may have been preempted since
            self._register(request, request.num_computed + count)
        if self.num_preemptions == preemptions:
            self._admit(plan)
        if plan.chosen and self._speculation is not None:
            self._add_drafts(plan, self._speculation)
        return self._as_step(plan) if plan.chosen or plan.shared_updates else None

    def launched(self, schedule: Schedule) -> None:
        """Advances the requests of a step that the device has been given."""
        step = schedule.step
        self._num_steps += 1
        for request, count, samples in zip(
            schedule.requests, step.num_tokens.tolist(), step.samples.tolist(), strict=True
        ):
            request.num_computed += count
            request.num_in_flight += samples
        # Which of several samples holds, the host has to say.
        sampled, positions = step.samples > 0, np.where(step.samples == 1, step.num_computed + step.num_tokens, -1)
        self._sequences.launched(step.slots[sampled], positions[sampled])

    def rejected(self, request: Request, count: int) -> None:
        """Takes back the last `count` computed tokens of a running request, drafts that were wrong, and the pages that
        only they needed. The step that they were in has been read, and none launched since."""
        request.num_computed -= count
        if not request.has_all_pages:
            needed = self._pool.pages_for(request.num_computed + 1)
            self._pool.free(reversed(request.pages[needed:]))
            del request.pages[needed:]
            request.num_sent_pages = min(request.num_sent_pages, needed)

    def preempt_all(self) -> None:
        """Sends every running request back to wait, so that all its keys and values are computed anew, and forgets what
        is in flight."""
        while self.running:
            self._preempt(self.running[-1])
        for request in self.waiting:
            request.num_in_flight = 0

    def _computed_pages(self, request: Request) -> int:
        return self._pool.pages_for(request.num_computed)

    def _grow(self, request: Request, num_tokens: int, plan: _Plan) -> bool:
        """Gives a running request pages for so many tokens; False when it had to give up its own instead."""
        missing = self._pool.pages_for(num_tokens) - len(request.pages)
        while missing > self._pool.num_available:
            # Requests with all their pages never get here and never give them up.
            victim = next(r for r in reversed(self.running) if not r.has_all_pages)
            plan.drop(victim)
            victim.was_preempted = True
            self._preempt(victim)
            if victim is request:
                return False
        if missing > 0:
            request.pages += self._pool.allocate(missing)
        return True

    def _admit(self, plan: _Plan) -> None:
        while self._free_slots and plan.budget:
            request = next((r for r in self.waiting if self.admits_new or r.num_cached is not None), None)
            # One preempted while its newest token was being sampled waits until that is known.
            if request is None or request.num_in_flight or not self._take_pages(request):
                return
            self.waiting.remove(request)
            insort(self.running, request, key=_order)
            request.slot = self._free_slots.pop()
            self._load(request)
            if plan.tell_shared(request, self._computed_pages(request)):
                plan.add(request)
                self._register(request, request.num_computed + plan.chosen[request])

    def _add_drafts(self, plan: _Plan, speculation: Speculation) -> None:
        """Adds guesses, as far as there is room in pages that nobody uses."""
        for request, tokens in speculation.drafts(plan.chosen).items():
            assert request.slot is not None
            room = (len(request.pages) + self._pool.num_available) * self._pool.page_size - request.num_computed - 1
            tokens = tokens[:room]
            if tokens:
                missing = self._pool.pages_for(request.num_computed + 1 + len(tokens)) - len(request.pages)
                request.pages += self._pool.allocate(max(missing, 0))
                self._sequences.guessed(request.slot, request.num_tokens, tokens)
                plan.drafts[request] = tokens

    def _load(self, request: Request) -> None:
        assert request.slot is not None
        ids, prompt, choice = request.token_ids, request.num_prompt, request.choice
        self._sequences.load(request.slot, ids, prompt, request.params, request.seed, choice)

    def _take_pages(self, request: Request) -> bool:
        """Gives a waiting request its pages, shared ones first; False, and nothing is taken, when there are too few."""
        found = self._prefix.match(request.scope, request.token_ids)[: request.num_reusable // self._pool.page_size]
        shared = [node.page for node in found]
        self._pool.reference(shared)  # first, lest they be evicted for the others
        wanted = self._pool.pages_for(request.max_total if request.was_preempted else request.num_tokens) - len(shared)
        # A page beyond what it needs now, lest it be preempted for its neighbours' next tokens at once.
        spare = 1 if not request.was_preempted and any(map(self._may_grow, self.running)) else 0
        if wanted + spare > self._pool.num_available:
            self._pool.free(reversed(shared))
            return False
        request.pages = shared + self._pool.allocate(wanted)
        request.has_all_pages = request.was_preempted
        request.num_computed = len(shared) * self._pool.page_size
        request.node = found[-1] if found else self._prefix.root
        request.num_registered_pages = len(shared)
        if request.num_cached is None:
            request.num_cached, request.scheduled = request.num_computed, perf_counter()
            self._prefix.count(request.num_tokens, request.num_computed)
        return True

    def _may_grow(self, request: Request) -> bool:
        return len(request.pages) < self._pool.pages_for(request.max_total)

    def _register(self, request: Request, num_computed: int) -> None:
        """Lets others find the full pages of a request's first `num_computed` tokens, as far as these are known."""
        size = self._pool.page_size
        for index in range(request.num_registered_pages, min(num_computed, request.num_tokens) // size):
            assert request.node is not None
            token_ids = request.token_ids[index * size : (index + 1) * size]
            request.node = self._prefix.add(request.node, request.scope, token_ids, request.pages[index])
            request.num_registered_pages = index + 1

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.num_computed = 0
        insort(self.waiting, request, key=_order)
        self.num_preemptions += 1

    def _release(self, request: Request) -> None:
        assert request.slot is not None
        self.running.remove(request)
        self._pool.free(reversed(request.pages))  # the last is evicted first: without those before it is worth nothing
        self._free_slots.append(request.slot)
        request.slot, request.pages, request.num_sent_pages = None, [], 0
        request.node, request.num_registered_pages = None, 0

    def _as_step(self, plan: _Plan) -> Schedule:
        # Rows with one token first, longest context first: what the attention kernels count on.
        requests = sorted(plan.chosen, key=lambda r: (plan.count(r) > 1, -(r.num_computed + plan.count(r))))
        counts = np.array([plan.chosen[r] for r in requests], np.int32)
        drafts = np.array([len(plan.drafts.get(r, ())) for r in requests], np.int32)
        computed = np.array([r.num_computed for r in requests], np.int32)
        sampled = np.array([r.num_sampled for r in requests], np.int32)
        room = np.array([r.max_total for r in requests], np.int32)
        samples = ((computed + counts == sampled) & (sampled < room)).astype(np.int32) + drafts
        scores = np.array([r.num_unscored > 0 for r in requests]) if any(r.num_unscored for r in requests) else None
        slots = np.array([r.slot for r in requests], np.int32)
        updates = [update for r in requests for update in self._new_pages(r, r.num_computed + plan.count(r))]
        updates += plan.shared_updates
        step = ScheduledStep(slots, computed, counts + drafts, samples, updates, scores)
        return Schedule(requests, step, plan.drafts)

    def _new_pages(self, request: Request, num_tokens: int) -> list[tuple[int, int, int]]:
        """(slot, index, page) of the pages up to so many tokens that the device has not been told of."""
        assert request.slot is not None
        first, last = request.num_sent_pages, self._pool.pages_for(num_tokens)
        request.num_sent_pages = last
        return [(request.slot, index, request.pages[index]) for index in range(first, last)]


def _order(request: Request) -> tuple[int, int]:
    return request.order
