"""The library of native kernels: found, loaded and made known to JAX, once for a process."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax

from headrace.errors import ConfigError

log = logging.getLogger(__name__)

VARIABLE = "HEADRACE_NATIVE_ISA"
LIBRARY = Path(__file__).with_name("_native.so")
_KNOWN = ("scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon")


@dataclass(frozen=True)
class _Library:
    """The loaded library: its handle, the instruction set in use, a digest of both; or why there is none."""

    handle: ctypes.CDLL | None = None
    isa: str = ""
    digest: str = ""
    reason: str = ""


def available() -> bool:
    """Whether the native kernels are there; the FFI targets are then registered with JAX.

    Raises:
        ConfigError: HEADRACE_NATIVE_ISA asks for what there is not.
    """
    return _library().handle is not None


def reason() -> str:
    """Why the native kernels are absent, in one line; empty where they are there."""
    return _library().reason


def isa() -> str:
    """The one in use: "amx", "avx512_bf16", "avx512", "avx2", "neon" or "scalar"; empty where there are no kernels."""
    return _library().isa


def digest() -> str:
    """Names the library and its instruction set, for compiled code that calls it; empty where there are no kernels."""
    return _library().digest


def handle() -> ctypes.CDLL:
    """The loaded library, for functions beside the FFI targets. Only where it is `available`."""
    found = _library().handle
    assert found is not None, reason()
    return found


@cache
def _library() -> _Library:
    asked = os.environ.get(VARIABLE, "").strip().lower()
    if asked and asked != "off" and asked not in _KNOWN:
        raise ConfigError(f"{VARIABLE}: {asked!r} is not one of {', '.join(_KNOWN)}, off")
    if asked == "off":
        return _Library(reason=f"native CPU kernels are switched off by {VARIABLE}=off; plain JAX is used")
    absent = _Library(
        reason="native CPU kernels were not built (no C++ compiler at install time); plain JAX is used, several times "
        "slower. Install a compiler (on Debian: apt install g++), then headrace anew: pip install --force-reinstall "
        "--no-cache-dir"
    )
    if not LIBRARY.exists():
        return _refuse(asked, absent)
    try:
        library = _open(asked)
    except (OSError, AttributeError, jax.errors.JaxRuntimeError) as error:  # another system's, or another JAX's
        cause = " ".join(str(error).split())[:300]
        return _refuse(asked, _Library(reason=f"native CPU kernels cannot be loaded ({cause}); plain JAX is used"))
    return library


def _refuse(asked: str, absent: _Library) -> _Library:
    """An instruction set that was asked for is not replaced by plain JAX without a word."""
    if asked:
        raise ConfigError(f"{VARIABLE}: {asked!r} is not there: {absent.reason}")
    return absent


def _open(asked: str) -> _Library:
    library = ctypes.CDLL(str(LIBRARY))
    for name in ("headrace_isas", "headrace_isa", "headrace_warning"):
        getattr(library, name).restype = ctypes.c_char_p
    if not library.headrace_choose(asked.encode() or None):
        supported = library.headrace_isas().decode().split(",")
        raise ConfigError(f"{VARIABLE}: {asked!r} is not supported here; this machine has {', '.join(supported)}, off")
    if warning := library.headrace_warning().decode():
        log.warning("native kernels: %s", warning)
    chosen = library.headrace_isa().decode()
    if chosen == "scalar" and not asked:  # the reference, which tests ask for; slower than what XLA generates
        return _Library(
            reason="native CPU kernels need AVX2, or Arm's dot products, which are not there; plain JAX is used"
        )
    _register(library)
    content = hashlib.sha256(LIBRARY.read_bytes() + chosen.encode()).hexdigest()
    return _Library(handle=library, isa=chosen, digest=content)


def _register(library: ctypes.CDLL) -> None:
    """Tells JAX of every handler that the library lists."""
    library.headrace_target.restype = ctypes.c_void_p
    name, index = ctypes.c_char_p(), 0
    while handler := library.headrace_target(index, ctypes.byref(name)):
        assert name.value is not None
        jax.ffi.register_ffi_target(name.value.decode(), jax.ffi.pycapsule(handler), platform="cpu")
        index += 1
