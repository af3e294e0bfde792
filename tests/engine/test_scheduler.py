"""Scheduling policy, without a device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.pages import PagePool
from headrace.engine.request import Request
from headrace.engine.scheduler import Schedule, Scheduler
from headrace.execution.sequences import SequenceTable
from headrace.sampling.params import SamplingParams
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.stop import StopMatcher
from headrace.text.tokenizer import Tokenizer


class Desk:
    """A scheduler with a stand-in for the device: every step succeeds and samples token 9."""

    def __init__(self, folder: Path, pages: int = 12, seqs: int = 4, budget: int = 32) -> None:
        self.tokenizer = Tokenizer.from_folder(folder)
        self.pool = PagePool(pages, 16)
        self.scheduler = Scheduler(self.pool, SequenceTable(seqs, 64), seqs, budget)

    def request(self, name: str, prompt: int, total: int = 64) -> Request:
        detokenizer = IncrementalDetokenizer(self.tokenizer)
        request = Request(
            name, [7] * prompt, prompt, SamplingParams(), total, frozenset(), 0, detokenizer, StopMatcher(())
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
    assert desk.pool.num_free == desk.pool.num_pages
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


@pytest.mark.parametrize(
    "module", ["engine.scheduler", "engine.pages", "engine.request", "text.tokenizer", "text.chat"]
)
def test_host_policy_does_not_import_jax(module: str) -> None:
    code = f"import sys, headrace.{module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
