"""Requests to `weft serve`, in OpenAI's form: checked, and as `weft.extras.language.run.lm` takes them.

A field that is neither supported nor known to change nothing is refused, as OpenAI refuses fields that it does not
know.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from weft.arguments import SEED
from weft.errors import InputError
from weft.extras.language.run.lm import TOKENS
from weft.hdl.schema import printable, short_repr

_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "top_p": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "echo": (False,),
    "suffix": ("",), "logprobs": (False,), "top_logprobs": (), "logit_bias": ({},), "tools": ([],), "functions": ([],),
    "tool_choice": ("none", "auto"), "function_call": ("none", "auto"), "response_format": ({"type": "text"},),
    "modalities": (["text"],), "reasoning_effort": ("none",),
    # Of other servers with this form
    "min_p": (0,), "typical_p": (1,), "repeat_penalty": (1,), "repetition_penalty": (1,), "length_penalty": (1,),
    "dry_multiplier": (0,), "xtc_probability": (0,), "mirostat": (0,), "dynatemp_range": (0,), "ignore_eos": (False,),
    "min_tokens": (0,), "stop_token_ids": ([],), "bad_words": ([],), "grammar": ("",), "json_schema": ({},),
    "use_beam_search": (False,), "include_stop_str_in_output": (False,), "skip_special_tokens": (True,),
    "add_generation_prompt": (True,), "continue_final_message": (False,),
}  # fmt: skip
"""Fields that change texts, with the values that do not."""
_IGNORED = frozenset({
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prediction", "parallel_tool_calls", "verbosity", "cache_prompt",
})  # fmt: skip
"""Fields that change no text of this server, whatever their values."""
PROMPTS = 128
"""Prompts of a request at most: half of the texts that may go on or wait."""
STOPS, STOP = 16, 256
"""Number and characters of stop texts at most: each step looks for each of them, while all other texts wait."""


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Asked(msgspec.Struct):
    """What both kinds of requests have."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def options(self) -> dict[str, Any]:
        """For `weft.extras.language.run.lm.Model.generate`. Without a seed it is another one each time."""
        return {
            "tokens": TOKENS if self.max_tokens is None else self.max_tokens,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_k": self.top_k,
            "seed": secrets.randbelow(SEED[1]) if self.seed is None else self.seed,
            "stop": [] if self.stop is None else self.stop,
        }

    @property
    def usage(self) -> bool:
        """Whether a stream ends with numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionAsked(Asked, kw_only=True):
    prompt: str | list[int | str | list[int]]

    def prompts(self) -> list[str | list[int]]:
        """List the prompts: texts, or tokens. Raises `InputError` for tokens beside them, and for too many."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        tokens = [item for item in given if isinstance(item, int)]
        if len(tokens) == len(given):
            return [tokens]
        prompts = [item for item in given if not isinstance(item, int)]
        if tokens:
            raise InputError(
                f"'prompt' has the token {tokens[0]} beside prompts: give texts, lists of tokens, or one list of tokens"
            )
        if len(prompts) > PROMPTS:
            raise InputError(f"'prompt' has {len(prompts):,} prompts; it may have {PROMPTS}")
        return prompts


class Part(msgspec.Struct):
    """A part of a message; only texts have one."""

    type: str
    text: str = ""


class Call(msgspec.Struct):
    """A function that the model has called; its arguments are JSON, mostly as a text."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(msgspec.Struct):
    function: Call


class Message(msgspec.Struct):
    """The fields of a message that are checked; a template may read others."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: None = None

    def text(self) -> str:
        """Return the content. Raises `InputError` for anything else than text."""
        if not isinstance(self.content, list):
            return self.content or ""
        for part in self.content:
            if part.type != "text":
                raise InputError(
                    f"messages are texts here: a part of type {printable(part.type, 60)!r} is not"
                )
        return "".join(part.text for part in self.content)


def _plain(at: int, given: dict[str, Any]) -> dict[str, Any]:
    """A message as templates take it: without fields that are null, and with arguments of functions as mappings."""
    try:
        message = msgspec.convert(given, Message)
    except msgspec.ValidationError as error:
        raise InputError(f"the request does not fit: message {at}: {printable(str(error), 300)}") from None
    plain = {name: value for name, value in given.items() if value is not None}
    if message.content is not None or not message.tool_calls:
        plain["content"] = message.text()
    if message.tool_calls:
        pairs = zip(plain["tool_calls"], message.tool_calls, strict=True)
        plain["tool_calls"] = [
            call | {"function": call["function"] | {"arguments": _arguments(at, checked.function)}}
            for call, checked in pairs
        ]
    return plain


def _arguments(at: int, call: Call) -> dict[str, Any]:
    if isinstance(call.arguments, dict):
        return call.arguments
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise InputError(
            f"message {at}: the arguments of function {short_repr(call.name)} are {short_repr(call.arguments)}, "
            "which is no JSON object"
        ) from None


class ChatAsked(Asked, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def plain(self) -> list[dict[str, Any]]:
        """Check the messages and return them as `weft.extras.language.server.chat.ChatTemplate.text` takes them.
        Raises `InputError`."""
        return [_plain(at, message) for at, message in enumerate(self.messages)]

    def options(self) -> dict[str, Any]:
        found = super().options()
        if self.max_completion_tokens is not None:
            found["tokens"] = self.max_completion_tokens
        return found


_Kind = TypeVar("_Kind", bound=Asked)


def asked(kind: type[_Kind], body: bytes) -> _Kind:
    """A request. Raises `InputError` if it is none, or asks for what is not supported."""
    try:
        fields = msgspec.json.decode(body)
        if not isinstance(fields, dict):
            raise InputError("the request is no JSON object")
        found = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"the request does not fit: {printable(str(error), 300)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the request is no JSON: {printable(str(error), 300)}") from None
    _check_fields(fields, kind)
    _check_stops([found.stop] if isinstance(found.stop, str) else found.stop or [])
    return found


def _check_fields(fields: dict[str, Any], kind: type[Asked]) -> None:
    """Raise `InputError` for fields that change a text and are not supported."""
    known = _IGNORED.union(kind.__struct_fields__)
    wrong = [
        f"{short_repr(name)} is {short_repr(value)}"
        for name, value in fields.items()
        if name not in known and value is not None and not _changes_nothing(name, value)
    ]
    if wrong:
        raise InputError(f"{' and '.join(wrong)}, which is not supported here")


def _changes_nothing(name: str, value: object) -> bool:
    truth = isinstance(value, bool)  # True is 1 for Python, and "logprobs": 0 asks for something
    return any(truth == isinstance(item, bool) and value == item for item in _HARMLESS.get(name, ()))


def _check_stops(stops: list[str]) -> None:
    if len(stops) > STOPS:
        raise InputError(f"'stop' has {len(stops):,} texts; it may have {STOPS}")
    if (longest := max(map(len, stops), default=0)) > STOP:
        raise InputError(f"'stop' has a text of {longest:,} characters; it may have {STOP}")
