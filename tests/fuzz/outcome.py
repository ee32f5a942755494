"""Outcomes of an input, and the failures among them."""

from __future__ import annotations

import dataclasses
import re
import traceback
from pathlib import Path
from typing import Any

FAILURES = ("traceback", "message", "noise", "left", "wrong", "hang", "memory", "crash")
"""A Python traceback; an unreadable message; warnings on stderr; files that a failed command left or changed; a wrong
answer; 10 s; 2 GB; an end by a signal."""
LONGEST = 1000
"""Characters of a message."""
_NOISE = re.compile(r"Traceback|Warning: |\[[EWF]:onnxruntime|terminate called", re.IGNORECASE)
_INSIDES = re.compile(r"object at 0x|<class |Traceback|\b(Assertion|Key|Attribute|Index|Type)Error\b")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`kind` is ``done``, ``refused``, or one of `FAILURES`; `text` has details; alike failures share a `signature`."""

    kind: str
    text: str = ""
    signature: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in FAILURES

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Failure(Exception):
    def __init__(self, kind: str, text: str, signature: str = "") -> None:
        super().__init__(text)
        self.outcome = Outcome(kind, text, f"{kind} {signature or text[:60]}")


def of_exception(error: BaseException) -> Outcome:
    """Return the outcome of an exception from outside weft's own classes."""
    if isinstance(error, Failure):
        return error.outcome
    text = "".join(traceback.format_exception(error))
    if out_of_memory(error):
        return Outcome("memory", text, f"memory {_place(error)}")
    return Outcome("traceback", text, f"traceback {type(error).__name__} {_place(error)}")


def out_of_memory(error: BaseException | None) -> bool:
    """Return whether a failed allocation caused `error`."""
    while error is not None:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _place(error: BaseException) -> str:
    """Return the last line of weft's own code in a traceback."""
    frames = list(traceback.extract_tb(error.__traceback__))
    others = {"site-packages", "lib", "tests"}
    for frame in reversed([item for item in frames if not others & set(Path(item.filename).parts)] or frames):
        return f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.lineno}"
    return "?"


def check_sentence(text: str) -> None:
    """Raise `Failure` if `text` is not one line that a user can read."""
    if not text.strip() or not text.isprintable():
        raise Failure("message", f"not one printable line: {text[:300]!r}", "not a line")
    if len(text) > LONGEST:
        raise Failure("message", f"{len(text)} characters: {text[:300]}", "long")
    if found := _INSIDES.search(text):
        raise Failure("message", text, f"shows {found.group()}")


def check_quiet(text: str) -> None:
    """Raise `Failure` for warnings and tracebacks on stderr."""
    for line in text.splitlines():
        if _NOISE.search(line) and not line.startswith(("error: ", "warning: ")):
            raise Failure("noise", line[:500], re.sub(r"\d+", "0", line[:60]))
