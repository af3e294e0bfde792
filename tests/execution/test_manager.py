"""The ExecutionManager: what a step computes, what it moves between host and device, and what it refuses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import golden
from execution.steps import GEOMETRY, ONE, Driver
from headrace.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.errors import ConfigError, StepError
from headrace.execution.batch import BatchLayout, HostBatch
from headrace.execution.compiled import compilations
from headrace.execution.manager import ExecutionManager
from headrace.execution.options import ExecutionOptions
from headrace.execution.schedule import ScheduledStep
from headrace.sampling.params import SamplingParams
from headrace.text.tokenizer import Tokenizer
from headrace.weights.load import open_checkpoint
from tiny import run, tiny_manager, tiny_weights, tokens

GOLDEN = golden.load("llama3")
SHORT, MIDDLE = GOLDEN.prompts[0], GOLDEN.prompts[1]  # 5 and 23 tokens
EMBEDDING = load_file(GOLDEN.folder / "model.safetensors")["model.embed_tokens.weight"]  # it is the head as well


@pytest.fixture
def manager() -> ExecutionManager:
    return tiny_manager(**GEOMETRY)


@pytest.fixture
def driver(manager: ExecutionManager) -> Driver:
    return Driver(manager)


def new_manager(**changes: Any) -> ExecutionManager:
    """One that is not compiled yet and that no other test shares."""
    options = {**ONE, "vocab_limit": 256, **changes, "dtype": jnp.dtype("float32")}
    return ExecutionManager(
        open_checkpoint(GOLDEN.folder).spec, tiny_weights("llama3", "float32"), ExecutionOptions(**options)
    )


def test_greedy_tokens_are_the_references_in_one_batch_and_in_chunks(driver: Driver) -> None:
    driver.add(2, SHORT)
    driver.add(0, MIDDLE)
    driver.run({2: 5, 0: 10})
    driver.run({2: 1, 0: 13})
    for _ in range(10):
        driver.run({2: 1, 0: 1})
    assert driver.ids[2][5:] == GOLDEN.continuations[0][:12]
    assert driver.ids[0][23:] == GOLDEN.continuations[1][:11]


def test_x12_logits_and_hidden_states_are_those_behind_the_tokens(driver: Driver) -> None:
    driver.add(0, SHORT)
    driver.add(1, MIDDLE)
    step = driver.schedule({0: 5, 1: 20})
    result = driver.manager.execute(step)
    assert step.slots.tolist() == [1, 0]  # longest context first
    logits, hidden = np.asarray(result.logits), np.asarray(result.hidden)
    assert logits.dtype == hidden.dtype == np.float32
    np.testing.assert_allclose(logits[0], GOLDEN.logits[1][19], atol=1e-4)
    np.testing.assert_allclose(logits[1], GOLDEN.logits[0][4], atol=1e-4)
    np.testing.assert_allclose(hidden[:2] @ EMBEDDING.T, logits[:2], atol=1e-4)  # the others are padding


def test_released_logits_leave_their_memory_to_a_later_step_and_no_others_do(driver: Driver) -> None:
    driver.add(0, SHORT)
    step = driver.schedule({0: 5})
    kept, released = driver.manager.execute(step), driver.manager.execute(step)
    place = released.logits.unsafe_buffer_pointer()
    driver.manager.release(released)
    third, fourth = driver.manager.execute(step), driver.manager.execute(step)
    assert third.logits.unsafe_buffer_pointer() == place
    assert released.logits.is_deleted()
    for result in (third, fourth):
        np.testing.assert_array_equal(result.logits[0], kept.logits[0])


def test_x12_only_rows_that_end_their_prompt_have_a_token(driver: Driver) -> None:
    driver.add(0, SHORT)
    driver.add(1, MIDDLE)
    step = driver.schedule({0: 5, 1: 20})
    result = driver.manager.execute(step)
    # Row 0 is in the middle of its prompt, rows 2 and 3 are padding.
    assert np.asarray(result.tokens).tolist() == [-1, GOLDEN.continuations[0][0], -1, -1]
    assert driver.manager.read_tokens(result, step).tolist() == [-1, GOLDEN.continuations[0][0]]


def test_x11_greedy_and_random_rows_share_a_batch(driver: Driver) -> None:
    hot = SamplingParams(temperature=3.0, top_k=3)
    best = set(np.argsort(GOLDEN.logits[0][-1])[-3:].tolist())
    seen = set()
    for seed in range(12):
        driver.add(0, SHORT)
        driver.add(1, SHORT, hot, seed)
        driver.add(2, SHORT)
        driver.add(3, SHORT, hot, seed)
        drawn = driver.run(dict.fromkeys(range(4), 5))
        assert drawn[0] == drawn[2] == GOLDEN.continuations[0][0]
        assert drawn[1] == drawn[3]  # the seed decides, not the row
        seen.add(drawn[1])
    assert seen <= best
    assert len(seen) > 1


def test_x16_a_sampled_token_reaches_the_next_step_on_the_device(driver: Driver) -> None:
    first, second = GOLDEN.continuations[0][:2]
    driver.add(0, SHORT)
    assert driver.run({0: 5}) == {0: first}
    step, sequences = driver.schedule({0: 1}), driver.manager.sequences
    batch = HostBatch(BatchLayout((8, 2), 16), num_slots=4)
    batch.fill(step, sequences)
    assert batch["input_ids"].tolist()[0] == -1
    sequences.token_ids[0, 5] = first + 1  # whatever the host believes, the device knows better
    assert driver.run({0: 1}) == {0: second}


def test_a_token_that_the_host_sends_gives_the_same(driver: Driver) -> None:
    first, second = GOLDEN.continuations[0][:2]
    driver.add(0, [*SHORT, first])
    driver.computed[0] = 0
    batch = HostBatch(BatchLayout((8, 2), 16), num_slots=4)
    batch.fill(driver.schedule({0: 6}), driver.manager.sequences)
    assert batch["input_ids"].tolist()[:6] == [*SHORT, first]
    driver.run({0: 5})
    assert driver.run({0: 1}) == {0: second}


def test_x6_steps_can_be_dispatched_without_waiting(driver: Driver) -> None:
    # The host fills the next batch while the device may not have begun with the one before.
    for _ in range(20):
        driver.add(0, SHORT)
        driver.run({0: 5})
        results = []
        for position in range(5, 16):
            driver.manager.sequences.device_position[0] = position
            one, at = np.array([1], np.int32), np.array([position], np.int32)
            step = ScheduledStep(np.array([0], np.int32), at, one, np.array([True]))
            results.append(driver.manager.execute(step))
        assert [int(np.asarray(r.tokens)[0]) for r in results] == GOLDEN.continuations[0][1:12]


def profile(folder: Path, work: Callable[[], object]) -> Counter[str]:
    """How often the runtime did what while `work` ran."""
    with jax.profiler.trace(str(folder)):
        work()
    [file] = folder.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    return Counter(event.name for plane in planes for line in plane.lines for event in line.events)


def test_x4_fault_01_a_step_is_one_launch_and_one_transfer(driver: Driver, tmp_path: Path) -> None:
    double = jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((4,), jnp.int32)).compile()
    host = np.ones(4, np.int32)
    double(jax.device_put(host))
    known = profile(tmp_path / "known", lambda: [double(jax.device_put(host)).block_until_ready() for _ in range(7)])
    # The names that the runtime has for a launch and for a transfer, whatever its version.
    names = {
        n
        for n, count in known.items()
        if count == 7 and ("LoadedExecutable::Execute" in n or n.startswith("DevicePut"))
    }
    assert any(n.startswith("DevicePut") for n in names)
    assert len(names) > 1

    driver.add(0, SHORT)
    driver.add(1, MIDDLE)
    driver.run({0: 5, 1: 23})
    driver.run({0: 1, 1: 1})  # where the first logits of this size may need memory
    seen = profile(tmp_path / "steps", lambda: [driver.run({0: 1, 1: 1}) for _ in range(7)])
    assert {name: seen[name] for name in names} == dict.fromkeys(names, 7)
    assert driver.ids[0][5:] == GOLDEN.continuations[0][:9]


class TokensOnly:
    """A manager whose results hold nothing but tokens, and logits to give back unread."""

    def __init__(self, manager: ExecutionManager) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def execute(self, step: ScheduledStep) -> Any:
        result = self._manager.execute(step)
        return SimpleNamespace(tokens=result.tokens, logits=result.logits)


def test_x4_the_engine_fetches_nothing_but_tokens(manager: ExecutionManager, tiny_folder: Path) -> None:
    manager.reset_state()
    config, tokenizer = EngineConfig(model="x"), Tokenizer.from_folder(tiny_folder)
    engine = Engine(config, tokenizer, TokensOnly(manager))  # type: ignore[arg-type]
    [outputs] = run(engine, [(SHORT, SamplingParams(temperature=0, max_tokens=6))])
    assert tokens(outputs) == GOLDEN.continuations[0][:6]


@pytest.mark.parametrize("chunks", [{0: 23, 1: 10}, {0: 23, 1: 23, 2: 5}])
def test_x15_a_miss_names_the_pair_and_the_choices_and_changes_nothing(driver: Driver, chunks: dict[int, int]) -> None:
    for slot in range(3):
        driver.add(slot, SHORT if slot == 2 else MIDDLE)
    misses = driver.manager.cache_stats.misses
    step = driver.schedule(chunks)
    wanted = f"{sum(chunks.values())} tokens of {len(chunks)} requests"
    with pytest.raises(StepError, match=rf"{wanted}; available .*: \(8, 2\), \(8, 4\), \(32, 4\)"):
        driver.manager.execute(step)
    assert driver.manager.cache_stats.misses == misses + 1
    assert driver.generate(0, 5) == GOLDEN.continuations[1][:5]


def test_hits_are_counted(driver: Driver) -> None:
    before = driver.manager.cache_stats.hits
    driver.add(0, SHORT)
    driver.generate(0, 4)
    assert driver.manager.cache_stats.hits == before + 4
    assert driver.manager.cache_stats.evictions == 0


def test_nothing_is_compiled_after_warm_up(driver: Driver) -> None:
    rng = random.Random(5)
    driver.manager.reset_state()
    before = compilations()
    for _ in range(60):
        for slot in range(4):
            if slot not in driver.ids or len(driver.ids[slot]) > 44 or rng.random() < 0.1:
                hot = SamplingParams(temperature=rng.choice([0, 1.0]), top_k=rng.choice([0, 5]), top_p=0.9)
                driver.add(slot, [rng.randrange(256) for _ in range(rng.randint(1, 30))], hot, rng.getrandbits(64))
        chosen = rng.sample(range(4), rng.randint(1, 4))
        driver.run({s: min(rng.randint(1, 8), len(driver.ids[s]) - driver.computed[s]) for s in chosen})
    assert compilations() == before


def test_x3_more_variants_than_the_cache_holds_is_said_before_compiling() -> None:
    manager = new_manager(max_num_batched_tokens=16, max_compiled_variants=1)
    before = compilations()
    with pytest.raises(ConfigError, match="max_compiled_variants: 2 steps are to be compiled but the cache holds 1"):
        manager.compile()
    assert compilations() == before
    assert manager.buckets == []


@pytest.mark.parametrize(
    ("paddings", "message"),
    [
        ({"num_tokens_paddings": [4]}, "num_tokens_paddings: the last size must be 8, not 4"),
        ({"num_tokens_paddings": [8, 4]}, "num_tokens_paddings: must be ascending positive sizes"),
        ({"num_reqs_paddings": [0, 1]}, "num_reqs_paddings: must be ascending positive sizes"),
        ({"num_reqs_paddings": [1, 2]}, "num_reqs_paddings: the last size must be 1, not 2"),
    ],
)
def test_paddings_that_leave_a_batch_without_a_bucket_are_refused(paddings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        new_manager().compile(**paddings)


def test_before_compilation_and_after_clear_cache_there_is_no_step() -> None:
    driver = Driver(new_manager())
    for _ in range(2):
        driver.add(0, SHORT)
        with pytest.raises(StepError, match=r"available .*: none"):
            driver.run({0: 5})
        with pytest.raises(StepError, match="no step is compiled for"):
            driver.manager.compiled_text((8, 1))
        assert driver.manager.compile() > 0
        assert driver.generate(0, 3) == GOLDEN.continuations[0][:3]
        driver.manager.clear_cache()


def test_compiling_another_set_of_buckets_keeps_the_sequences() -> None:
    manager = new_manager(max_num_batched_tokens=16, max_compiled_variants=3)
    manager.compile(num_tokens_paddings=[12, 16], threads=1, progress=True)
    driver = Driver(manager)
    driver.add(0, MIDDLE)
    driver.run({0: 11})
    with pytest.raises(ConfigError, match="max_compiled_variants: 4 steps"):
        manager.compile(num_tokens_paddings=[10, 12, 16])
    assert manager.buckets == [(8, 1), (12, 1), (16, 1)]
    manager.compile(num_tokens_paddings=[16])
    assert manager.buckets == [(8, 1), (16, 1)]
    driver.run({0: 11})
    assert driver.generate(0, 5) == GOLDEN.continuations[1][:5]
    assert manager.cache_stats.evictions == 0


def test_resetting_the_state_forgets_pages_and_tokens(driver: Driver) -> None:
    before = compilations()
    driver.add(0, SHORT)
    driver.generate(0, 3)
    driver.manager.reset_state()
    driver.computed[0] = 0  # as after a preemption: the tokens are known, and are computed anew
    batch = HostBatch(BatchLayout((8, 2), 16), num_slots=4)
    batch.fill(driver.schedule({0: 8}), driver.manager.sequences)
    assert batch["input_ids"].tolist() == driver.ids[0]
    assert driver.generate(0, 5) == GOLDEN.continuations[0][3:8]
    assert compilations() == before
