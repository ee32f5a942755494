"""What clients of `weft serve` may ask for, in OpenAI's form: checked, and as `weft.lm` takes it.

What would change a text and is not supported is refused, whatever else clients send is not looked at.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from weft.arguments import SEED
from weft.errors import InputError
from weft.hdl.files.schema import printable
from weft.lm import TOKENS

_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "top_p": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "echo": (False,),
    "suffix": ("",), "logprobs": (False,), "top_logprobs": (), "logit_bias": ({},), "tools": ([],), "functions": ([],),
    "response_format": ({"type": "text"},), "min_p": (0,), "repeat_penalty": (1,), "repetition_penalty": (1,),
}  # fmt: skip
"""What changes texts, with the values that do not; null does not either."""
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
        """For `weft.lm.Model.generate`. Without a seed it is another one each time."""
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
    prompt: str | list[int]


class Part(msgspec.Struct):
    """A part of a message; only texts have one."""

    type: str
    text: str = ""


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None

    def plain(self) -> dict[str, str]:
        """Role and text. Raises `InputError` for anything else than text."""
        if isinstance(self.content, list):
            for part in self.content:
                if part.type != "text":
                    raise InputError(
                        f"messages are texts here: a part of type {printable(part.type, 60)!r} is not"
                    )
            return {"role": self.role, "content": "".join(part.text for part in self.content)}
        return {"role": self.role, "content": self.content or ""}


class ChatAsked(Asked, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None

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
    for name, harmless in _HARMLESS.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            raise InputError(f"{name!r} is {printable(repr(value), 60)}, which is not supported here")
    _check_stops([found.stop] if isinstance(found.stop, str) else found.stop or [])
    return found


def _check_stops(stops: list[str]) -> None:
    if len(stops) > STOPS:
        raise InputError(f"'stop' has {len(stops):,} texts; it may have {STOPS}")
    if (longest := max(map(len, stops), default=0)) > STOP:
        raise InputError(f"'stop' has a text of {longest:,} characters; it may have {STOP}")
