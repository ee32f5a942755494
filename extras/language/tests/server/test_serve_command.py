"""The command that serves a language model: its options, its log, and how it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from weft.extras.language.tests.support.load import COMPLETIONS, Case, request
from weft.extras.language.tests.support.served import (
    connect,
    receive_all,
    wait_until,
)

TIME, CLIENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", r"127\.0\.0\.1:\d+"


@contextlib.contextmanager
def start_server(
    path: Path, *options: str, line: bool = True, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command and return it with its address, if it prints one."""
    words = ["serve", str(path), "--config", "small", "--port", "0", "--context", "400", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()[2].rstrip(",") if line else ""
        finally:
            process.kill()


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), connect(port):
        return True
    return False


@contextlib.contextmanager
def suspend(process: subprocess.Popen[str]) -> Iterator[None]:
    """Suspend a process, so that everything a client does meanwhile arrives at once on resuming."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_the_command_serves_until_it_is_interrupted(path: Path) -> None:
    """Each request has a log line, also if its client disconnects or it runs at shutdown."""

    def completion(tokens: int, stream: bool = False) -> Case:
        # A randomly drawn text may end early.
        fields = {"prompt": "a", "max_tokens": tokens, "temperature": 0, "stream": stream}
        return Case(COMPLETIONS, fields)

    with start_server(path) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        ask = completion(2).fields
        answer = httpx.post(f"{address}/completions", json=ask, trust_env=False, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 2
        assert "server" not in answer.headers
        evil = httpx.get(f"{address}/models", headers={"host": "evil.example"}, trust_env=False, timeout=60)
        assert evil.status_code == 403
        port = httpx.URL(address).port or 0
        # Clients that disconnect during a text, before a text of one token ends, and before its stream begins.
        with connect(port) as client:
            client.sendall(request(completion(390)))
        for stream in (False, True):
            with suspend(process), connect(port) as client:
                client.sendall(request(completion(1, stream)))
        with connect(port) as client:
            client.sendall(request(completion(390, stream=True)))
            client.recv(10)
        with connect(port) as client:
            client.sendall(b"\0\r\n\r\n")
            receive_all(client)
        health = f"{address[:-3]}/health"
        wait_until(lambda: httpx.get(health, trust_env=False, timeout=60).json()["texts"] == 0)
        with connect(port) as client:
            client.sendall(request(completion(390, stream=True)))
            client.recv(10)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    patterns = {
        r"configuration: small with .*": 1,
        rf'{TIME} {CLIENT} - "POST /v1/completions HTTP/1.1" 200': 1,
        rf'{TIME} {CLIENT} - "GET /v1/models HTTP/1.1" 403': 1,
        rf'{TIME} {CLIENT} - "POST /v1/completions" client disconnected': 3,
        rf'{TIME} {CLIENT} - "POST /v1/completions HTTP/1.0" 200': 2,
        rf"{TIME} Invalid HTTP request received\.": 1,
        r"error: interrupted": 1,
    }
    may_come = r".* choosing its steps\.\.\.|.* timeout graceful shutdown exceeded|.*/health.*"
    lines = [line for line in err.splitlines() if not re.fullmatch(may_come, line)]
    counts = {pattern: sum(bool(re.fullmatch(pattern, line)) for line in lines) for pattern in patterns}
    assert counts == patterns, err
    assert len(lines) == sum(patterns.values()), err


def test_the_options_of_the_command(path: Path) -> None:
    """With --quiet nothing is logged."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {
        "--allow-host": "evil.example",
        "--allow-origin": "http://page.example",
        "--port": str(port),
        "--connections": "2",
        "--read-timeout": "1.5",
        "--idle-timeout": "0.5",
    }
    words = ["--quiet", *(word for option in options.items() for word in option)]
    with start_server(path, *words, WEFT_API_KEY="secret-key", line=False) as (process, _):
        wait_until(lambda: listens(port), 60)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            assert client.get("/v1/models").status_code == 401
            key = {
                "authorization": "Bearer secret-key",
                "host": "evil.example",
                "origin": "http://page.example",
            }
            answer = client.get("/v1/models", headers=key)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, key["origin"])
            for name in ("host", "origin"):
                assert client.get("/v1/models", headers=key | {name: "http://x.example"}).status_code == 403
            assert client.get("/health").status_code == 200
        with connect(port) as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(1000).startswith(b"HTTP/1.1 200")
            with connect(port) as silent:
                assert receive_all(silent) == b""
            idle.setblocking(False)
            receive_all(
                idle
            )  # raises if the connection is open: it must end before that of the silent client
        head = "".join(f"{name}: {value}\r\n" for name, value in key.items())
        body = f"POST {COMPLETIONS} HTTP/1.1\r\n{head}content-type: application/json\r\ncontent-length: 2\r\n\r\n{{"
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(port)) for _ in range(3)]
            for client, sent in zip(clients, ("GET ", body, ""), strict=True):
                client.sendall(sent.encode())
            actual = [receive_all(client) for client in clients]
        assert [answer.split()[1] for answer in actual] == [b"408", b"408", b"503"]
        for part, answer in zip((b"head", b"body"), actual, strict=False):
            assert b"the %b of the request was not sent in 1.5 s" % part in answer
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("", "error: interrupted\n", 130)


def call(*arguments: str, code: str = "") -> tuple[int, str]:
    text = f"{code}\nfrom weft.__main__ import main\nmain({['serve', *arguments]!r})"
    process = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, env=os.environ
    )
    return process.returncode, process.stderr.splitlines()[-1]


def test_options_that_the_command_refuses(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, line = call(str(path), "--config", "small", "--port", port)
    assert (code, line) == (2, f"error: cannot listen at 127.0.0.1, port {port}: Address already in use")
    code, line = call(str(path), code="import sys; sys.modules['uvicorn'] = None")
    assert (code, line) == (
        2,
        "error: serving needs the Python package 'uvicorn', which is not installed: pip install 'weft[serve]'",
    )
    wrong = {
        ("--board-port", "x"): "--board-port and --on golden do not go together: it is for --on board",
        ("--on", "board", "--board-port", "virtual:none"): "unknown board 'none'; choose ",
    }
    for options, message in wrong.items():
        code, line = call(str(path), "--config", "small", *options)
        assert code == 2
        assert line.startswith(f"error: {message}")
