"""A small process that starts the server anew when it dies. It holds the socket, so that clients wait meanwhile, and
never imports JAX: nothing that can kill the server can kill it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

log = logging.getLogger(__name__)

VARIABLE = "HEADRACE_SUPERVISED"  # tells the child its two file descriptors: the socket, and a pipe of the parent's
ENGINE_DEAD = 70  # exit code of a supervised server whose engine has died; EX_SOFTWARE
USAGE = 2  # of one that was started wrongly, which no restart makes better
KILL_S = 15.0  # a child gets so much longer than its grace period


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """When to start the server again.

    Attributes:
        backoff_s: seconds before the first restart; doubled for each further one up to `longest_backoff_s`.
        max_failures: deaths in a row after which no more is tried.
        long_life_s: who lived so many seconds begins a new row.
    """

    backoff_s: float = 1.0
    longest_backoff_s: float = 30.0
    max_failures: int = 5
    long_life_s: float = 600.0


class Supervisor:
    """Runs a command that serves on a socket until it ends in peace or dies too often.

    SIGTERM and SIGINT are passed on; the child has a process group of its own, so that Ctrl-C reaches it only once.
    When this process dies the child is told by the end of a pipe.

    Args:
        command: what to run.
        listener: the socket.
        grace_s: seconds that the child may take to end after a signal, before `KILL_S` more.
    """

    def __init__(
        self,
        command: Sequence[str],
        listener: socket.socket,
        *,
        grace_s: float,
        policy: RestartPolicy = RestartPolicy(),
    ) -> None:
        self._command, self._listener, self._grace_s, self._policy = command, listener, grace_s, policy
        self._child: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None

    def run(self) -> int:
        """Supervises, from the main thread, and returns the exit code: 0 after a clean end, else the child's last."""
        before = {each: signal.signal(each, self._pass_on) for each in (signal.SIGTERM, signal.SIGINT)}
        reader, self._alive = os.pipe()
        try:
            return self._supervise(reader)
        finally:
            for descriptor in (reader, self._alive):
                os.close(descriptor)
            for each, handler in before.items():
                signal.signal(each, handler)

    def _supervise(self, reader: int) -> int:
        failures = 0
        while True:
            began = time.monotonic()
            code = self._run_child(reader)
            if self._signal is not None or code in (0, USAGE):
                return code
            failures = 1 if time.monotonic() - began >= self._policy.long_life_s else failures + 1
            if failures >= self._policy.max_failures:
                log.error(
                    "the server has died %d times in a row (the last time with code %d): giving up", failures, code
                )
                return code
            pause = min(self._policy.backoff_s * 2 ** (failures - 1), self._policy.longest_backoff_s)
            log.error("the server has died with code %d; starting it again in %g s", code, pause)
            self._sleep(pause)
            if self._signal is not None:
                return 0

    def _run_child(self, reader: int) -> int:
        """Starts the command, waits for its end, and returns its exit code as a shell tells it."""
        listening = self._listener.fileno()
        self._child = subprocess.Popen(
            self._command,
            env={**os.environ, VARIABLE: f"{listening},{reader}"},
            pass_fds=(listening, reader),
            process_group=0,
        )
        if self._signal is not None:  # it came before there was a child
            self._child.send_signal(self._signal)
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """A signal came: the child ends, and nothing is started again."""
        first, self._signal = self._signal is None, number
        if self._child is not None:
            self._child.send_signal(number)
            if first:
                timer = threading.Timer(self._grace_s + KILL_S, self._child.kill)
                timer.daemon = True
                timer.start()

    def _sleep(self, seconds: float) -> None:
        """Waits, but not when a signal has come."""
        until = time.monotonic() + seconds
        while self._signal is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


def supervise_this_program(listener: socket.socket, grace_s: float) -> int:
    """Runs this program with the same arguments as a supervised child, as often as need be; returns the exit code."""
    command = [sys.executable, "-c", "from headrace.cli import main; main()", *sys.argv[1:]]
    return Supervisor(command, listener, grace_s=grace_s).run()


def inherited_listener() -> socket.socket | None:
    """In a supervised child the socket to serve on; from now on this process ends when its parent has gone.

    None where nobody supervises.
    """
    given = os.environ.pop(VARIABLE, None)
    if given is None:
        return None
    listening, alive = map(int, given.split(","))
    threading.Thread(target=_end_with_parent, args=(alive,), name="parent", daemon=True).start()
    return socket.socket(fileno=listening)


def _end_with_parent(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    log.error("the supervisor has gone: ending")
    os.kill(os.getpid(), signal.SIGTERM)
