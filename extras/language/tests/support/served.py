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
def run_server(application: ASGIApp, limits: Limits | None = None) -> Iterator[tuple[int, uvicorn.Server]]:
    """Yield the port of a server on this machine, and the server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(configuration(application, limits or Limits(), quiet=True))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield listener.getsockname()[1], server
        finally:
            server.should_exit = True
            thread.join()


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def receive_all(connection: socket.socket) -> bytes:
    """Read until the connection is closed."""
    content = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            content += part
    return bytes(content)
