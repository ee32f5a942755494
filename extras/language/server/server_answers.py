"""Answers of a server: texts that go on for one client, and how they are sent, as a whole or as a stream of events."""

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
from weft.extras.language.server.server_access import refusal
from weft.hdl.errors import WeftError

_PAUSE = 0.5
"""Seconds between looks whether a client is still there."""


@dataclass(frozen=True)
class Form:
    """How a kind of answer looks."""

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
    """Texts that go on, for one client; made in the loop that answers.

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
        """Ask for a text for each prompt; in any thread.

        Parameters
        ----------
        prompts : sequence of str or list of int
        options : callable
            Gives the options of each text, as `Engine.submit` has them.
        special, begin
            As `weft.extras.language.run.lm.Model.encode` has them.

        Raises
        ------
        InputError, BusyError
            As `Engine.submit` does, for any of the texts; none of them goes on then.
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
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

    def cancel(self) -> None:
        """Have the texts not go on."""
        for ticket in self._tickets:
            self._engine.cancel(ticket)

    async def events(
        self, left: Callable[[], Awaitable[bool]] | None = None
    ) -> AsyncIterator[tuple[int, Event]]:
        """Yield the number of a prompt and a piece of its text, or at last the whole; ends early when the client has
        `left`, and with an error."""
        looked, going = time.monotonic(), len(self._tickets)
        while going:
            if time.monotonic() - looked >= _PAUSE:
                if left is not None and await left():
                    return
                looked = time.monotonic()
            try:
                index, event = await asyncio.wait_for(self._events.get(), _PAUSE)
            except TimeoutError:
                continue
            yield index, event
            if isinstance(event, WeftError):
                return
            going -= not isinstance(event, str)

    async def whole(self, left: Callable[[], Awaitable[bool]]) -> list[Completion]:
        """Return the texts at their ends. Raises `ClientDisconnect` if the client has `left`."""
        found: dict[int, Completion] = {}
        try:
            async for index, event in self.events(left):
                if isinstance(event, WeftError):
                    raise event
                if isinstance(event, Completion):
                    found[index] = event
            if len(found) < len(self._tickets) or await left():
                raise ClientDisconnect
            return [found[index] for index in sorted(found)]
        finally:
            self.cancel()


def _encode(
    encode: Callable[[str | list[int]], list[int]], prompts: Sequence[str | list[int]], index: int
) -> list[int]:
    """The tokens of one of several prompts; an error says of which."""
    try:
        return encode(prompts[index])
    except (InputError, TokenError) as error:
        if len(prompts) == 1:
            raise
        raise InputError(f"prompt {index}: {error}") from None


class Events(StreamingResponse):
    """A stream of server-sent events. Its texts end with it, also if the client leaves before the first event."""

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
    results = []
    async for index, event in answer.events():
        if isinstance(event, str):
            yield sent(choices=[form.choice(event, None, whole=False, index=index)])
        elif isinstance(event, WeftError):
            usage = False
            yield f"data: {json.dumps(refusal(500, str(event)))}\n\n"
        else:
            yield sent(choices=[form.choice("", event.reason, whole=False, index=index)])
            results.append(event)
    if usage:
        yield sent(choices=[], usage=usage_of(results))
    yield "data: [DONE]\n\n"


def usage_of(results: Sequence[Completion]) -> dict[str, int]:
    """Count the tokens of texts, in OpenAI's form."""
    given, made = sum(len(text.prompt) for text in results), sum(len(text.tokens) for text in results)
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
