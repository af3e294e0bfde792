"""Compiled steps on disk: a second start loads them, where JAX's own cache would have them traced and lowered first."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from headrace import native
from headrace.kept import read_kept, write_kept

log = logging.getLogger(__name__)

_TRACED = ("execution", "kernels", "layers", "models", "sampling")


@dataclass(frozen=True)
class SavedStep:
    """One step of a single device: where it is kept, and how it is lowered when it is not there.

    Attributes:
        path: the file, named by everything that the compiled code depends on; see `fingerprint`.
        lower: traces and lowers the step under a name.
    """

    path: Path
    lower: Callable[[str], Any]

    def compile(self) -> Any:
        """The compiled step: loaded, or else compiled and kept. A file that cannot be used is removed."""
        loaded = self._load()
        if loaded is not None:
            return loaded
        # What XLA has itself loaded from JAX's cache does not run once it was saved. JAX's cache goes by the name too,
        # so it has this step only if our file was lost; then the step is compiled once more under another name.
        name = f"fused_step_{self.path.name[:16]}"
        before = _hits.in_thread
        compiled = self.lower(name).compile()
        if _hits.in_thread != before:
            before = _hits.in_thread
            compiled = self.lower(f"{name}_again").compile()
        if _hits.in_thread == before:
            self._save(compiled)
        return compiled

    def _load(self) -> Any | None:
        try:
            data = read_kept(self.path)
        except OSError:
            return None
        except ValueError as error:
            log.warning("%s; the step is compiled anew", error)
            _remove(self.path)
            return None
        try:
            device, code, in_tree, out_tree = pickle.loads(zlib.decompress(data))
            devices = [d for d in jax.devices() if d.id == device]
            return serialize_executable.deserialize_and_load(code, in_tree, out_tree, execution_devices=devices)
        except Exception as error:  # whatever keeps XLA from loading it, compiling is right
            log.warning("%s cannot be loaded (%s); the step is compiled anew", self.path, error)
            _remove(self.path)
            return None

    def _save(self, compiled: Any) -> None:
        shardings = jax.tree.leaves(compiled.input_shardings)
        [device] = {device.id for sharding in shardings for device in sharding.device_set}
        try:
            data = zlib.compress(pickle.dumps((device, *serialize_executable.serialize(compiled))), 1)
            write_kept(self.path, data)
        except (OSError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
            log.warning("a compiled step cannot be kept in %s: %s", self.path.parent, error)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def fingerprint(*static: Any, forms: Any) -> str:
    """A name for compiled code: all that it depends on, hashed.

    Args:
        static: what tracing reads besides its arguments; its repr must tell all of it.
        forms: pytree of `jax.ShapeDtypeStruct`, the arguments.
    """
    leaves = jax.tree_util.tree_leaves_with_path(forms)
    described = [(jax.tree_util.keystr(path), x.shape, str(x.dtype), x.weak_type, x.sharding) for path, x in leaves]
    tree = str(jax.tree.structure(forms))  # with what is static in it
    return hashlib.sha256(repr((_surroundings(), static, described, tree)).encode()).hexdigest()


def _surroundings() -> Any:
    """This code, the libraries, their settings and the devices.

    A saved step calls native kernels by name. Asking for their digest also registers them, before any step is loaded.
    """
    settings = sorted((name, repr(value)) for name, value in jax.config.values.items() if "cache" not in name)
    devices = [(d.platform, d.device_kind, d.id, d.process_index) for d in jax.devices()]
    flags = [os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    # XLA:CPU divides its work by the cores it finds.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    libraries = [native.digest(), *(version(p) for p in ("jax", "jaxlib", "numpy"))]
    return cores, _source_digest(), libraries, settings, flags, devices


@cache
def _source_digest() -> str:
    """Of the packages that a step is traced from."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(path for package in _TRACED for path in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


class _CacheHits:
    """Counts what each thread got from JAX's compilation cache. JAX offers no way to remove a listener, so there is
    one for the process."""

    def __init__(self) -> None:
        self._thread = threading.local()
        jax.monitoring.register_event_listener(self._on_event)

    def _on_event(self, event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            self._thread.count = self.in_thread + 1

    @property
    def in_thread(self) -> int:
        return getattr(self._thread, "count", 0)


_hits = _CacheHits()
