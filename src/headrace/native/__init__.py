"""Kernels for one CPU, compiled from C++ at installation; plain JAX takes their place where they are absent."""

from headrace.native.loader import available, digest, isa, reason

__all__ = ["available", "digest", "isa", "reason"]
