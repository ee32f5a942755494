"""Requests in OpenAI's format, checked and converted to arguments of `weft.extras.language.run.lm`, and their answers.

Like OpenAI's API, the server refuses unknown fields, and known but unsupported fields unless their value is neutral.
The texts of a request are sent as a whole or as a stream of server-sent events.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from weft.arguments import SEED
from weft.errors import InputError
from weft.extras.language.compiler.encoders import TokenError
from weft.extras.language.run.engine import Engine, Event, Ticket
from weft.extras.language.run.lm import DEFAULT_TOKENS, Completion, End
from weft.extras.language.server.server_access import error_body
from weft.hdl.errors import WeftError
from weft.hdl.schema import printable, short_repr

_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "top_p": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "echo": (False,),
    "suffix": ("",), "logprobs": (False,), "top_logprobs": (), "logit_bias": ({},), "tools": ([],), "functions": ([],),
    "tool_choice": ("none", "auto"), "function_call": ("none", "auto"), "response_format": ({"type": "text"},),
    "modalities": (["text"],), "reasoning_effort": ("none",),
    # Extensions of other servers with this API
    "min_p": (0,), "typical_p": (1,), "repeat_penalty": (1,), "repetition_penalty": (1,), "length_penalty": (1,),
    "dry_multiplier": (0,), "xtc_probability": (0,), "mirostat": (0,), "dynatemp_range": (0,), "ignore_eos": (False,),
    "min_tokens": (0,), "stop_token_ids": ([],), "bad_words": ([],), "grammar": ("",), "json_schema": ({},),
    "use_beam_search": (False,), "include_stop_str_in_output": (False,), "skip_special_tokens": (True,),
    "add_generation_prompt": (True,), "continue_final_message": (False,),
}  # fmt: skip
"""Unsupported fields, with the values that leave the text unchanged."""
_IGNORED_FIELDS = frozenset({
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prediction", "parallel_tool_calls", "verbosity", "cache_prompt",
})  # fmt: skip
"""Fields that never affect the text, whatever their values."""
MAX_PROMPTS = 128
"""Limit for prompts of a request: half of the engine's texts."""
MAX_STOPS = 16
"""Limit for stop sequences; each step searches for all of them while other texts wait."""
MAX_STOP_CHARACTERS = 256


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class GenerationRequest(msgspec.Struct):
    """Fields that both kinds of requests share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def options(self) -> dict[str, Any]:
        """Return options for `weft.extras.language.run.lm.Model.generate`; without a seed, the seed is random."""
        return {
            "tokens": DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_k": self.top_k,
            "seed": secrets.randbelow(SEED[1]) if self.seed is None else self.seed,
            "stop": [] if self.stop is None else self.stop,
        }

    @property
    def includes_usage(self) -> bool:
        """True if a stream ends with token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: str | list[int | str | list[int]]

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts as texts or token lists; raise `InputError` for a mixture, or for too many prompts."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        tokens = [item for item in prompt if isinstance(item, int)]
        if len(tokens) == len(prompt):
            return [tokens]
        prompts = [item for item in prompt if not isinstance(item, int)]
        if tokens:
            raise InputError(
                f"'prompt' has the token {tokens[0]} beside prompts: give texts, lists of tokens, or one list of tokens"
            )
        if len(prompts) > MAX_PROMPTS:
            raise InputError(f"'prompt' has {len(prompts):,} prompts; it may have {MAX_PROMPTS}")
        return prompts


class MessagePart(msgspec.Struct):
    """Part of a message; only parts of type "text" have a text."""

    type: str
    text: str = ""


class FunctionCall(msgspec.Struct):
    """Function call by the model; its arguments are JSON, usually encoded as a string."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(msgspec.Struct):
    function: FunctionCall


class Message(msgspec.Struct):
    """Fields of a message that weft checks; templates may read others."""

    role: str
    content: str | list[MessagePart] | None = None
    tool_calls: list[ToolCall] | None = None
    # Only null: `tool_calls` has replaced this field.
    function_call: None = None

    def text(self) -> str:
        """Return the content; raise `InputError` if it is anything but text."""
        if not isinstance(self.content, list):
            return self.content or ""
        for part in self.content:
            if part.type != "text":
                raise InputError(
                    f"this server takes text only; a message has a part of type {printable(part.type, 60)!r}"
                )
        return "".join(part.text for part in self.content)


def _template_message(at: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a message for the template: without null fields, and with function arguments as mappings."""
    try:
        message = msgspec.convert(fields, Message)
    except msgspec.ValidationError as error:
        raise InputError(f"the request does not fit: message {at}: {printable(str(error), 300)}") from None
    result = {name: value for name, value in fields.items() if value is not None}
    if message.content is not None or not message.tool_calls:
        result["content"] = message.text()
    if message.tool_calls:
        pairs = zip(result["tool_calls"], message.tool_calls, strict=True)
        result["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": _arguments(at, call_fields.function)}}
            for call, call_fields in pairs
        ]
    return result


def _arguments(at: int, call: FunctionCall) -> dict[str, Any]:
    if isinstance(call.arguments, dict):
        return call.arguments
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise InputError(
            f"message {at}: the arguments of function {short_repr(call.name)} are {short_repr(call.arguments)}, "
            "which is no JSON object"
        ) from None


class ChatRequest(GenerationRequest, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def template_messages(self) -> list[dict[str, Any]]:
        """Check the messages and return them for `weft.extras.language.server.chat.ChatTemplate.text`; may raise
        `InputError`.
        """
        return [_template_message(at, message) for at, message in enumerate(self.messages)]

    def options(self) -> dict[str, Any]:
        options = super().options()
        if self.max_completion_tokens is not None:
            options["tokens"] = self.max_completion_tokens
        return options


_Kind = TypeVar("_Kind", bound=GenerationRequest)


def parse_request(kind: type[_Kind], body: bytes) -> _Kind:
    """Parse and check a request; raise `InputError` if it is invalid or asks for something unsupported."""
    try:
        fields = msgspec.json.decode(body)
        if not isinstance(fields, dict):
            raise InputError("the request is no JSON object")
        request = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"the request does not fit: {printable(str(error), 300)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the request is no JSON: {printable(str(error), 300)}") from None
    _check_fields(fields, kind)
    _check_stops([request.stop] if isinstance(request.stop, str) else request.stop or [])
    return request


def _check_fields(fields: dict[str, Any], kind: type[GenerationRequest]) -> None:
    """Raise `InputError` for unsupported fields that would change a text."""
    known = _IGNORED_FIELDS.union(kind.__struct_fields__)
    unsupported = [
        f"{short_repr(name)} is {short_repr(value)}"
        for name, value in fields.items()
        if name not in known and value is not None and not _changes_nothing(name, value)
    ]
    if unsupported:
        raise InputError(f"{' and '.join(unsupported)}, which is not supported here")


def _changes_nothing(name: str, value: object) -> bool:
    truth = isinstance(value, bool)  # in Python True == 1, but "logprobs": 0 differs from false
    return any(truth == isinstance(item, bool) and value == item for item in _NEUTRAL_VALUES.get(name, ()))


def _check_stops(stops: list[str]) -> None:
    if len(stops) > MAX_STOPS:
        raise InputError(f"'stop' has {len(stops):,} texts; it may have {MAX_STOPS}")
    if (longest := max(map(len, stops), default=0)) > MAX_STOP_CHARACTERS:
        raise InputError(f"'stop' has a text of {longest:,} characters; it may have {MAX_STOP_CHARACTERS}")


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
        # Encode all prompts before any text starts, so that a refused one costs nothing.
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
            # Counts would be incomplete.
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
