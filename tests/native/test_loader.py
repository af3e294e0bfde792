"""Finding, choosing and refusing the library of native kernels, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.native.loader import LIBRARY, VARIABLE

ROOT = Path(__file__).parents[2]
TELL = """
from headrace import native
print(native.available(), native.isa() or '-', native.digest() or '-', native.reason())
"""

built = pytest.mark.skipif(not LIBRARY.exists(), reason="the native kernels are not built: no C++ compiler")


def run(code: str, isa: str | None = None, path: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {"PYTHONPATH": str(path), "JAX_PLATFORMS": "cpu"} | ({} if isa is None else {VARIABLE: isa})
    # An editable installation's finder would come before the path; the interpreter's own are classes.
    plain = "import sys; sys.meta_path[:] = [finder for finder in sys.meta_path if isinstance(finder, type)]\n"
    return subprocess.run((sys.executable, "-c", plain + code), env=environment, capture_output=True, text=True)


def told(isa: str | None = None, path: Path = ROOT / "src") -> list[str]:
    done = run(TELL, isa, path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split(" ", 3)


@built
def test_an_instruction_set_is_chosen_and_can_be_asked_for() -> None:
    available, best, digest, reason = [*told(), ""][:4]
    assert (available, reason) == ("True", "")
    assert best in ("amx", "avx512_bf16", "avx512", "avx2", "neon", "scalar")
    assert told(best)[1:3] == [best, digest]
    # Compiled steps are kept under the digest: another instruction set must not load them.
    scalar = told("scalar")
    assert scalar[:2] == ["True", "scalar"]
    assert (scalar[2] == digest) == (best == "scalar")


def test_off_and_what_there_is_not() -> None:
    available, isa, digest, reason = told("off")
    assert (available, isa, digest) == ("False", "-", "-")
    assert reason == "native CPU kernels are switched off by HEADRACE_NATIVE_ISA=off; plain JAX is used"
    unknown = run(TELL, "sse2").stderr.splitlines()[-1]
    names = "scalar, avx2, avx512, avx512_bf16, amx, neon, off"
    assert unknown.endswith(f"HEADRACE_NATIVE_ISA: 'sse2' is not one of {names}")


@built
@pytest.mark.parametrize("foreign", ["avx2", "amx", "neon"])
def test_an_instruction_set_that_the_machine_has_not_got(foreign: str) -> None:
    done = run(TELL, foreign)
    if done.returncode == 0:
        pytest.skip(f"this machine has {foreign}")
    last = done.stderr.splitlines()[-1]
    assert f"HEADRACE_NATIVE_ISA: '{foreign}' is not supported here; this machine has " in last
    assert last.endswith("scalar, off")


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_without_a_library_that_can_be_loaded(tmp_path: Path, content: bytes | None) -> None:
    shutil.copytree(
        ROOT / "src/headrace", tmp_path / "headrace", ignore=shutil.ignore_patterns("_native.so", "__pycache__")
    )
    if content is not None:
        (tmp_path / "headrace/native/_native.so").write_bytes(content)
    available, isa, digest, reason = told(path=tmp_path)
    assert (available, isa, digest) == ("False", "-", "-")
    expected = "native CPU kernels were not built (no C++ compiler at install time)"
    assert reason.startswith(expected if content is None else "native CPU kernels cannot be loaded (")
    assert "\n" not in reason
    refused = run(TELL, "scalar", tmp_path).stderr.splitlines()[-1]
    assert "HEADRACE_NATIVE_ISA: 'scalar' is not there: native CPU kernels " in refused


SAVE = """
import pickle, sys, jax, jax.numpy as jnp, numpy as np
from jax.experimental import serialize_executable
from headrace.layers.native import NativeWeight, PANEL, FORMAT_IDS, pack_rows, panel_bytes
matrix = np.arange(PANEL * 8, dtype=np.float32).reshape(PANEL, 8)
data = np.zeros(panel_bytes("float32", 8), np.uint8)
pack_rows("float32", matrix, 8, data)
weight = NativeWeight(jnp.asarray(data.view(np.float32)), (0, 1, FORMAT_IDS["float32"]), (PANEL, 8), matrix.dtype)
step = jax.jit(lambda weight, index: weight.rows(index)).lower(weight, jnp.asarray([3, 1])).compile()
pickle.dump((serialize_executable.serialize(step), np.asarray(weight.array)), open(sys.argv[1], "wb"))
"""

LOAD = """
import pickle, sys, jax, jax.numpy as jnp
from jax.experimental import serialize_executable
from headrace import native
from headrace.layers.native import FORMAT_IDS, NativeWeight
assert native.digest()
saved, data = pickle.load(open(sys.argv[1], "rb"))
step = serialize_executable.deserialize_and_load(*saved, execution_devices=jax.devices())
weight = NativeWeight(jnp.asarray(data), (0, 1, FORMAT_IDS["float32"]), (16, 8), jnp.dtype(jnp.float32))
print(step(weight, jnp.asarray([3, 1])).tolist())
"""


@built
def test_compiled_code_that_calls_kernels_runs_in_another_process(tmp_path: Path) -> None:
    saved = str(tmp_path / "step")
    done = run(f"import sys; sys.argv = ['', {saved!r}]\n{SAVE}")
    assert done.returncode == 0, done.stderr
    done = run(f"import sys; sys.argv = ['', {saved!r}]\n{LOAD}")
    assert done.stdout.strip() == str([[float(8 * row + i) for i in range(8)] for row in (3, 1)]), done.stderr
