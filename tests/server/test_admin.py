"""The operator's routes: pauses under running requests, weights, cached prefixes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.numpy import load_file, save_file

from headrace import LLM, SamplingParams
from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from server.scripted import scripted_engine
from server.test_company import Pace, is_idle, wait_until
from smol import RIVER

ADMIN = "sk-admin"
PATH = "/v1/completions"
PROMPT = "once upon a time there was a river"


@pytest.fixture
def slow(smol_tokenizer: Tokenizer) -> Iterator[Running]:
    engine = scripted_engine(smol_tokenizer, lambda prompt: [RIVER] * 1023)
    Pace(engine, 0.004)
    with running(engine, admin_key=ADMIN) as one:
        yield one


def order(server: Running, what: str, **body: Any) -> httpx.Response:
    return server.client.post(f"/admin/{what}", json=body, headers={"authorization": f"Bearer {ADMIN}"})


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def test_a_pause_lets_what_runs_end_as_it_goes_and_keeps_the_rest_waiting(slow: Running) -> None:
    engine = slow.server.bridge.engine
    with ThreadPoolExecutor(4) as pool:
        stream = pool.submit(slow.stream, PATH, prompt="a", max_tokens=150, n=8, temperature=1)
        wait_until(lambda: len(engine.scheduler.running) == 8)
        waiting = pool.submit(slow.post, PATH, prompt="a", max_tokens=3)
        wait_until(lambda: len(engine.scheduler.waiting) == 1)
        assert order(slow, "pause", mode="wait").json() == {"status": "paused"}
        events = stream.result()
        assert events[-1] == "[DONE]"
        assert len(events) > 300  # they came while it ran, not at the end
        assert "".join(events).count(" river") == 8 * 150
        assert (slow.client.get("/ready").status_code, slow.client.get("/ready").json()) == (200, {"status": "paused"})
        assert slow.client.get("/health").status_code == 200
        later = pool.submit(slow.post, PATH, prompt="b", max_tokens=3)
        wait_until(lambda: len(engine.scheduler.waiting) == 2)
        assert not waiting.done()
        assert order(slow, "resume").json() == {"status": "serving"}
        assert text_of(waiting.result()) == text_of(later.result()) == " river" * 3


def test_a_pause_may_keep_or_abort_what_runs(slow: Running) -> None:
    engine = slow.server.bridge.engine
    with ThreadPoolExecutor(4) as pool:
        for mode in ("keep", "abort"):
            stream = pool.submit(slow.stream, PATH, prompt="a", max_tokens=200)
            whole = pool.submit(slow.post, PATH, prompt="a", max_tokens=200)
            wait_until(lambda: len(engine.scheduler.running) == 2)
            assert order(slow, "pause", mode=mode).status_code == 200
            if mode == "keep":
                assert len(engine.scheduler.running) == 2
                assert not stream.done()
                order(slow, "resume")
            ends = [json.loads(event)["choices"][0]["finish_reason"] for event in stream.result()[:-1]]
            text = text_of(whole.result())
            if mode == "keep":
                assert ends[-1] == "length"
                assert text == " river" * 200
            else:
                assert ends[-1] == whole.result().json()["choices"][0]["finish_reason"] == "abort"
                assert len(text) < len(" river") * 200
        assert is_idle(slow)
        order(slow, "resume")


def test_a_pause_that_waits_can_be_taken_back(slow: Running) -> None:
    engine = slow.server.bridge.engine
    with ThreadPoolExecutor(4) as pool:
        running_ = pool.submit(slow.post, PATH, prompt="a", max_tokens=600)
        wait_until(lambda: len(engine.scheduler.running) == 1)
        pause = pool.submit(order, slow, "pause")
        wait_until(lambda: engine.is_pausing)
        assert slow.client.get("/ready").json() == {"status": "serving"}
        assert order(slow, "resume").status_code == 200
        assert pause.result().status_code == 409
        assert text_of(slow.post(PATH, prompt="b", max_tokens=1)) == " river"
        assert text_of(running_.result()) == " river" * 600
        # Whoever is waited for may also leave.
        with slow.client.stream("POST", PATH, json={"prompt": "a", "max_tokens": 900, "stream": True}):
            wait_until(lambda: len(engine.scheduler.running) == 1)
            pause = pool.submit(order, slow, "pause", mode="wait")
            wait_until(lambda: engine.is_pausing)
        assert pause.result().status_code == 200
        order(slow, "resume")


def test_weights_change_under_running_requests(server: Running, tiny_llm: LLM, tmp_path: Path) -> None:
    folder = Path(tiny_llm.built.checkpoint.path)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    tensors = load_file(other / "model.safetensors")
    name = next(name for name in tensors if "down_proj" in name)
    save_file({**tensors, name: tensors[name] * 3}, other / "model.safetensors")
    params = {"max_tokens": 24, "temperature": 0}
    body = {"prompt": PROMPT, **params}
    first = text_of(server.post(PATH, **body))
    try:
        with ThreadPoolExecutor(8) as pool:
            company = [pool.submit(server.post, PATH, **{**body, "max_tokens": 400}) for _ in range(8)]
            loaded = order(server, "weights", path=str(other))
            assert loaded.json() == {"status": "ok", "path": str(other)}
            assert [len(text_of(future.result())) > 0 for future in company] == [True] * 8
        changed = text_of(server.post(PATH, **body))
        options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "min_input_pad": 8, "max_model_len": 512}
        alone = LLM(str(other), dtype="float32", num_tokens_paddings=[64], **options)
        [expected] = alone.generate(PROMPT, SamplingParams(**params))
        assert changed == expected.text != first
    finally:
        assert order(server, "weights", path=str(folder)).status_code == 200
    assert text_of(server.post(PATH, **body)) == first


def test_weights_that_do_not_fit_change_nothing(server: Running, tiny_folder: Path, tmp_path: Path) -> None:
    body = {"prompt": "once", "max_tokens": 8, "temperature": 0}
    before = text_of(server.post(PATH, **body))
    (tmp_path / "empty").mkdir()
    for path in (tiny_folder, tmp_path / "empty", tmp_path / "none", "no-such-model", "", "a\0b", "x" * 5000):
        response = order(server, "weights", path=str(path))
        assert response.status_code == 400, path
        told = response.json()["error"]
        assert (told["param"], told["code"]) == ("path", "weights_do_not_fit")
    for wrong in ({}, {"path": 1}, {"path": None}, {"path": "a", "more": 1}):
        assert order(server, "weights", **wrong).status_code == 400
    for wrong in ({"mode": "stop"}, {"mode": 1}, {"other": 1}):
        assert order(server, "pause", **wrong).status_code == 400
    assert text_of(server.post(PATH, **body)) == before


def test_cached_prefixes_are_forgotten(server: Running) -> None:
    def cached() -> int:
        usage = server.post(PATH, prompt=[77] * 60, max_tokens=2, temperature=0).json()["usage"]
        tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
        return tokens

    cached()
    assert cached() > 0
    for recompute in (False, True):
        assert order(server, "prefix-cache/reset", recompute_running=recompute).json() == {"status": "ok"}
        assert cached() == 0
        assert cached() > 0
