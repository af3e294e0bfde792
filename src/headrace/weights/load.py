"""From a model on disk to the decoder's weights: checked against the spec, placed array by array."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from headrace.errors import ModelError
from headrace.layers.linear import DenseWeight
from headrace.layers.rope import inverse_frequencies
from headrace.models.family import Family, GGUFHeader
from headrace.models.registry import family_of_config, family_of_gguf
from headrace.models.sharding import device_spec, partition, tensor_parallel_of
from headrace.models.spec import DecoderSpec
from headrace.models.weights import DecoderWeights, LayerWeights, Part, WeightDecl, declare
from headrace.weights.files import TensorFile
from headrace.weights.gguf import GGUFFile
from headrace.weights.safetensors import SafetensorsFolder

log = logging.getLogger(__name__)

_IGNORED = ("rotary_emb.inv_freq",)  # buffers of old checkpoints; computed from the config instead


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, opened: its spec, its tensors and what its family calls them."""

    path: Path
    spec: DecoderSpec
    family: Family
    file: TensorFile

    @property
    def is_gguf(self) -> bool:
        """GGUF files have their own tensor names, norm convention and, for some families, row order."""
        return isinstance(self.file, GGUFFile)

    def name_of(self, part: Part, layer: int | None) -> str:
        """The file's name of a part of a weight."""
        names = self.family.gguf_names if self.is_gguf else self.family.hf_names
        return names[part.role].format(layer=layer)


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a `.gguf` file or a Hugging Face folder.

    Raises:
        ModelError: not readable, unknown architecture, or a description that the decoder cannot follow.
    """
    return _open_gguf(path) if path.is_file() else _open_folder(path)


def _open_folder(folder: Path) -> Checkpoint:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise ModelError(f"{folder}: no readable config.json ({error.strerror})") from None
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'}: not valid JSON ({error})") from None
    with _understanding(folder / "config.json"):
        family = family_of_config(config)
        spec = family.from_config(config)
    return Checkpoint(folder, spec, family, SafetensorsFolder.open(folder))


@contextmanager
def _understanding(path: Path) -> Iterator[None]:
    """Turns whatever a description of the wrong form leads to into one ModelError that names its file."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: describes no model that can be understood ({error})") from error


def _open_gguf(path: Path) -> Checkpoint:
    file = GGUFFile.open(path)
    arch = file.metadata.get("general.architecture", "")
    with _understanding(path):
        family = family_of_gguf(arch)
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{path}: the tensor token_embd.weight is missing")
    factors = None
    if "rope_freqs.weight" in file.tensors:
        factors = tuple(float(f) for f in file.read("rope_freqs.weight"))
    vocab_size = file.tensors["token_embd.weight"].shape[0]
    header = GGUFHeader(arch, file.metadata, frozenset(file.tensors), vocab_size, factors)
    with _understanding(path):
        spec = family.from_gguf(header)
    return Checkpoint(path, spec, family, file)


def load_weights(
    checkpoint: Checkpoint, dtype: jnp.dtype, mesh: Mesh | None = None, *, progress: bool = False
) -> DecoderWeights:
    """Reads every declared weight; matrices in `dtype`, vectors in float32.

    At most one array exists twice at a time, and on the CPU none does: JAX takes over the filled buffer. With a mesh
    each device gets its own shard of it and nothing else.

    Raises:
        ConfigError: the devices of the mesh cannot share the model evenly.
        ModelError: tensors are missing or have another shape than the spec says; the first few are named.
    """
    shards = tensor_parallel_of(mesh)
    vocab_shards = device_spec(checkpoint.spec, shards).vocab_shards
    declarations = list(declare(checkpoint.spec, shards))
    _check_tensors(checkpoint, declarations)
    arrays: dict[tuple[str, int | None], jax.Array] = {}
    bar = tqdm(declarations, desc="loading weights", unit="array", disable=None if progress else True, leave=False)
    for declaration in bar:
        buffer = _aligned_empty(declaration.shape, jnp.dtype(dtype if declaration.is_matrix else jnp.float32))
        for part in declaration.parts:
            _fill(checkpoint, declaration, part, buffer)
        placed = _place(buffer, mesh, partition(declaration.axes, vocab_shards))
        arrays[declaration.field, declaration.layer] = placed
    inv_freqs = tuple(_place(inverse_frequencies(r)[0], mesh, PartitionSpec()) for r in checkpoint.spec.ropes)
    return _assemble(checkpoint.spec, arrays, inv_freqs)


def _place(array: np.ndarray, mesh: Mesh | None, spec: PartitionSpec) -> jax.Array:
    placed: jax.Array
    if mesh is None:
        placed = jax.device_put(array)
    else:
        sharding = NamedSharding(mesh, spec)
        placed = jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
    return placed


def _check_tensors(checkpoint: Checkpoint, declarations: Iterable[WeightDecl]) -> None:
    wanted = {checkpoint.name_of(part, d.layer): part.shape for d in declarations for part in d.parts}
    tensors = checkpoint.file.tensors
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    problems += [
        f"{name} has shape {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ModelError(f"{checkpoint.path}: {'; '.join(problems[:3])}{more}")
    read_for_spec = {"rope_freqs.weight"}
    unused = [n for n in tensors if n not in wanted and n not in read_for_spec and not n.endswith(_IGNORED)]
    if unused:
        log.warning("%s: %d tensors are not used: %s", checkpoint.path, len(unused), ", ".join(sorted(unused)))


def _fill(checkpoint: Checkpoint, declaration: WeightDecl, part: Part, buffer: np.ndarray) -> None:
    """Reads one tensor of the file into its place in the weight's buffer."""
    name = checkpoint.name_of(part, declaration.layer)
    target = buffer.reshape(part.view)[:, part.start : part.start + part.count] if part.view else buffer
    permuted = checkpoint.is_gguf and checkpoint.family.gguf_permuted_qk and part.role[0] in "qk" and part.view
    if target.flags.c_contiguous and not permuted:
        checkpoint.file.read_into(name, target)
    else:
        rows = np.empty(part.shape, buffer.dtype)
        checkpoint.file.read_into(name, rows)
        if permuted:
            rows = _half_rotation_order(rows, checkpoint.spec.head_dim)
        rows = rows.reshape(target.shape[0] // part.copies, *target.shape[1:])
        target[...] = rows.repeat(part.copies, axis=0) if part.copies > 1 else rows
    if not checkpoint.is_gguf and part.role.endswith("norm") and checkpoint.family.hf_norm_offset:
        buffer += np.float32(checkpoint.family.hf_norm_offset)


def _half_rotation_order(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of q or k from GGUF's interleaved pairs (2i, 2i + 1) to halves (i, i + head_dim / 2), head by head."""
    tail = rows.shape[1:]
    pairs = rows.reshape(-1, head_dim // 2, 2, *tail)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _aligned_empty(shape: tuple[int, ...], dtype: jnp.dtype, alignment: int = 64) -> np.ndarray:
    """An uninitialised array at an address that XLA:CPU can take over without a copy."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + alignment, np.uint8)
    offset = -raw.ctypes.data % alignment
    return raw[offset : offset + size].view(dtype).reshape(shape)


def _assemble(
    spec: DecoderSpec, arrays: dict[tuple[str, int | None], jax.Array], inv_freqs: tuple[jax.Array, ...]
) -> DecoderWeights:
    def leaf(field: str, layer: int | None) -> Any:
        array = arrays.get((field, layer))
        if array is None:
            return None
        return DenseWeight(array) if array.ndim == 2 else array

    fields = LayerWeights.__dataclass_fields__
    layers = tuple(LayerWeights(**{f: leaf(f, i) for f in fields}) for i in range(spec.num_layers))
    return DecoderWeights(leaf("embedding", None), layers, leaf("final_norm", None), leaf("head", None), inv_freqs)
