"""Bounds that the host and the compiled step share. No JAX here."""

from __future__ import annotations

MAX_LOGIT_BIAS = 1024  # entries of a request's logit_bias; each row of constraints has room for so many
