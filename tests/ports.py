"""Free ports."""

import socket


def free_coordinator() -> str:
    """HOST:PORT of two free ports in a row."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except (OSError, OverflowError):
                continue
        return f"127.0.0.1:{port}"
