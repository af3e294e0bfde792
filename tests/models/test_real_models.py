"""Two real models in float32, against transformers on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import golden
from execution.steps import Driver
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.weights.load import load_weights, open_checkpoint

TOKENS, PAGE, LENGTH = 512, 16, 1536
CITIES = {"llama": (7042, 4528), "gemma3": (9079, 5860)}  # ids of " Paris" and " London"


@dataclass(frozen=True)
class Model:
    manager: ExecutionManager
    facts: dict[str, Any]


@pytest.fixture(scope="module", params=["smollm2", "gemma3_270m"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """One model at a time: a step for up to 8 tokens and one for up to 512, of four requests."""
    path = request.getfixturevalue({"smollm2": "smollm2_path", "gemma3_270m": "gemma3_path"}[request.param])
    opened = open_checkpoint(path)
    options = ExecutionOptions(
        dtype=jnp.dtype(jnp.float32),
        num_pages=LENGTH // PAGE,
        page_size=PAGE,
        max_model_len=LENGTH,
        max_num_seqs=4,
        max_num_batched_tokens=TOKENS,
        vocab_limit=opened.spec.vocab_size,
    )
    manager = ExecutionManager(opened.spec, load_weights(opened, options.dtype), options)
    manager.compile([TOKENS], [4])
    yield Model(manager, golden.facts(request.param))
    manager.clear_cache()


def logprobs(driver: Driver, chunks: dict[int, int]) -> dict[int, np.ndarray]:
    """Computes so many more tokens of each slot; log-softmax [vocab] at the last of them. Sampled tokens are kept."""
    step = driver.schedule(chunks)
    result = driver.manager.execute(step)
    logits = np.asarray(result.logits, np.float64)
    driver.commit(step, result)
    rows = logits - logits.max(-1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    return dict(zip(step.slots.tolist(), rows, strict=False))


def test_greedy_tokens_and_their_logprobs(model: Model) -> None:
    """Four prompts at once, the long ones in chunks of 200 next to the short ones' decodes."""
    driver, prompts = Driver(model.manager), model.facts["prompts"]
    assert [len(p["ids"]) for p in prompts][2:] == [500, 700]  # and then over the 512 of Gemma's window
    first = 0
    for slot, prompt in enumerate(prompts):
        assert prompt["near_ties"] == []
        count = -(-(len(prompt["ids"]) + len(prompt["continuation"])) // PAGE)
        driver.add(slot, prompt["ids"], pages=range(first, first + count)[::-1])
        first += count

    scores: dict[int, list[float]] = {slot: [] for slot in driver.ids}
    goals = {slot: len(p["ids"]) + len(p["continuation"]) for slot, p in enumerate(prompts)}
    while unfinished := [slot for slot in goals if len(driver.ids[slot]) < goals[slot]]:
        known = {slot: len(driver.ids[slot]) for slot in unfinished}
        rows = logprobs(driver, {slot: min(200, known[slot] - driver.computed[slot]) for slot in unfinished})
        for slot in unfinished:
            if len(driver.ids[slot]) > known[slot]:
                scores[slot].append(rows[slot][driver.ids[slot][-1]])

    for slot, prompt in enumerate(prompts):
        assert driver.ids[slot][len(prompt["ids"]) :] == prompt["continuation"], prompt["name"]
        np.testing.assert_allclose(scores[slot], prompt["logprobs"], rtol=0, atol=1e-3, err_msg=prompt["name"])


def test_lod_03_logprobs_in_a_long_text(model: Model) -> None:
    """A wrong rope base shows from about 100 tokens on, a wrong layer pattern from 512 on."""
    story = model.facts["story"]
    ids, expected = story["ids"], story["next_logprobs"]
    driver = Driver(model.manager)
    driver.add(0, ids, pages=range(LENGTH // PAGE))
    positions = sorted(map(int, story["positions"]))
    assert positions == [5, 100, 511, 512, 600, 1500]
    for position in [1, *positions[:5], 1000, *positions[5:]]:
        row = logprobs(driver, {0: position + 1 - driver.computed[0]})[0]
        assert row[ids[position + 1]] == pytest.approx(expected[position], abs=1e-3), position


def test_logits_have_the_same_bits_in_any_chunks_and_company(model: Model) -> None:
    ids, stranger = model.facts["story"]["ids"][:90], model.facts["story"]["ids"][200:230]

    def last(chunks: list[int], company: int = 0) -> np.ndarray:
        driver = Driver(model.manager)
        driver.add(2, ids, pages=range(20, 26))
        driver.add(1, stranger)
        for chunk in chunks:
            rows = logprobs(driver, {2: chunk} | ({1: company} if company else {}))
        return rows[2]

    whole = last([90])
    for chunks, company in (([89, 1], 0), ([30] * 3, 10), ([82, 8], 0)):
        np.testing.assert_array_equal(last(chunks, company), whole, err_msg=f"{chunks}, {company}")


def test_scores_of_two_cities(model: Model) -> None:
    prompt, scores = model.facts["prompts"][0], model.facts["city_scores"]["scores"]
    driver = Driver(model.manager)
    driver.add(0, prompt["ids"])
    row = logprobs(driver, {0: len(prompt["ids"])})[0]
    paris, london = CITIES[model.manager.spec.family]
    assert row[paris] == pytest.approx(scores[" Paris"], abs=1e-3)
    assert row[london] == pytest.approx(scores[" London"], abs=1e-3)
