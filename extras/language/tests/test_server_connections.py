"""Connections: each of them ends in time, whatever its client sends, reads, or leaves out."""

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
from weft.extras.language.tests.support.served import connected, received, serving, settled

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
def served() -> Iterator[tuple[int, uvicorn.Server]]:
    routes = [
        Route("/", _yes, methods=["GET", "POST"]),
        *(Route(f"/{function.__name__[1:]}", function) for function in (_slow, _large, _endless)),
    ]
    with serving(Starlette(routes=routes), LIMITS) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_stays(served: tuple[int, uvicorn.Server]) -> Iterator[None]:
    """Not behind clients that stay, either: they are closed after this."""
    yield
    state = served[1].server_state
    settled(lambda: not state.connections and not state.tasks)


def get(path: str) -> bytes:
    return GET.replace(b"/ ", path.encode() + b" ", 1)


def reads(client: socket.socket, end: bytes) -> None:
    """Read an answer that has such an end."""
    found = b""
    while not found.endswith(end):
        part = client.recv(1000)
        assert part
        found += part


def closes(client: socket.socket, content: bytes) -> bool:
    """Whether the server closes a connection while bytes are sent, one every 20th of a second."""
    for byte in content[: round(20 * LIMITS.read_timeout * 8)]:
        time.sleep(0.05)
        try:
            client.sendall(bytes([byte]))
        except ConnectionError:
            return True
    return False


def refused(content: bytes) -> tuple[int, str]:
    """Status and message of an answer after which the connection was closed."""
    head, _, body = content.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["message"]


def test_clients_that_send_nothing(served: tuple[int, uvicorn.Server]) -> None:
    began = time.monotonic()
    with connected(served[0]) as client:
        assert received(client) == b""
    assert time.monotonic() - began > LIMITS.read_timeout / 2


@pytest.mark.parametrize("sent", [GET[:1], GET[:-1], b"POST / HTTP/1.1\r\nContent-Length: 9"])
def test_heads_that_are_not_sent_to_the_end(served: tuple[int, uvicorn.Server], sent: bytes) -> None:
    with connected(served[0]) as client:
        client.sendall(sent)
        assert refused(received(client)) == (408, "the head of the request was not sent in 0.5 s")


def test_heads_that_come_byte_by_byte(served: tuple[int, uvicorn.Server]) -> None:
    """Each byte comes in time, and all of them together do not."""
    with connected(served[0]) as client:
        client.sendall(GET[:-2])
        assert closes(client, b"X: 1\r\n" * 100)


def test_the_second_request_has_its_own_time(served: tuple[int, uvicorn.Server]) -> None:
    with connected(served[0]) as client:
        for _ in range(4):
            time.sleep(LIMITS.idle_timeout / 2)
            client.sendall(GET[:5])
            time.sleep(LIMITS.read_timeout / 3)
            client.sendall(GET[5:])
            reads(client, b"yes")
        client.sendall(GET[:5])
        assert refused(received(client))[0] == 408


def test_idle_connections(served: tuple[int, uvicorn.Server]) -> None:
    with connected(served[0]) as client:
        client.sendall(GET)
        assert received(client).endswith(b"yes")


def test_requests_at_once(served: tuple[int, uvicorn.Server]) -> None:
    """Each is answered, and none is cut off because of those before it."""
    with connected(served[0]) as client:
        client.sendall(get("/slow") * 2 + GET)
        content = received(client)
    assert content.count(b"late") == 2
    assert content.endswith(b"yes")


def test_answers_may_take_longer(served: tuple[int, uvicorn.Server]) -> None:
    with connected(served[0]) as client:
        client.sendall(get("/slow"))
        assert received(client).endswith(b"late")


@pytest.mark.parametrize("path", ["/endless", "/large"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_clients_that_do_not_read(served: tuple[int, uvicorn.Server], path: str, close: bytes) -> None:
    """Their connection ends, and with it what answers them."""
    state = served[1].server_state
    with connected(served[0]) as client:
        client.sendall(get(path).replace(b"\r\n\r\n", b"\r\n" + close + b"\r\n"))
        settled(lambda: bool(state.connections))
        settled(lambda: not state.connections and not state.tasks)


def test_clients_that_send_and_do_not_read(served: tuple[int, uvicorn.Server]) -> None:
    with connected(served[0]) as client:
        client.sendall(get("/endless"))
        assert closes(client, b"G" * 1000)


def test_clients_that_read_slowly(served: tuple[int, uvicorn.Server]) -> None:
    """They get all, although that takes longer than they may do nothing."""
    with connected(served[0]) as client:
        client.sendall(get("/large").replace(b"HTTP/1.1", b"HTTP/1.0"))
        began, size = time.monotonic(), 0
        while part := client.recv(1 << 18):
            size += len(part)
            time.sleep(3 * LIMITS.read_timeout / 128)
    assert size > 32 * len(BLOCK)
    assert time.monotonic() - began > 2 * LIMITS.read_timeout


def test_clients_that_send_after_the_answer(served: tuple[int, uvicorn.Server]) -> None:
    """A body that nobody wants, without an end."""
    with connected(served[0]) as client:
        client.sendall(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 404")
        assert closes(client, b"x" * 1000)


@pytest.mark.parametrize(
    "sent",
    [b"\0" * 100, b"\x16\x03\x01" + b"x" * 600, b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"X" * 100_000]
    + [b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + size + b"\r\n\r\n" for size in (b"-1", b"9" * 40, b"1, 2")]
    + [b"GET / HTTP/1.1\r\n" + head + b"\r\n\r\n" for head in (b"X: 1", b"Host: a\r\nHost: b", b"A" * 20_000 + b": 1")]
    + [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
)  # fmt: skip
def test_bytes_that_are_no_request(served: tuple[int, uvicorn.Server], sent: bytes) -> None:
    with connected(served[0]) as client:
        client.sendall(sent)
        content = received(client)
    assert not content or content.startswith((b"HTTP/1.1 400", b"HTTP/1.1 200"))


def test_upgrades_are_not_looked_at(
    served: tuple[int, uvicorn.Server], caplog: pytest.LogCaptureFixture
) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    with connected(served[0]) as client:
        client.sendall(GET.replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n"))
        assert received(client).endswith(b"yes")


def test_too_many_connections() -> None:
    limits = dataclasses.replace(LIMITS, read_timeout=20)  # else those that wait are closed on a busy machine
    message = "all 6 connections are in use: try again later"
    with serving(Starlette(routes=[Route("/", _yes)]), limits) as (port, server), ExitStack() as stack:
        state = server.server_state
        clients = [stack.enter_context(connected(port)) for _ in range(limits.connections)]
        settled(lambda: len(state.connections) == limits.connections)
        with connected(port) as client:
            assert refused(received(client)) == (503, message)
        with connected(port) as client:
            settled(lambda: len(state.connections) > limits.connections)
            client.sendall(GET)  # late: the answer is not lost
            time.sleep(0.1)
            assert refused(received(client)) == (503, message)
        clients.pop().close()
        settled(lambda: len(state.connections) < limits.connections)
        with connected(port) as client:
            client.sendall(GET)
            reads(client, b"yes")
