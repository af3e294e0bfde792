"""How a decoder is divided over devices: a mesh of data parallel ranks, each shared by tensor parallel devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from headrace.errors import ConfigError
from headrace.layers.parallel import TP
from headrace.models.spec import DecoderSpec
from headrace.models.weights import Axis

DP = "dp"


def make_mesh(data_parallel: int, tensor_parallel: int) -> Mesh | None:
    """A mesh (dp, tp) of the first devices there are; None for a single device, which needs none.

    The devices of a rank are neighbours, so that they lie in one process as far as possible.

    Raises:
        ConfigError: there are too few devices, or several processes and a device that would have nothing to do.
    """
    size, devices = data_parallel * tensor_parallel, jax.devices()
    product = f"tensor_parallel x data_parallel: {tensor_parallel} x {data_parallel}"
    if size > len(devices):
        more = ""
        if devices[0].platform == "cpu" and jax.process_count() == 1:
            more = f"; XLA_FLAGS=--xla_force_host_platform_device_count={size} makes as many of one CPU"
        raise ConfigError(f"{product} take {size} devices, and there are {len(devices)} ({devices[0].platform}){more}")
    if jax.process_count() > 1 and size < len(devices):
        raise ConfigError(f"{product} take {size} of the {len(devices)} devices of all processes; they must take all")
    return None if size == 1 else Mesh(np.array(devices[:size]).reshape(data_parallel, tensor_parallel), (DP, TP))


def tensor_parallel_of(mesh: Mesh | None) -> int:
    """Over how many devices one copy of the model is divided."""
    return 1 if mesh is None else mesh.shape[TP]


def data_parallel_of(mesh: Mesh | None) -> int:
    """How many copies of the model there are."""
    return 1 if mesh is None else mesh.shape[DP]


def device_spec(spec: DecoderSpec, tensor_parallel: int) -> DecoderSpec:
    """What one of `tensor_parallel` devices computes: its share of the heads, of the MLP and of the vocabulary.

    Where there are more devices than key/value heads, each head is on several. A vocabulary that cannot be divided
    evenly is on all.

    Raises:
        ConfigError: the heads or the MLP cannot be divided so; names the numbers that would do.
    """
    if tensor_parallel == 1:
        return spec
    if not _divides(spec, tensor_parallel):
        choices = [str(n) for n in range(1, spec.num_heads + 1) if _divides(spec, n)]
        raise ConfigError(
            f"tensor_parallel: {tensor_parallel} devices cannot share {spec.num_heads} heads, {spec.num_kv_heads} "
            f"key/value heads and an MLP of {spec.intermediate_size} evenly; possible: {', '.join(choices)}"
        )
    vocab_shards = 1 if spec.vocab_size % tensor_parallel else tensor_parallel
    return replace(
        spec,
        num_heads=spec.num_heads // tensor_parallel,
        num_kv_heads=max(spec.num_kv_heads // tensor_parallel, 1),
        intermediate_size=spec.intermediate_size // tensor_parallel,
        vocab_size=spec.vocab_size // vocab_shards,
        shards=tensor_parallel,
        vocab_shards=vocab_shards,
    )


def _divides(spec: DecoderSpec, devices: int) -> bool:
    kv = spec.num_kv_heads
    heads = spec.num_heads % devices == 0 and (kv % devices == 0 or devices % kv == 0)
    return heads and spec.intermediate_size % devices == 0


def partition(axes: Sequence[Axis], vocab_shards: int) -> PartitionSpec:
    """Which of a weight's logical axes are divided over the tensor parallel devices."""
    divided = {"heads", "mlp"} | ({"vocab"} if vocab_shards > 1 else set())
    return PartitionSpec(*(TP if axis in divided else None for axis in axes))
