"""X14: what does not fit a compiled step is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import golden
from execution.steps import Driver
from headrace.errors import StepError
from headrace.execution.manager import ExecutionManager
from headrace.execution.retrace import differences
from tiny import SMALL, tiny_manager, tiny_weights

TREE = {"a": jnp.zeros((2, 3)), "b": (jnp.zeros(4, jnp.int32), jnp.zeros(5))}


def other_sharding(array: jax.Array) -> Any:
    """The array's form, placed by a mesh of one device instead of on the device."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    return jax.device_put(array, spec)


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (TREE, []),
        ({**TREE, "a": np.zeros((2, 3), np.float32)}, []),
        ({**TREE, "a": jnp.zeros((3, 2))}, ["['a'] is float32[3, 2], compiled for float32[2, 3]"]),
        ({**TREE, "a": jnp.zeros((2, 3), jnp.bfloat16)}, ["['a'] is bfloat16[2, 3], compiled for float32[2, 3]"]),
        ({**TREE, "a": None}, ["['a'] is missing"]),
        ({**TREE, "c": jnp.zeros(1)}, ["['c'] is not in the model"]),
        ({**TREE, "a": 2.0}, ["['a'] is a float, not an array, compiled for float32[2, 3]"]),
        (
            {"a": jnp.zeros((2, 4)), "b": (TREE["b"][0], jnp.zeros(6))},
            ["['a'] is float32[2, 4], compiled for float32[2, 3]", "['b'][1] is float32[6], compiled for float32[5]"],
        ),
    ],
)
def test_x14_each_kind_of_difference(given: Any, lines: list[str]) -> None:
    assert list(differences(TREE, given)) == lines


def test_weak_types_and_shardings_differ() -> None:
    weak = jnp.asarray(1.0)
    assert weak.weak_type
    assert list(differences(jnp.zeros(()), weak)) == [" is weak float32[], compiled for float32[]"]
    [line] = differences(TREE, {**TREE, "a": other_sharding(TREE["a"])})
    assert line.startswith("['a'] is sharded as NamedSharding")


@pytest.fixture
def manager() -> ExecutionManager:
    return tiny_manager("llama2", weights=tiny_weights("llama2", "float32"), **SMALL, debug=True)


def test_x14_debug_mode_refuses_a_step_and_names_the_leaf(manager: ExecutionManager) -> None:
    data = golden.load("llama2")
    driver = Driver(manager)
    driver.add(0, data.prompts[0])
    assert driver.generate(0, 3) == data.continuations[0][:3]
    good = manager._weights
    manager._weights = replace(good, final_norm=good.final_norm.astype(jnp.bfloat16))
    with pytest.raises(StepError, match=r"weights\.final_norm is bfloat16\[64\], compiled for float32\[64\]"):
        driver.generate(0, 1)
    manager._weights = good
    assert driver.generate(0, 3) == data.continuations[0][3:6], "the refusal left the state as it was"
