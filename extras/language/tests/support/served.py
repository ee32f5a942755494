"""Servers in a thread, and clients that speak to them byte by byte."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from weft.extras.language.server.server_access import Limits, configuration


@contextlib.contextmanager
def serving(application: ASGIApp, limits: Limits | None = None) -> Iterator[tuple[int, uvicorn.Server]]:
    """The port of a server on this machine, and the server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(configuration(application, limits or Limits(), quiet=True))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            settled(lambda: server.started)
            yield listener.getsockname()[1], server
        finally:
            server.should_exit = True
            thread.join()


def settled(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def received(connection: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            found += part
    return bytes(found)
