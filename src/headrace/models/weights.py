"""The weights of a decoder as one pytree, each array declared once: shape, axes and origin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import jax

from headrace.layers.linear import EmbeddingLeaf, WeightLeaf
from headrace.models.spec import DecoderSpec

Axis = Literal["vocab", "hidden", "heads", "mlp", "head_dim"] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Matrices are [out, in]; vectors are float32.

    Rows of `qkv` are grouped by key/value head, [kv_heads, queries_per_kv + 2, head_dim]: the query heads of the
    group, its key head, its value head. One shard of kv heads is thus one contiguous block; where there are more
    shards than kv heads, each has a copy of its head. `gate_up` is the gate matrix followed by the up matrix, of each
    shard in turn: [shards, 2, mlp / shards, hidden].
    """

    attn_norm: jax.Array
    qkv: WeightLeaf
    qkv_bias: jax.Array | None
    q_norm: jax.Array | None
    k_norm: jax.Array | None
    o: WeightLeaf
    o_bias: jax.Array | None
    post_attn_norm: jax.Array | None
    mlp_norm: jax.Array
    gate_up: WeightLeaf
    down: WeightLeaf
    post_mlp_norm: jax.Array | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecoderWeights:
    """All weights: embedding [vocab, hidden], layers, final norm, output head (None when it is the embedding), and
    the rotary frequencies [head_dim / 2] of each `RopeSpec`."""

    embedding: EmbeddingLeaf
    layers: tuple[LayerWeights, ...]
    final_norm: jax.Array
    head: WeightLeaf | None
    inv_freqs: tuple[jax.Array, ...]


@dataclass(frozen=True)
class Part:
    """A tensor of the model file and its place in a weight.

    Attributes:
        role: file-independent name within the layer, such as "q" or "mlp_norm"; a family maps it to the file's name.
        shape: shape in the file.
        view: shape that the whole weight is viewed in to place this part; () places it over all of it.
        start, count: the part fills [:, start : start + count] of that view.
        copies: how often each entry along the view's first axis is there, one after the other.
    """

    role: str
    shape: tuple[int, ...]
    view: tuple[int, ...] = ()
    start: int = 0
    count: int = 0
    copies: int = 1


@dataclass(frozen=True)
class WeightDecl:
    """One array of the pytree: its field, layer (None outside the layers), shape, logical axes and parts."""

    field: str
    layer: int | None
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    parts: tuple[Part, ...]

    @property
    def is_matrix(self) -> bool:
        """Matrices become weight leaves; vectors stay float32 arrays."""
        return len(self.shape) == 2


def declare(spec: DecoderSpec, shards: int = 1) -> Iterator[WeightDecl]:
    """Every array that a decoder of this spec has, in the order of the layers.

    Args:
        spec: of the whole model.
        shards: devices that are to share the heads and the MLP; see `LayerWeights`.
    """
    hidden, vocab = spec.hidden_size, spec.vocab_size
    yield _whole("embedding", None, (vocab, hidden), ("vocab", "hidden"))
    for layer in range(spec.num_layers):
        yield from _declare_layer(spec, layer, shards)
    yield _whole("final_norm", None, (hidden,), ("hidden",))
    if not spec.tied_head:
        yield _whole("head", None, (vocab, hidden), ("vocab", "hidden"))


def _whole(field: str, layer: int | None, shape: tuple[int, ...], axes: tuple[Axis, ...]) -> WeightDecl:
    return WeightDecl(field, layer, shape, axes, (Part(field, shape),))


def _declare_layer(spec: DecoderSpec, layer: int, shards: int) -> Iterator[WeightDecl]:
    hidden, mlp, dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    heads, kv = spec.num_heads, max(spec.num_kv_heads, shards)
    group, copies = heads // kv, kv // spec.num_kv_heads

    def one(field: str, *shape: int, axes: tuple[Axis, ...]) -> WeightDecl:
        return _whole(field, layer, shape, axes)

    def qkv(field: str, tail: tuple[int, ...], axes: tuple[Axis, ...], suffix: str) -> WeightDecl:
        view = (kv, group + 2, dim, *tail)
        parts = (
            Part("q" + suffix, (heads * dim, *tail), view, 0, group),
            Part("k" + suffix, (kv // copies * dim, *tail), view, group, 1, copies),
            Part("v" + suffix, (kv // copies * dim, *tail), view, group + 1, 1, copies),
        )
        return WeightDecl(field, layer, ((heads + 2 * kv) * dim, *tail), axes, parts)

    yield one("attn_norm", hidden, axes=("hidden",))
    yield qkv("qkv", (hidden,), ("heads", "hidden"), "")
    if spec.qkv_bias:
        yield qkv("qkv_bias", (), ("heads",), "_bias")
    if spec.qk_norm:
        yield one("q_norm", dim, axes=("head_dim",))
        yield one("k_norm", dim, axes=("head_dim",))
    yield one("o", hidden, heads * dim, axes=("hidden", "heads"))
    if spec.o_bias:
        yield one("o_bias", hidden, axes=("hidden",))
    if spec.post_norms:
        yield one("post_attn_norm", hidden, axes=("hidden",))
    yield one("mlp_norm", hidden, axes=("hidden",))
    view = (shards, 2, mlp // shards, hidden)
    parts = (Part("gate", (mlp, hidden), view, 0, 1), Part("up", (mlp, hidden), view, 1, 1))
    yield WeightDecl("gate_up", layer, (2 * mlp, hidden), ("mlp", "hidden"), parts)
    yield one("down", hidden, mlp, axes=("hidden", "mlp"))
    if spec.post_norms:
        yield one("post_mlp_norm", hidden, axes=("hidden",))
