"""Runs the command line, in this process or in one of its own."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from headrace.cli import main

# Two steps to compile; float32, so that answers can be compared.
QUICK = ("--dtype", "float32", "--max-num-batched-tokens", "64")


@dataclass(frozen=True)
class Outcome:
    """What a run left: exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one error line, after checks that it is an error as it should be."""
        assert self.code == 2, self
        assert "Traceback" not in self.out + self.err
        last = self.err.splitlines()[-1]
        assert last.startswith("headrace: error: ")
        assert self.err.count("error:") == 1
        return last.removeprefix("headrace: error: ")


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs `headrace` with arguments, and lines for its stdin, in this process."""
    # A server sets up the log, on a stderr that is gone after the test.
    for name in ("", "headrace", "uvicorn"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers])
        monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "disabled", False)

    def run(*args: object, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main()
        streams = capsys.readouterr()
        return Outcome(exit.value.code or 0, streams.out, streams.err)  # type: ignore[arg-type]

    return run


def start(*args: object, **environment: str) -> subprocess.Popen[bytes]:
    """Starts `headrace` in a process of its own."""
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **environment})


def finish(process: subprocess.Popen[bytes], stdin: bytes = b"") -> Outcome:
    """Waits for it."""
    out, err = process.communicate(stdin, timeout=120)
    return Outcome(process.returncode, (out or b"").decode(), err.decode())
