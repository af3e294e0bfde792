"""What a decoder is made of: the description that one decoder function and the weight loader are driven by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headrace.errors import ModelError

Activation = Literal["silu", "gelu_tanh"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding of one kind of layer.

    Lengths are in tokens. `low_freq_factor` and `high_freq_factor` belong to llama3; `beta_*`, `mscale*`,
    `attention_factor` and `truncate` to yarn. `freq_factors` divide the frequencies one by one, which is how GGUF
    files store the llama3 scaling.
    """

    theta: float
    head_dim: int
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    freq_factors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class LayerSpec:
    """What differs from layer to layer.

    Attributes:
        window: a query sees the keys at distance < window; None sees all.
        rope: index into `DecoderSpec.ropes`.
    """

    window: int | None = None
    rope: int = 0


@dataclass(frozen=True)
class DecoderSpec:
    """A decoder-only transformer. Sizes are counts of elements; see the fields' own comments for the rest."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int  # longest context the model was made for, in tokens
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    attention_scale: float  # multiplies q·k
    activation: Activation = "silu"
    tied_head: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False  # RMS norm over head_dim on q and k, before rope
    post_norms: bool = False  # RMS norms on the outputs of attention and MLP, before the residual sum
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
        for name in (*sizes, "max_position"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ModelError(f"{name} must be a positive integer, not {value!r}")
        if not self.layers:
            raise ModelError("the number of layers must be positive")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} heads cannot share {self.num_kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even for a rotation, not {self.head_dim}")
        for name in ("norm_eps", "attention_scale", "embedding_scale"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ModelError(f"{name} must be a positive number, not {value!r}")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def queries_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    def rope_length(self, prompt_len: int) -> int:
        """The length that a prompt's rotations depend on, besides the positions: 0 unless a kind of layer has dynamic
        scaling, which begins where the prompt is longer than the original context."""
        return max((max(prompt_len, r.original_max_position) for r in self.ropes if r.kind == "dynamic"), default=0)

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of keys and values that one token occupies over all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * itemsize
