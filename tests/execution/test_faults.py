"""Known faults of the reference system (EXECUTION.md, section 2), each as a test that it is not here."""

from __future__ import annotations

import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import golden
from execution.hlo import parameter_shapes, pool_copies
from execution.steps import GEOMETRY, GREEDY, ONE, Driver
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.errors import ConfigError, RequestError
from headrace.execution.batch import BatchLayout, HostBatch
from headrace.execution.buckets import Bucket, bucket_pairs, request_buckets, token_buckets
from headrace.execution.compiled import CompiledSteps
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.execution.schedule import MAX_SHARED_PAGE_UPDATES, ScheduledStep
from headrace.execution.sequences import SequenceTable
from headrace.execution.step import ragged_batch, sampling_rows
from headrace.llm import LLM
from headrace.outputs import RequestOutput
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import SamplingRows, sample
from headrace.sampling.structured import StructuredOutputs
from headrace.text.tokenizer import Tokenizer
from headrace.weights.load import open_checkpoint
from sampling.rows import fields_of
from tiny import run, tiny_manager, tiny_weights, tokens

GOLDEN = golden.load("llama3")
SHORT, MIDDLE = GOLDEN.prompts[0], GOLDEN.prompts[1]  # 5 and 23 tokens


@pytest.fixture
def driver() -> Driver:
    return Driver(tiny_manager(**GEOMETRY))


def engine_over(manager: Any, folder: Path) -> Engine:
    return Engine(EngineConfig(model="x"), Tokenizer.from_folder(folder), manager)


def packed_batch(max_model_len: int) -> bytes:
    table = SequenceTable(4, max_model_len)
    table.load(2, SHORT, 5, GREEDY, seed=9)
    batch = HostBatch(BatchLayout((8, 2), 16), num_slots=4)
    step = ScheduledStep(*(np.array([n], np.int32) for n in (2, 0, 5)), np.array([True]), [(2, 0, 7)])
    batch.fill(step, table)
    return batch.packed.tobytes()


def test_fault_02_what_is_sent_does_not_grow_with_max_model_len() -> None:
    assert packed_batch(64) == packed_batch(131_072)
    # The step takes the packed batch; all else that it takes is on the device already.
    *_, packed, _constraints, _spare = parameter_shapes(tiny_manager(**GEOMETRY).compiled_text((8, 2)))
    assert packed == f"s32[{len(packed_batch(64)) // 4}]"
    # 3 kB of it are room for the pages of shared prefixes.
    assert len(packed_batch(64)) - 12 * MAX_SHARED_PAGE_UPDATES < 320


def test_fault_03_variants_grow_with_the_sum_of_the_sizes_not_their_product() -> None:
    # The sampler is part of each variant, so its compilations are as many.
    for most_seqs, most_tokens in ((32, 512), (256, 8192), (1000, 16384)):
        tokens, reqs = token_buckets(most_seqs, most_tokens), request_buckets(8, most_seqs)
        assert len(bucket_pairs(tokens, reqs)) <= len(tokens) + len(reqs)


def test_fault_04_too_many_buckets_are_refused_and_none_is_evicted_by_warming_up() -> None:
    pairs = [(8 * n, 8) for n in range(1, 66)]
    steps = CompiledSteps(64)
    with pytest.raises(ConfigError, match="65 steps are to be compiled but the cache holds 64"):
        steps.warm_up(pairs, lambda b: pytest.fail("compiled"), lambda b, e: None, threads=1, progress=False)


def test_fault_05_warming_up_leaves_a_state_that_works() -> None:
    manager = tiny_manager(**ONE)
    driver = Driver(manager)
    driver.add(0, SHORT)
    driver.generate(0, 2)
    manager.compile()  # nothing to compile, nothing lost
    assert driver.generate(0, 4) == GOLDEN.continuations[0][2:6]


def test_fault_06_the_constructors_defaults_work() -> None:
    checkpoint = open_checkpoint(GOLDEN.folder)
    config = EngineConfig(model=str(GOLDEN.folder)).resolve(checkpoint.spec)
    options = ExecutionOptions(
        dtype=config.jax_dtype,
        num_pages=config.num_pages(checkpoint.spec),
        page_size=config.page_size,
        max_model_len=config.max_model_len or 0,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        vocab_limit=256,
    )
    manager = ExecutionManager(checkpoint.spec, tiny_weights("llama3", "bfloat16"), options)
    assert manager.buckets == []
    assert options.max_model_len == 256  # all that the model can
    assert options.num_pages >= 16


def test_fault_07_nothing_donated_is_read_again(driver: Driver) -> None:
    # Results outlive the steps after them; weights and host arrays outlive them all.
    driver.add(0, SHORT)
    steps = [driver.schedule({0: 5})]
    results = [driver.manager.execute(steps[0])]
    driver.commit(steps[0], results[0])
    for _ in range(5):
        steps.append(driver.schedule({0: 1}))
        results.append(driver.manager.execute(steps[-1]))
        driver.commit(steps[-1], results[-1])
    read = [np.asarray(array) for result in results for array in (result.tokens, result.logits, result.hidden)]
    assert all(np.isfinite(array[0]).all() for array in read)
    assert [int(np.asarray(result.tokens)[0]) for result in results] == GOLDEN.continuations[0][:6]


def test_fault_08_there_is_one_way_to_prepare_a_batch_and_the_engine_takes_it(
    driver: Driver, tiny_folder: Path
) -> None:
    driver.add(0, SHORT)
    step = driver.schedule({0: 5})
    assert driver.manager.get_async_prep_result() is None
    driver.manager.start_async_prep(step)
    ahead = driver.manager.get_async_prep_result()
    assert driver.manager.get_async_prep_result() is None
    assert ahead is not None
    first = driver.manager.execute(ahead)
    again = driver.manager.execute(step)  # writes the same keys and values to the same places
    assert np.asarray(first.tokens).tolist() == np.asarray(again.tokens).tolist()
    assert np.asarray(first.logits).tobytes() == np.asarray(again.logits).tobytes()

    recorder = Recorder(driver.manager)
    engine = engine_over(recorder, tiny_folder)
    run(engine, [(SHORT, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))])
    assert recorder.steps == [(1, 5), (1, 1), (1, 1), (1, 1)]


def test_fault_09_a_greedy_row_beside_a_random_one_takes_the_likeliest_token(driver: Driver) -> None:
    for seed in range(20):
        driver.add(0, SHORT, GREEDY, seed)
        driver.add(1, SHORT, SamplingParams(temperature=5.0), seed)
        assert driver.run({0: 5, 1: 5})[0] == int(GOLDEN.logits[0][-1].argmax())


def test_fault_09_padding_forgets_the_rows_that_were_there_before(driver: Driver) -> None:
    for slot in range(4):
        driver.add(slot, SHORT, SamplingParams(temperature=5.0, min_p=0.5, top_k=2), seed=slot)
    driver.run(dict.fromkeys(range(4), 5))
    batch = HostBatch(BatchLayout((8, 4), 16), num_slots=4)
    batch.fill(driver.schedule(dict.fromkeys(range(4), 1)), driver.manager.sequences)
    assert fields_of(batch["sampling"])["temperature"].tolist() == [5.0] * 4
    driver.add(0, SHORT)
    batch.fill(driver.schedule({0: 1}), driver.manager.sequences)
    fields = fields_of(batch["sampling"])
    assert fields["temperature"].tolist() == [0.0] * 4
    assert fields["top_k"].tolist() == [0] * 4
    assert fields["top_p"].tolist() == [1.0] * 4
    assert fields["min_p"].tolist() == [0.0] * 4
    assert driver.generate(0, 3) == GOLDEN.continuations[0][:3]


def test_fault_10_min_p_compares_probabilities_also_when_every_logit_is_negative() -> None:
    # Relative to the best: 1, 0.61, 0.14.
    logits = jnp.tile(jnp.array([-5.0, -5.5, -7.0]), (64, 1))
    rows = SamplingRows(
        temperature=jnp.ones(64),
        top_k=jnp.zeros(64, jnp.int32),
        top_p=jnp.ones(64),
        min_p=jnp.full(64, 0.5),
        seeds=jnp.stack([jnp.zeros(64, jnp.uint32), jnp.arange(64, dtype=jnp.uint32)], axis=1),
        choices=jnp.zeros(64, jnp.int32),
        output_positions=jnp.zeros(64, jnp.int32),
    )
    assert set(np.asarray(sample(logits, rows)).tolist()) == {0, 1}


def test_fault_11_padding_writes_nowhere_also_when_the_last_page_is_full(driver: Driver) -> None:
    logits = []
    for middle_page in (12, 1):  # the pool's last page, or one that padding could never hit
        driver.add(0, MIDDLE, pages=[0, middle_page, 11])
        assert driver.generate(0, 10) == GOLDEN.continuations[1][:10]
        assert driver.computed[0] == 32  # the page is full to its last place
        driver.add(1, SHORT, pages=[5, 6])
        driver.generate(1, 8)  # every step of it is padded
        logits.append(np.asarray(driver.manager.execute(driver.schedule({0: 1})).logits)[0])
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize("counts", [[], [1], [1, 1, 1], [5, 2], [1, 1, 1, 7, 4], [1] * 8, [2] * 8])
@pytest.mark.parametrize("bucket", [(16, 8), (64, 8)])
def test_fault_12_the_request_distribution_has_decodes_chunks_and_all(counts: list[int], bucket: Bucket) -> None:
    layout, table, rows = BatchLayout(bucket, 16), SequenceTable(8, 32), np.arange(len(counts), dtype=np.int32)
    for slot in range(8):
        table.load(slot, [5] * 20, 20, GREEDY, seed=0)
    batch = HostBatch(layout, num_slots=8)
    batch.packed[:] = 7  # of a step before
    batch.fill(ScheduledStep(rows, rows * 0, np.array(counts, np.int32), rows < 0), table)
    pages = jnp.zeros((8, 2), jnp.int32)
    ragged = jax.jit(lambda packed: ragged_batch(layout.unpack(packed), pages, 16, 13))(batch.packed)
    assert ragged.request_distribution.dtype == jnp.int32
    decodes, chunks, total = ragged.request_distribution.tolist()
    assert total == len(counts)
    per_row = np.diff(np.asarray(ragged.query_start))
    assert (per_row[:decodes] == 1).all()
    assert (per_row[decodes:chunks] > 1).all()
    assert not per_row[chunks:].any()


def test_fault_14_a_prompt_that_leaves_no_room_is_refused_and_never_cut(tiny_folder: Path) -> None:
    engine = engine_over(tiny_manager(**ONE), tiny_folder)
    with pytest.raises(RequestError, match="prompt: has 64 tokens, but the context holds 64"):
        engine.add("x", [5] * 64, GREEDY)
    [outputs] = run(engine, [([5] * 63, GREEDY)])
    assert len(tokens(outputs)) == 1
    assert outputs[-1].finish_reason == "length"


A, B, EOS, LETTER = 65, 66, 2, "_"  # token ids of the tiny tokenizer, and the text of A
FIRST = GOLDEN.continuations[0][0]  # what follows SHORT
HOT: dict[str, Any] = {"temperature": 1.5, "seed": 7}

# Of each parameter what else is asked for, and a value that must change what is returned.
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "n": ({}, 2),
    "max_tokens": ({}, 7),
    "min_tokens": ({"stop_token_ids": [FIRST]}, 2),
    "temperature": (HOT, 0.5),
    "top_p": (HOT, 1e-6),
    "top_k": (HOT, 1),
    "min_p": (HOT, 1.0),
    "presence_penalty": ({"max_tokens": 24}, 2.0),
    "frequency_penalty": ({"max_tokens": 24}, 2.0),
    "repetition_penalty": ({"max_tokens": 24}, 1000.0),
    "logit_bias": ({}, {A: 100}),
    "allowed_token_ids": ({}, [A]),
    "bad_words": ({"logit_bias": {A: 100}}, [LETTER]),
    "stop": ({"logit_bias": {A: 100}}, [LETTER]),
    "stop_token_ids": ({}, [FIRST]),
    "include_stop_str_in_output": ({"logit_bias": {A: 100}, "stop": [LETTER]}, True),
    "ignore_eos": ({"logit_bias": {EOS: 100}}, True),
    "seed": (HOT, 8),
    "logprobs": ({}, 0),
    "prompt_logprobs": ({}, 0),
    "echo": ({}, True),
    "skip_special_tokens": ({"logit_bias": {EOS: 100}, "ignore_eos": True}, False),
    "shown_token_ids": ({"logit_bias": {EOS: 100}, "ignore_eos": True}, [EOS]),
    "truncate_prompt_tokens": ({}, 2),
    "structured_outputs": ({}, StructuredOutputs(regex="[0-9]+")),
}
# Who comes first is no part of what is returned; the other is documented to change nothing here.
CHANGE_NO_OUTPUT = {"priority", "spaces_between_special_tokens"}


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> LLM:
    return LLM(str(tiny_folder), dtype="float32", max_num_seqs=1, max_num_batched_tokens=8, max_model_len=64)


def test_fault_15_no_parameter_is_taken_and_ignored(llm: LLM) -> None:
    assert {*CHANGES, *CHANGE_NO_OUTPUT} == {field.name for field in fields(SamplingParams)}

    def returned(params: dict[str, Any]) -> RequestOutput:
        one, again = llm.generate([SHORT] * 2, SamplingParams(**{"temperature": 0, "max_tokens": 8, **params}))
        assert replace(one, num_cached_tokens=0) == replace(again, num_cached_tokens=0)
        return replace(one, num_cached_tokens=0)

    changes = CHANGES.items()
    assert [name for name, (others, value) in changes if returned(others) == returned({**others, name: value})] == []


def test_fault_15_the_priority_is_not_ignored(llm: LLM) -> None:
    for priority, order in ((0, ["first", "second"]), (-5, ["second", "first"])):
        llm.engine.add("first", SHORT, SamplingParams())
        llm.engine.add("second", SHORT, SamplingParams(priority=priority))
        ended = []
        while llm.engine.has_unfinished:
            ended += [output.request_id for output in llm.engine.step() if output.finish_reason is not None]
        assert ended == order


@pytest.mark.parametrize("name", ["stop_regex", "best_of", "use_beam_search", "length_penalty"])
def test_fault_15_a_parameter_that_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        SamplingParams(**{name: 1})


def test_fault_15_the_seed_is_not_ignored(driver: Driver) -> None:
    hot = SamplingParams(temperature=5.0)
    seen = []
    for seed in (1, 1, 2):
        driver.add(0, SHORT, hot, seed)
        seen.append(driver.generate(0, 8))
    assert seen[0] == seen[1] != seen[2]


def test_fault_16_and_23_an_idle_engine_does_nothing_and_leaves_no_thread_or_process(tiny_folder: Path) -> None:
    threads, processes = threading.active_count(), {*psutil.Process().children()}
    recorder = Recorder(tiny_manager(**GEOMETRY))
    engine = engine_over(recorder, tiny_folder)
    run(engine, [(SHORT, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))])
    steps = len(recorder.steps)
    for _ in range(100):
        assert engine.step() == []
    assert len(recorder.steps) == steps
    assert threading.active_count() == threads
    assert {*psutil.Process().children()} <= processes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fault_17_parameters_stay_float32_beside_a_bfloat16_model(dtype: str) -> None:
    manager = tiny_manager(**{**GEOMETRY, "dtype": dtype})
    driver = Driver(manager)
    driver.add(0, SHORT, SamplingParams(temperature=0.3, top_p=0.999, min_p=0.001))  # none is a bfloat16 number
    layout = BatchLayout((8, 2), 16)
    batch = HostBatch(layout, num_slots=4)
    batch.fill(driver.schedule({0: 5}), manager.sequences)
    rows = sampling_rows(layout.unpack(jnp.asarray(batch.packed)))
    for name, value in (("temperature", 0.3), ("top_p", 0.999), ("min_p", 0.001)):
        assert getattr(rows, name).dtype == jnp.float32
        assert float(getattr(rows, name)[0]) == np.float32(value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fault_20_a_step_for_one_request_does_not_copy_the_pages(dtype: str) -> None:
    manager = tiny_manager(**{**GEOMETRY, "dtype": dtype})
    smallest = manager.buckets[0]
    elements = 13 * 16 * 2 * manager.spec.num_kv_heads * manager.spec.head_dim
    assert pool_copies(manager.compiled_text(smallest), elements) == []


class Recorder:
    """A manager that notes the rows and tokens of each step."""

    def __init__(self, manager: ExecutionManager) -> None:
        self._manager = manager
        self.steps: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def start_async_prep(self, step: ScheduledStep) -> None:
        self.steps.append((len(step.slots), step.total_tokens))
        self._manager.start_async_prep(step)


def test_fault_22_the_first_step_holds_all_that_fit(tiny_folder: Path) -> None:
    recorder = Recorder(tiny_manager(**GEOMETRY))
    engine = engine_over(recorder, tiny_folder)
    run(engine, [([5 + i] * 6, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)) for i in range(6)])
    assert recorder.steps[:3] == [(4, 24), (4, 4), (4, 4)]
    assert recorder.steps[3:] == [(2, 12), (2, 2), (2, 2)]
