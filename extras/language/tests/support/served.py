"""A language model for servers, servers in a thread, and clients that ask them, or speak to them byte by byte."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from starlette.types import ASGIApp

from weft.extras.language.gguf.writer import write
from weft.extras.language.run import lm
from weft.extras.language.server.server_access import Limits, configuration
from weft.extras.language.tests.support.language_models import SIZES, random_model

PROMPT = "the quick fox"
TEMPLATE = (
    "{{ bos_token }}{{ note }}{% for message in messages %}{{ message.role }} {{ message.content }}{{ eos_token }}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{% if message.content == 'time' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% elif message.content == 'memory' %}{% set n = 10 ** 10 %}{{ 'a' * n }}{% endif %}{% endfor %}"
)


def write_served(folder: Path) -> Path:
    """Write a small model with a chat template, and return its file."""
    path = folder / "served.gguf"
    sizes = dataclasses.replace(SIZES, context=500, blocks=1)
    model = random_model(np.random.default_rng(3), sizes=sizes, biases=False)
    write(dataclasses.replace(model, chat_template=TEMPLATE), path, "F32")
    return path


def load_served(path: Path, rows: int) -> lm.Model:
    return lm.load(path, "small", rows=rows, calibration="the quick brown fox")


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


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
