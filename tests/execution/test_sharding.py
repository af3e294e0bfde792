"""X9: steps over a mesh of eight devices that are made of one CPU, against one device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import golden
from execution.hlo import aliased_parameters, parameter_shapes, pool_copies
from execution.meshes import MODELS, PAGES, SEQS, new_manager
from execution.steps import Driver
from headrace.errors import ConfigError, StepError
from headrace.execution.compiled import compilations
from headrace.execution.manager import ExecutionManager
from headrace.execution.schedule import Constraint
from headrace.models.registry import family_of_config
from headrace.models.sharding import device_spec, make_mesh
from headrace.models.spec import DecoderSpec
from models import block_models

GREATEST = 1e-5  # difference of logits of about 4: sums over the heads and the MLP are added up in another order


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 249, length).tolist()


# Chunks of the steps, for two sequences of a rank: prefill, prefill beside decode, decode, across pages.
CHUNKS = [{0: 5}, {0: 6, 1: 2}, {0: 7, 1: 1}, {0: 1, 1: 1}, {1: 1}, *({0: 1, 1: 1} for _ in range(10))]


def served(manager: ExecutionManager, ranks: list[int], seeds: list[int]) -> dict[int, tuple[list[int], np.ndarray]]:
    """Runs two sequences in each of some ranks, those of later ranks some steps later; per seed the tokens of the
    first and the logits [steps, vocab] of both."""
    driver, slots = Driver(manager), {}
    for rank, seed in zip(ranks, seeds, strict=True):
        slots[rank] = (SEQS * rank + 1, SEQS * rank)
        driver.add(slots[rank][0], prompt(seed, 18), pages=[7, 2, 12])
        driver.add(slots[rank][1], prompt(seed + 100, 2), pages=[0, 5, 6])
    logits: dict[int, list[np.ndarray]] = {seed: [] for seed in seeds}
    for i in range(len(CHUNKS) + 3 * (len(ranks) - 1)):
        now = {rank: CHUNKS[i - 3 * at] for at, rank in enumerate(ranks) if 0 <= i - 3 * at < len(CHUNKS)}
        step = driver.schedule({slots[rank][row]: n for rank, chunks in now.items() for row, n in chunks.items()})
        result = manager.execute(step)
        lines = np.asarray(result.logits).reshape(manager.num_ranks, SEQS, -1)
        for rank, chunks in now.items():
            logits[seeds[ranks.index(rank)]] += list(lines[rank, : len(chunks)])
        driver.commit(step, result)
    return {seed: (driver.ids[slots[r][0]], np.stack(logits[seed])) for r, seed in zip(ranks, seeds, strict=True)}


MESHES = [("llama3", *mesh) for mesh in [(1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4)]] + [("qwen2", 1, 4)]


@pytest.mark.parametrize(("name", "data_parallel", "tensor_parallel"), MESHES)
def test_x9_logits_and_greedy_tokens_are_those_of_one_device(
    meshed: Any, name: str, data_parallel: int, tensor_parallel: int
) -> None:
    one, many = meshed(name, 1, 1), meshed(name, data_parallel, tensor_parallel)
    compiled = compilations()
    ranks = list(range(data_parallel))
    got = served(many, ranks[::-1], ranks)
    assert compilations() == compiled
    for seed in ranks:
        expected_tokens, expected = served(one, [0], [seed])[seed]
        tokens, logits = got[seed]
        visible = np.isfinite(expected)
        assert (visible == np.isfinite(logits)).all()
        scale = max(1.0, float(np.abs(expected[visible]).max()) / 4)
        np.testing.assert_allclose(logits[visible], expected[visible], rtol=0, atol=GREATEST * scale)
        assert tokens == expected_tokens


@pytest.mark.parametrize(("name", "tensor_parallel"), [("gemma3", 4), ("qwen3", 2)])
def test_x9_logits_and_greedy_tokens_are_those_of_transformers(name: str, tensor_parallel: int) -> None:
    data, manager = golden.load(name), new_manager(golden.ROOT / name, 1, tensor_parallel)
    driver, length = Driver(manager), len(data.prompts[1])
    driver.add(0, data.prompts[1], pages=[3, 1, 2])
    while (start := driver.computed[0]) < length:
        step = driver.schedule({0: min(8, length - start)})
        result = manager.execute(step)
        row = start + int(step.num_tokens[0]) - 1
        np.testing.assert_allclose(np.asarray(result.logits)[0, :249], data.logits[1][row, :249], rtol=0, atol=1e-4)
        driver.commit(step, result)
    assert data.continuations[1][0] == driver.ids[0][-1]
    assert driver.generate(0, 7) == data.continuations[1][1:8]


@pytest.mark.parametrize("form", ["int8", "gguf"])
def test_x9_x10_quantised_weights_are_shared(tmp_path: Path, form: str) -> None:
    # Whole blocks for each of two devices; parts of several formats in one leaf.
    path = block_models.write(tmp_path, {"attn_output": "Q5_0"})
    managers = [new_manager(path, 1, devices, form) for devices in (1, 2)]
    (expected_tokens, expected), (tokens, logits) = (served(manager, [0], [5])[5] for manager in managers)
    assert tokens == expected_tokens
    visible = np.isfinite(expected)
    np.testing.assert_allclose(logits[visible], expected[visible], rtol=0, atol=1e-5 * np.abs(expected[visible]).max())
    layer = managers[1]._weights.layers[0]
    for leaf in jax.tree.leaves((layer.qkv, layer.gate_up, layer.o, layer.down)):
        whole = form == "int8" and leaf.ndim == 1 and leaf.shape[0] == block_models.HIDDEN
        assert leaf.addressable_shards[0].data.size == leaf.size // (1 if whole else 2)


def test_x9_x10_a_block_is_on_one_device(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tensor_parallel: 2 devices cannot share the 1 blocks of a row of o evenly"):
        new_manager(block_models.write(tmp_path), 1, 2, "gguf")


def spec_of(name: str) -> DecoderSpec:
    config = json.loads((golden.ROOT / name / "config.json").read_text()) | MODELS[name]
    return family_of_config(config).from_config(config)


# Rows or columns of one shard on a (2, 4) mesh: 8 heads of 16 share 2 key/value heads, so that each device has 2 query
# heads and a copy of a key and a value head; the MLP has 96.
SHARDS = {
    "embedding": (64, 64),
    "head": (64, 64),
    "qkv": (4 * 16, 64),
    "o": (64, 2 * 16),
    "gate_up": (2 * 24, 64),
    "down": (64, 24),
}


def test_x9_each_device_has_its_shard_and_nothing_else(meshed: Any) -> None:
    manager = meshed("llama3", 2, 4)
    weights, state = manager._weights, manager._state
    leaves = {"embedding": weights.embedding, "head": weights.head}
    for layer in weights.layers:
        for name in ("qkv", "o", "gate_up", "down"):
            leaves[name] = getattr(layer, name)
            for field, leaf in leaves.items():
                assert {shard.data.shape for shard in leaf.array.addressable_shards} == {SHARDS[field]}
    per_device = dict.fromkeys(manager.mesh.devices.flat, 0)
    for leaf in jax.tree.leaves(weights):
        for shard in leaf.addressable_shards:
            per_device[shard.device] += shard.data.nbytes
    vectors = sum(leaf.nbytes for leaf in jax.tree.leaves(weights) if leaf.ndim == 1)
    matrices = sum(leaf.nbytes for leaf in jax.tree.leaves(weights) if leaf.ndim == 2)
    assert set(per_device.values()) == {matrices // 4 + vectors}
    for pages in state.pages:
        assert pages.shape == (2 * PAGES, 16, 2 * 4, 16)
        assert {shard.data.shape for shard in pages.addressable_shards} == {(PAGES, 16, 2, 16)}
    assert {shard.data.shape for shard in state.page_table.addressable_shards} == {(SEQS, 6)}


@pytest.mark.parametrize("mesh", [(2, 1), (1, 4)])
def test_x9_pages_are_updated_in_place(meshed: Any, mesh: tuple[int, int]) -> None:
    manager = meshed("llama3", *mesh)
    heads = max(2 // mesh[1], 1)
    text = manager.compiled_text((8, SEQS))
    pools = {i for i, shape in enumerate(parameter_shapes(text)) if shape == f"f32[{PAGES},16,{2 * heads},16]"}
    assert len(pools) == 2
    assert pools <= aliased_parameters(text)
    assert pool_copies(text, PAGES * 16 * 2 * heads * 16) == []


def test_x9_a_requests_bits_do_not_depend_on_its_company(meshed: Any) -> None:
    manager = meshed("llama3", 1, 4)
    driver, alone = Driver(manager), Driver(manager)
    alone.add(0, prompt(1, 18), pages=[0, 1, 2])
    rows = []
    for _ in range(3):
        step = alone.schedule({0: 6})
        result = manager.execute(step)
        rows.append(np.asarray(result.logits)[0])
        alone.commit(step, result)
    driver.add(1, prompt(1, 18), pages=[7, 3, 4])
    driver.add(0, prompt(2, 5), pages=[9, 8, 10])
    for i in range(3):
        for count in (2, 4):
            step = driver.schedule({1: count, 0: 1})
            result = manager.execute(step)
            driver.commit(step, result)
        at = step.slots.tolist().index(1)
        np.testing.assert_array_equal(np.asarray(result.logits)[at], rows[i])


def test_x9_weights_are_swapped_shard_by_shard(meshed: Any) -> None:
    manager = meshed("llama3", 2, 2)
    old = manager._weights
    _, before = served(manager, [1], [3])[3]
    compiled = compilations()
    # From NumPy, and with the new norm on a device of its own: all is placed like the old.
    doubled = replace(jax.tree.map(np.asarray, old), final_norm=jax.device_put(np.asarray(old.final_norm) * 2))
    manager.update_graphs(doubled)
    assert [leaf.sharding for leaf in jax.tree.leaves(manager._weights)] == [
        leaf.sharding for leaf in jax.tree.leaves(old)
    ]
    _, after = served(manager, [1], [3])[3]
    np.testing.assert_array_equal(after, 2 * before)
    manager.update_graphs(old)
    assert compilations() == compiled
    np.testing.assert_array_equal(served(manager, [1], [3])[3][1], before)


def test_x14_another_sharding_is_named(meshed: Any) -> None:
    manager = meshed("llama3", 2, 2)
    weights = manager._weights
    everywhere = NamedSharding(manager.mesh, PartitionSpec())
    manager._weights = replace(
        weights, final_norm=weights.final_norm, embedding=jax.device_put(weights.embedding, everywhere)
    )
    driver = Driver(manager)
    driver.add(0, prompt(0, 5), pages=[0])
    try:
        with pytest.raises(StepError, match=r"weights\.embedding\.array is sharded as .*, compiled for .*'tp'"):
            driver.run({0: 5})
    finally:
        manager._weights = weights


@pytest.mark.parametrize(
    ("name", "devices", "choices"),
    [
        ("llama3", 3, "1, 2, 4, 8"),
        ("llama3", 16, "1, 2, 4, 8"),
        ("qwen2", 5, "1, 2, 4, 8"),
    ],
)
def test_x9_devices_that_cannot_share_a_model_are_refused_with_the_choices(
    name: str, devices: int, choices: str
) -> None:
    with pytest.raises(ConfigError, match=rf"tensor_parallel: {devices} devices cannot share .*; possible: {choices}$"):
        device_spec(spec_of(name), devices)


def test_x9_heads_that_are_more_than_one_devices_but_cannot_be_copied_evenly_are_refused() -> None:
    spec = replace(spec_of("llama3"), num_heads=12, num_kv_heads=4, intermediate_size=96)
    with pytest.raises(ConfigError, match=r"6 devices cannot share 12 heads, 4 key/value heads .*: 1, 2, 4, 12$"):
        device_spec(spec, 6)


@pytest.mark.parametrize(("data_parallel", "tensor_parallel"), [(9, 1), (1, 9), (3, 3)])
def test_x9_too_few_devices_are_said_with_a_way_to_more(data_parallel: int, tensor_parallel: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"{tensor_parallel} x {data_parallel} take 9 devices, and there are 8 \(cpu\)"
    ):
        make_mesh(data_parallel, tensor_parallel)


def test_x9_a_step_sends_its_batch_explicitly_and_nothing_else(meshed: Any) -> None:
    many, one = meshed("llama3", 2, 2), meshed("llama3", 1, 1)
    before = many.transfers.counts.h2d_transfers
    with jax.transfer_guard_host_to_device("disallow"):
        got = served(many, [0], [3])
    assert many.transfers.counts.h2d_transfers - before == len(CHUNKS)
    assert got[3][0] == served(one, [0], [3])[3][0]


class Telling:
    """A group whose other process is in this one: it notes what that would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, np.ndarray]] = []

    @contextmanager
    def step(self, bucket: Any, packed: np.ndarray) -> Iterator[None]:
        self.told.append((bucket, np.frombuffer(packed.tobytes(), np.int32)))
        yield

    def wait(self, array: jax.Array) -> None:
        pass


def test_x9_what_rows_forbid_and_prefer_reaches_the_other_processes(meshed: Any) -> None:
    leader, follower = meshed("llama3", 2, 2), meshed("llama3", 2, 1)
    group, driver = Telling(), Driver(leader)
    follower.reset_state()
    words = np.zeros((1, 8), np.uint32)
    words[0, 1] = 1 << 9  # token 41 alone
    bias = (np.array([77], np.int32), np.array([1000], np.float32))
    leader._group = group
    try:
        for slot, constraint in (
            (0, Constraint(words, None)),
            (1, None),
            (SEQS, Constraint(None, bias)),
            (SEQS + 1, None),
        ):
            driver.add(slot, prompt(slot, 3), pages=[3 * (slot % SEQS)])
            step = driver.schedule({slot: 3})
            if constraint is not None:
                step.constraints[slot] = constraint
            driver.commit(step, leader.execute(step))
    finally:
        leader._group = None
    results = [follower.execute_packed(bucket, packed) for bucket, packed in group.told]
    told = [
        np.asarray(result.tokens).reshape(2, SEQS)[slot // SEQS, 0]
        for slot, result in zip(driver.ids, results, strict=True)
    ]
    assert told == [ids[-1] for ids in driver.ids.values()]
    assert (told[0], told[2]) == (41, 77)
