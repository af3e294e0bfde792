"""From a model on disk to the decoder's weights: checked against the spec, placed array by array."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from headrace.errors import ConfigError, ModelError
from headrace.layers.block_formats import FORMATS, split_fields
from headrace.layers.blocks import BlockWeight
from headrace.layers.fused import FusedWeight
from headrace.layers.int8 import Int8Weight, quantize_rows
from headrace.layers.linear import DenseWeight, WeightLeaf
from headrace.layers.native import NativeWeight
from headrace.layers.rope import inverse_frequencies
from headrace.models.family import Family, GGUFHeader
from headrace.models.registry import family_of_config, family_of_gguf
from headrace.models.sharding import device_spec, partition, tensor_parallel_of
from headrace.models.spec import DecoderSpec
from headrace.models.weights import DecoderWeights, LayerWeights, Part, WeightDecl, declare
from headrace.weights.aligned import Arena, aligned_empty
from headrace.weights.files import TensorFile
from headrace.weights.gguf import GGUFFile
from headrace.weights.packed import GROUP, pack_parts, pack_quantized, packable, paired
from headrace.weights.safetensors import SafetensorsFolder

log = logging.getLogger(__name__)

_CHUNK_ELEMENTS = 1 << 22  # read as float32 at a time, for conversion to int8

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
    checkpoint: Checkpoint,
    dtype: jnp.dtype,
    weights_dtype: str | None = None,
    mesh: Mesh | None = None,
    *,
    native: bool = False,
    progress: bool = False,
) -> DecoderWeights:
    """Reads every declared weight: matrices as leaves of the form asked for, vectors in float32.

    At most one array for each core exists twice at a time, and on the CPU dense ones do not: JAX takes over the filled
    buffer. With a mesh each device gets its own shard of it and nothing else.

    Args:
        dtype: of dense matrices, and of the operands of products with quantised ones.
        weights_dtype: of the matrices: "float32" or "bfloat16", "int8" with a scale per output, or "gguf" for the
            blocks of the file as they are, where what the file has as plain floats is dense. None takes `dtype`.
        native: pack matrices for the native CPU kernels: all but those in block formats that these do not know, and
            quantised ones where `dtype` is float32.

    Raises:
        ConfigError: "gguf" for a model that is not a GGUF file, or whose blocks the devices of the mesh cannot share;
            or they cannot share the model evenly.
        ModelError: tensors are missing or have another shape than the spec says; the first few are named.
    """
    if weights_dtype == "gguf" and not checkpoint.is_gguf:
        raise ConfigError(
            f"weights_dtype: 'gguf' keeps the blocks of a GGUF file, and {checkpoint.path} is none; "
            "use auto, float32, bfloat16 or int8"
        )
    shards = tensor_parallel_of(mesh)
    vocab_shards = device_spec(checkpoint.spec, shards).vocab_shards
    declarations = list(declare(checkpoint.spec, shards))
    _check_tensors(checkpoint, declarations)
    leaves: dict[tuple[str, int | None], Any] = {}
    arena = Arena() if native else None

    def read(declaration: WeightDecl) -> Any:
        leaf = _read(checkpoint, declaration, dtype, weights_dtype, arena)
        spec = partition(declaration.axes, vocab_shards)
        if isinstance(leaf, BlockWeight) and spec[-1] is not None and leaf.blocks_per_row % shards:
            raise ConfigError(
                f"tensor_parallel: {shards} devices cannot share the {leaf.blocks_per_row} blocks of a row of "
                f"{declaration.field} evenly; give fewer, or another weights_dtype than gguf"
            )
        return _placed(leaf, mesh, spec)

    bar = tqdm(declarations, desc="loading weights", unit="array", disable=None if progress else True, leave=False)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NumPy converts without the GIL
        for declaration, leaf in zip(bar, pool.map(read, declarations), strict=True):
            leaves[declaration.field, declaration.layer] = leaf
    inv_freqs = tuple(_place(inverse_frequencies(r)[0], mesh, PartitionSpec()) for r in checkpoint.spec.ropes)
    return _assemble(checkpoint.spec, leaves, inv_freqs)


def _placed(leaf: Any, mesh: Mesh | None, spec: PartitionSpec) -> Any:
    """A weight of NumPy arrays, each on its devices: the axes that an array has are divided as the matrix's."""
    return jax.tree.map(lambda array: _place(array, mesh, PartitionSpec(*spec[: array.ndim])), leaf)


def _place(array: np.ndarray, mesh: Mesh | None, spec: PartitionSpec) -> jax.Array:
    placed: jax.Array
    if mesh is None:
        placed = jax.device_put(array)
    else:
        sharding = NamedSharding(mesh, spec)
        placed = jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
    return placed


def _read(
    checkpoint: Checkpoint, declaration: WeightDecl, dtype: jnp.dtype, weights_dtype: str | None, arena: Arena | None
) -> Any:
    """A weight in its final form, but of NumPy arrays; packed ones, if there are to be any, lie in the arena."""
    if not declaration.is_matrix:
        return _read_plain(checkpoint, declaration, jnp.dtype(jnp.float32))
    if arena is not None:
        leaf = _read_packed(checkpoint, declaration, dtype, weights_dtype or dtype.name, arena.empty)
        return paired(leaf) if isinstance(leaf, NativeWeight) and declaration.field == "gate_up" else leaf
    return _read_unpacked(checkpoint, declaration, dtype, weights_dtype)


def _read_unpacked(
    checkpoint: Checkpoint, declaration: WeightDecl, dtype: jnp.dtype, weights_dtype: str | None
) -> WeightLeaf:
    if weights_dtype == "int8":
        return _read_int8(checkpoint, declaration, dtype)
    if weights_dtype == "gguf":
        return _read_stored(checkpoint, declaration, dtype)
    return DenseWeight(_read_plain(checkpoint, declaration, jnp.dtype(weights_dtype or dtype)))


def _read_packed(
    checkpoint: Checkpoint,
    declaration: WeightDecl,
    dtype: jnp.dtype,
    weights_dtype: str,
    empty: Callable[[int], np.ndarray],
) -> NativeWeight | WeightLeaf:
    if weights_dtype in ("int8", "gguf") and dtype == jnp.float32:
        # The kernels round the operands of quantised matrices to 8 bits, which is not what float32 asks for.
        return _read_unpacked(checkpoint, declaration, dtype, weights_dtype)
    if weights_dtype == "int8":
        whole = _read_int8(checkpoint, declaration, dtype)
        if declaration.shape[1] % GROUP:
            return whole
        return pack_quantized(np.asarray(whole.array), np.asarray(whole.scale), empty)
    stored = weights_dtype == "gguf"
    dense = dtype if stored else jnp.dtype(weights_dtype)
    forms, readers = [], []
    for part in declaration.parts:
        name = checkpoint.name_of(part, declaration.layer)
        kind = checkpoint.file.tensors[name].dtype
        is_block = stored and kind in FORMATS
        forms.append(kind if is_block else dense.name)
        readers.append(partial(_part_rows, checkpoint, part, name, None if is_block else dense))
    if packable(forms, declaration.parts):
        return pack_parts(forms, declaration.parts, readers, declaration.shape[1], dense, empty)
    if len(forms) > 1 and all(packable([form], [part]) for form, part in zip(forms, declaration.parts, strict=True)):
        alone = [
            _read_packed(checkpoint, _alone(declaration, p), dtype, weights_dtype, empty) for p in declaration.parts
        ]
        return FusedWeight(tuple(alone), tuple(p.count for p in declaration.parts), declaration.parts[0].view[2])
    return _read_stored(checkpoint, declaration, dtype)


def _part_rows(checkpoint: Checkpoint, part: Part, name: str, dense: jnp.dtype | None) -> np.ndarray:
    """Rows of a part in the order of the model, as the file stores them or in a plain dtype."""
    if dense is None:
        assert isinstance(checkpoint.file, GGUFFile)
        rows = checkpoint.file.read_stored(name)
    else:
        rows = np.empty(part.shape, dense)
        checkpoint.file.read_into(name, rows)
    return _half_rotation_order(rows, checkpoint.spec.head_dim) if _is_permuted(checkpoint, part) else rows


def _read_plain(checkpoint: Checkpoint, declaration: WeightDecl, dtype: jnp.dtype) -> Any:
    buffer = aligned_empty(declaration.shape, dtype)
    for part in declaration.parts:
        _fill(checkpoint, declaration, part, buffer)
    return buffer


def _read_int8(checkpoint: Checkpoint, declaration: WeightDecl, dtype: jnp.dtype) -> Int8Weight:
    whole: Any = aligned_empty(declaration.shape, jnp.dtype(jnp.int8))
    scales: Any = aligned_empty(declaration.shape[:1], jnp.dtype(jnp.float32))
    for part in declaration.parts:
        rows, columns = part.shape
        # What fills the weight needs no array of its own.
        array, scale = (np.empty(part.shape, np.int8), np.empty(rows, np.float32)) if part.view else (whole, scales)
        step = max(1, _CHUNK_ELEMENTS // columns)
        for first in range(0, rows, step):
            chunk = np.empty((min(step, rows - first), columns), np.float32)
            checkpoint.file.read_rows_into(checkpoint.name_of(part, declaration.layer), first, chunk)
            array[first : first + step], scale[first : first + step] = quantize_rows(chunk)
        if part.view:
            _put(checkpoint, part, array, whole)
            _put(checkpoint, part, scale, scales)
    return Int8Weight(whole, scales, dtype)


def _read_stored(checkpoint: Checkpoint, declaration: WeightDecl, dtype: jnp.dtype) -> WeightLeaf:
    """Blocks as they are in the file, plain floats in `dtype`. Parts of one form are one weight; others stay apart."""
    names = [checkpoint.name_of(part, declaration.layer) for part in declaration.parts]
    types = [checkpoint.file.tensors[name].dtype for name in names]
    formats = {kind if kind in FORMATS else None for kind in types}
    if len(formats) > 1:
        parts = [_read_stored(checkpoint, _alone(declaration, part), dtype) for part in declaration.parts]
        return FusedWeight(tuple(parts), tuple(part.count for part in declaration.parts), declaration.parts[0].view[2])
    [format_name] = formats
    if format_name is None:
        return DenseWeight(_read_plain(checkpoint, declaration, dtype))
    assert isinstance(checkpoint.file, GGUFFile)
    fields: dict[str, Any] = {}
    for part, name in zip(declaration.parts, names, strict=True):
        for field, rows in split_fields(format_name, checkpoint.file.read_stored(name)).items():
            if field not in fields:
                fields[field] = aligned_empty((declaration.shape[0], rows.shape[1]), rows.dtype)
            _put(checkpoint, part, rows, fields[field])
    return BlockWeight(fields, format_name, dtype)


def _alone(declaration: WeightDecl, part: Part) -> WeightDecl:
    """The declaration of a matrix of this one part."""
    groups, _, size, columns = part.view
    only = replace(part, view=(groups, part.count, size, columns), start=0)
    return replace(declaration, shape=(groups * part.count * size, columns), parts=(only,))


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
    target = _target(part, buffer)
    if target.flags.c_contiguous and part.copies == 1 and not _is_permuted(checkpoint, part):
        checkpoint.file.read_into(name, target)
    else:
        rows = np.empty(part.shape, buffer.dtype)
        checkpoint.file.read_into(name, rows)
        _put(checkpoint, part, rows, buffer)
    if not checkpoint.is_gguf and part.role.endswith("norm") and checkpoint.family.hf_norm_offset:
        buffer += np.float32(checkpoint.family.hf_norm_offset)


def _put(checkpoint: Checkpoint, part: Part, rows: np.ndarray, buffer: np.ndarray) -> None:
    """Copies what belongs to the rows of a part, in the file's order, to its place among the rows of a weight."""
    if _is_permuted(checkpoint, part):
        rows = _half_rotation_order(rows, checkpoint.spec.head_dim)
    target = _target(part, buffer)
    rows = rows.reshape(target.shape[0] // part.copies, *target.shape[1:])
    target[...] = rows.repeat(part.copies, axis=0) if part.copies > 1 else rows


def _target(part: Part, buffer: np.ndarray) -> np.ndarray:
    """The part's place in an array whose first axis is the weight's rows."""
    if not part.view:
        return buffer
    return buffer.reshape(*part.view[:3], *buffer.shape[1:])[:, part.start : part.start + part.count]


def _is_permuted(checkpoint: Checkpoint, part: Part) -> bool:
    return checkpoint.is_gguf and checkpoint.family.gguf_permuted_qk and part.role[0] in "qk" and bool(part.view)


def _half_rotation_order(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of q or k from GGUF's interleaved pairs (2i, 2i + 1) to halves (i, i + head_dim / 2), head by head."""
    tail = rows.shape[1:]
    pairs = rows.reshape(-1, head_dim // 2, 2, *tail)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _assemble(
    spec: DecoderSpec, leaves: dict[tuple[str, int | None], Any], inv_freqs: tuple[jax.Array, ...]
) -> DecoderWeights:
    def layer(index: int) -> LayerWeights:
        fields: Any = {name: leaves.get((name, index)) for name in LayerWeights.__dataclass_fields__}
        return LayerWeights(**fields)

    layers = tuple(map(layer, range(spec.num_layers)))
    return DecoderWeights(
        leaves["embedding", None], layers, leaves["final_norm", None], leaves.get(("head", None)), inv_freqs
    )
