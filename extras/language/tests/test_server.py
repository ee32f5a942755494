"""A language model's HTTP server: answers match the model alone, whatever other clients do."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import weft.extras.language.run.lm
from weft.errors import InputError
from weft.extras.language.gguf.writer import write
from weft.extras.language.run import engine as engines
from weft.extras.language.run.engine import BusyError, Engine
from weft.extras.language.run.lm import Model
from weft.extras.language.server import server as servers
from weft.extras.language.server.chat import ChatTemplate
from weft.extras.language.server.server import MAX_BODY, MIN_LONG_REQUEST, Server
from weft.extras.language.tests.support.language_models import SIZES, random_model
from weft.extras.language.tests.support.load import CHATS, COMPLETIONS, Case, request
from weft.extras.language.tests.support.served import connect, receive_all, run_server, wait_until
from weft.sim.device import DeviceError

PROMPT = "the quick fox"
TIME, CLIENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", r"127\.0\.0\.1:\d+"
TEMPLATE = (
    "{{ bos_token }}{{ note }}{% for message in messages %}{{ message.role }} {{ message.content }}{{ eos_token }}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{% if message.content == 'time' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% elif message.content == 'memory' %}{% set n = 10 ** 10 %}{{ 'a' * n }}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "served.gguf"
    sizes = dataclasses.replace(SIZES, context=500, blocks=1)
    model = random_model(np.random.default_rng(3), sizes=sizes, biases=False)
    write(dataclasses.replace(model, chat_template=TEMPLATE), path, "F32")
    return path


def language_model(path: Path, rows: int) -> Model:
    return weft.extras.language.run.lm.load(path, "small", rows=rows, calibration="the quick brown fox")


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with language_model(path, 3) as model, Engine(model) as engine:
        yield engine


@pytest.fixture(scope="module")
def generate_alone(path: Path) -> Iterator[Model]:
    with language_model(path, 1) as model:
        yield model


@pytest.fixture(scope="module")
def port(engine: Engine) -> Iterator[int]:
    with Server(engine, "served") as server, run_server(server.application()) as (port, _):
        yield port


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        yield client


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def events(client: httpx.Client, address: str, **fields: Any) -> list[Any]:
    """Return a stream's events, checking its end marker."""
    result = []
    with client.stream("POST", address, json=fields | {"stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line:
                assert line.startswith("data: ")
                content = line.removeprefix("data: ")
                result.append(None if content == "[DONE]" else json.loads(content))
    return result


def test_models(client: httpx.Client) -> None:
    actual = client.get("/v1/models").json()
    assert [model["id"] for model in actual["data"]] == ["served"]
    assert client.get("/health").json() == {"status": "ok", "texts": 0}
    assert client.get("/v1/models/served").json() == actual["data"][0]
    for name in ("llama", "served/x", "a/b", "%1b"):
        answer = client.get(f"/v1/models/{name}")
        message = answer.json()["error"]["message"]
        assert answer.status_code == 404
        assert re.fullmatch(r"there is no model '.*'; this server has 'served'", message)


def test_a_completion(client: httpx.Client, generate_alone: Model) -> None:
    result = generate_alone.generate(PROMPT, tokens=6).result
    actual = ask(client, max_tokens=6, model="served", user="me", n=1, top_p=1.0)
    assert actual["object"] == "text_completion"
    assert actual["choices"] == [
        {"index": 0, "logprobs": None, "finish_reason": "length", "text": result.text,
         "end_reason": "token limit reached"}
    ]  # fmt: skip
    assert actual["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    suspend = ask(client, max_tokens=6, stop=[result.text[2]])
    assert suspend["choices"][0]["finish_reason"] == "stop"
    assert suspend["choices"][0]["text"] == result.text.split(result.text[2])[0]
    tokens = ask(client, prompt=list(result.prompt), max_tokens=6)
    assert tokens["choices"][0]["text"] == result.text
    drawn = generate_alone.generate(PROMPT, tokens=6, temperature=1.0, top_k=5, seed=8).result
    assert ask(client, max_tokens=6, temperature=None, top_k=5, seed=8)["choices"][0]["text"] == drawn.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "prompts", [["the quick"], [[5, 6, 7]], ["the quick", "", "over", "the quick"], ["a", [5, 6, 7]]]
)
def test_each_prompt_of_a_list_has_a_choice(
    client: httpx.Client, generate_alone: Model, prompts: list[str | list[int]], stream: bool
) -> None:
    options: dict[str, Any] = {"max_tokens": 5, "temperature": 1.0, "seed": 3}
    results = [
        generate_alone.generate(prompt, tokens=5, temperature=1.0, seed=3).result for prompt in prompts
    ]
    if stream:
        fields = {"prompt": prompts, "stream_options": {"include_usage": True}, **options}
        *parts, last, end = events(client, "/v1/completions", **fields)
        texts, reasons, usage = [""] * len(prompts), [""] * len(prompts), last["usage"]
        assert end is None
        for choice in (part["choices"][0] for part in parts):
            assert not reasons[choice["index"]]
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"] or ""
    else:
        actual = ask(client, prompt=prompts, **options)
        assert [choice["index"] for choice in actual["choices"]] == list(range(len(prompts)))
        texts, usage = [choice["text"] for choice in actual["choices"]], actual["usage"]
        reasons = [choice["finish_reason"] for choice in actual["choices"]]
    assert texts == [result.text for result in results]
    assert reasons == ["length"] * len(prompts)
    assert usage["prompt_tokens"] == sum(len(result.prompt) for result in results)
    assert usage["completion_tokens"] == 5 * len(prompts)


def test_equal_prompts_of_a_list_have_different_texts(client: httpx.Client) -> None:
    actual = ask(client, prompt=["a"] * 3, max_tokens=8, temperature=2)
    assert len({choice["text"] for choice in actual["choices"]}) > 1


def test_all_texts_of_a_list_end_when_the_client_leaves_or_one_is_refused(
    client: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": ["a", "b", "c"], "max_tokens": 490, "temperature": 0}
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body, timeout=0.1)
    wait_until(lambda: engine.texts == 0)
    monkeypatch.setattr(engines, "MAX_TEXTS", 2)
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 503
    wait_until(lambda: engine.texts == 0)


def test_without_a_seed_texts_are_different(client: httpx.Client) -> None:
    texts = {ask(client, max_tokens=6, temperature=2)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) > 1


def test_a_stream(client: httpx.Client, generate_alone: Model) -> None:
    result = generate_alone.generate(PROMPT, tokens=6).result
    options = {"prompt": PROMPT, "temperature": 0, "max_tokens": 6, "stream_options": {"include_usage": True}}
    *actual, last = events(client, "/v1/completions", **options)
    assert last is None
    assert len({item["id"] for item in actual}) == 1
    *parts, end, usage = actual
    assert "".join(part["choices"][0]["text"] for part in parts) == result.text
    assert len(parts) > 2
    assert [part["choices"][0]["finish_reason"] for part in (*parts, end)] == [None] * len(parts) + ["length"]
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 10)


def test_a_chat(client: httpx.Client, generate_alone: Model) -> None:
    tokens = generate_alone.tokenizer.encode("<s>user the fox</s>", special=True, begin=False)
    assert tokens[0] == 1
    assert tokens[-1] == 2
    result = generate_alone.generate(tokens, tokens=4).result
    messages = [{"role": "user", "content": "the fox"}]
    options: dict[str, Any] = {"messages": messages, "temperature": 0, "max_completion_tokens": 4}
    actual = client.post("/v1/chat/completions", json=options).json()
    assert actual["object"] == "chat.completion"
    assert actual["choices"][0]["message"] == {"role": "assistant", "content": result.text}
    messages[0]["content"] = [{"type": "text", "text": "the "}, {"type": "text", "text": "fox"}]  # type: ignore[assignment]
    first, *parts, end, last = events(client, "/v1/chat/completions", **options)
    assert (first["object"], last) == ("chat.completion.chunk", None)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == result.text
    assert (end["choices"][0]["delta"], end["choices"][0]["finish_reason"]) == ({}, "length")


def test_clients_at_once_get_what_each_gets_alone(client: httpx.Client, generate_alone: Model) -> None:
    asked = [
        {"prompt": prompt, "max_tokens": 4 + index, "temperature": index % 3, "seed": index}
        for index, prompt in enumerate(
            ["the quick", "the quick fox", "over", "the quick dogs", "a", "the quick"]
        )
    ]
    with ThreadPoolExecutor(len(asked)) as pool:
        actual = list(pool.map(lambda fields: ask(client, **fields)["choices"][0]["text"], asked))
    for fields, text in zip(asked, actual, strict=True):
        result = generate_alone.generate(
            fields["prompt"], tokens=fields["max_tokens"], temperature=fields["temperature"], seed=fields["seed"]
        ).result  # type: ignore[arg-type] # fmt: skip
        assert text == result.text


@pytest.mark.parametrize("stream", [True, False])
def test_texts_of_disconnected_clients_are_cancelled(
    client: httpx.Client, engine: Engine, generate_alone: Model, stream: bool
) -> None:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 490, "stream": stream}
    if stream:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())  # on a busy machine the text may be done by now
    else:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=body, timeout=0.3)
    computed = engine.steps
    result = generate_alone.generate(PROMPT, tokens=5).result
    assert ask(client, max_tokens=5)["choices"][0]["text"] == result.text
    wait_until(lambda: engine.texts == 0)
    assert engine.model.step() is False  # not even when others ask
    assert engine.steps - computed < 200
    assert not engine.model.step_costs


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


# --- slow or endless requests


def chat(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 2}


@pytest.mark.parametrize("where", ["a text that takes long to encode", "a template that takes long"])
def test_other_clients_are_answered_meanwhile(
    client: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch, where: str
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

    encodes = where.startswith("a text")
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


# --- the engine


def test_too_many_texts(generate_alone: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_TEXTS", 1)
    engine = Engine(generate_alone)  # which does not compute
    engine.submit("a", {}, lambda event: None)
    with pytest.raises(BusyError, match="1 texts are running or waiting, which is the limit"):
        engine.submit("a", {}, lambda event: None)
    with pytest.raises(InputError, match="'top_k' must be"):
        engine.submit("a", {"top_k": -1}, lambda event: None)


def test_a_busy_server_answers_503(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_TEXTS", 0)
    answer = client.post("/v1/completions", json={"prompt": PROMPT})
    assert answer.status_code == 503
    assert "are running or waiting, which is the limit: try again later" in answer.json()["error"]["message"]


@pytest.mark.parametrize("error", [DeviceError("the bus has failed"), IndexError("a bug")])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def raise_error(self: Model) -> bool:
        raise error

    monkeypatch.setattr(Model, "step", raise_error)
    heard: list[Any] = []
    with language_model(path, 1) as model, Engine(model) as engine:
        engine.submit("a", {}, heard.append)
        wait_until(lambda: len(heard) == 1)
        assert isinstance(heard[0], DeviceError)
        with pytest.raises(DeviceError, match=r"the bus has failed|computing texts failed: IndexError"):
            engine.submit("a", {}, heard.append)


# --- the command


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
    given = ["--quiet", *(word for option in options.items() for word in option)]
    with start_server(path, *given, WEFT_API_KEY="secret-key", line=False) as (process, _):
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
