"""Requests to `weft serve` in OpenAI's format, checked and converted to arguments of `weft.extras.language.run.lm`.

Like OpenAI's API, the server refuses unknown fields, and known but unsupported fields unless their value is neutral.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from weft.arguments import SEED
from weft.errors import InputError
from weft.extras.language.run.lm import DEFAULT_TOKENS
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
