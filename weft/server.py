"""A server of a language model in OpenAI's form: completions and chats, as a whole or as they come.

Texts of several clients go on together (`weft.engine`). A client that leaves takes its text with it.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from weft.chat import ChatTemplate
from weft.engine import BusyError, Engine, Event
from weft.errors import InputError
from weft.hdl.errors import WeftError
from weft.hdl.files.schema import printable
from weft.lm import Completion, End
from weft.serve_requests import Asked, ChatAsked, CompletionAsked, asked

BODY = 4 << 20
"""Bytes of a request at most."""
_PAUSE = 0.5
"""Seconds between looks whether a client is still there."""


class RefusedError(InputError):
    """A request with another status than 400."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class _Form:
    """How a kind of answer looks."""

    prefix: str
    whole: str
    part: str

    def choice(self, text: str, reason: End | None, *, whole: bool) -> dict[str, Any]:
        finish = None if reason is None else "stop" if reason in (End.MODEL, End.STOP) else "length"
        end = {"index": 0, "logprobs": None, "finish_reason": finish}
        if reason is not None:
            end["end_reason"] = reason.value
        if self.prefix == "cmpl":
            return {"text": text} | end
        if whole:
            return {"message": {"role": "assistant", "content": text}} | end
        return {"delta": {"content": text} if text or reason is None else {}} | end


_COMPLETION = _Form("cmpl", "text_completion", "text_completion")
_CHAT = _Form("chatcmpl", "chat.completion", "chat.completion.chunk")


class Server:
    """Answers requests.

    Parameters
    ----------
    engine : Engine
        That is computing.
    name : str
        Of the model.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name, self._started = engine, name, int(time.time())
        model = engine.model.reference.model
        source = model.chat_template
        self._template = ChatTemplate(source, model.vocabulary) if source else None

    def application(self) -> Starlette:
        """For a server of ASGI."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/chat/completions", self._chats, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            exception_handlers={WeftError: _told, 404: _other, 405: _other},
        )

    async def _models(self, request: Request) -> Response:
        model = {"id": self._name, "object": "model", "created": self._started, "owned_by": "weft"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "texts": self._engine.texts})

    async def _completions(self, request: Request) -> Response:
        wanted = asked(CompletionAsked, await _body(request))
        return await self._answer(request, wanted, wanted.prompt, _COMPLETION)

    async def _chats(self, request: Request) -> Response:
        wanted = asked(ChatAsked, await _body(request))
        if self._template is None:
            raise InputError("the model's file has no chat template: use /v1/completions")
        text = self._template.text([message.plain() for message in wanted.messages])
        begin = not (self._template.begin and text.startswith(self._template.begin))
        tokens = self._engine.model.tokenizer.encode(text, special=True, begin=None if begin else False)
        return await self._answer(request, wanted, tokens, _CHAT)

    async def _answer(
        self, request: Request, wanted: Asked, prompt: str | list[int], form: _Form
    ) -> Response:
        if wanted.model not in (None, "", self._name):
            raise RefusedError(
                404,
                f"there is no model {printable(wanted.model or '', 60)!r}; this server has {self._name!r}",
            )
        answer = _Answer(self._engine, prompt, wanted.options())
        about = {
            "id": f"{form.prefix}-{uuid.uuid4().hex}", "object": form.whole, "created": int(time.time()),
            "model": self._name,
        }  # fmt: skip
        if wanted.stream:
            about["object"] = form.part
            return StreamingResponse(
                _stream(answer, about, form, wanted.usage), media_type="text/event-stream",
                headers={"Cache-Control": "no-cache"},
            )  # fmt: skip
        result = await answer.whole(request.is_disconnected)
        choice = form.choice(result.text, result.reason, whole=True)
        return JSONResponse(about | {"choices": [choice], "usage": _usage(result)})


class _Answer:
    """A text that goes on, for one client."""

    def __init__(self, engine: Engine, prompt: str | list[int], options: dict[str, Any]) -> None:
        self._engine, self._events = engine, asyncio.Queue[Event]()
        loop = asyncio.get_running_loop()

        def listen(event: Event) -> None:
            loop.call_soon_threadsafe(self._events.put_nowait, event)

        self._ticket = engine.submit(prompt, options, listen)

    async def events(self, left: Callable[[], Awaitable[bool]] | None = None) -> AsyncIterator[Event]:
        """Pieces, and at last the whole; ends early when the client has `left`."""
        looked = time.monotonic()
        try:
            while True:
                if time.monotonic() - looked >= _PAUSE:
                    if left is not None and await left():
                        return
                    looked = time.monotonic()
                try:
                    event = await asyncio.wait_for(self._events.get(), _PAUSE)
                except TimeoutError:
                    continue
                yield event
                if not isinstance(event, str):
                    return
        finally:
            self._engine.cancel(self._ticket)

    async def whole(self, left: Callable[[], Awaitable[bool]]) -> Completion:
        async for event in self.events(left):
            if isinstance(event, WeftError):
                raise event
            if isinstance(event, Completion):
                return event
        raise ClientDisconnect


async def _stream(answer: _Answer, about: dict[str, Any], form: _Form, usage: bool) -> AsyncIterator[str]:
    """Server-sent events."""

    def sent(**fields: Any) -> str:
        return f"data: {json.dumps(about | fields)}\n\n"

    if form is _CHAT:
        first = form.choice("", None, whole=False)
        yield sent(choices=[first | {"delta": {"role": "assistant", "content": ""}}])
    async for event in answer.events():
        if isinstance(event, str):
            yield sent(choices=[form.choice(event, None, whole=False)])
        elif isinstance(event, WeftError):
            yield f"data: {json.dumps(_error(500, str(event)))}\n\n"
        else:
            yield sent(choices=[form.choice("", event.reason, whole=False)])
            if usage:
                yield sent(choices=[], usage=_usage(event))
    yield "data: [DONE]\n\n"


def _usage(result: Completion) -> dict[str, int]:
    given, made = len(result.prompt), len(result.tokens)
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


async def _body(request: Request) -> bytes:
    """The body of a request. Raises `RefusedError` if it is too large, or not said to be JSON."""
    # Pages of other origins may send forms and plain text without being asked; JSON they may not.
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "the request must have the content type application/json")
    found = b""
    async for part in request.stream():
        found += part
        if len(found) > BODY:
            raise RefusedError(413, f"the request has more than {BODY:,} bytes")
    return found


def _error(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


async def _told(request: Request, error: Exception) -> Response:
    """What weft refuses or fails at, in a sentence."""
    status = getattr(error, "status", 400 if isinstance(error, ValueError) else 500)
    if isinstance(error, BusyError):
        status = 503
    return JSONResponse(_error(status, str(error)), status)


async def _other(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return JSONResponse(
        _error(status, f"there is no {request.method} {printable(request.url.path, 100)}"), status
    )
