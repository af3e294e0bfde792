"""Embeddings: transformers' hidden states, pooled; a function of the request alone, in any company."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import golden
from headrace import PoolingParams, RequestError, SamplingParams
from headrace.config import EngineConfig
from headrace.engine.engine import Engine, TokenOutput
from headrace.engine.intake import RequestParams
from headrace.engine.pooling import Pooler
from headrace.execution.compiled import compilations
from headrace.text.tokenizer import Tokenizer
from tiny import SMALL, SOLO, FailsOnce, check_pages, run, tiny_engine, tiny_weights

GEOMETRY = {**SMALL, "max_model_len": 128, "num_pages": 40}
WHOLE = {**SOLO, "max_model_len": 128, "max_num_batched_tokens": 128, "num_pages": 12}
MEAN, LAST = PoolingParams(), PoolingParams(pooling="last")
PLAIN = SamplingParams(temperature=0, max_tokens=1)


def vector(outputs: list[TokenOutput]) -> np.ndarray:
    [output] = outputs
    assert (output.token_id, output.text, output.finish_reason) == (None, "", "stop")
    assert output.embedding is not None
    assert output.embedding.dtype == np.float32
    return output.embedding


def unit(numbers: list[float]) -> np.ndarray:
    wide = np.array(numbers)
    return wide / np.linalg.norm(wide)


@pytest.mark.parametrize("name", ["llama3", "mistral_window", "qwen2", "gemma3"])
def test_vectors_are_transformers_hidden_states_pooled(tiny_folder: Path, name: str) -> None:
    prompts, want = golden.load(name).prompts, golden.facts("embeddings")[name]
    kinds = [PoolingParams(pooling=kind, normalize=unit) for kind in ("mean", "last") for unit in (True, False)]
    engine = tiny_engine(tiny_folder, name, **GEOMETRY)  # the longest prompt takes three steps
    for i, prompt in enumerate(prompts):
        got = [vector(outputs) for outputs in run(engine, [(prompt, params) for params in kinds])]
        for j, pooling in enumerate(("mean", "last")):
            np.testing.assert_allclose(got[2 * j], unit(want[i][pooling]), atol=1e-5)
            largest = np.abs(want[i][pooling]).max()
            np.testing.assert_allclose(got[2 * j + 1], want[i][pooling], atol=1e-5 * max(1, largest))


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [5, 31, 32, 33, 64])
def test_bits_do_not_depend_on_chunks_nor_on_what_is_cached(tiny_folder: Path, budget: int, caching: bool) -> None:
    ids = random.Random(1).choices(range(3, 256), k=40)
    alone = tiny_engine(tiny_folder, **WHOLE)
    want = [vector(run(alone, [(ids, params)])[0]) for params in (MEAN, LAST)]
    geometry = {**GEOMETRY, "max_num_batched_tokens": budget}
    engine = tiny_engine(tiny_folder, config={"prefix_caching": caching}, **geometry)
    run(engine, [(ids, PLAIN)])
    for params, right, cached in ((MEAN, want[0], 0), (LAST, want[1], 32 * caching), (MEAN, want[0], 0)):
        [outputs] = run(engine, [(ids, params)])
        assert vector(outputs).tobytes() == right.tobytes()
        assert outputs[0].num_cached_tokens == cached


def test_what_an_embedding_computed_others_can_use(tiny_folder: Path) -> None:
    ids = random.Random(2).choices(range(3, 256), k=40)
    engine = tiny_engine(tiny_folder, **GEOMETRY)
    run(engine, [(ids, MEAN)])
    [hit] = run(engine, [(ids, PLAIN)])
    assert hit[0].num_cached_tokens == 32


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64])
def test_prompts_of_any_length_up_to_the_whole_context_are_pooled(tiny_folder: Path, length: int) -> None:
    ids = random.Random(length).choices(range(3, 256), k=length)
    both = [vector(outputs) for outputs in run(tiny_engine(tiny_folder, **SMALL), [(ids, MEAN), (ids, LAST)])]
    alone = tiny_engine(tiny_folder, **WHOLE)
    assert [v.tobytes() for v in both] == [vector(run(alone, [(ids, p)])[0]).tobytes() for p in (MEAN, LAST)]
    assert (length == 1) == (both[0].tobytes() == both[1].tobytes())


def random_cases(count: int) -> list[tuple[list[int], RequestParams]]:
    rng, cases = random.Random(11), []
    beginning = rng.choices(range(3, 256), k=20)
    for _ in range(count):
        ids = beginning[: rng.randrange(21)] + rng.choices(range(3, 256), k=rng.randrange(1, 43))
        most, scored = rng.choice([0, 5, 40]), rng.choice([None, 1])
        drawn = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, prompt_logprobs=scored)
        pooled = PoolingParams(pooling=rng.choice(["mean", "last"]), normalize=rng.random() < 0.5)
        cases.append((ids, rng.choice([drawn, pooled])))
    return cases


def facts(outputs: list[TokenOutput]) -> list[Any]:
    return [(o, None if o.embedding is None else o.embedding.tobytes()) for o in outputs]


def without_ids(outputs: list[TokenOutput]) -> list[Any]:
    return [(o.token_id, o.text, o.finish_reason, o.prompt_logprobs, embedding) for o, embedding in facts(outputs)]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_company_gives_the_solo_bits(tiny_folder: Path, dtype: str, overlap: bool) -> None:
    cases = random_cases(40)
    geometry = {**SMALL, "num_pages": 6, "dtype": dtype}
    engine = tiny_engine(tiny_folder, "gemma3", config={"overlap": overlap}, **geometry)
    compiled = compilations()
    together = run(engine, cases)
    assert compilations() == compiled
    assert engine.metrics.preemptions > 0
    assert engine.metrics.prefix_hit_tokens > 0
    alone = tiny_engine(tiny_folder, "gemma3", config={"prefix_caching": False}, **{**SOLO, "dtype": dtype})
    for case, outputs in zip(cases, together, strict=True):
        assert without_ids(outputs) == without_ids(run(alone, [case])[0]), case


@pytest.mark.parametrize("params", [MEAN, LAST])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_preemption_costs_no_bits(tiny_folder: Path, params: PoolingParams, overlap: bool) -> None:
    ids = random.Random(9).choices(range(3, 256), k=16)
    want = vector(run(tiny_engine(tiny_folder, **WHOLE), [(ids, params)])[0])
    engine = tiny_engine(tiny_folder, config={"overlap": overlap}, **{**GEOMETRY, "max_num_batched_tokens": 5})
    taken = engine.pool.allocate(engine.pool.num_pages - 4)
    # Each has a page and a spare one is left when two of them need their second.
    for name, length in (("a", 10), ("b", 15)):
        engine.add(name, [5] * length, SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
    engine.add("e", ids, params)
    [request] = engine._requests["e"]
    outputs, pooled = [], 0
    while engine.has_unfinished:
        outputs += [output for output in engine.step() if output.request_id == "e"]
        pooled = pooled or (request.pooler.num_taken if request.was_preempted else 0)
    assert 0 < pooled < 16
    assert vector(outputs).tobytes() == want.tobytes()
    engine.pool.free(taken)
    assert engine.pool.num_available == engine.pool.num_pages


@pytest.mark.parametrize("params", [MEAN, LAST])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_failed_step_costs_no_bits(tiny_folder: Path, params: PoolingParams, overlap: bool) -> None:
    ids = random.Random(3).choices(range(3, 256), k=100)
    want = vector(run(tiny_engine(tiny_folder, **WHOLE), [(ids, params)])[0])
    engine = tiny_engine(tiny_folder, config={"overlap": overlap}, **GEOMETRY)
    engine.manager = FailsOnce(engine.manager, 3, RuntimeError("lost"))  # type: ignore[assignment]
    engine.add("r", ids, params)
    outputs = engine.step() + engine.step()
    with pytest.raises(RuntimeError, match="lost"):
        engine.step()
    while engine.has_unfinished:
        outputs += engine.step()
        check_pages(engine)
    assert vector(outputs).tobytes() == want.tobytes()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_abort_frees_the_pages(tiny_folder: Path, steps: int) -> None:
    engine = tiny_engine(tiny_folder, **GEOMETRY)
    engine.add("r", [5] * 100, MEAN)
    for _ in range(steps):
        assert engine.step() == []
    engine.abort("r")
    check_pages(engine)
    assert engine.step() == []
    assert not engine.has_unfinished
    assert engine.pool.num_available == engine.pool.num_pages
    engine.add("q", [5] * 100, MEAN)
    engine.step()
    [end] = engine.pause("abort")
    assert (end.finish_reason, end.embedding) == ("abort", None)


def test_nothing_more_crosses_where_nobody_asks_and_little_for_the_last_token(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **GEOMETRY)
    counts, hidden = engine.manager.transfers.counts, engine.manager.spec.hidden_size

    def moved(params: RequestParams) -> tuple[int, int]:
        transfers, size = counts.d2h_transfers, counts.d2h_bytes
        steps = engine.metrics.counters.steps
        run(engine, [([*range(5, 105)], params)])
        assert engine.metrics.counters.steps - steps == 4
        return counts.d2h_transfers - transfers, counts.d2h_bytes - size

    transfers, size = moved(SamplingParams(max_tokens=0))
    assert transfers == 4
    assert size <= 4 * 4 * 4  # a token for each row
    engine.reset_prefix_cache()
    assert moved(LAST) == (5, size + 2 * hidden * 4)  # the last step has two rows
    assert moved(MEAN) == (8, size + (3 * 32 + 8) * hidden * 4)  # whole steps


def test_weights_that_are_new_under_a_running_request_count_from_its_beginning(tiny_folder: Path) -> None:
    other = jax.tree.map(lambda leaf: leaf * 1.25, tiny_weights("llama3", "float32"))
    ids = random.Random(4).choices(range(3, 256), k=100)
    engine = tiny_engine(tiny_folder, **GEOMETRY)
    try:
        engine.update_graphs(other)
        want = vector(run(engine, [(ids, MEAN)])[0])
        engine.update_graphs(tiny_weights("llama3", "float32"))
        engine.add("r", ids, MEAN)
        assert engine.step() + engine.step() == []
        engine.update_graphs(other)
        outputs = engine.reset_prefix_cache(recompute_running=True)
        while engine.has_unfinished:
            outputs += engine.step()
        assert vector(outputs).tobytes() == want.tobytes()
    finally:
        engine.update_graphs(tiny_weights("llama3", "float32"))


def test_hidden_states_that_are_not_finite_are_an_error_of_the_request(tiny_folder: Path) -> None:
    engine = tiny_engine(tiny_folder, **GEOMETRY)
    try:
        engine.update_graphs(jax.tree.map(lambda leaf: leaf * np.nan, tiny_weights("llama3", "float32")))
        for params in (MEAN, LAST):
            [[output]] = run(engine, [([5] * 40, params)])
            assert (output.finish_reason, output.embedding) == ("error", None)
            assert "no finite hidden states" in str(output.error)
    finally:
        engine.update_graphs(tiny_weights("llama3", "float32"))


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_hidden_states_are_added_token_after_token(size: int) -> None:
    rng = np.random.default_rng(0)
    hidden = (rng.standard_normal((300, size)) * 10.0 ** rng.integers(-8, 8, (300, 1))).astype(np.float32)
    total = np.zeros(size)
    for line in hidden:
        total = total + line
    for chunk in (1, 7, 128, 299, 300, 512):
        pooler = Pooler(PoolingParams(normalize=False), 300)
        for start in range(0, 300, chunk):
            pooler.take(start, hidden[start : start + chunk])
        vector = pooler.embedding()
        assert vector is not None
        assert vector.tobytes() == (total / 300).astype(np.float32).tobytes()


def test_a_vector_of_zeros_stays_one() -> None:
    pooler = Pooler(MEAN, 2)
    pooler.take(0, np.zeros((2, 4), np.float32))
    vector = pooler.embedding()
    assert vector is not None
    assert vector.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pooling", "max"),
        ("pooling", None),
        ("pooling", ["mean"]),
        ("normalize", 1),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("priority", "high"),
    ],
)
def test_wrong_parameters_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{field}: ") as caught:
        PoolingParams(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("ids", [[], [256], [-1], [5] * 65, "text"])
def test_prompts_that_cannot_be_pooled_are_refused(tiny_folder: Path, ids: Any) -> None:
    engine = tiny_engine(tiny_folder, **SMALL)
    with pytest.raises(RequestError, match=r"^prompt: "):
        engine.add("r", ids, MEAN)
    assert not engine.has_unfinished


@pytest.mark.parametrize(("most", "kept"), [(1, 1), (63, 63), (64, 64), (-1, 64)])
def test_a_prompt_keeps_its_last_tokens(tiny_folder: Path, most: int, kept: int) -> None:
    ids = random.Random(5).choices(range(3, 256), k=90)
    engine = tiny_engine(tiny_folder, **SMALL)
    [got, want] = run(engine, [(ids, PoolingParams(truncate_prompt_tokens=most)), (ids[-kept:], MEAN)])
    assert vector(got).tobytes() == vector(want).tobytes()


@pytest.mark.parametrize("params", [MEAN, LAST])
def test_ranks_and_shards_give_the_vectors_of_one_device(meshed: Any, tiny_folder: Path, params: PoolingParams) -> None:
    rng = random.Random(6)
    cases = [(rng.choices(range(3, 249), k=k), params) for k in (1, 8, 9, 33, 60, 90)]
    engines = []
    for ranks, shards in ((1, 1), (2, 2)):
        manager = meshed("llama3", ranks, shards)
        manager.reset_state()
        engines.append(Engine(EngineConfig(model="x", seed=0), Tokenizer.from_folder(tiny_folder), manager))
    want, got = ([vector(outputs) for outputs in run(engine, cases)] for engine in engines)
    np.testing.assert_allclose(got, want, atol=1e-5)
    alone = [vector(run(engines[1], [case])[0]) for case in cases]
    assert [v.tobytes() for v in got] == [v.tobytes() for v in alone]


def test_hidden_states_of_ranks_in_other_processes_are_refused(tiny_folder: Path) -> None:
    class Elsewhere:
        def __init__(self, manager: Any) -> None:
            self._manager, self.has_hidden = manager, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._manager, name)

    manager: Any = Elsewhere(tiny_engine(tiny_folder, **SMALL).manager)
    engine = Engine(EngineConfig(model="x", seed=0), Tokenizer.from_folder(tiny_folder), manager)
    with pytest.raises(RequestError, match=r"^pooling: is not possible where data parallel ranks lie in several"):
        engine.add("r", [5], MEAN)
    engine.check([5], PLAIN)
