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


@contextmanager
def process(command: list[str]) -> Iterator[Process]:
    """Runs a command that prints its port, until the block is left."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)
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
