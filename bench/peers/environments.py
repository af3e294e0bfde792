"""An environment of its own for each engine, made once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from peers.engines import Engine

_CLANGS = ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))


class SetupError(Exception):
    """An environment could not be made; the message says what failed and where its output is."""


def python_of(engine: Engine, folder: Path) -> Path:
    """The Python that runs the engine, in `folder`/NAME; installs what is missing.

    pip's own settings hold, such as PIP_EXTRA_INDEX_URL for a build of torch for CPUs.

    Raises:
        SetupError: pip failed.
    """
    if not engine.requirements:
        return Path(sys.executable)
    home = folder / engine.name
    python, made = home / "bin" / "python", home / ".made"
    wanted = json.dumps([engine.requirements, engine.unwanted])
    if made.is_file() and made.read_text() == wanted:
        return python
    print(f"compare: making an environment for {engine.title} (once, minutes)", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    log = home / "install.log"
    _pip(log, python, ["install", *_build_options(engine), *engine.requirements], _compilers(engine, home, log))
    if engine.unwanted:
        _pip(log, python, ["uninstall", "--yes", *engine.unwanted])
    made.write_text(wanted)
    return python


def _build_options(engine: Engine) -> list[str]:
    if not engine.compiled:
        return []
    # Not from pip's cache either, where a build by another compiler may lie.
    return ["--verbose", "--no-cache-dir", "--no-binary", engine.requirements[0].split("==")[0]]


def _compilers(engine: Engine, home: Path, log: Path) -> dict[str, str]:
    """Variables for a build with clang: the machine's, or else the one that the wheel `ziglang` carries."""
    if not engine.compiled:
        return {}
    options = {
        "CMAKE_ARGS": "-DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_BUILD_COMMON=OFF"
    }
    for name in _CLANGS:
        if shutil.which(name) and shutil.which(plus := name.replace("clang", "clang++")):
            return {"CC": name, "CXX": plus, **options}
    python = home / "bin" / "python"
    _pip(log, python, ["install", "ziglang"])
    for name, command in (("zigcc", "cc"), ("zigcxx", "c++")):
        path = home / "bin" / name
        path.write_text(f'#!/bin/sh\nexec "{python}" -I -m ziglang {command} "$@"\n')
        path.chmod(0o755)
    return {"CC": str(home / "bin" / "zigcc"), "CXX": str(home / "bin" / "zigcxx"), **options}


def _pip(log: Path, python: Path, arguments: list[str], variables: dict[str, str] | None = None) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    with log.open("a") as output:
        failed = subprocess.run(
            command, stdout=output, stderr=output, env={**os.environ, **(variables or {})}, check=False
        ).returncode
    if failed:
        raise SetupError(f"pip {' '.join(arguments)} failed; see {log}")
