"""A server of a language model in OpenAI's form: completions and chats, as a whole or as they come.

Texts of several clients go on together (`weft.extras.language.run.engine`). A client that leaves takes its text with
it.
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
from weft.extras.language.server.serve_requests import Asked, ChatAsked, CompletionAsked, asked
from weft.extras.language.server.server_access import Access, refusal
from weft.extras.language.server.server_answers import CHAT, COMPLETION, Answer, Events, Form, usage_of
from weft.hdl.errors import WeftError
from weft.hdl.schema import printable

BODY, BODIES = 4 << 20, 64 << 20
"""Bytes of a request, and of all that are being read or encoded, at most."""
LONG = 1 << 16
"""Bytes from which on a request waits for others of its length, so that short ones do not wait for long ones."""
_Given = TypeVar("_Given", str, bytes)
_Result = TypeVar("_Result")
_Kind = TypeVar("_Kind", bound=Asked)


class RefusedError(InputError):
    """A request with another status than 400."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """Answers requests. What takes long is done in threads beside the loop that answers.

    Parameters
    ----------
    engine : Engine
        That is computing.
    name : str
        Of the model.
    reading : float
        Seconds for the body of a request.

    Raises
    ------
    InputError
        If the model has a chat template that cannot be opened.
    """

    def __init__(self, engine: Engine, name: str, reading: float = 30.0) -> None:
        self._engine, self._name, self._started = engine, name, int(time.time())
        self._reading, self._bodies = reading, 0
        # Long texts take turns, and so do templates: neither keeps short texts from being encoded.
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
        """For a server of ASGI."""
        return Starlette(
            routes=[
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._one_model, methods=["GET"]),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/chat/completions", self._chats, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            middleware=access.layers(),
            exception_handlers={WeftError: _told, ClientDisconnect: _left, 404: _other, 405: _other},
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def _one_model(self, request: Request) -> Response:
        self._check_name(request.path_params["name"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        return {"id": self._name, "object": "model", "created": self._started, "owned_by": "weft"}

    def _check_name(self, name: str) -> None:
        if name != self._name:
            message = f"there is no model {printable(name, 60)!r}; this server has {self._name!r}"
            raise RefusedError(404, message)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "texts": self._engine.texts})

    async def _completions(self, request: Request) -> Response:
        answer = Answer(self._engine)

        def submit(body: bytes) -> CompletionAsked:
            wanted = self._asked(CompletionAsked, body)
            answer.submit(wanted.prompts(), wanted.options)
            return wanted

        async with self._body(request) as body:
            wanted = await self._beside(submit, body)
        return await self._answer(request, wanted, answer, COMPLETION)

    async def _chats(self, request: Request) -> Response:
        answer, template, longest = Answer(self._engine), self._template, self._engine.model.longest

        def render(body: bytes) -> tuple[ChatAsked, str]:
            wanted = self._asked(ChatAsked, body)
            if template is None:
                raise InputError("the model's file has no chat template: use /v1/completions")
            return wanted, template.text(wanted.plain(), longest, wanted.chat_template_kwargs)

        def submit(text: str) -> None:
            assert template is not None
            begins = bool(template.begin and text.startswith(template.begin))
            answer.submit([text], wanted.options, special=True, begin=False if begins else None)

        async with self._body(request) as body:
            wanted, text = await self._beside(render, body, self._rendering)
            await self._beside(submit, text)
        return await self._answer(request, wanted, answer, CHAT)

    async def _beside(
        self,
        function: Callable[[_Given], _Result],
        given: _Given,
        limiter: anyio.CapacityLimiter | None = None,
    ) -> _Result:
        """Call a function in a thread; without a limiter, in turn with others whose argument is as long."""
        limiter = limiter or (self._short if len(given) < LONG else self._long)
        return await anyio.to_thread.run_sync(function, given, limiter=limiter, abandon_on_cancel=True)

    def _asked(self, kind: type[_Kind], body: bytes) -> _Kind:
        wanted = asked(kind, body)
        if wanted.model:
            self._check_name(wanted.model)
        return wanted

    async def _answer(self, request: Request, wanted: Asked, answer: Answer, form: Form) -> Response:
        about = {
            "id": f"{form.prefix}-{uuid.uuid4().hex}", "object": form.whole, "created": int(time.time()),
            "model": self._name,
        }  # fmt: skip
        if wanted.stream:
            about["object"] = form.part
            if await request.is_disconnected():
                answer.cancel()
                raise ClientDisconnect
            return Events(answer, about, form, wanted.usage)
        results = await answer.whole(request.is_disconnected)
        choices = [
            form.choice(text.text, text.reason, whole=True, index=at) for at, text in enumerate(results)
        ]
        return JSONResponse(about | {"choices": choices, "usage": usage_of(results)})

    @contextlib.asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request. Raises `RefusedError` if it is too large, too slow, or not said to be JSON."""
        # Pages of other origins may send forms and plain text without being asked; JSON they may not.
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "the request must have the content type application/json")
        found = bytearray()
        try:
            await self._read(request, found)
            yield bytes(found)
        finally:
            self._bodies -= len(found)

    async def _read(self, request: Request, found: bytearray) -> None:
        try:
            async with asyncio.timeout(self._reading):
                _check_size(int(request.headers.get("content-length", "0")))
                async for part in request.stream():
                    found += part
                    self._bodies += len(part)
                    _check_size(len(found))
                    if self._bodies > BODIES:
                        raise BusyError(
                            "other requests take all memory that there is for them: try again later"
                        )
        except TimeoutError:
            message = f"the body of the request was not sent in {self._reading:g} s"
            raise RefusedError(408, message) from None


def _check_size(size: int) -> None:
    if size > BODY:
        raise RefusedError(413, f"the request has more than {BODY:,} bytes")


async def _told(request: Request, error: Exception) -> Response:
    """What weft refuses or fails at, in a sentence."""
    status = getattr(error, "status", 400 if isinstance(error, ValueError) else 500)
    if isinstance(error, BusyError):
        status = 503
    return JSONResponse(refusal(status, str(error)), status)


async def _left(request: Request, error: Exception) -> Response:
    """A line in the log; nobody hears the answer."""
    host, port = request.client or ("", 0)
    log = logging.getLogger("uvicorn.access")
    log.info('%s:%d - "%s %s" the client left', host, port, request.method, request.url.path)
    return Response(status_code=499)


async def _other(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return JSONResponse(
        refusal(status, f"there is no {request.method} {printable(request.url.path, 100)}"), status
    )
