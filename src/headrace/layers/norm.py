"""Root-mean-square normalisation."""

from __future__ import annotations

import jax

from headrace.layers.reduce import row_sum


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x [..., n] over its last axis, times weight [n]; float32 in and out (Zhang and Sennrich, arXiv:1910.07467)."""
    mean = row_sum(x * x)[..., None] / x.shape[-1]
    return x * jax.lax.rsqrt(mean + eps) * weight
