"""X9: what the processes of a model tell each other."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.errors import ConfigError, HeadraceError
from headrace.execution.processes import Follower, Leader
from ports import free_coordinator


def later(work: Callable[[], Any]) -> Future[Any]:
    """Runs something in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@pytest.fixture
def processes() -> Iterator[tuple[Leader, list[Follower]]]:
    """Process 0 and two others, in one."""
    coordinator = free_coordinator()
    leading = later(lambda: Leader(coordinator, 3))
    while True:  # somebody else is at the door first
        try:
            with socket.create_connection(("127.0.0.1", int(coordinator.split(":")[1]) + 1)) as stranger:
                stranger.sendall(b"\0\0\0\2?!")
                break
        except ConnectionRefusedError:
            continue
    followers = [Follower(coordinator, i) for i in (1, 2)]
    leader = leading.result(10)
    yield leader, followers
    for link in [*leader._links, *(follower._link for follower in followers)]:
        link.close()


def enter(announced: AbstractContextManager[None]) -> None:
    with announced:
        pass


class Recorder:
    """Stands in for a manager: notes what it is told to do."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def execute_packed(self, bucket: Any, packed: np.ndarray) -> Any:
        self.seen.append((bucket, packed.tolist()))
        return SimpleNamespace(tokens=SimpleNamespace(block_until_ready=lambda: None))

    def reset_state(self) -> None:
        self.seen.append("reset")


def test_x9_followers_do_what_process_0_does_in_its_order(processes: tuple[Leader, list[Follower]]) -> None:
    leader, followers = processes
    leader.tell_options({"dtype": "float32", "seed": None})
    assert [follower.options() for follower in followers] == [{"dtype": "float32", "seed": None}] * 2
    recorders = [Recorder() for _ in followers]
    running = [later(lambda f=f, r=r: f.follow(r)) for f, r in zip(followers, recorders, strict=True)]
    big = np.arange(100_000, dtype=np.int32).reshape(2, -1)
    for announced in (
        leader.step((8, 2), np.array([[-1, 2**31 - 1]], np.int32)),
        leader.reset(),
        leader.step((64, 32), big),
    ):
        enter(announced)
    leader.close()
    for future in running:
        assert future.result(10) is None
    expected = [((8, 2), [-1, 2**31 - 1]), "reset", ((64, 32), list(range(100_000)))]
    assert [recorder.seen for recorder in recorders] == [expected] * 2


def test_x9_nobody_goes_on_before_all_have_met(processes: tuple[Leader, list[Follower]]) -> None:
    leader, followers = processes
    waiting = [later(leader.meet), later(followers[0].meet)]
    assert not any(future.done() for future in waiting)
    followers[1].meet()
    for future in waiting:
        future.result(10)


def test_x9_process_0_says_which_process_is_lost_and_why(processes: tuple[Leader, list[Follower]]) -> None:
    leader, followers = processes
    followers[1].report(ValueError("the disk is full"))
    with pytest.raises(HeadraceError, match=r"^process 2: the disk is full$"):
        enter(leader.reset())
    assert not leader.is_whole
    with pytest.raises(HeadraceError, match=r"^process 2: the disk is full$"):
        enter(leader.step((8, 2), np.zeros(1, np.int32)))
    never = SimpleNamespace(is_ready=lambda: False)  # what a device computes together with one that is lost
    with pytest.raises(HeadraceError, match=r"^process 2: the disk is full$"):
        leader.wait(never)  # type: ignore[arg-type]
    followers[0].report(RuntimeError())
    later(followers[1].meet)
    with pytest.raises(HeadraceError, match=r"^process (1: RuntimeError|2: the disk is full)$"):
        leader.meet()


def test_x9_an_interrupt_waits_until_all_processes_have_the_step(processes: tuple[Leader, list[Follower]]) -> None:
    leader, _ = processes
    reached = []

    def interrupted() -> None:
        with leader.step((8, 2), np.zeros(1, np.int32)):
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == ["the end"]
    enter(leader.step((8, 2), np.zeros(1, np.int32)))
    # A step that others take and process 0 does not: from there on their devices wait for each other.
    with pytest.raises(ZeroDivisionError), leader.step((8, 2), np.zeros(1, np.int32)):
        raise ZeroDivisionError
    with pytest.raises(HeadraceError, match="process 0 failed in a step that others took; start all processes anew"):
        enter(leader.step((8, 2), np.zeros(1, np.int32)))


def test_x9_a_broken_connection_ends_the_other_side(processes: tuple[Leader, list[Follower]]) -> None:
    leader, (first, second) = processes
    running = later(lambda: first.follow(Recorder()))  # type: ignore[arg-type]
    for link in leader._links:
        link._socket.shutdown(socket.SHUT_RDWR)  # as when the process is killed
    with pytest.raises(HeadraceError, match=r"^process 0: has ended$"):
        running.result(10)
    with pytest.raises(HeadraceError, match=r"^process 0: has ended$"):
        second.options()


@pytest.mark.parametrize("taken", [0, 1])
def test_x9_a_port_in_use_is_said_before_anything_waits(taken: int) -> None:
    coordinator = free_coordinator()
    port = int(coordinator.split(":")[1])
    with (
        socket.create_server(("127.0.0.1", port + taken)),
        pytest.raises(ConfigError, match=f"^coordinator: cannot listen at 127.0.0.1:{port} and the port after it"),
    ):
        Leader(coordinator, 2)


def test_x9_a_machine_that_nobody_knows_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"^coordinator: nohost\.invalid is no name of a machine"):
        Follower("nohost.invalid:7000", 1)
