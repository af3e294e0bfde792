"""Rotary position embedding (Su et al., arXiv:2104.09864) and the ways models stretch it to longer contexts."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from headrace.models.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec) -> tuple[np.ndarray, float]:
    """Angular frequencies [head_dim / 2] float32 (radians per position) and the factor on cos and sin.

    Follows the definitions that transformers gives for `rope_type` default, linear, dynamic (within the original
    length), llama3 and yarn (Peng et al., arXiv:2309.00071).
    """
    half = np.arange(0, rope.head_dim, 2, dtype=np.float32) / np.float32(rope.head_dim)
    freq: np.ndarray = np.float32(1.0) / np.power(np.float32(rope.theta), half, dtype=np.float32)
    attention_factor = 1.0
    if rope.kind == "linear":
        freq = freq / np.float32(rope.factor)
    elif rope.kind == "llama3":
        freq = _llama3(freq, rope)
    elif rope.kind == "yarn":
        freq, attention_factor = _yarn(freq, rope)
    if rope.freq_factors is not None:
        freq = freq / np.asarray(rope.freq_factors, np.float32)
    return np.asarray(freq, np.float32), attention_factor


def _llama3(freq: np.ndarray, rope: RopeSpec) -> np.ndarray:
    """Long wavelengths are divided by the factor, short ones kept, those between are blended."""
    wavelength = 2 * math.pi / freq
    smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    smooth = np.clip(smooth, 0.0, 1.0)
    blended: np.ndarray = (1 - smooth) * freq / rope.factor + smooth * freq
    return blended


def _yarn(freq: np.ndarray, rope: RopeSpec) -> tuple[np.ndarray, float]:
    """Blend of interpolated and original frequencies by how often a dimension turns over the original length."""

    def dimension_of(rotations: float) -> float:
        turns = rope.original_max_position / (rotations * 2 * math.pi)
        return rope.head_dim * math.log(turns) / (2 * math.log(rope.theta))

    def mscale(scale: float, m: float) -> float:
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.head_dim - 1)
    ramp = (np.arange(rope.head_dim // 2, dtype=np.float32) - low) / max(high - low, 0.001)
    keep = 1 - np.clip(ramp, 0, 1)
    blended = freq / np.float32(rope.factor) * (1 - keep) + freq * keep
    if rope.attention_factor is not None:
        return blended, rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return blended, mscale(rope.factor, rope.mscale) / mscale(rope.factor, rope.mscale_all_dim)
    return blended, mscale(rope.factor, 1.0)


def rope_cos_sin(
    rope: RopeSpec, inv_freq: jax.Array, positions: jax.Array, prompt_lens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """cos and sin [tokens, head_dim / 2] float32 of positions [tokens] int32.

    The dynamic kind depends on a length. Here it is max(prompt length, position + 1), per token: what transformers'
    `generate` computes for one sequence, and a function of the request alone, so that neither chunking nor
    recomputation after a preemption can change it. prompt_lens [tokens] int32 is read by that kind only.
    """
    _, attention_factor = inverse_frequencies(rope)
    angles = positions.astype(jnp.float32)[:, None]
    if rope.kind == "dynamic":
        angles = angles * _dynamic(rope, inv_freq, jnp.maximum(prompt_lens, positions + 1))
    else:
        angles = angles * inv_freq
    return jnp.cos(angles) * attention_factor, jnp.sin(angles) * attention_factor


def _dynamic(rope: RopeSpec, inv_freq: jax.Array, lengths: jax.Array) -> jax.Array:
    """Frequencies [tokens, head_dim / 2] of NTK scaling: the base grows once a length passes the original one."""
    dim, original = rope.head_dim, float(rope.original_max_position)
    stretch = rope.factor * lengths.astype(jnp.float32) / original - (rope.factor - 1)
    base = rope.theta * jnp.power(stretch, dim / (dim - 2))
    half = jnp.arange(0, dim, 2, dtype=jnp.float32) / dim
    stretched = 1.0 / jnp.power(base[:, None], half[None, :])
    return jnp.where((lengths > rope.original_max_position)[:, None], stretched, inv_freq[None, :])


def apply_rope(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates x [tokens, heads, head_dim] float32; dimension i is paired with i + head_dim / 2."""
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
