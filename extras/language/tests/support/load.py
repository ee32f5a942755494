"""Concurrent clients of a language model's server: well-behaved, slow, silent, broken and hostile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
_WAIT = 120.0
"""Client timeout in seconds, which detects a server that hangs."""


@dataclass(frozen=True)
class Case:
    """A request with the text that it gets from an idle server."""

    path: str
    fields: dict[str, Any]
    text: str = ""


@dataclass
class Load:
    """Clients that send requests to a local server until a deadline.

    Attributes
    ----------
    port : int
    cases : sequence of Case
        What well-behaved clients ask for.
    reading : float
        Seconds that the server gives a client to send a request.
    done : Counter
        How often each kind of client has done what it does, with the status of its answer.
    wrong : list of str
        Answers that are not as they should be.
    """

    port: int
    cases: Sequence[Case]
    reading: float
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def run(self, clients: int, seconds: float, seed: int) -> None:
        """Run `clients` clients: half are well-behaved; the others start with each kind, then draw kinds at random."""
        end = time.monotonic() + seconds
        await asyncio.gather(
            *(self._client(number, end, random.Random(seed + number)) for number in range(clients))
        )

    async def _client(self, number: int, end: float, rng: random.Random) -> None:
        kind = list(KINDS)[number // 2 % len(KINDS)]
        while time.monotonic() < end:
            kind = _good if number % 2 == 0 else kind
            try:
                async with asyncio.timeout(_WAIT):
                    self.done[f"{kind.__name__.strip('_')} {await kind(self, rng)}"] += 1
            except (ConnectionError, asyncio.IncompleteReadError):
                self.done[f"{kind.__name__.strip('_')} cut off"] += 1
            except TimeoutError:
                self.wrong.append(f"{kind.__name__} had no answer in {_WAIT:g} s")
            await asyncio.sleep(rng.uniform(0, 0.2))
            kind = rng.choices(list(KINDS), list(KINDS.values()))[0]

    async def ask(self, case: Case, pause: Callable[[], Awaitable[None]] | None = None) -> tuple[int, str]:
        """Send a request, in parts if there is a pause, and return status and text of the answer."""
        async with self.connect() as (reader, writer):
            await self._send(writer, request(case), pause)
            return _answer(await reader.read())

    async def _send(self, writer: asyncio.StreamWriter, content: bytes, pause: Any) -> None:
        for part in (
            [content] if pause is None else [content[at : at + 40] for at in range(0, len(content), 40)]
        ):
            writer.write(part)
            await writer.drain()
            if pause is not None:
                await pause()

    @contextlib.asynccontextmanager
    async def connect(self) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def expect(self, answer: tuple[int, str], *wanted: int) -> int:
        """Return an answer's status and record an unexpected one; a busy server may always answer 503."""
        if answer[0] == 503:
            self.done[f"503: {answer[1]}"] += 1
        elif answer[0] not in wanted:
            self.wrong.append(f"{answer} in place of {wanted}")
        return answer[0]


def request(case: Case, *, host: str = "127.0.0.1", version: str = "1.0") -> bytes:
    """Build an HTTP 1.0 request, whose streamed answers have no chunk lengths."""
    body = json.dumps(case.fields).encode()
    head = f"POST {case.path} HTTP/{version}\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _answer(content: bytes) -> tuple[int, str]:
    head, _, body = content.partition(b"\r\n\r\n")
    if not head:
        raise ConnectionResetError
    status = int(head.split()[1])
    if b"text/event-stream" not in head:
        result = json.loads(body)
        return status, result["error"]["message"] if "error" in result else _text(result["choices"][0])
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    if events[-1:] != ["[DONE]"]:
        return status, f"a stream that does not end, but with {events[-1:]}"
    return status, "".join(_text(json.loads(event)["choices"][0]) for event in events[:-1])


def _text(choice: dict[str, Any]) -> str:
    message = choice if "text" in choice else choice.get("message") or choice["delta"]
    return str(message.get("text", message.get("content", "")))


# --- kinds of clients


async def _good(load: Load, rng: random.Random) -> int:
    """Send a request and expect its reference answer."""
    return await _check_answer(load, rng.choice(load.cases), None)


async def _slow(load: Load, rng: random.Random) -> int:
    """Send the request in parts within the time limit and expect the right answer."""
    case = rng.choice(load.cases)
    pause = load.reading / 3 / (len(request(case)) / 40)
    return await _check_answer(load, case, lambda: asyncio.sleep(pause))


async def _check_answer(load: Load, case: Case, pause: Any) -> int:
    result = await load.ask(case, pause)
    if result[0] == 200 and result[1] != case.text:
        load.wrong.append(f"{case} got {result[1]!r}")
    # On a busy machine a slow client may exceed the time limit.
    return load.expect(result, 200, *([] if pause is None else [408]))


async def _silent(load: Load, rng: random.Random) -> str:
    """Send nothing or part of a request, and keep the connection open."""
    content = request(rng.choice(load.cases))
    sent = content[: rng.choice([0, 1, 30, len(content) - 1])]
    async with load.connect() as (reader, writer):
        writer.write(sent)
        answer = await reader.read()
    return str(load.expect(_answer(answer), 408)) if answer else "closed"


async def _half_closed(load: Load, rng: random.Random) -> str:
    """Shut down the sending side before or after the end of the request."""
    content = request(rng.choice(load.cases))
    async with load.connect() as (reader, writer):
        writer.write(content[: rng.choice([0, 10, len(content) - 1, len(content)])])
        writer.write_eof()
        await reader.read()
    return "closed"


async def _reset(load: Load, rng: random.Random) -> str:
    """Reset the connection."""
    content = request(rng.choice(load.cases))
    async with load.connect() as (_, writer):
        writer.write(content[: rng.choice([0, 10, len(content) - 1, len(content)])])
        await asyncio.sleep(rng.choice([0, 0.05]))
        gone = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, gone)
    return "gone"


async def _leaving(load: Load, rng: random.Random) -> str:
    """Ask for a long text and disconnect before its end or start."""
    case = rng.choice(load.cases)
    longer = Case(case.path, case.fields | {"max_tokens": 400, "stream": rng.random() < 0.7})
    async with load.connect() as (reader, writer):
        writer.write(request(longer))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(0, 0.5)):
                await reader.readuntil(b"data: ")
    return "left"


async def _deaf(load: Load, rng: random.Random) -> str:
    """Do not read the answer."""
    case = rng.choice(load.cases)
    async with load.connect() as (reader, writer):
        reader._transport.pause_reading()
        writer.write(request(Case(case.path, case.fields | {"stream": True})))
        await asyncio.sleep(rng.uniform(0, 2 * load.reading))
    return "left"


async def _idle(load: Load, rng: random.Random) -> str:
    """Keep the connection open after the answer."""
    async with load.connect() as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return str(load.expect((int((await reader.read()).split()[1]), ""), 200))


async def _garbage(load: Load, rng: random.Random) -> str:
    """Send random bytes."""
    async with load.connect() as (reader, writer):
        writer.write(
            rng.choice([b"", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01"]) + rng.randbytes(rng.randrange(1, 3000))
        )
        await reader.read()
    return "closed"


async def _wrong(load: Load, rng: random.Random) -> int:
    """Send requests that the server refuses."""
    case = rng.choice(load.cases)
    status, content = rng.choice(
        [
            (403, request(case, host="evil.example")),
            (404, request(Case("/v1/embeddings", {}))),
            (400, request(Case(case.path, {}))),
            (400, request(Case(COMPLETIONS, {"prompt": [1 << 40]}))),
            (400, request(case).replace(b'{"', b'["', 1)),
            (415, request(case).replace(b"application/json", b"text/plain", 1)),
        ]
    )
    async with load.connect() as (reader, writer):
        writer.write(content)
        return load.expect(_answer(await reader.read()), status)


async def _large(load: Load, rng: random.Random) -> int:
    """Send megabytes."""
    content = rng.choice(["a" * 3_000_000, "the quick " * 300_000, [5] * 500_000, "a" * 5_000_000])
    result = await load.ask(Case(COMPLETIONS, {"prompt": content}))
    return load.expect(result, 400, 413, 408)  # a machine that is busy may take longer than the server waits


async def _attack(load: Load, rng: random.Random) -> int:
    """Make the chat template use excessive time or memory."""
    messages = [{"role": "user", "content": rng.choice(["memory", "memory", "memory", "time"])}]
    return load.expect(await load.ask(Case(CHATS, {"messages": messages})), 400)


KINDS: dict[Callable[[Load, random.Random], Awaitable[object]], float] = {
    _slow: 8, _silent: 10, _half_closed: 8, _reset: 8, _leaving: 10, _deaf: 4, _idle: 6, _garbage: 8, _wrong: 10,
    _large: 0.5, _attack: 0.3,
}  # fmt: skip
"""Misbehaving clients and the weight with which each is drawn."""
