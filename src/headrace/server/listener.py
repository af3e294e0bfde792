"""The socket that the server listens on."""

from __future__ import annotations

import errno
import socket

from headrace.errors import ConfigError
from headrace.server.options import ServerOptions

BACKLOG = 2048


def bind(options: ServerOptions) -> socket.socket:
    """The socket to listen on, before anything is loaded: clients that come early wait.

    Raises:
        ConfigError: the address cannot be had.
    """
    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listener = socket.create_server((options.host, options.port), family=family, backlog=BACKLOG)
    except OSError as error:
        # Python's words repeat the address behind the reason.
        reason = (error.strerror or str(error)).partition(" (")[0]
        name = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "host"
        raise ConfigError(f"{name}: cannot listen on {options.host}:{options.port}: {reason}") from error
    # Connections inherit it. asyncio sets it only on sockets that name their protocol, which these do not; without it
    # the second part of an answer waits 40 ms until the client has acknowledged the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
