"""Answers of a server: a text that goes on for one client, and how it is sent, as a whole or as a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from weft.engine import Engine, Event, Ticket
from weft.hdl.errors import WeftError
from weft.lm import Completion, End
from weft.server_access import refusal

_PAUSE = 0.5
"""Seconds between looks whether a client is still there."""


@dataclass(frozen=True)
class Form:
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


COMPLETION = Form("cmpl", "text_completion", "text_completion")
CHAT = Form("chatcmpl", "chat.completion", "chat.completion.chunk")


class Answer:
    """A text that goes on, for one client; made in the loop that answers.

    Parameters
    ----------
    engine : Engine
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._events = engine, asyncio.Queue[Event]()
        self._loop = asyncio.get_running_loop()
        self._ticket: Ticket | None = None

    def submit(
        self,
        prompt: str | list[int],
        options: dict[str, Any],
        *,
        special: bool = False,
        begin: bool | None = None,
    ) -> None:
        """Ask for the text; in any thread.

        Parameters
        ----------
        prompt, options
            As `Engine.submit` has them.
        special, begin
            As `weft.lm.Model.encode` has them.

        Raises
        ------
        InputError, BusyError
            As `Engine.submit` does.
        """
        tokens = self._engine.model.encode(prompt, special=special, begin=begin)
        self._ticket = self._engine.submit(tokens, options, self._listen)

    def _listen(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def cancel(self) -> None:
        """Have the text not go on."""
        if self._ticket is not None:
            self._engine.cancel(self._ticket)

    async def events(self, left: Callable[[], Awaitable[bool]] | None = None) -> AsyncIterator[Event]:
        """Pieces, and at last the whole; ends early when the client has `left`."""
        looked = time.monotonic()
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

    async def whole(self, left: Callable[[], Awaitable[bool]]) -> Completion:
        """The text at its end. Raises `ClientDisconnect` if the client has `left` before."""
        try:
            async for event in self.events(left):
                if isinstance(event, WeftError):
                    raise event
                if isinstance(event, Completion):
                    return event
            raise ClientDisconnect
        finally:
            self.cancel()


class Events(StreamingResponse):
    """A stream of server-sent events. Its text ends with it, also if the client leaves before the first event."""

    def __init__(self, answer: Answer, about: dict[str, Any], form: Form, usage: bool) -> None:
        content = _stream(answer, about, form, usage)
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.cancel()


async def _stream(answer: Answer, about: dict[str, Any], form: Form, usage: bool) -> AsyncIterator[str]:
    """Server-sent events."""

    def sent(**fields: Any) -> str:
        return f"data: {json.dumps(about | fields)}\n\n"

    if form is CHAT:
        first = form.choice("", None, whole=False)
        yield sent(choices=[first | {"delta": {"role": "assistant", "content": ""}}])
    async for event in answer.events():
        if isinstance(event, str):
            yield sent(choices=[form.choice(event, None, whole=False)])
        elif isinstance(event, WeftError):
            yield f"data: {json.dumps(refusal(500, str(event)))}\n\n"
        else:
            yield sent(choices=[form.choice("", event.reason, whole=False)])
            if usage:
                yield sent(choices=[], usage=usage_of(event))
    yield "data: [DONE]\n\n"


def usage_of(result: Completion) -> dict[str, int]:
    """Numbers of tokens, in OpenAI's form."""
    given, made = len(result.prompt), len(result.tokens)
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
