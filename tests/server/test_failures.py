"""The engine fails, hangs or refuses: everybody is told, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import httpx
import pytest

from headrace.engine.engine import Engine, TokenOutput
from headrace.sampling.params import SamplingParams
from headrace.server.bridge import Bridge
from headrace.server.errors import DeadlineError
from headrace.server.generation import Generation, Prompt
from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from server.scripted import scripted_engine
from server.test_company import Pace, wait_until
from smol import RIVER

PATH = "/v1/completions"


class Fault(Pace):
    """A step that raises, or hangs until it is freed."""

    def __init__(self, engine: Engine, step: int, how: str) -> None:
        super().__init__(engine, 0.02)
        self._step, self._how, self.freed = step, how, threading.Event()

    def __call__(self, prepared: Any) -> Any:
        if self.steps + 1 == self._step:
            if self._how == "raises":
                raise RuntimeError("secret details of the device")
            assert self.freed.wait(60)
        return super().__call__(prepared)


@contextmanager
def broken(tokenizer: Tokenizer, step: int, how: str, **options: Any) -> Iterator[tuple[Running, Fault]]:
    """A server whose engine comes to grief at some step."""
    engine = scripted_engine(tokenizer, lambda prompt: [RIVER] * 1023)
    fault = Fault(engine, step, how)
    with running(engine, step_timeout_s=0.4 if how == "hangs" else 60.0, **options) as server:
        try:
            yield server, fault
        finally:
            fault.freed.set()


def streamed(server: Running, **body: Any) -> tuple[int, str]:
    response = server.post(PATH, **body, stream=True)
    return response.status_code, response.text


def error(response: httpx.Response) -> dict[str, Any]:
    told: dict[str, Any] = response.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return told


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_rob_04_the_engines_death_is_told_to_all(smol_tokenizer: Tokenizer, how: str) -> None:
    with broken(smol_tokenizer, 5, how) as (server, _), ThreadPoolExecutor(20) as pool:
        long = {"prompt": "go", "max_tokens": 500}
        streams = [pool.submit(streamed, server, **long) for _ in range(9)]
        plain = [pool.submit(server.post, PATH, **long) for _ in range(3)]
        ends = [future.result(30) for future in streams]
        assert sum(status == 200 for status, _ in ends) > 0
        for status, told in ends:
            if status == 200:  # it had begun
                assert told.startswith('data: {"id"')
                assert told.count('data: {"error"') == 1
                assert told.endswith("\n\ndata: [DONE]\n\n")
            else:
                assert status == 503
            assert "engine_dead" in told
            assert "secret" not in told
        for response in (future.result(30) for future in plain):
            assert response.status_code == 503
            assert error(response)["code"] == "engine_dead"
        assert server.client.get("/health").status_code == 503
        assert server.client.get("/ready").status_code == 503
        for stream in (False, True):
            refused = server.post(PATH, prompt="a", stream=stream)
            assert refused.status_code == 503
            assert error(refused)["code"] == "engine_dead"
            assert int(refused.headers["retry-after"]) > 0
            assert "secret" not in refused.text
        assert server.client.get("/v1/models").status_code == 200
        assert server.client.get("/metrics").status_code == 200


def test_rob_04_one_bad_request_does_not_end_the_others(
    smol_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scripted_engine(smol_tokenizer, lambda prompt: [RIVER] * 1023)
    add = engine.add

    def picky(request_id: str, ids: Any, params: Any, **given: Any) -> None:
        if list(ids) == [13]:
            raise ZeroDivisionError("secret")
        add(request_id, ids, params, **given)

    monkeypatch.setattr(engine, "add", picky)
    pace = Pace(engine, 0.002)
    with running(engine) as server, ThreadPoolExecutor(1) as pool:
        other = pool.submit(server.post, PATH, prompt="go", max_tokens=100)
        wait_until(lambda: pace.steps > 0)
        for prompt in ([13], [[5], [13]]):
            for stream in (False, True):
                response = server.post(PATH, prompt=prompt, stream=stream)
                assert response.status_code == 500
                assert error(response)["code"] == "internal_error"
                assert "secret" not in response.text
        assert other.result().json()["choices"][0]["text"] == " river" * 100
        assert server.client.get("/health").status_code == 200
        wait_until(lambda: not engine.has_unfinished)


def test_a_request_that_takes_too_long_is_ended(smol_tokenizer: Tokenizer) -> None:
    engine = scripted_engine(smol_tokenizer, lambda prompt: [RIVER] * 1023)
    Pace(engine, 0.004)
    with running(engine, request_timeout_s=0.2) as server:
        response = server.post(PATH, prompt="a", max_tokens=900)
        assert response.status_code == 503
        assert error(response)["code"] == "timeout"
        events = server.stream(PATH, prompt="a", max_tokens=900)
        assert json.loads(events[-2])["error"]["code"] == "timeout"
        assert " river" in "".join(events)
        wait_until(lambda: not engine.has_unfinished)
        assert server.post(PATH, prompt="a", max_tokens=2).status_code == 200


def fill(server: Running, engine: Engine, pool: ThreadPoolExecutor) -> list[Future[httpx.Response]]:
    """Requests in all eight slots."""
    answers = []
    for count in range(1, 9):
        answers.append(pool.submit(server.post, PATH, prompt="a", max_tokens=300))
        wait_until(lambda count=count: len(engine.scheduler.running) == count)  # type: ignore[misc]
    return answers


def test_a_full_queue_is_told_before_anything_is_streamed(smol_tokenizer: Tokenizer) -> None:
    engine = scripted_engine(smol_tokenizer, lambda prompt: [RIVER] * 1023, max_queued_requests=2)
    Pace(engine, 0.004)
    with running(engine) as server, ThreadPoolExecutor(10) as pool:
        first = fill(server, engine, pool)
        queued = pool.submit(server.post, PATH, prompt="a", max_tokens=1, n=2, temperature=1)
        wait_until(lambda: len(engine.scheduler.waiting) == 2)
        for stream in (False, True):
            refused = server.post(PATH, prompt="a", stream=stream)
            assert refused.status_code == 429
            assert error(refused)["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) > 0
        assert [future.result().status_code for future in (*first, queued)] == [200] * 9


def test_prompts_that_do_not_all_fit_into_the_queue_are_refused_together(smol_tokenizer: Tokenizer) -> None:
    engine = scripted_engine(smol_tokenizer, lambda prompt: [RIVER] * 1023, max_queued_requests=3)
    Pace(engine, 0.004)
    with running(engine) as server, ThreadPoolExecutor(10) as pool:
        first = fill(server, engine, pool)
        queued = pool.submit(server.post, PATH, prompt=["a", "b"], max_tokens=1)
        wait_until(lambda: len(engine.scheduler.waiting) == 2)
        refused = server.post(PATH, prompt=["a", "b"], max_tokens=1)
        assert (refused.status_code, error(refused)["code"]) == (429, "queue_full")
        assert len(engine.scheduler.waiting) == 2
        first.append(pool.submit(server.post, PATH, prompt="c", max_tokens=1))
        wait_until(lambda: len(engine.scheduler.waiting) == 3)
        assert [future.result().status_code for future in (*first, queued)] == [200] * 10
        assert len(queued.result().json()["choices"]) == 2


def test_what_cannot_be_queued_is_not_prepared(smol_tokenizer: Tokenizer) -> None:
    engine = scripted_engine(smol_tokenizer, "hi", max_queued_requests=2, max_num_seqs=8)
    with running(engine) as server:
        bridge = server.server.bridge
        bridge._preparing = 2 + 8  # of others
        for path, body in ((PATH, {"prompt": "a"}), ("/tokenize", {"prompt": "a"})):
            refused = server.post(path, **body)
            assert (refused.status_code, error(refused)["code"]) == (429, "queue_full")
        bridge._preparing = 2 + 8 - 1
        assert server.post(PATH, prompt="a").status_code == 200
        assert bridge._preparing == 2 + 8 - 1


def test_an_answer_that_is_complete_does_not_fail_for_being_read_late() -> None:
    async def read() -> list[Any]:
        generation = Generation(cast(Bridge, None), [Prompt([1], SamplingParams())])
        generation.receive(0, TokenOutput("g0", 5, "a", "stop"), 0.0)
        generation.fail(DeadlineError("too late"))
        return [output.text async for batch in generation for _, output in batch]

    assert asyncio.run(read()) == ["a"]
