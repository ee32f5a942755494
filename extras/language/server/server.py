"""OpenAI-compatible server of a language model, for whole answers and for streams.

Texts of several clients run together (`weft.extras.language.run.engine`). A client that disconnects cancels its texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from weft.errors import InputError
from weft.extras.language.run.engine import BusyError, Engine
from weft.extras.language.server.chat import ChatTemplate
from weft.extras.language.server.messages import (
    CHAT,
    COMPLETION,
    Answer,
    ChatRequest,
    CompletionRequest,
    Events,
    Form,
    GenerationRequest,
    count_usage,
    parse_request,
)
from weft.extras.language.server.server_access import Access, error_body
from weft.hdl.errors import WeftError
from weft.hdl.schema import printable

MAX_BODY, MAX_BODIES = 4 << 20, 64 << 20
"""Limits in bytes: of one request, and of all requests that are being read or encoded."""
MIN_LONG_REQUEST = 1 << 16
"""Bytes of a request that makes it long; long requests are encoded one at a time, so that short ones need not wait."""
_Argument = TypeVar("_Argument", str, bytes)
_Result = TypeVar("_Result")
_Kind = TypeVar("_Kind", bound=GenerationRequest)


class RefusedError(InputError):
    """Refusal with a status other than 400."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """Request handler. Slow work runs in threads beside the event loop.

    Parameters
    ----------
    engine : Engine
        A started engine.
    name : str
        The model's name.
    read_timeout : float
        Seconds for reading the body of a request.

    Raises
    ------
    InputError
        If the model has an invalid chat template.
    """

    def __init__(self, engine: Engine, name: str, read_timeout: float = 30.0) -> None:
        self._engine, self._name, self._start_time = engine, name, int(time.time())
        self._read_timeout, self._body_bytes = read_timeout, 0
        # Long texts run one at a time, and so do templates, so that neither delays the encoding of short texts.
        self._short, self._long, self._rendering = (anyio.CapacityLimiter(count) for count in (2, 1, 1))
        model = engine.model.reference.model
        source = model.chat_template
        self._template = ChatTemplate(source, model.vocabulary) if source else None

    def close(self) -> None:
        """End the process of the chat template."""
        if self._template is not None:
            self._template.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def application(self, access: Access = Access()) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._one_model, methods=["GET"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/chat/completions", self._chats, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            middleware=access.middleware(),
            exception_handlers={
                WeftError: _answer_error,
                ClientDisconnect: _log_disconnect,
                404: _answer_unknown_route,
                405: _answer_unknown_route,
            },
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def _one_model(self, request: Request) -> Response:
        self._check_name(request.path_params["name"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        return {"id": self._name, "object": "model", "created": self._start_time, "owned_by": "weft"}

    def _check_name(self, name: str) -> None:
        if name != self._name:
            message = f"there is no model {printable(name, 60)!r}; this server has {self._name!r}"
            raise RefusedError(404, message)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "texts": self._engine.texts})

    async def _completions(self, request: Request) -> Response:
        answer = Answer(self._engine)

        def submit(body: bytes) -> CompletionRequest:
            parsed = self._parse(CompletionRequest, body)
            answer.submit(parsed.prompts(), parsed.options)
            return parsed

        async with self._body(request) as body:
            parsed = await self._run_in_thread(submit, body)
        return await self._answer(request, parsed, answer, COMPLETION)

    async def _chats(self, request: Request) -> Response:
        answer, template = Answer(self._engine), self._template
        max_characters = self._engine.model.max_characters

        def render(body: bytes) -> tuple[ChatRequest, str]:
            parsed = self._parse(ChatRequest, body)
            if template is None:
                raise InputError("the model has no chat template: use /v1/completions")
            return parsed, template.text(
                parsed.template_messages(), max_characters, parsed.chat_template_kwargs
            )

        def submit(text: str) -> None:
            assert template is not None
            # A template that writes the begin token itself must not get a second one.
            begins = bool(template.begin and text.startswith(template.begin))
            answer.submit([text], parsed.options, special=True, begin=False if begins else None)

        async with self._body(request) as body:
            parsed, text = await self._run_in_thread(render, body, self._rendering)
            await self._run_in_thread(submit, text)
        return await self._answer(request, parsed, answer, CHAT)

    async def _run_in_thread(
        self,
        function: Callable[[_Argument], _Result],
        argument: _Argument,
        limiter: anyio.CapacityLimiter | None = None,
    ) -> _Result:
        """Call a function in a thread, limited by `limiter` or, by default, by the length of the argument."""
        limiter = limiter or (self._short if len(argument) < MIN_LONG_REQUEST else self._long)
        return await anyio.to_thread.run_sync(function, argument, limiter=limiter, abandon_on_cancel=True)

    def _parse(self, kind: type[_Kind], body: bytes) -> _Kind:
        parsed = parse_request(kind, body)
        if parsed.model:
            self._check_name(parsed.model)
        return parsed

    async def _answer(
        self, request: Request, parsed: GenerationRequest, answer: Answer, form: Form
    ) -> Response:
        common = {
            "id": f"{form.prefix}-{uuid.uuid4().hex}", "object": form.whole, "created": int(time.time()),
            "model": self._name,
        }  # fmt: skip
        if parsed.stream:
            common["object"] = form.part
            if await request.is_disconnected():
                answer.cancel()
                raise ClientDisconnect
            return Events(answer, common, form, parsed.includes_usage)
        results = await answer.whole(request.is_disconnected)
        choices = [
            form.choice(text.text, text.reason, whole=True, index=at) for at, text in enumerate(results)
        ]
        return JSONResponse(common | {"choices": choices, "usage": count_usage(results)})

    @contextlib.asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body of a request; raise `RefusedError` if it is too large, too slow, or not declared as JSON."""
        # Web pages of other origins may send forms and plain text without a CORS preflight request, but not JSON.
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "the request must have the content type application/json")
        body = bytearray()
        try:
            await self._read(request, body)
            yield bytes(body)
        finally:
            # The body counts until its texts are encoded.
            self._body_bytes -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        try:
            async with asyncio.timeout(self._read_timeout):
                # Refuse a declared size before reading; chunked bodies declare none.
                _check_size(int(request.headers.get("content-length", "0")))
                async for part in request.stream():
                    body += part
                    self._body_bytes += len(part)
                    _check_size(len(body))
                    if self._body_bytes > MAX_BODIES:
                        raise BusyError("the memory for requests is full: try again later")
        except TimeoutError:
            message = f"the body of the request was not sent in {self._read_timeout:g} s"
            raise RefusedError(408, message) from None


def _check_size(size: int) -> None:
    if size > MAX_BODY:
        raise RefusedError(413, f"the request has more than {MAX_BODY:,} bytes")


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answer a request that weft refuses or fails to serve."""
    status = getattr(error, "status", 400 if isinstance(error, ValueError) else 500)
    if isinstance(error, BusyError):
        status = 503
    return JSONResponse(error_body(status, str(error)), status)


async def _log_disconnect(request: Request, error: Exception) -> Response:
    """Log that the client disconnected; the response is never sent."""
    host, port = request.client or ("", 0)
    log = logging.getLogger("uvicorn.access")
    log.info('%s:%d - "%s %s" client disconnected', host, port, request.method, request.url.path)
    return Response(status_code=499)


async def _answer_unknown_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return JSONResponse(
        error_body(status, f"there is no {request.method} {printable(request.url.path, 100)}"), status
    )
