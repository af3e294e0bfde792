"""The C++ tests of the kernels (native/tests) under AddressSanitizer and UBSan."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def cmake() -> str | None:
    return shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")


@pytest.mark.skipif(cmake() is None, reason="CMake is not installed")
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler")
def test_all_instruction_sets_compute_the_same_bits_and_stay_within_their_memory() -> None:
    # In the checkout, so that the next run compiles what changed alone; apart from `make native-test`, which optimises.
    folder = ROOT / "build/test-quick"
    options = ("-DHEADRACE_TESTS=ON", "-DHEADRACE_SANITIZE=address,undefined", "-DCMAKE_CXX_FLAGS_RELEASE=-O1")
    for command in (
        (cmake(), "-S", str(ROOT), "-B", str(folder), *options),
        (cmake(), "--build", str(folder), "--parallel"),
        (str(folder / "native_test"), "20"),
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-5000:]
    if "avx512_bf16: " in done.stdout:
        assert "amx, emulated tiles: 0 failures" in done.stdout
    assert "scalar: vectors 0, matmul 0, attention 0, argmax 0 failures" in done.stdout
