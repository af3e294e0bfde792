"""Several processes that serve one model: process 0 decides, and tells the others each step before it takes it.

A message is its length (4 bytes), a letter, and what the letter stands for. The connection is as open as that of
`jax.distributed`, on the port after it: it belongs on a network of one's own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from headrace.errors import ConfigError, HeadraceError
from headrace.execution.buckets import Bucket

if TYPE_CHECKING:
    from headrace.execution.manager import ExecutionManager
    from headrace.execution.step import StepResult

log = logging.getLogger(__name__)

_JOIN, _OPTIONS, _MEET, _STEP, _RESET, _END, _ERROR = b"J", b"O", b"M", b"S", b"R", b"E", b"X"

_CONNECT_S = 300.0  # for all processes to be started, perhaps by hand
_PATIENCE_S = 2.0  # of these, before it is said what is waited for
_START_S = 60  # for `jax.distributed`, once all are there
_JOIN_S = 5.0
_POLL_S = 1e-4
_REASON_S = 0.5
_GRACE_S = 5.0  # from the loss of another process to our own end, if the device waits for what will never come


class Group(Protocol):
    """The processes of a model, as one of them sees the others."""

    def meet(self) -> None:
        """Waits until every process is here."""
        ...

    def step(self, bucket: Bucket, packed: np.ndarray) -> AbstractContextManager[None]:
        """Where this process gives a step to its devices, after saying so."""
        ...

    def reset(self) -> AbstractContextManager[None]:
        """Where this process empties its state, after saying so."""
        ...

    def wait(self, array: jax.Array) -> None:
        """Waits for what all processes compute together; HeadraceError if one of them is lost."""
        ...


class _Link:
    """A connection that carries messages, read by a thread of its own.

    Attributes:
        name: of the process at the other end.
        ended: set once nothing more will come.
        error: what the other process said about why.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.name = "process 0"
        self.ended = threading.Event()
        self._received: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
        self.error: str | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Sends a message; HeadraceError if the other process is gone."""
        try:
            self._socket.sendall(struct.pack("<I", 1 + len(body)) + kind + body)
        except OSError:
            self.ended.wait(1.0)  # until what it said last has been read
            raise self.loss() from None

    def receive(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """The next message; HeadraceError if the other process is gone, and says why if that is known."""
        try:
            kind, body = self._received.get(timeout=timeout)
        except queue.Empty:
            raise HeadraceError(f"{self.name}: says nothing") from None
        if kind == _ERROR:
            self._received.put((kind, body))  # for whoever asks next
            raise self.loss()
        return kind, body

    def expect(self, kind: bytes, timeout: float | None = None) -> bytes:
        """The body of the next message, which must be of this kind."""
        got, body = self.receive(timeout)
        if got != kind:
            raise self.loss() if got == _END else HeadraceError(f"{self.name} sent {got!r}, not {kind!r}")
        return body

    def loss(self) -> HeadraceError:
        """The error that says what became of the other process."""
        return HeadraceError(f"{self.name}: {self.error or 'has ended'}")

    def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        self._socket.close()

    def _listen(self) -> None:
        try:
            while True:
                message = self._exactly(struct.unpack("<I", self._exactly(4))[0])
                if message[:1] == _ERROR:
                    self.error = message[1:].decode()
                    break
                self._received.put((message[:1], message[1:]))
        except OSError:
            pass
        self.ended.set()
        self._received.put((_ERROR, b""))

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise OSError("closed")
            data += piece
        return bytes(data)


class _Waiting:
    """For others to come: said when it takes long, ended when it takes too long."""

    def __init__(self, what: str) -> None:
        self._what, self._begin, self._said = what, time.monotonic(), False

    def goes_on(self, error: str) -> None:
        """HeadraceError with this text after `_CONNECT_S`."""
        waited = time.monotonic() - self._begin
        if waited > _CONNECT_S:
            raise HeadraceError(error)
        if waited > _PATIENCE_S and not self._said:
            self._said = True
            log.warning("waiting for %s", self._what)


class Leader:
    """Process 0 as it leads the others."""

    def __init__(self, coordinator: str, num_processes: int) -> None:
        """Waits for all others.

        Raises:
            ConfigError: the coordinator's port, or the one after it, cannot be had.
            HeadraceError: not all came in time.
        """
        host, port = _channel(coordinator)
        self._links: list[_Link] = []
        self._failed = False
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            # `jax.distributed` takes the first; where it cannot, it would end this process.
            socket.create_server((host, port - 1), family=family).close()
            server = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"coordinator: cannot listen at {host}:{port - 1} and the port after it: {error}"
            ) from None
        with server:
            waiting = _Waiting(f"{num_processes} processes in all, at {coordinator}")
            while len(self._links) < num_processes - 1:
                server.settimeout(_PATIENCE_S)
                try:
                    connection = server.accept()[0]
                except TimeoutError:
                    waiting.goes_on(f"{1 + len(self._links)} of {num_processes} processes came to {coordinator}")
                else:
                    self._welcome(_Link(connection))

    def _welcome(self, link: _Link) -> None:
        try:
            link.name = link.expect(_JOIN, timeout=_JOIN_S).decode()
        except (HeadraceError, UnicodeDecodeError):
            link.close()  # whoever this is, it is none of us
        else:
            self._links.append(link)

    def tell_options(self, options: dict[str, Any]) -> None:
        """Gives everyone the options that all must have alike."""
        self._tell(_OPTIONS, json.dumps(options).encode())

    def meet(self) -> None:
        """See `Group.meet`."""
        for link in self._links:
            link.expect(_MEET)
        self._tell(_MEET)

    @contextlib.contextmanager
    def step(self, bucket: Bucket, packed: np.ndarray) -> Iterator[None]:
        """See `Group.step`."""
        with self._all_or_none():
            self._tell(_STEP, struct.pack("<II", *bucket) + packed.tobytes())
            yield

    @contextlib.contextmanager
    def reset(self) -> Iterator[None]:
        """See `Group.reset`. It follows a failed step: if another process is the reason, that is the error."""
        for link in self._links:
            link.ended.wait(_REASON_S / len(self._links))
        with self._all_or_none():
            self._tell(_RESET)
            yield

    @contextlib.contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Where all processes must do the same: an interrupt waits, and after an error they are not together again."""
        with _uninterrupted():
            self._check()
            try:
                yield
            except BaseException:
                self._failed = True
                raise

    def wait(self, array: jax.Array) -> None:
        """See `Group.wait`. Not a plain wait: not every device notices that another will never answer."""
        while not array.is_ready():  # type: ignore[attr-defined]
            self._check()
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Lets the others end."""
        with contextlib.suppress(HeadraceError):
            for link in self._links:
                link.send(_END)

    @property
    def is_whole(self) -> bool:
        """Whether all other processes are still there."""
        return not any(link.ended.is_set() for link in self._links)

    @property
    def has_lost(self) -> bool:
        """Whether a process is gone that did not say why."""
        return any(link.ended.is_set() and link.error is None for link in self._links)

    def _tell(self, kind: bytes, body: bytes = b"") -> None:
        self._check()
        for link in self._links:
            link.send(kind, body)

    def _check(self) -> None:
        for link in self._links:
            if link.ended.is_set():
                raise link.loss()
        if self._failed:
            raise HeadraceError("process 0 failed in a step that others took; start all processes anew")


class Follower:
    """A process other than 0, which does what that says."""

    def __init__(self, coordinator: str, process_id: int) -> None:
        """Connects to process 0.

        Raises:
            ConfigError: its name is unknown.
            HeadraceError: it is not there.
        """
        host, port = _channel(coordinator)
        waiting = _Waiting(f"process 0 at {coordinator}")
        while True:
            try:
                self._link = _Link(socket.create_connection((host, port), timeout=_CONNECT_S))
                break
            except socket.gaierror as error:
                raise ConfigError(f"coordinator: {host} is no name of a machine: {error}") from None
            except OSError as error:
                waiting.goes_on(f"coordinator: nobody answers at {host}:{port} ({error})")
                time.sleep(0.1)
        self._link.send(_JOIN, f"process {process_id}".encode())
        self._dismissed = False

    def options(self) -> dict[str, Any]:
        """What process 0 gives to `Leader.tell_options`."""
        options: dict[str, Any] = json.loads(self._link.expect(_OPTIONS))
        return options

    def report(self, error: BaseException) -> None:
        """Tells process 0 why this process ends."""
        if not self._link.ended.is_set():
            self._link.send(_ERROR, (str(error) or type(error).__name__).encode())

    def meet(self) -> None:
        """See `Group.meet`."""
        self._link.send(_MEET)
        self._link.expect(_MEET)

    def step(self, bucket: Bucket, packed: np.ndarray) -> AbstractContextManager[None]:
        """See `Group.step`. It was process 0 that said so."""
        return contextlib.nullcontext()

    def reset(self) -> AbstractContextManager[None]:
        """See `Group.reset`. It was process 0 that said so."""
        return contextlib.nullcontext()

    def wait(self, array: jax.Array) -> None:
        """See `Group.wait`."""
        try:
            array.block_until_ready()
        except jax.errors.JaxRuntimeError:
            if self._link.ended.wait(1.0):
                raise self._link.loss() from None
            raise

    def follow(self, manager: ExecutionManager) -> None:
        """Does what process 0 does, until that ends.

        Raises:
            HeadraceError: process 0 is gone.
        """
        before: StepResult | None = None
        while True:
            kind, body = self._link.receive()
            if kind == _END:
                self._dismissed = True
                return
            if kind == _RESET:
                manager.reset_state()
            else:
                tokens, requests = struct.unpack("<II", body[:8])
                result = manager.execute_packed((tokens, requests), np.frombuffer(body, np.int32, offset=8))
                if before is not None:
                    self.wait(before.tokens)  # so as to be no further ahead of the device than process 0
                before = result

    def leave_when_lost(self) -> None:
        """Ends this process, somewhat later, if process 0 is lost."""
        self._link.ended.wait()
        time.sleep(_GRACE_S)
        if self._dismissed:
            return
        # The main thread may wait for a device that waits for process 0.
        print(f"headrace: error: {self._link.loss()}", file=sys.stderr, flush=True)
        os._exit(2)


def lead(coordinator: str, num_processes: int) -> Leader:
    """Starts `jax.distributed` as process 0, and connects to the others. At the end of this process they end too.

    Raises:
        ConfigError: JAX is in use already, or an address cannot be had.
        HeadraceError: not all came in time.
    """
    leader = Leader(coordinator, num_processes)
    leader.meet()
    _start(coordinator, num_processes, 0)

    def end() -> None:
        leader.close()
        # `jax.distributed`, or a device, may wait for whoever is lost. One that only fails waits there as well.
        if leader.has_lost or not (leader.is_whole or jax.distributed.is_initialized()):
            sys.stdout.flush()
            os._exit(2)

    atexit.register(end)
    return leader


def join(coordinator: str, num_processes: int, process_id: int) -> Follower:
    """Starts `jax.distributed` as a process other than 0, and connects to process 0.

    Raises:
        ConfigError: JAX is in use already.
        HeadraceError: process 0 is not there.
    """
    follower = Follower(coordinator, process_id)
    follower.meet()
    _start(coordinator, num_processes, process_id)
    threading.Thread(target=follower.leave_when_lost, daemon=True).start()
    return follower


def settle() -> None:
    """Ends `jax.distributed`, in all processes: the connections of the devices are there, and it is not needed for
    steps. It would abort a process whose process 0 is lost, and keep one from ending while another is missing."""
    jax.distributed.shutdown()


def _start(coordinator: str, num_processes: int, process_id: int) -> None:
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id, initialization_timeout=_START_S)
        jax.devices()  # comes back when all processes have asked
    except RuntimeError as error:
        raise ConfigError(f"coordinator: jax.distributed does not start: {error}") from None


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Where Ctrl-C waits until all is done."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts the main thread only
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _channel(coordinator: str) -> tuple[str, int]:
    """Where process 0 listens for the others: the port after that of `jax.distributed`."""
    host, _, port = coordinator.rpartition(":")
    return host.strip("[]"), int(port) + 1
