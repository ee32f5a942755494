"""A language model's HTTP server refuses wrong requests, and answers other clients during slow and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from weft.extras.language.run.engine import Engine
from weft.extras.language.server import server as servers
from weft.extras.language.server.chat import ChatTemplate
from weft.extras.language.server.server import MAX_BODY, MIN_LONG_REQUEST, Server
from weft.extras.language.tests.support.load import CHATS, COMPLETIONS
from weft.extras.language.tests.support.served import (
    PROMPT,
    ask,
    connect,
    run_server,
    wait_until,
)


def chat(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 2}


REFUSED: list[tuple[dict[str, Any] | bytes, int, str]] = [
    (b"{", 400, "the request is no JSON: Input data was truncated"),
    (b"[" * 100_000, 400, "the request is no JSON: "),
    (b"\xff", 400, "the request is no JSON: "),
    (b"[1]", 400, "the request is no JSON object"),
    (b" " * (MAX_BODY + 1), 413, "the request has more than 4,194,304 bytes"),
    ({}, 400, "the request does not fit: Object missing required field `prompt`"),
    ({"prompt": 5}, 400, "the request does not fit: Expected `str | array`, got `int` - at `$.prompt`"),
    (
        {"prompt": [1.5]},
        400,
        "the request does not fit: Expected `int | str | array`, got `float` - at `$.prompt[0]`",
    ),
    ({"prompt": [[5, "a"]]}, 400, "the request does not fit: Expected `int`, got `str` - at `$.prompt"),
    (
        {"prompt": ["a", 5]},
        400,
        "'prompt' has the token 5 beside prompts: give texts, lists of tokens, or one list of tokens",
    ),
    ({"prompt": ["a"] * 129}, 400, "'prompt' has 129 prompts; it may have 128"),
    ({"prompt": ["a", [5] * 501]}, 400, "prompt 1: the prompt has 501 tokens; the context has room for 500"),
    ({"prompt": ["a", []]}, 400, "prompt 1: the prompt is empty"),
    ({"prompt": []}, 400, "the prompt is empty, and the model's vocabulary has no token"),
    ({"prompt": [100_000]}, 400, "'prompt' must be an integer from 0 to "),
    ({"prompt": [5] * 501}, 400, "the prompt has 501 tokens; the context has room for 500"),
    ({"prompt": "a", "model": "gpt"}, 404, "there is no model 'gpt'; this server has 'served'"),
    ({"prompt": "a", "max_tokens": 0}, 400, "'tokens' must be an integer of at least 1, not 0"),
    ({"prompt": "a", "temperature": -1}, 400, "'temperature' must be a finite number from 0 to 100, not -1"),
    (
        {"prompt": "a", "temperature": "1"},
        400,
        "the request does not fit: Expected `float | null`, got `str`",
    ),
    (
        {"prompt": "a", "seed": 1 << 40},
        400,
        "'seed' must be an integer from 0 to 4,294,967,295, not 1099511627776",
    ),
    ({"prompt": "a", "stop": ""}, 400, "'stop' must be texts that are not empty, not ''"),
    ({"prompt": "a", "stop": ["a"] * 17}, 400, "'stop' has 17 texts; it may have 16"),
    ({"prompt": "a", "stop": ["a", "a" * 257]}, 400, "'stop' has a text of 257 characters; it may have 256"),
    (
        {"prompt": "a " * 1_500_000},
        400,
        "the prompt has 3,000,000 characters; the context has room for 500 tokens",
    ),
    ({"prompt": [5] * 1_000_000}, 400, "the prompt has 1,000,000 tokens; the context has room for 500"),
    ({"prompt": "a", "n": 2}, 400, "'n' is 2, which is not supported here"),
    ({"prompt": "a", "top_p": 0.5}, 400, "'top_p' is 0.5, which is not supported here"),
    ({"prompt": "a", "logprobs": 3}, 400, "'logprobs' is 3, which is not supported here"),
    ({"prompt": "a", "logprobs": 0}, 400, "'logprobs' is 0, which is not supported here"),
    (
        {"prompt": "a", "n": 2, "top_p": 1, "echo": True},
        400,
        "'n' is 2 and 'echo' is True, which is not supported here",
    ),
    ({"prompt": "\ud800"}, 400, "the request is no JSON: "),
]
CHANGING: dict[str, Any] = {
    "tool_choice": "required", "ignore_eos": True, "grammar": "root ::= x", "guided_json": {}, "mirostat": 2,
    "typical_p": 0.5, "stop_token_ids": [5], "xtc_probability": 0.1, "dry_multiplier": 0.8, "n_predict": 5,
    "add_generation_prompt": False, "continue_final_message": True, "functions": [{}], "function_call": {"name": "f"},
    "response_format": {"type": "json_object"}, "logit_bias": {"5": 100}, "best_of": 2, "logprobs": True,
    "top_logprobs": 0, "n": True, "whatever": 0,
}  # fmt: skip
UNCHANGING: dict[str, Any] = {
    "tool_choice": "auto", "tools": [], "ignore_eos": False, "typical_p": 1.0, "add_generation_prompt": True, "n": 1,
    "logprobs": False, "response_format": {"type": "text"}, "user": "me", "metadata": {"a": "b"}, "whatever": None,
    "store": True, "parallel_tool_calls": False,
}  # fmt: skip


@pytest.mark.parametrize(("body", "status", "message"), REFUSED)
def test_requests_that_are_refused(
    client: httpx.Client, body: dict[str, Any] | bytes, status: int, message: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, "invalid_request_error")
    assert error["message"].startswith(message)


@pytest.mark.parametrize("address", [COMPLETIONS, CHATS])
def test_unsupported_fields_that_change_a_text_are_refused(client: httpx.Client, address: str) -> None:
    about = {"prompt": "a", "max_tokens": 1} if address == COMPLETIONS else chat("a")
    others = {"chat_template_kwargs": {}} if address == COMPLETIONS else {}
    for name, value in (CHANGING | others).items():
        answer = client.post(address, json=about | {name: value})
        assert answer.status_code == 400, name
        assert answer.json()["error"]["message"] == f"{name!r} is {value!r}, which is not supported here"
    assert client.post(address, json=about | UNCHANGING).status_code == 200


def test_options_of_chats_reach_the_template(client: httpx.Client) -> None:
    usage = []
    for options in ({}, {"note": "the quick"}, {"eos_token": ""}):
        answer = client.post(CHATS, json=chat("a") | {"chat_template_kwargs": options})
        usage.append(answer.json().get("usage", {}).get("prompt_tokens", answer.status_code))
    assert usage[0] < usage[1] < usage[2] == 400


@pytest.mark.parametrize("depth", [100, 400, 600, 900, 990])
def test_extreme_values_for_templates(client: httpx.Client, depth: int) -> None:
    """Deep nesting and long integers cause no server error."""
    for value in ("[" * depth + "]" * depth, "1" * depth * 9):
        body = f'{{"messages": [{{"role": "user", "content": "a", "x": {value}}}], "max_tokens": 1}}'
        answer = client.post(CHATS, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400), answer.text


def test_requests_of_other_kinds(client: httpx.Client) -> None:
    def status(method: str, path: str, **fields: Any) -> int:
        answer = client.request(method, path, **fields)
        assert answer.json()["error"]["message"]
        return answer.status_code

    assert status("POST", "/v1/completions", content=b'{"prompt": "a"}') == 415
    assert status("POST", "/v1/completions", data={"prompt": "a"}) == 415
    assert status("GET", "/v1/completions") == 405
    assert status("POST", "/v1/embeddings", json={}) == 404
    for messages in (
        [],
        [{"role": "tool", "content": "a"}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ):
        assert status("POST", "/v1/chat/completions", json={"messages": messages}) == 400
    assert status("POST", "/v1/chat/completions", json={"messages": [{"role": "user"}], "tools": [{}]}) == 400


@pytest.mark.parametrize("delay", ["a text that takes long to encode", "a template that takes long"])
def test_other_clients_are_answered_meanwhile(
    client: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch, delay: str
) -> None:
    """The slow request is held until the other answers have arrived."""
    goes_on, encode, text = threading.Event(), engine.model.encode, ChatTemplate.text
    long = "a" * MIN_LONG_REQUEST

    def encode_late(prompt: str | list[int], **options: Any) -> list[int]:
        assert prompt != long or goes_on.wait(60)
        return encode(prompt, **options)

    def render_late(self: ChatTemplate, *arguments: Any) -> str:
        assert goes_on.wait(60)
        return text(self, *arguments)

    encodes = delay.startswith("a text")
    if encodes:
        monkeypatch.setattr(engine.model, "encode", encode_late)
    else:
        monkeypatch.setattr(ChatTemplate, "text", render_late)
    with ThreadPoolExecutor(8) as pool:
        if encodes:
            late = [pool.submit(client.post, "/v1/completions", json={"prompt": long}) for _ in range(3)]
        else:
            late = [pool.submit(client.post, "/v1/chat/completions", json=chat("a")) for _ in range(3)]
        for _ in range(3):
            assert client.get("/health").status_code == 200
            assert ask(client, max_tokens=2)["usage"]["completion_tokens"] == 2
            if encodes:
                assert client.post("/v1/chat/completions", json=chat("a")).status_code == 200
        assert not any(answer.done() for answer in late)
        goes_on.set()
        assert {answer.result().status_code for answer in late} == {400 if encodes else 200}


@pytest.mark.parametrize(
    ("attack", "reason"),
    [("time", "it takes more than 1 s of processor time"), ("memory", "it takes more than 512 MB of memory")],
)
def test_hostile_chats(client: httpx.Client, attack: str, reason: str) -> None:
    """Other clients are answered during a hostile chat and after it."""
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(client.post, "/v1/chat/completions", json=chat(attack))
        meanwhile = 0
        while not refused.done():
            assert ask(client, max_tokens=1)["choices"][0]["text"]
            meanwhile += 1
    answer = refused.result()
    message = f"the model's chat template refuses these messages: {reason}"
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)
    assert meanwhile > 1 or attack == "memory"
    assert client.post("/v1/chat/completions", json=chat("a")).status_code == 200


def test_chats_longer_than_the_context(client: httpx.Client) -> None:
    for content, message in {
        "a"
        * 3_000_000: "the model's chat template refuses these messages: the text has more than 3,000 characters",
        "a" * 600: "the prompt has 6",
    }.items():
        answer = client.post("/v1/chat/completions", json=chat(content))
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(message)


def head(size: int) -> bytes:
    about = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{about}Content-Length: {size}\r\n\r\n".encode()


def test_bodies_that_come_too_late(engine: Engine) -> None:
    """Also if they arrive slowly but steadily."""
    with Server(engine, "served", read_timeout=0.4) as server, run_server(server.application()) as (port, _):
        for part in (b"", b" "):
            with connect(port) as client:
                client.sendall(head(1000))
                client.settimeout(0.05)
                content = b""
                end = time.monotonic() + 20
                while not content and time.monotonic() < end:
                    with contextlib.suppress(TimeoutError):
                        content = client.recv(1000)
                    client.sendall(part)
                assert content.startswith(b"HTTP/1.1 408")


def test_bodies_that_are_too_large_are_not_read(port: int) -> None:
    with connect(port) as client:
        client.sendall(head(MAX_BODY + 1))
        assert client.recv(1000).startswith(b"HTTP/1.1 413")


def test_bodies_of_all_clients_have_a_limit(
    port: int, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MAX_BODIES", 10_000)
    slow = [connect(port) for _ in range(3)]
    for number, other in enumerate(slow):
        other.sendall(head(5000) + b" " * 4000)
        if number == 2:
            content = other.recv(1000)
            assert content.startswith(b"HTTP/1.1 503")
    busy = client.post("/v1/completions", json={"prompt": "a" * 3000})
    message = "the memory for requests is full: try again later"
    assert (busy.status_code, busy.json()["error"]["message"]) == (503, message)
    for other in slow:
        other.close()
    wait_until(lambda: client.post("/v1/completions", json={"prompt": "a" * 3000}).status_code != 503)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_left_before_the_first_event(engine: Engine, stream: bool) -> None:
    body = json.dumps({"prompt": PROMPT, "max_tokens": 490, "stream": stream}).encode()
    messages = [{"type": "http.request", "body": body}]
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b"",
        "server": ("127.0.0.1", 80), "client": None, "asgi": {"spec_version": "2.3"},
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    before = engine.steps
    with Server(engine, "served") as server:
        asyncio.run(server.application()(scope, receive, send))
    wait_until(lambda: engine.texts == 0)
    assert engine.steps - before < 200
