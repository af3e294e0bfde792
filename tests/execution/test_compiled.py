"""The cache of compiled steps, with stand-ins for executables; and what the real ones do with the pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from execution.hlo import aliased_parameters, parameter_shapes, pool_copies
from execution.steps import GEOMETRY, Driver
from headrace.errors import ConfigError, StepError
from headrace.execution.buckets import Bucket
from headrace.execution.compiled import CompiledSteps, compilations
from tiny import tiny_manager


@dataclass
class Compiler:
    """Stands in for XLA: what it was asked to compile, and what was tried out."""

    compiled: list[Bucket] = field(default_factory=list)
    tried: list[Bucket] = field(default_factory=list)

    def warm_up(self, steps: CompiledSteps, *buckets: Bucket) -> None:
        def lower(bucket: Bucket) -> Any:
            return _Lowered(bucket, self)

        def try_out(bucket: Bucket, executable: Any) -> None:
            assert executable() == bucket
            self.tried.append(bucket)

        steps.warm_up(buckets, lower, try_out, threads=1, progress=False)


@dataclass
class _Lowered:
    bucket: Bucket
    compiler: Compiler

    def compile(self) -> Any:
        self.compiler.compiled.append(self.bucket)
        return lambda: self.bucket


def test_the_largest_is_compiled_first_and_each_is_tried_out() -> None:
    steps, compiler = CompiledSteps(4), Compiler()
    compiler.warm_up(steps, (8, 2), (64, 8), (8, 8))
    assert compiler.compiled == [(64, 8), (8, 8), (8, 2)]
    assert sorted(compiler.tried) == steps.buckets == [(8, 2), (8, 8), (64, 8)]


def test_what_is_compiled_already_is_not_compiled_again() -> None:
    steps, compiler = CompiledSteps(4), Compiler()
    compiler.warm_up(steps, (8, 2), (64, 8))
    compiler.warm_up(steps, (8, 2), (64, 8), (8, 8))
    assert compiler.compiled == [(64, 8), (8, 2), (8, 8)]


def test_the_smallest_that_holds_the_batch_is_chosen() -> None:
    steps = CompiledSteps(4)
    Compiler().warm_up(steps, (8, 2), (8, 8), (64, 8))
    chosen = [
        (tokens, rows, steps.get(tokens, rows)[1]()) for tokens, rows in [(1, 1), (2, 2), (3, 3), (9, 1), (64, 8)]
    ]
    assert chosen == [(1, 1, (8, 2)), (2, 2, (8, 2)), (3, 3, (8, 8)), (9, 1, (64, 8)), (64, 8, (64, 8))]


def test_more_than_the_capacity_is_refused_before_anything_is_compiled() -> None:
    steps, compiler = CompiledSteps(2), Compiler()
    with pytest.raises(ConfigError, match="max_compiled_variants: 3 steps are to be compiled but the cache holds 2"):
        compiler.warm_up(steps, (8, 2), (8, 8), (64, 8))
    assert compiler.compiled == []
    assert len(steps) == 0


def test_warming_up_another_set_evicts_none_of_it() -> None:
    # (8, 2) was used least recently, and is asked for again: the one to go is (64, 8).
    steps, compiler = CompiledSteps(2), Compiler()
    compiler.warm_up(steps, (8, 2), (64, 8))
    steps.get(64, 8)
    compiler.warm_up(steps, (8, 2), (32, 8))
    assert steps.buckets == [(8, 2), (32, 8)]


def test_x3_the_least_recently_used_leaves_first_and_is_counted() -> None:
    steps = CompiledSteps(3)
    for bucket in [(8, 1), (16, 1), (32, 1)]:
        steps.put(bucket, lambda: None)
    steps.get(8, 1)
    steps.put((64, 1), lambda: None)
    assert steps.buckets == [(8, 1), (32, 1), (64, 1)]
    steps.put((128, 1), lambda: None)
    assert steps.buckets == [(8, 1), (64, 1), (128, 1)]
    assert (steps.stats.hits, steps.stats.misses, steps.stats.evictions) == (1, 0, 2)


def test_a_miss_is_counted_and_names_the_pair_and_the_choices() -> None:
    steps = CompiledSteps(3)
    steps.put((8, 2), lambda: None)
    steps.put((64, 2), lambda: None)
    for tokens, rows in [(65, 1), (1, 3)]:
        with pytest.raises(StepError, match=rf"{tokens} tokens of {rows} requests; .*: \(8, 2\), \(64, 2\)$"):
            steps.get(tokens, rows)
    assert steps.stats.misses == 2
    steps.clear()
    with pytest.raises(StepError, match=r"none$"):
        steps.get(1, 1)


def test_compilations_counts_each_new_program_once() -> None:
    before = compilations()
    jax.jit(lambda x: x * 3 + 1).lower(jax.ShapeDtypeStruct((5,), jnp.float32)).compile()
    assert compilations() == before + 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_step_holds_a_copy_of_the_pages(dtype: str) -> None:
    manager = tiny_manager(**{**GEOMETRY, "dtype": dtype})
    assert manager.buckets == [(8, 2), (8, 4), (32, 4)]
    elements = manager._state.pages[0].size
    for bucket in manager.buckets:
        assert pool_copies(manager.compiled_text(bucket), elements) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_page_array_takes_the_place_of_the_one_before(dtype: str) -> None:
    manager = tiny_manager(**{**GEOMETRY, "dtype": dtype})
    shape = f"[{','.join(map(str, manager._state.pages[0].shape))}]"
    for bucket in manager.buckets:
        text = manager.compiled_text(bucket)
        pools = {i for i, parameter in enumerate(parameter_shapes(text)) if parameter.endswith(shape)}
        assert len(pools) == manager.spec.num_layers
        assert pools <= aliased_parameters(text)


def test_a_step_leaves_the_pages_where_they_are_in_memory() -> None:
    manager = tiny_manager(**GEOMETRY)
    driver = Driver(manager)
    driver.add(0, range(5, 30))

    def places() -> set[int]:
        pools = [array for array in jax.live_arrays() if array.shape == manager._state.pages[0].shape]
        return {array.unsafe_buffer_pointer() for array in pools if len(array.sharding.device_set) == 1}

    before = places()
    assert len(before) >= manager.spec.num_layers
    driver.generate(0, 3)
    assert places() == before


@pytest.mark.parametrize("case", ["kept input", "cast", "transposed"])
def test_the_search_finds_copies(case: str) -> None:
    def step(pages: jax.Array, index: jax.Array) -> jax.Array:
        pages = pages.at[index].set(1.0, mode="drop", unique_indices=True)
        if case == "cast":
            return pages.astype(jnp.bfloat16)
        return pages.T if case == "transposed" else pages

    shapes = jax.ShapeDtypeStruct((13, 16, 4), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.int32)
    donated = jax.jit(step, donate_argnums=() if case == "kept input" else 0)
    text = str(donated.lower(*shapes).compile().as_text())
    assert pool_copies(text, 13 * 16 * 4)


def test_the_search_finds_nothing_in_an_update_in_place() -> None:
    step = jax.jit(lambda pages, i: pages.at[i].set(1.0, mode="drop", unique_indices=True), donate_argnums=0)
    shapes = jax.ShapeDtypeStruct((13, 16, 4), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.int32)
    text = str(step.lower(*shapes).compile().as_text())
    assert pool_copies(text, 13 * 16 * 4) == []
    assert aliased_parameters(text) == {0}
