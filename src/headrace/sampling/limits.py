"""Limits of what a request may ask for that the device's arrays are made for. No JAX here."""

from __future__ import annotations

MAX_LOGIT_BIAS = 1024
