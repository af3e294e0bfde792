"""A step over a mesh: what each device gets of it, and how its rows are divided over the data parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.execution.batch import BatchLayout, HostBatch
from headrace.execution.schedule import ScheduledStep
from headrace.execution.sequences import SequenceTable
from headrace.execution.state import DeviceState
from headrace.execution.step import StepResult
from headrace.layers.parallel import TP
from headrace.models.sharding import DP

_FOR_THE_HOST = ("tokens", "scores", "prompt_scores")

PER_RANK = PartitionSpec(DP)  # each rank has its own, along the first axis; the devices of a rank have the same

StepFunction = Callable[[Any, DeviceState, jax.Array, jax.Array], tuple[DeviceState, StepResult]]


def state_specs() -> DeviceState:
    """How the state lies on a mesh: page tables and slots per rank, pages per rank and head. Page and slot numbers in
    it count from 0 in each rank."""
    specs: dict[str, Any] = {field.name: PER_RANK for field in fields(DeviceState)}
    return DeviceState(**{**specs, "pages": PartitionSpec(DP, None, TP)})


def over_mesh(step: StepFunction, mesh: Mesh, weights: Any) -> StepFunction:
    """A step of one device as one of a whole mesh.

    Each device runs `step` on its own share: its part of the weights, the pages of its rank and heads, and the rows of
    its rank. Devices of different ranks have nothing to tell each other.

    Args:
        step: (weights, state, packed, constraints) -> (state, result), of one device.
        weights: pytree of arrays or forms that says how the weights lie.

    Returns:
        A function of the same arguments, where `packed` and `constraints` are [ranks, size] and the result's arrays
        have the rows of all ranks, one rank after the other. Where several processes share the ranks each has the
        tokens of all, and what is known of them.
    """
    everywhere = jax.process_count() > 1 and mesh.shape[DP] > 1

    def one_device(
        weights: Any, state: DeviceState, packed: jax.Array, constraints: jax.Array
    ) -> tuple[DeviceState, StepResult]:
        state, result = step(weights, state, packed[0], constraints[0])
        if everywhere:
            gathered = {name: jax.lax.all_gather(getattr(result, name), DP, tiled=True) for name in _FOR_THE_HOST}
            result = replace(result, **gathered)
        return state, result

    weight_specs = jax.tree.map(lambda leaf: leaf.sharding.spec, weights)
    result_specs: dict[str, Any] = {
        field.name: PartitionSpec() if everywhere and field.name in _FOR_THE_HOST else PER_RANK
        for field in fields(StepResult)
    }
    return jax.shard_map(
        one_device,
        mesh=mesh,
        in_specs=(weight_specs, state_specs(), PER_RANK, PER_RANK),
        out_specs=(state_specs(), StepResult(**result_specs)),
        check_vma=False,  # the devices of a rank compute the same tokens, which JAX cannot see
    )


def empty_state(make: Callable[[], DeviceState], mesh: Mesh) -> Callable[[], DeviceState]:
    """A function that makes the state of a whole mesh, given one that makes that of one device.

    It is compiled here: a state is also made when one was lost, and that must not compile.
    """
    make_all = jax.jit(jax.shard_map(make, mesh=mesh, in_specs=(), out_specs=state_specs(), check_vma=False))
    return make_all.lower().compile()


def put_per_rank(packed: np.ndarray, mesh: Mesh) -> jax.Array:
    """Each rank's line of packed [ranks, size] on the devices of that rank that belong to this process."""
    return jax.make_array_from_callback(packed.shape, NamedSharding(mesh, PER_RANK), lambda index: packed[index])


class RankedBatch:
    """The packed arrays [ranks, size] of one bucket, one line for each rank; see `HostBatch`."""

    def __init__(self, layout: BatchLayout, num_slots: int, num_ranks: int) -> None:
        self.packed = np.zeros((num_ranks, layout.size), np.int32)
        self._num_slots = num_slots
        self._ranks = [HostBatch(layout, num_slots, line) for line in self.packed]

    def fill(self, step: ScheduledStep, table: SequenceTable) -> None:
        """Writes every field of every rank: the rows whose slots are its own."""
        for rank, batch in enumerate(self._ranks):
            first = rank * self._num_slots
            batch.fill(step.of_slots(first, self._num_slots), table.lines(first, self._num_slots))


def largest_rank(step: ScheduledStep, num_slots: int, num_ranks: int) -> tuple[int, int]:
    """The most tokens and the most logits rows that any rank has in a step; ranks have `num_slots` slots each."""
    if num_ranks == 1:
        return step.total_tokens, step.total_logits
    ranks = step.slots // num_slots
    tokens = np.bincount(ranks, step.num_tokens, num_ranks)
    return int(tokens.max()), int(np.bincount(ranks, step.num_logits, num_ranks).max())


def in_step_order(
    result: np.ndarray, slots: np.ndarray, counts: np.ndarray, num_slots: int, num_ranks: int
) -> np.ndarray:
    """The lines of a step's rows, in their order, from an array of its result, where those of one rank and its padding
    come before those of the next.

    Args:
        result: [ranks * lines of a rank, …].
        slots: [rows] of the step.
        counts: [rows], how many lines each row has.
    """
    if num_ranks == 1:
        return result[: counts.sum()]
    ranks, lines = np.repeat(slots // num_slots, counts), result.reshape(num_ranks, -1, *result.shape[1:])
    rows = np.empty((len(ranks), *result.shape[1:]), result.dtype)
    for rank, count in enumerate(np.bincount(ranks, minlength=num_ranks).tolist()):
        rows[ranks == rank] = lines[rank, :count]
    return rows
