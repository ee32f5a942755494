"""Connections end in time, whatever clients send, read or omit."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from weft.extras.language.server.server_access import Limits
from weft.extras.language.tests.support.served import connect, receive_all, run_server, wait_until

LIMITS = Limits(connections=6, read_timeout=0.5, idle_timeout=0.3, shutdown_timeout=0)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BLOCK = b"x" * (1 << 20)


async def _yes(request: Request) -> PlainTextResponse:
    return PlainTextResponse("yes")


async def _slow(request: Request) -> PlainTextResponse:
    await asyncio.sleep(3 * LIMITS.read_timeout)
    return PlainTextResponse("late")


async def _large(request: Request) -> PlainTextResponse:
    return PlainTextResponse(BLOCK * 32)


async def _blocks() -> AsyncIterator[bytes]:
    while True:
        await asyncio.sleep(0)
        yield BLOCK


async def _endless(request: Request) -> StreamingResponse:
    return StreamingResponse(_blocks())


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, uvicorn.Server]]:
    routes = [
        Route("/", _yes, methods=["GET", "POST"]),
        *(Route(f"/{function.__name__[1:]}", function) for function in (_slow, _large, _endless)),
    ]
    with run_server(Starlette(routes=routes), LIMITS) as result:
        yield result


@pytest.fixture(autouse=True)
def _check_nothing_is_left(server: tuple[int, uvicorn.Server]) -> Iterator[None]:
    """Check that all connections and tasks end, also after clients that stay open."""
    yield
    state = server[1].server_state
    wait_until(lambda: not state.connections and not state.tasks)


def get(path: str) -> bytes:
    return GET.replace(b"/ ", path.encode() + b" ", 1)


def read_until(client: socket.socket, end: bytes) -> None:
    """Read an answer that ends with `end`."""
    result = b""
    while not result.endswith(end):
        part = client.recv(1000)
        assert part
        result += part


def is_closed(client: socket.socket, content: bytes) -> bool:
    """Return whether the server closes a connection while receiving one byte every 1/20 s."""
    for byte in content[: round(20 * LIMITS.read_timeout * 8)]:
        time.sleep(0.05)
        try:
            client.sendall(bytes([byte]))
        except ConnectionError:
            return True
    return False


def read_refusal(content: bytes) -> tuple[int, str]:
    """Return status and message of an answer, and check that the connection is closed."""
    head, _, body = content.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def test_clients_that_send_nothing(server: tuple[int, uvicorn.Server]) -> None:
    began = time.monotonic()
    with connect(server[0]) as client:
        assert receive_all(client) == b""
    assert time.monotonic() - began > LIMITS.read_timeout / 2


@pytest.mark.parametrize("sent", [GET[:1], GET[:-1], b"POST / HTTP/1.1\r\nContent-Length: 9"])
def test_incomplete_heads(server: tuple[int, uvicorn.Server], sent: bytes) -> None:
    with connect(server[0]) as client:
        client.sendall(sent)
        assert read_refusal(receive_all(client)) == (408, "the head of the request was not sent in 0.5 s")


def test_slow_heads(server: tuple[int, uvicorn.Server]) -> None:
    """Each byte is in time, but the whole head is not."""
    with connect(server[0]) as client:
        client.sendall(GET[:-2])
        assert is_closed(client, b"X: 1\r\n" * 100)


def test_the_second_request_has_its_own_time(server: tuple[int, uvicorn.Server]) -> None:
    with connect(server[0]) as client:
        for _ in range(4):
            time.sleep(LIMITS.idle_timeout / 2)
            client.sendall(GET[:5])
            time.sleep(LIMITS.read_timeout / 3)
            client.sendall(GET[5:])
            read_until(client, b"yes")
        client.sendall(GET[:5])
        assert read_refusal(receive_all(client))[0] == 408


def test_idle_connections(server: tuple[int, uvicorn.Server]) -> None:
    with connect(server[0]) as client:
        client.sendall(GET)
        assert receive_all(client).endswith(b"yes")


def test_pipelined_requests(server: tuple[int, uvicorn.Server]) -> None:
    """All pipelined requests are answered; earlier ones do not cut off later ones."""
    with connect(server[0]) as client:
        client.sendall(get("/slow") * 2 + GET)
        content = receive_all(client)
    assert content.count(b"late") == 2
    assert content.endswith(b"yes")


def test_answers_may_take_longer(server: tuple[int, uvicorn.Server]) -> None:
    with connect(server[0]) as client:
        client.sendall(get("/slow"))
        assert receive_all(client).endswith(b"late")


@pytest.mark.parametrize("path", ["/endless", "/large"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_clients_that_do_not_read(server: tuple[int, uvicorn.Server], path: str, close: bytes) -> None:
    """Their connection and its task end."""
    state = server[1].server_state
    with connect(server[0]) as client:
        client.sendall(get(path).replace(b"\r\n\r\n", b"\r\n" + close + b"\r\n"))
        wait_until(lambda: bool(state.connections))
        wait_until(lambda: not state.connections and not state.tasks)


def test_clients_that_send_and_do_not_read(server: tuple[int, uvicorn.Server]) -> None:
    with connect(server[0]) as client:
        client.sendall(get("/endless"))
        assert is_closed(client, b"G" * 1000)


def test_clients_that_read_slowly(server: tuple[int, uvicorn.Server]) -> None:
    """They get everything, although it exceeds the idle limit."""
    with connect(server[0]) as client:
        client.sendall(get("/large").replace(b"HTTP/1.1", b"HTTP/1.0"))
        began, size = time.monotonic(), 0
        while part := client.recv(1 << 18):
            size += len(part)
            time.sleep(3 * LIMITS.read_timeout / 128)
    assert size > 32 * len(BLOCK)
    assert time.monotonic() - began > 2 * LIMITS.read_timeout


def test_clients_that_send_after_the_answer(server: tuple[int, uvicorn.Server]) -> None:
    """An endless body that the server does not need."""
    with connect(server[0]) as client:
        client.sendall(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 404")
        assert is_closed(client, b"x" * 1000)


@pytest.mark.parametrize(
    "sent",
    [b"\0" * 100, b"\x16\x03\x01" + b"x" * 600, b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"X" * 100_000]
    + [b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + size + b"\r\n\r\n" for size in (b"-1", b"9" * 40, b"1, 2")]
    + [b"GET / HTTP/1.1\r\n" + head + b"\r\n\r\n" for head in (b"X: 1", b"Host: a\r\nHost: b", b"A" * 20_000 + b": 1")]
    + [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
)  # fmt: skip
def test_invalid_requests(server: tuple[int, uvicorn.Server], sent: bytes) -> None:
    with connect(server[0]) as client:
        client.sendall(sent)
        content = receive_all(client)
    assert not content or content.startswith((b"HTTP/1.1 400", b"HTTP/1.1 200"))


def test_upgrades_are_ignored(server: tuple[int, uvicorn.Server], caplog: pytest.LogCaptureFixture) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    with connect(server[0]) as client:
        client.sendall(GET.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n"))
        assert receive_all(client).endswith(b"yes")


def test_too_many_connections() -> None:
    limits = dataclasses.replace(LIMITS, read_timeout=20)  # else those that wait are closed on a busy machine
    message = "all 6 connections are in use: try again later"
    with run_server(Starlette(routes=[Route("/", _yes)]), limits) as (port, server), ExitStack() as stack:
        state = server.server_state
        clients = [stack.enter_context(connect(port)) for _ in range(limits.connections)]
        wait_until(lambda: len(state.connections) == limits.connections)
        with connect(port) as client:
            assert read_refusal(receive_all(client)) == (503, message)
        with connect(port) as client:
            wait_until(lambda: len(state.connections) > limits.connections)
            client.sendall(GET)  # late: the answer is not lost
            time.sleep(0.1)
            assert read_refusal(receive_all(client)) == (503, message)
        clients.pop().close()
        wait_until(lambda: len(state.connections) < limits.connections)
        with connect(port) as client:
            client.sendall(GET)
            read_until(client, b"yes")
