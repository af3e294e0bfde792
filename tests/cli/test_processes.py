"""X9: two real processes serve one model."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import Popen

import pytest

from cli.command import finish, start
from ports import free_coordinator
from tiny import write_model

# One step to compile: 8 tokens of one request.
ONE = ("--dtype", "float32", "--max-num-batched-tokens", "8", "--temperature", "0", "--max-tokens", "40")
LINES = b"hello there\n/exit\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), chat_template="{{ messages[-1].content }}")


def chat(folder: Path, count: int = 2) -> list[Popen[bytes]]:
    """A chat with a model that so many processes share, each with one device."""
    several = ("--tensor-parallel", count, "--coordinator", free_coordinator(), "--num-processes", count)
    alone: tuple[object, ...] = ("chat", folder, *ONE)
    return [start(*alone, *several, "--process-id", i) for i in range(count)] if count > 1 else [start(*alone)]


def wait_until_ready(process: Popen[bytes]) -> None:
    assert process.stderr is not None
    seen = b""
    while b"/exit leaves" not in seen:
        piece = os.read(process.stderr.fileno(), 4096)
        assert piece, seen
        seen += piece


def test_x9_two_processes_answer_like_one_and_end_together(folder: Path) -> None:
    [alone] = chat(folder, 1)
    leader, follower = chat(folder)
    answer, expected = finish(leader, LINES), finish(alone, LINES)
    assert len(expected.out) > 40
    assert answer.out == expected.out
    followed = finish(follower)
    assert (answer.code, followed.code, followed.out) == (0, 0, "")


def test_x9_a_killed_follower_is_an_error_of_process_0(folder: Path) -> None:
    leader, follower = chat(folder)
    wait_until_ready(leader)
    follower.kill()
    assert finish(leader, LINES).error == "process 1: has ended"
    finish(follower)


def test_x9_followers_end_when_process_0_is_killed(folder: Path) -> None:
    leader, follower = chat(folder)
    wait_until_ready(leader)
    leader.kill()
    assert finish(follower).error == "process 0: has ended"
    finish(leader)
