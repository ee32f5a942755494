"""A language model's HTTP server: answers match the model alone, whatever other clients do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from weft.errors import InputError
from weft.extras.language.run import engine as engines
from weft.extras.language.run.engine import BusyError, Engine
from weft.extras.language.run.lm import Model
from weft.extras.language.tests.support.served import (
    PROMPT,
    ask,
    load_served,
    wait_until,
)
from weft.sim.device import DeviceError


@pytest.fixture(scope="module")
def generate_alone(path: Path) -> Iterator[Model]:
    with load_served(path, 1) as model:
        yield model


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
    with load_served(path, 1) as model, Engine(model) as engine:
        engine.submit("a", {}, heard.append)
        wait_until(lambda: len(heard) == 1)
        assert isinstance(heard[0], DeviceError)
        with pytest.raises(DeviceError, match=r"the bus has failed|computing texts failed: IndexError"):
            engine.submit("a", {}, heard.append)
