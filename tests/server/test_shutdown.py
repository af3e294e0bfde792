"""How the process ends: signals under load, and the supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from server.test_company import wait_until

PROGRAM = Path(__file__).with_name("paper_process.py")
PATH = "/v1/completions"
LIMIT = 60  # seconds that nothing here comes near


@dataclass
class Process:
    """A server in a process of its own."""

    popen: subprocess.Popen[str]
    client: httpx.Client

    def gauges(self) -> dict[str, float]:
        lines = [line.rpartition(" ") for line in self.client.get("/metrics").text.splitlines() if line[0] != "#"]
        return {name.partition("{")[0]: float(value) for name, _, value in lines}

    def end(self) -> int:
        return self.popen.wait(LIMIT)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextmanager
def process(command: list[str]) -> Iterator[Process]:
    """Runs a command that prints its port, until the block is left."""
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True)
    assert popen.stdout is not None
    try:
        port = int(popen.stdout.readline())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT, trust_env=False) as client:
            client.get("/health")
            yield Process(popen, client)
    finally:
        popen.stdout.close()
        if popen.poll() is None:
            popen.kill()
            popen.wait()


def paper(gguf: Path, seconds: float, grace: float) -> list[str]:
    return [sys.executable, str(PROGRAM), str(gguf), str(seconds), str(grace)]


def body(max_tokens: int, **given: object) -> dict[str, object]:
    return {"prompt": "go", "max_tokens": max_tokens, "temperature": 1, **given}


def answered(one: Process, given: dict[str, object]) -> tuple[int, str]:
    response = one.client.post(PATH, json=given)
    return response.status_code, response.text


def under_load(one: Process, pool: ThreadPoolExecutor, max_tokens: int) -> list[tuple[int, str]]:
    """SIGTERM while three streams and a plain request fill the slots and two wait; what each of the six gets."""
    asked = [body(max_tokens, stream=True, n=2)] * 3 + [body(max_tokens, n=2)] + [body(4), body(4, stream=True)]
    futures = [pool.submit(answered, one, given) for given in asked[:4]]
    wait_until(lambda: one.gauges()["headrace:num_requests_running"] == 8)
    futures += [pool.submit(answered, one, given) for given in asked[4:]]
    wait_until(lambda: one.gauges()["headrace:num_requests_waiting"] == 2)
    one.popen.send_signal(signal.SIGTERM)
    wait_until(lambda: one.client.get("/ready").status_code == 503)
    assert one.client.get("/health").status_code == 200
    refused = one.client.post(PATH, json=body(1))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    return [future.result(LIMIT) for future in futures]


def test_rob_06_running_and_queued_requests_end_before_the_process(smollm2_path: Path) -> None:
    with process(paper(smollm2_path, 0.01, LIMIT)) as one, ThreadPoolExecutor(6) as pool:
        # This connection stays open with nothing on it, and one more says nothing at all.
        with socket.create_connection((one.client.base_url.host, one.client.base_url.port or 0)):
            results = under_load(one, pool, 120)
            assert one.end() == 0
        for index, (status, text) in enumerate(results):
            assert status == 200
            assert "error" not in text
            if index in (0, 1, 2, 5):
                assert text.endswith("data: [DONE]\n\n")
            else:
                assert json.loads(text)["choices"][0]["finish_reason"] == "length"
            assert text.count(" river") == (240 if index < 4 else 4)


def test_rob_06_after_the_grace_period_everybody_is_told(smollm2_path: Path) -> None:
    with process(paper(smollm2_path, 0.02, 0.3)) as one, ThreadPoolExecutor(6) as pool:
        results = under_load(one, pool, 1000)
        assert one.end() == 0
        for index, (status, text) in enumerate(results):
            assert "shutting_down" in text
            if index < 3:  # a stream that had begun
                assert status == 200
                assert text.startswith('data: {"id"')
                assert text.endswith("data: [DONE]\n\n")
            else:
                assert status == 503


def test_rob_06_a_second_signal_ends_at_once_and_an_idle_server_at_the_first(smollm2_path: Path) -> None:
    with process(paper(smollm2_path, 0.02, LIMIT)) as busy, process(paper(smollm2_path, 0.02, LIMIT)) as idle:
        idle.popen.send_signal(signal.SIGINT)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(answered, busy, body(1000))
            wait_until(lambda: busy.gauges()["headrace:num_requests_running"] == 1)
            busy.popen.send_signal(signal.SIGTERM)
            wait_until(lambda: busy.client.get("/ready").status_code == 503)
            busy.popen.send_signal(signal.SIGINT)
            assert busy.end() == 130
            with pytest.raises(httpx.HTTPError):
                waiting.result(LIMIT)
        assert idle.end() == 0


CHILD = """
import os, sys, time
from headrace.server.supervisor import inherited_listener
assert inherited_listener().getsockname()[1] == int(sys.argv[1])
log = open(sys.argv[2], "a+")
log.write(f"{os.getpid()} {time.monotonic()}\\n")
log.flush()
log.seek(0)
code = sys.argv[3:][min(len(log.readlines()), len(sys.argv) - 3) - 1]
time.sleep(3600) if code == "stays" else os.kill(os.getpid(), 9) if code == "killed" else sys.exit(int(code))
"""
PARENT = """
import socket, sys
from headrace.server.supervisor import RestartPolicy, Supervisor
listener = socket.create_server(("127.0.0.1", 0))
command = [sys.executable, "-c", sys.argv[1], str(listener.getsockname()[1]), *sys.argv[2:]]
policy = RestartPolicy(backoff_s=0.02, max_failures=3)
code = Supervisor(command, listener, grace_s=5, policy=policy).run()
assert "jax" not in sys.modules
sys.exit(code)
"""


def supervised(log: Path, *codes: str) -> subprocess.Popen[bytes]:
    """A supervisor of children that end one after the other with these codes; the last goes on for ever."""
    return subprocess.Popen([sys.executable, "-c", PARENT, CHILD, str(log), *codes], env=environment())


def lives(log: Path) -> list[tuple[int, float]]:
    """Process id and start of each child so far."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(pid), float(began)) for pid, began in (line.split() for line in lines)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("codes", "code", "starts"),
    [
        (("0",), 0, 1),
        (("2",), 2, 1),  # started wrongly
        (("1", "0"), 0, 2),
        (("killed", "70", "0"), 0, 3),
        (("1", "3", "70"), 70, 3),
        (("killed",), 137, 3),
    ],
)
def test_a_server_that_dies_is_started_again_but_not_for_ever(
    tmp_path: Path, codes: tuple[str, ...], code: int, starts: int
) -> None:
    assert supervised(tmp_path / "log", *codes).wait(LIMIT) == code
    began = [began for _, began in lives(tmp_path / "log")]
    assert len(began) == starts
    gaps = [after - before for before, after in pairwise(began)]
    assert all(gap >= 0.02 * 2**i for i, gap in enumerate(gaps))  # longer each time


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_passes_signals_on_and_starts_nothing_after(tmp_path: Path, number: signal.Signals) -> None:
    parent = supervised(tmp_path / "log", "1", "stays")
    wait_until(lambda: len(lives(tmp_path / "log")) == 2)
    parent.send_signal(number)
    assert parent.wait(LIMIT) in (128 + number, 1)  # as the child, which has no handler
    assert len(lives(tmp_path / "log")) == 2


def test_a_child_does_not_outlive_its_supervisor(tmp_path: Path) -> None:
    parent = supervised(tmp_path / "log", "stays")
    wait_until(lambda: len(lives(tmp_path / "log")) == 1)
    [(child, _)] = lives(tmp_path / "log")
    assert is_alive(child)
    parent.kill()
    parent.wait(LIMIT)
    wait_until(lambda: not is_alive(child))


def test_a_supervised_server_comes_back_at_the_same_address(smollm2_path: Path) -> None:
    """Through the engine's death and that of the process, up to a clean end."""
    command = [sys.executable, "-c", SUPERVISED, str(PROGRAM), str(smollm2_path), "0.005", "5"]
    with process(command) as one:
        assert answered(one, body(3))[0] == 200
        assert answered(one, body(3, prompt=[13]))[0] == 503  # the engine has died
        assert one.client.get("/health").status_code == 503  # and the process lives a little longer
        wait_until(lambda: came_back(one))
        assert answered(one, body(3))[0] == 200
        with pytest.raises(httpx.HTTPError):
            answered(one, body(3, prompt=[14]))
        assert answered(one, body(3))[0] == 200  # after waiting for the next process
        one.popen.send_signal(signal.SIGTERM)
        assert one.end() == 0


SUPERVISED = """
import socket, sys
from headrace.server.supervisor import RestartPolicy, Supervisor
listener = socket.create_server(("127.0.0.1", 0))
sys.exit(Supervisor([sys.executable, *sys.argv[1:]], listener, grace_s=5, policy=RestartPolicy(backoff_s=0.02)).run())
"""


def came_back(one: Process) -> bool:
    """Whether the server is healthy; a connection may be cut when the old process ends."""
    try:
        return one.client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False
