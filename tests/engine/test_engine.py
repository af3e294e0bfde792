"""The engine's life cycle of a request: endings, refusals, aborts and failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import golden
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.errors import QueueFullError, RequestError
from headrace.layers.native import NativeWeight
from headrace.sampling.params import SamplingParams
from headrace.text.folder_tokenizer import read_folder_tokenizer
from headrace.text.tokenizer import Tokenizer
from tiny import SMALL, FailsOnce, check_pages, run, text, tiny_engine, tiny_manager, tiny_weights, tokens

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture
def engine(tiny_folder: Path) -> Engine:
    return tiny_engine(tiny_folder, **SMALL)


def test_greedy_tokens_and_text_are_those_of_the_reference(engine: Engine) -> None:
    data = golden.load("llama3")
    short = [i for i, prompt in enumerate(data.prompts) if len(prompt) < 40]
    results = run(engine, [(data.prompts[i], replace(GREEDY, max_tokens=20)) for i in short])
    for i, outputs in zip(short, results, strict=True):
        assert tokens(outputs) == data.continuations[i][:20]
        assert text(outputs) == engine.tokenizer.decode(data.continuations[i][:20])
        assert [o.finish_reason for o in outputs] == [None] * 19 + ["length"]


@pytest.mark.parametrize("max_tokens", [1, 2, 20])
def test_max_tokens_counts_output_only(engine: Engine, max_tokens: int) -> None:
    [outputs] = run(engine, [([5] * 20, replace(GREEDY, max_tokens=max_tokens, ignore_eos=True))])
    assert len(tokens(outputs)) == max_tokens


@pytest.mark.parametrize("length", [1, 62, 63])
def test_a_prompt_up_to_the_window_fills_it_and_ends_with_length(engine: Engine, length: int) -> None:
    [outputs] = run(engine, [([5] * length, replace(GREEDY, max_tokens=1000, ignore_eos=True))])
    assert len(tokens(outputs)) == 64 - length
    assert outputs[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "is empty"),
        ([5] * 64, "has 64 tokens, but the context holds 64"),
        ([5] * 65, "has 65 tokens"),
        ([-1], "-1 is not a token id; ids are 0 … 255"),
        ([256], "256 is not a token id"),
        ([1.5], "1.5 is not a token id"),
        ([True], "True is not a token id"),
        (["a", 1], "'a' is not a token id"),
        ([10**5000], "this int is not a token id"),
    ],
)
def test_a_wrong_prompt_is_refused_before_it_reaches_the_engine(
    engine: Engine, prompt: list[Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        engine.add("x", prompt, GREEDY)
    assert caught.value.param == "prompt"
    assert not engine.has_unfinished
    [outputs] = run(engine, [([5], GREEDY)])
    assert outputs


def test_a_stop_token_that_does_not_exist_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="stop_token_ids: 256 is not a token id; ids are 0 … 255"):
        engine.add("x", [5], replace(GREEDY, stop_token_ids=[256]))


def test_a_request_id_is_unique_while_in_use(engine: Engine) -> None:
    engine.add("x", [5], GREEDY)
    with pytest.raises(RequestError, match="'x' is in use"):
        engine.add("x", [6], GREEDY)
    engine.abort("x")
    engine.add("x", [6], GREEDY)
    engine.abort("x")


def test_a_stop_token_ends_the_request_and_stays_out_of_the_text(engine: Engine) -> None:
    [free] = run(engine, [([5, 6, 7], replace(GREEDY, ignore_eos=True))])
    ids = tokens(free)
    stop = ids[4]
    [outputs] = run(engine, [([5, 6, 7], replace(GREEDY, stop_token_ids=[stop]))])
    end = ids.index(stop)
    assert tokens(outputs) == ids[: end + 1]
    assert text(outputs) == engine.tokenizer.decode(ids[:end])
    assert outputs[-1].finish_reason == "stop"
    assert [o.stop_reason for o in outputs] == [None] * end + [stop]


def test_a_stop_string_over_tokens_is_cut_off_and_nothing_of_it_is_shown(engine: Engine) -> None:
    prompt = next(p for p in golden.load("llama3").prompts if len(p) < 40)
    [free] = run(engine, [(prompt, replace(GREEDY, ignore_eos=True))])
    whole = text(free)
    stop = whole[3:6]  # each token is at most one character
    [outputs] = run(engine, [(prompt, replace(GREEDY, stop=stop))])
    assert text(outputs) == whole[: whole.index(stop)]
    assert outputs[-1].finish_reason == "stop"
    assert {o.stop_reason for o in outputs[:-1]} <= {None}
    assert outputs[-1].stop_reason == stop
    shown = ""
    for output in outputs:
        shown += output.text
        assert whole.startswith(shown)


def test_the_models_end_token_ends_the_request_unless_ignored(tiny_folder: Path, engine: Engine) -> None:
    [free] = run(engine, [([5, 6, 7], replace(GREEDY, ignore_eos=True))])
    end = tokens(free)[4]  # the test's model is made to end with a token that it is known to say
    definition = replace(read_folder_tokenizer(tiny_folder), eos_ids=frozenset({end}))
    engine = Engine(engine.config, Tokenizer(definition), engine.manager)
    stopped, ignored = run(engine, [([5, 6, 7], GREEDY), ([5, 6, 7], replace(GREEDY, ignore_eos=True))])
    assert tokens(stopped) == tokens(free)[: tokens(free).index(end) + 1]
    assert stopped[-1].finish_reason == "stop"
    assert stopped[-1].text == ""
    assert tokens(ignored) == tokens(free)


def test_requests_without_a_seed_differ_and_a_seed_repeats(engine: Engine) -> None:
    hot = replace(GREEDY, temperature=5.0, ignore_eos=True)
    a, b, c, d = run(engine, [([5], hot), ([5], hot), ([5], replace(hot, seed=42)), ([5], replace(hot, seed=42))])
    assert tokens(a) != tokens(b)
    assert tokens(c) == tokens(d)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_abort_frees_at_once_whatever_the_state(engine: Engine, steps: int) -> None:
    for i in range(6):  # more than slots, so some wait
        engine.add(f"r{i}", [5 + i] * 40, GREEDY)
    for _ in range(steps):
        engine.step()
    for i in range(6):
        engine.abort(f"r{i}")
        check_pages(engine)
    engine.abort("never there")
    assert engine.pool.num_available == engine.pool.num_pages
    assert not engine.has_unfinished
    assert engine.step() == []


@pytest.mark.parametrize("failing", [1, 2, 3, 8])
def test_fault_24_a_failed_step_loses_nothing(tiny_folder: Path, engine: Engine, failing: int) -> None:
    cases = [([5 + i] * (10 + i), replace(GREEDY, temperature=1.0, seed=i, ignore_eos=True)) for i in range(5)]
    expected = [tokens(o) for o in run(engine, cases)]
    manager = FailsOnce(tiny_manager("llama3", **SMALL), failing, RuntimeError("the device is gone"))
    engine = Engine(EngineConfig(model="x"), Tokenizer.from_folder(tiny_folder), manager)  # type: ignore[arg-type]
    got: dict[str, list[int]] = {str(i): [] for i in range(5)}
    for i, case in enumerate(cases):
        engine.add(str(i), *case)
    failures = 0
    while engine.has_unfinished:
        try:
            outputs = engine.step()
        except RuntimeError:
            failures += 1
            assert all(request.num_computed == 0 for request in engine.scheduler.waiting)
            assert engine.pool.num_available == engine.pool.num_pages
            continue
        for output in outputs:
            got[output.request_id] += tokens([output])
        check_pages(engine)
    assert failures == 1
    assert list(got.values()) == expected


def test_a_request_with_nan_logits_ends_alone(tiny_folder: Path) -> None:
    # Token 77 has an embedding of NaN; the head is another matrix, so only its own sequence sees it.
    weights = tiny_weights("llama2", "float32")
    array = weights.embedding.array
    if isinstance(weights.embedding, NativeWeight):  # panels of 16 rows, transposed
        array = array.reshape(-1, weights.embedding.shape[1], 16).at[77 // 16, :, 77 % 16].set(jnp.nan).reshape(-1)
    else:
        array = array.at[77].set(jnp.nan)
    poisoned = replace(weights.embedding, array=array)
    manager = tiny_manager("llama2", weights=replace(weights, embedding=poisoned), **SMALL)
    cases = [([5] * 9, GREEDY), ([6, 77, 8], GREEDY), ([9] * 30, GREEDY)]
    alone = [run(tiny_engine(tiny_folder, "llama2", **SMALL), [case])[0] for case in (cases[0], cases[2])]
    engine = Engine(EngineConfig(model="x"), Tokenizer.from_folder(tiny_folder), manager)
    first, bad, last = run(engine, cases)
    assert [o.finish_reason for o in bad] == ["error"]
    assert bad[0].error == "the model produced no finite logits; its weights may be damaged"
    assert tokens(bad) == []
    assert [tokens(first), tokens(last)] == [tokens(o) for o in alone]
    # Its pages held NaN; whoever gets them next must not notice.
    [again] = run(engine, [cases[2]])
    assert tokens(again) == tokens(last)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"request_id": 3}, "request_id"),
        ({"request_id": None}, "request_id"),
        ({"prompt_ids": "text"}, "prompt"),
        ({"prompt_ids": (i for i in [5])}, "prompt"),
        ({"prompt_ids": np.array([5, 6])}, "prompt"),
        ({"params": None}, "params"),
        ({"params": replace(GREEDY, logprobs=21)}, "logprobs"),
        ({"params": replace(GREEDY, prompt_logprobs=21)}, "prompt_logprobs"),
        ({"params": replace(GREEDY, logit_bias={256: 1})}, "logit_bias"),
        ({"params": replace(GREEDY, allowed_token_ids=[5, 256])}, "allowed_token_ids"),
    ],
)
def test_what_is_no_request_is_refused_by_name(engine: Engine, given: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field}: "):
        engine.add(**{"request_id": "r", "prompt_ids": [5], "params": GREEDY, **given})
    assert not engine.has_unfinished


def test_a_full_queue_refuses_and_takes_again(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, config={"max_queued_requests": 2}, **SMALL)
    for name in "ab":
        engine.add(name, [5] * 4, GREEDY)
    with pytest.raises(QueueFullError, match="2 requests are waiting, and max_queued_requests is 2"):
        engine.add("c", [5] * 4, GREEDY)
    engine.step()
    for name in "cd":
        engine.add(name, [5] * 4, GREEDY)
    with pytest.raises(QueueFullError):
        engine.add("e", [5] * 4, GREEDY)
    ended = set()
    while engine.has_unfinished:
        ended |= {o.request_id for o in engine.step() if o.finish_reason}
    assert ended == set("abcd")
