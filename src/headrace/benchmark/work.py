"""What a step has to read and to compute at least, counted from the model's own arrays; and the time that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from headrace import native
from headrace.benchmark.machine import Machine, kind_of_xla
from headrace.execution.manager import ExecutionManager
from headrace.kernels.attention import attention_for, page_bytes
from headrace.kernels.native_attention import NativeAttention
from headrace.layers.fused import FusedWeight
from headrace.layers.int8 import Int8Weight
from headrace.layers.linear import WeightLeaf
from headrace.layers.native import NativeWeight
from headrace.models.spec import DecoderSpec
from headrace.models.weights import DecoderWeights


@dataclass(frozen=True)
class Row:
    """A request in a step: tokens that are in the cache already, and those that the step computes."""

    cached: int
    new: int = 1


@dataclass(frozen=True)
class Work:
    """What cannot be avoided.

    Attributes:
        weight_bytes: of the matrices that are multiplied by.
        page_bytes: of keys and values.
        operations: multiply-adds by kind; see `Machine`.
    """

    weight_bytes: int
    page_bytes: int
    operations: Mapping[str, int]

    def __add__(self, other: Work) -> Work:
        operations = Counter(self.operations)
        operations.update(other.operations)
        return Work(self.weight_bytes + other.weight_bytes, self.page_bytes + other.page_bytes, operations)


@dataclass(frozen=True)
class Limit:
    """The least time for some work.

    Attributes:
        memory_s: its bytes over the bandwidth of all threads.
        arithmetic_s: its multiply-adds over their rates with all threads, kind after kind.
    """

    memory_s: float
    arithmetic_s: float

    @classmethod
    def of(cls, work: Work, machine: Machine) -> Limit:
        """Of this work on this machine."""
        operations = sum(count / machine.operations[kind].all for kind, count in work.operations.items())
        return cls((work.weight_bytes + work.page_bytes) / machine.bandwidth.all, operations)

    @property
    def seconds(self) -> float:
        """The longer of both, as if reading and computing went on at the same time."""
        return max(self.memory_s, self.arithmetic_s)


@dataclass(frozen=True)
class Counted:
    """A model, as steps are counted from it.

    Attributes:
        token_bytes: of a token's keys and values in one layer, as the pages hold them, padding of heads included.
        attention: kind of attention's multiply-adds.
    """

    spec: DecoderSpec
    weights: DecoderWeights
    token_bytes: int
    attention: str

    @classmethod
    def of(cls, manager: ExecutionManager) -> Counted:
        """Of what steps of this manager compute, on one device."""
        o, spec = manager.options, manager.spec
        kernel = attention_for(o.dtype, jax.default_backend(), o.attention, page_size=o.page_size)
        page = page_bytes(kernel, o.page_size, spec.num_kv_heads, spec.head_dim)
        attention = kind_of_xla(jnp.dtype(jnp.float32))
        if isinstance(kernel, NativeAttention):
            # Without an instruction for two products of bfloat16 these are two fma.
            attention = "bfloat16" if o.dtype.itemsize == 2 and native.isa() in ("amx", "avx512_bf16") else "float32"
        return cls(spec, manager.weights, page // o.page_size, attention)

    @property
    def kinds(self) -> set[str]:
        """Kinds of multiply-adds that there are."""
        return set(self.step([Row(0)], 1).operations)

    def step(self, rows: Sequence[Row], samples: int) -> Work:
        """A step's work.

        - Weights: each matrix of the layers is read once, and the head's if any row samples, in the bytes that it has
          in memory. Of the embedding some rows are looked up; these, norms, biases and activations are left out.
        - Products: outputs * inputs of each matrix of the layers for each new token, and of the head for each sample.
        - Pages: in each layer the cached tokens that a row's first new token sees, once, and a write of each new one.
          A token at position p sees the p + 1 keys up to its own, or the last `window` of them.
        - Attention: in each layer 2 * heads * head_dim for each key that each new token sees: its score, and its value.

        Args:
            rows: without padding.
            samples: rows that sample a token.
        """
        tokens = sum(row.new for row in rows)
        matrices = [
            matrix for layer in self.weights.layers for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)
        ]
        work = _product_work(matrices, tokens) + self._attend(rows)
        head = self.weights.embedding if self.weights.head is None else self.weights.head
        return work + _product_work([head], samples) if samples else work

    def _attend(self, rows: Sequence[Row]) -> Work:
        page_tokens = keys = 0
        for window in (layer.window for layer in self.spec.layers):
            page_tokens += sum(min(row.cached, row.cached if window is None else window - 1) + row.new for row in rows)
            keys += sum(_keys(row, window) for row in rows)
        operations = {self.attention: 2 * self.spec.num_heads * self.spec.head_dim * keys}
        return Work(0, page_tokens * self.token_bytes, operations)


def _product_work(matrices: Sequence[WeightLeaf], rows: int) -> Work:
    """Of so many rows with each of the matrices."""
    weight_bytes, operations = 0, Counter[str]()
    for leaf in (part for matrix in matrices for part in _parts(matrix)):
        weight_bytes += sum(array.nbytes for array in jax.tree.leaves(leaf))
        operations[_kind(leaf)] += rows * leaf.shape[0] * leaf.shape[1]
    return Work(weight_bytes, 0, operations)


def _parts(matrix: WeightLeaf) -> Sequence[WeightLeaf]:
    return matrix.parts if isinstance(matrix, FusedWeight) else [matrix]


def _kind(leaf: Any) -> str:
    """Of a matrix's products."""
    if isinstance(leaf, NativeWeight):
        return "int8" if leaf.array.dtype == jnp.uint8 else "float32"
    return kind_of_xla(leaf.product_dtype if isinstance(leaf, Int8Weight) else leaf.dtype)


def _keys(row: Row, window: int | None) -> int:
    """Keys that the new tokens of a row see, added up."""
    most = row.cached + row.new if window is None else window
    growing = max(min(row.new, most - row.cached), 0)  # tokens that see one key more than the one before
    return growing * row.cached + growing * (growing + 1) // 2 + (row.new - growing) * most
