"""Answers of a server: the texts of one request, sent as a whole or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from weft.errors import InputError
from weft.extras.language.compiler.encoders import TokenError
from weft.extras.language.run.engine import Engine, Event, Ticket
from weft.extras.language.run.lm import Completion, End
from weft.extras.language.server.server_access import error_body
from weft.hdl.errors import WeftError

_POLL_INTERVAL = 0.5
"""Seconds between checks for a disconnected client."""


@dataclass(frozen=True)
class Form:
    """Format of answers of one API endpoint."""

    prefix: str
    whole: str
    part: str

    def choice(self, text: str, reason: End | None, *, whole: bool, index: int = 0) -> dict[str, Any]:
        finish = None if reason is None else "stop" if reason in (End.MODEL, End.STOP) else "length"
        end = {"index": index, "logprobs": None, "finish_reason": finish}
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
    """Texts of one request; created in the event loop.

    Parameters
    ----------
    engine : Engine
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._events = engine, asyncio.Queue[tuple[int, Event]]()
        self._loop = asyncio.get_running_loop()
        self._tickets: list[Ticket] = []

    def submit(
        self,
        prompts: Sequence[str | list[int]],
        options: Callable[[], dict[str, Any]],
        *,
        special: bool = False,
        begin: bool | None = None,
    ) -> None:
        """Request a text for each prompt; may be called in any thread.

        Parameters
        ----------
        prompts : sequence of str or list of int
        options : callable
            Returns the options of one text for `Engine.submit`.
        special, begin
            See `weft.extras.language.run.lm.Model.encode`.

        Raises
        ------
        InputError, BusyError
            If `Engine.submit` refuses any of the texts; all others are cancelled then.
        """
        encode = functools.partial(self._engine.model.encode, special=special, begin=begin)
        encoded = [_encode(encode, prompts, index) for index in range(len(prompts))]
        try:
            for index, tokens in enumerate(encoded):
                listen = functools.partial(self._listen, index)
                self._tickets.append(self._engine.submit(tokens, options(), listen))
        except BaseException:
            self.cancel()
            raise

    def _listen(self, index: int, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # raised after the end of the event loop
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

    def cancel(self) -> None:
        """Cancel all texts."""
        for ticket in self._tickets:
            self._engine.cancel(ticket)

    async def events(
        self, is_disconnected: Callable[[], Awaitable[bool]] | None = None
    ) -> AsyncIterator[tuple[int, Event]]:
        """Yield prompt indices with pieces of their texts, and finally with completions.

        The iteration ends early after an error, and when the client has disconnected.
        """
        last_check, remaining = time.monotonic(), len(self._tickets)
        while remaining:
            if time.monotonic() - last_check >= _POLL_INTERVAL:
                if is_disconnected is not None and await is_disconnected():
                    return
                last_check = time.monotonic()
            try:
                index, event = await asyncio.wait_for(self._events.get(), _POLL_INTERVAL)
            except TimeoutError:
                continue
            yield index, event
            if isinstance(event, WeftError):
                return
            remaining -= not isinstance(event, str)

    async def whole(self, is_disconnected: Callable[[], Awaitable[bool]]) -> list[Completion]:
        """Return the completions; raise `ClientDisconnect` if the client has disconnected."""
        completions: dict[int, Completion] = {}
        try:
            async for index, event in self.events(is_disconnected):
                if isinstance(event, WeftError):
                    raise event
                if isinstance(event, Completion):
                    completions[index] = event
            if len(completions) < len(self._tickets) or await is_disconnected():
                raise ClientDisconnect
            return [completions[index] for index in sorted(completions)]
        finally:
            self.cancel()


def _encode(
    encode: Callable[[str | list[int]], list[int]], prompts: Sequence[str | list[int]], index: int
) -> list[int]:
    """Return the tokens of a prompt; if there are several prompts, errors name its index."""
    try:
        return encode(prompts[index])
    except (InputError, TokenError) as error:
        if len(prompts) == 1:
            raise
        raise InputError(f"prompt {index}: {error}") from None


class Events(StreamingResponse):
    """Stream of server-sent events. Its end cancels the texts, also before the first event."""

    def __init__(self, answer: Answer, common: dict[str, Any], form: Form, includes_usage: bool) -> None:
        content = _stream(answer, common, form, includes_usage)
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.cancel()


async def _stream(
    answer: Answer, common: dict[str, Any], form: Form, includes_usage: bool
) -> AsyncIterator[str]:
    """Yield server-sent events."""

    def event_line(**fields: Any) -> str:
        return f"data: {json.dumps(common | fields)}\n\n"

    if form is CHAT:
        first = form.choice("", None, whole=False)
        yield event_line(choices=[first | {"delta": {"role": "assistant", "content": ""}}])
    results = []
    async for index, event in answer.events():
        if isinstance(event, str):
            yield event_line(choices=[form.choice(event, None, whole=False, index=index)])
        elif isinstance(event, WeftError):
            includes_usage = False
            yield f"data: {json.dumps(error_body(500, str(event)))}\n\n"
        else:
            yield event_line(choices=[form.choice("", event.reason, whole=False, index=index)])
            results.append(event)
    if includes_usage:
        yield event_line(choices=[], usage=count_usage(results))
    yield "data: [DONE]\n\n"


def count_usage(results: Sequence[Completion]) -> dict[str, int]:
    """Return token counts in OpenAI's format."""
    prompt = sum(len(text.prompt) for text in results)
    generated = sum(len(text.tokens) for text in results)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
