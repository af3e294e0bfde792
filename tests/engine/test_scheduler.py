"""Scheduling policy, without a device."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.pages import PagePool
from headrace.engine.prefix import PrefixCache
from headrace.engine.request import Request
from headrace.engine.scheduler import STEPS_PER_PRIORITY, Schedule, Scheduler
from headrace.execution.batch import BatchLayout
from headrace.execution.schedule import MAX_SHARED_PAGE_UPDATES
from headrace.execution.sequences import SequenceTable
from headrace.sampling.params import SamplingParams
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.stop import StopMatcher
from headrace.text.tokenizer import Tokenizer


class Desk:
    """A scheduler with a stand-in for the device: every step succeeds and samples token 9."""

    def __init__(
        self,
        folder: Path,
        pages: int = 12,
        seqs: int = 4,
        budget: int = 32,
        *,
        length: int = 64,
        page_size: int = 16,
        share: bool = False,
    ) -> None:
        self.tokenizer = Tokenizer.from_folder(folder)
        self.pool = PagePool(pages, page_size)
        self.prefix = PrefixCache(self.pool, enabled=share)
        self.scheduler = Scheduler(self.pool, self.prefix, SequenceTable(seqs, length), seqs, budget)

    def request(self, name: str, prompt: int, total: int = 64, priority: int = 0) -> Request:
        request = Request(
            request_id=name,
            token_ids=[7] * prompt,
            num_prompt=prompt,
            params=SamplingParams(),
            max_total=total,
            end_ids=frozenset(),
            seed=0,
            detokenizer=IncrementalDetokenizer(self.tokenizer),
            stop=StopMatcher(()),
            priority=priority,
        )
        self.scheduler.add(request)
        return request

    def step(self) -> list[tuple[str, int]]:
        schedule = self.scheduler.schedule()
        if schedule is None:
            return []
        self.commit(schedule)
        return rows(schedule)

    def commit(self, schedule: Schedule) -> None:
        self.scheduler.launched(schedule)
        self.learn(schedule)

    def learn(self, schedule: Schedule) -> None:
        for request, samples in zip(schedule.requests, schedule.step.samples, strict=True):
            if samples:
                request.num_in_flight -= 1
                request.token_ids.append(9)
                if request.num_tokens == request.max_total:
                    self.scheduler.remove(request)


def rows(schedule: Schedule) -> list[tuple[str, int]]:
    return [(r.request_id, int(n)) for r, n in zip(schedule.requests, schedule.step.num_tokens, strict=True)]


def test_a_prompt_is_cut_into_chunks_and_samples_once(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, budget=32)
    desk.request("a", prompt=50)
    first = desk.scheduler.schedule()
    assert first is not None
    assert rows(first) == [("a", 32)]
    assert first.step.samples.tolist() == [False]
    desk.commit(first)
    second = desk.scheduler.schedule()
    assert second is not None
    assert rows(second) == [("a", 18)]
    assert second.step.samples.tolist() == [True]
    desk.commit(second)
    assert desk.step() == [("a", 1)]


def test_decodes_go_first_and_the_budget_is_shared_in_order_of_arrival(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, budget=32)
    desk.request("a", prompt=10)
    assert desk.step() == [("a", 10)]
    desk.request("b", prompt=40)
    desk.request("c", prompt=5)
    assert desk.step() == [("a", 1), ("b", 31)]
    assert desk.step() == [("a", 1), ("b", 9), ("c", 5)]
    assert desk.step() == [("b", 1), ("a", 1), ("c", 1)]


def test_rows_with_one_token_come_first_longest_context_first(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder)
    for name, prompt in (("a", 3), ("b", 9), ("c", 6)):
        desk.request(name, prompt)
    desk.step()
    assert [name for name, _ in desk.step()] == ["b", "c", "a"]


def test_slots_bound_the_running_requests(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, seqs=2)
    for name in "abc":
        desk.request(name, prompt=4, total=6)
    assert [name for name, _ in desk.step()] == ["a", "b"]
    desk.step()
    assert [name for name, _ in desk.step()] == ["c"]


def test_the_latest_request_is_preempted_and_loses_no_token(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, pages=6, budget=64)
    a, b = desk.request("a", prompt=32), desk.request("b", prompt=31)
    assert desk.step() == [("a", 32), ("b", 31)]  # 2 + 2 pages and one to spare
    while desk.scheduler.num_preemptions == 0:
        assert desk.step()
    assert b.slot is None
    assert b.pages == []
    assert b.num_computed == 0
    assert b.num_tokens > 31
    assert desk.scheduler.waiting[0] is b
    assert a.slot is not None
    known = list(b.token_ids)
    while a.num_tokens < a.max_total:
        assert [name for name, _ in desk.step()] == ["a"], "b must wait until its tokens fit again"
    assert desk.step() == [("b", len(known))]
    assert b.token_ids[:-1] == known
    assert b.num_prompt == 31


def test_a_step_in_which_a_request_was_preempted_admits_none(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, pages=4, budget=64)
    desk.request("a", prompt=16)
    desk.request("b", prompt=16)
    desk.step()
    desk.request("c", prompt=1)
    for _ in range(100):
        before = desk.scheduler.num_preemptions
        names = [name for name, _ in desk.step()]
        if desk.scheduler.num_preemptions > before:
            assert "c" not in names
            return
    pytest.fail("nothing was preempted")


def test_page_updates_reach_the_device_once_and_before_they_are_needed(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, budget=20)
    request = desk.request("a", prompt=50)
    told: dict[int, int] = {}
    for _ in range(14):
        schedule = desk.scheduler.schedule()
        assert schedule is not None
        for slot, index, page in schedule.step.page_updates:
            assert slot == request.slot
            assert index not in told
            told[index] = page
        needed = desk.pool.pages_for(request.num_computed + int(schedule.step.num_tokens[0]))
        assert [told[i] for i in range(needed)] == request.pages[:needed]
        desk.commit(schedule)


def test_removing_frees_pages_and_slot_wherever_the_request_is(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, seqs=1)
    running, waiting = desk.request("a", prompt=40), desk.request("b", prompt=4)
    desk.step()
    desk.scheduler.remove(waiting)
    desk.scheduler.remove(running)
    assert desk.pool.num_available == desk.pool.num_pages
    assert desk.step() == []
    desk.request("c", prompt=4)
    assert desk.step() == [("c", 4)]


def test_a_step_is_scheduled_before_the_token_of_the_last_is_known(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder)
    request = desk.request("a", prompt=5, total=7)
    first = desk.scheduler.schedule()
    assert first is not None
    desk.scheduler.launched(first)
    second = desk.scheduler.schedule()
    assert second is not None
    assert rows(second) == [("a", 1)]
    assert second.step.num_computed.tolist() == [5]
    assert second.step.samples.tolist() == [True]
    desk.scheduler.launched(second)
    # Two tokens are in flight and there is room for two: the end is known before either is.
    assert desk.scheduler.schedule() is None
    desk.learn(first)
    assert desk.scheduler.schedule() is None
    assert request.token_ids == [7] * 5 + [9]
    desk.learn(second)
    assert request.token_ids == [7] * 5 + [9, 9]
    assert request.slot is None


def test_a_request_preempted_with_a_token_in_flight_waits_until_it_is_known(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, pages=6, budget=64)
    desk.request("a", prompt=32)
    b = desk.request("b", prompt=31)
    schedule = desk.scheduler.schedule()
    while True:
        assert schedule is not None
        desk.scheduler.launched(schedule)
        following = desk.scheduler.schedule()
        if desk.scheduler.num_preemptions:
            break
        desk.learn(schedule)
        schedule = following
    assert b.slot is None
    assert b.num_in_flight == 1
    known = b.num_tokens
    desk.scheduler.remove(desk.scheduler.running[0])  # there is room again
    assert desk.scheduler.schedule() is None
    desk.learn(schedule)
    again = desk.scheduler.schedule()
    assert again is not None
    assert rows(again) == [("b", known + 1)]


def test_a_preempted_request_comes_back_when_it_can_stay(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, pages=6, budget=64)
    a, b = desk.request("a", prompt=32, total=50), desk.request("b", prompt=31, total=64)
    while desk.scheduler.num_preemptions == 0:
        assert desk.step()
    assert b.was_preempted
    while a.slot is not None:  # two to four pages are free, and four are needed
        assert desk.step() == [("a", 1)]
    assert desk.step() == [("b", b.num_tokens - 1)]
    assert b.has_all_pages
    assert len(b.pages) == 4
    c = desk.request("c", prompt=31, total=64)
    for _ in range(100):
        if not desk.step():
            break
    assert b.num_tokens == c.num_tokens == 64
    assert desk.scheduler.num_preemptions == 1


@pytest.mark.parametrize("seed", range(5))
def test_random_loads_preempt_each_request_at_most_once_and_end_them_all(tiny_folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    desk = Desk(tiny_folder, pages=9, seqs=6, budget=24, share=True)
    requests, preempted = [], 0
    for number in range(150):
        for _ in range(rng.randint(0, 3)):
            before = {r.request_id: r for r in desk.scheduler.running}
            desk.step()
            desk.prefix.check()
            desk.pool.check(r.pages for r in desk.scheduler.running)
            assert desk.scheduler.running == sorted(desk.scheduler.running, key=lambda r: r.order)
            assert desk.scheduler.waiting == sorted(desk.scheduler.waiting, key=lambda r: r.order)
            for request in desk.scheduler.waiting:
                preempted += request.request_id in before
        length = rng.randint(1, 60)
        requests.append(desk.request(str(number), length, rng.randint(length + 1, 64), rng.choice([-1, 0, 0, 5])))
    while desk.scheduler.running or desk.scheduler.waiting:
        assert desk.step()
    assert all(request.num_tokens == request.max_total for request in requests)
    assert desk.scheduler.num_preemptions == sum(request.was_preempted for request in requests) > 10
    assert desk.pool.num_available == 9


def test_the_more_urgent_comes_first_and_waiting_makes_up_for_it(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, seqs=1, length=1024, pages=64)
    desk.request("long", prompt=1, total=2 + STEPS_PER_PRIORITY)
    desk.step()
    early = desk.request("early", prompt=1, total=2, priority=1)
    for name, priority in (("low", 2), ("urgent", 0), ("more urgent", -1), ("urgent too", 0)):
        desk.request(name, prompt=1, total=2, priority=priority)
    assert [r.request_id for r in desk.scheduler.waiting] == ["more urgent", "urgent", "urgent too", "early", "low"]
    for _ in range(STEPS_PER_PRIORITY - 1):
        desk.step()
    desk.request("one step less", prompt=1, total=2)
    desk.step()
    desk.request("as long", prompt=1, total=2)
    desk.step()
    desk.request("longer", prompt=1, total=2)
    names = [r.request_id for r in desk.scheduler.waiting]
    assert names.index("one step less") < names.index("early") < names.index("as long") < names.index("longer")
    assert early.slot is None
    order = []
    while desk.scheduler.running or desk.scheduler.waiting:
        order += [name for name, _ in desk.step()]
    assert order == names


def test_the_less_urgent_request_is_preempted(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, pages=6, budget=64)
    low, high = desk.request("low", prompt=32, priority=1), desk.request("high", prompt=31)
    while desk.scheduler.num_preemptions == 0:
        assert desk.step()
    assert low.slot is None
    assert high.slot is not None


@pytest.mark.parametrize("shared", [MAX_SHARED_PAGE_UPDATES - 1, MAX_SHARED_PAGE_UPDATES, MAX_SHARED_PAGE_UPDATES + 1])
def test_a_long_prefix_is_told_over_several_steps(tiny_folder: Path, shared: int) -> None:
    desk = Desk(tiny_folder, pages=2 * shared, budget=2048, length=4096, page_size=1, share=True)
    desk.request("a", prompt=shared + 1, total=shared + 2)
    while desk.scheduler.running or desk.scheduler.waiting:
        desk.step()
    desk.request("b", prompt=shared + 1, total=shared + 2)
    desk.request("c", prompt=3, total=4)
    told: list[tuple[int, int, int]] = []
    steps = []
    while desk.scheduler.running or desk.scheduler.waiting:
        schedule = desk.scheduler.schedule()
        assert schedule is not None
        layout = BatchLayout((max(1, schedule.step.total_tokens), max(1, len(schedule.requests))), 1)
        assert len(schedule.step.page_updates) <= layout.num_updates
        told += schedule.step.page_updates
        steps.append(rows(schedule))
        desk.commit(schedule)
    if shared < MAX_SHARED_PAGE_UPDATES - 1:
        assert steps == [[("b", 1), ("c", 1)]]
    elif shared <= MAX_SHARED_PAGE_UPDATES:  # c shares two pages, for which there is no room any more
        assert steps == [[("b", 1)], [("c", 1)]]
    else:
        assert steps == [[], [("b", 1), ("c", 1)]]
    assert len({(slot, index) for slot, index, _ in told}) == len(told) == shared + 1 + 3


def test_a_full_hit_computes_one_page_again_in_a_page_of_its_own(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder, share=True, budget=64)
    desk.request("a", prompt=32)
    desk.step()
    shared = desk.scheduler.running[0].pages
    desk.request("b", prompt=32)
    assert desk.step() == [("a", 1), ("b", 16)]
    assert desk.scheduler.running[1].pages[0] == shared[0]
    assert desk.scheduler.running[1].pages[1] not in shared


def test_only_what_ran_before_is_admitted_while_nothing_new_is(tiny_folder: Path) -> None:
    desk = Desk(tiny_folder)
    desk.request("a", prompt=4, total=8)
    desk.step()
    desk.request("new", prompt=4)
    desk.scheduler.admits_new = False
    desk.scheduler.preempt_all()
    while step := desk.step():
        assert [name for name, _ in step] == ["a"]
    assert [r.request_id for r in desk.scheduler.waiting] == ["new"]


@pytest.mark.parametrize(
    "module", ["engine.scheduler", "engine.pages", "engine.prefix", "engine.request", "text.tokenizer", "text.chat"]
)
def test_host_policy_does_not_import_jax(module: str) -> None:
    code = f"import sys, headrace.{module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
