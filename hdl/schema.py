"""Reading and writing of JSON files with a size limit and a schema.

A schema is any type that msgspec decodes: structs, dataclasses, typed collections. Callers check the rules that a
schema cannot express, such as ranges that depend on each other.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from weft.hdl.errors import SchemaError

T = TypeVar("T")

MAX_FILE_BYTES = 64 << 20
"""Default size limit of a file, in bytes."""
_REPR_CHARACTERS = 60
"""Maximum length of a value in an error message."""


class _Head(msgspec.Struct):
    """Format name of a file. It is decoded first because other versions may have any other fields."""

    format: str | msgspec.UnsetType = msgspec.UNSET


def printable(text: str, limit: int | None = None) -> str:
    """Escape control characters, line breaks and direction marks in `text`, for a terminal or a message.

    If the result is longer than `limit` characters, its middle is replaced by an ellipsis.
    """
    escaped = text if text.isprintable() else "".join(map(_escape, text))
    if limit is None or len(escaped) <= limit:
        return escaped
    head = (limit - 3) // 2
    return f"{escaped[:head]}...{escaped[len(escaped) - (limit - 3 - head) :]}"


def _escape(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def short_repr(value: object) -> str:
    """Return the `repr` of a value from a file, shortened for a message."""
    try:
        return printable(repr(value), _REPR_CHARACTERS)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        return f"an integer of {value.bit_length():,} bits" if isinstance(value, int) else "a huge value"
    except RecursionError:
        return "a value that is nested too deeply"


def read_bytes(path: Path, limit: int = MAX_FILE_BYTES, size: int | None = None) -> bytes:
    """Read a regular file. Pipes and devices are refused because they may never end.

    The checks apply to the opened file, so replacing `path` meanwhile has no effect.

    Raises
    ------
    SchemaError
        If it is no regular file, has more than `limit` bytes or not exactly `size`, or `path` is no valid file name.
    OSError
        If it cannot be read.
    """
    try:
        # O_NONBLOCK because opening a pipe would wait for a writer, before it can be refused.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise SchemaError(f"no file has such a name ({error})") from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise SchemaError("it is not a regular file")
        if size is not None and status.st_size != size:
            raise SchemaError(f"it has {status.st_size:,} bytes, not {short_repr(size)}")
        with open(descriptor, "rb", closefd=False) as file:
            raw = file.read((limit if size is None else min(size, limit)) + 1)
    finally:
        os.close(descriptor)
    if len(raw) > limit:
        raise SchemaError(f"it has more than {limit:,} bytes")
    if size is not None and len(raw) != size:
        raise SchemaError(f"it has other than {size:,} bytes: it changed while it was read")
    return raw


def decode(raw: bytes, kind: type[T], *, format: str | None = None, optional: bool = False) -> T:
    """Decode JSON text to a value of type `kind`.

    Parameters
    ----------
    raw : bytes
        UTF-8 text.
    kind : type
        The schema. With `format`, it is an object with a field ``format``.
    format : str, optional
        Required value of the field ``format``, which is checked before everything else.
    optional : bool
        Accept a file without the field ``format``.

    Raises
    ------
    SchemaError
        If `raw` is not JSON, has another format, or does not fit the schema.
    """
    if format is not None:
        actual = _decode_json(raw, _Head).format
        absent = actual is msgspec.UNSET
        if actual != format and not (absent and optional):
            description = "no format" if absent else f"format {short_repr(actual)}"
            raise SchemaError(f"it has {description}, and this version of weft reads {format!r}")
    return _decode_json(raw, kind)


def _decode_json(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise SchemaError(_move_path_to_front(str(error))) from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise SchemaError(f"it is not JSON ({reason[:1].lower()}{reason[1:]})") from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"it is not UTF-8 text (byte {error.start} of a string)") from None
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None


def _move_path_to_front(message: str) -> str:
    # msgspec's "Expected `int`, got `str` - at `$.a[0]`" becomes "a[0]: expected int, got str".
    reason, _, path = message.partition(" - at `$")
    reason = re.sub(r"`([^`]*)`", r"\1", reason)
    path = printable(path.removesuffix("`").removeprefix("."))
    reason = printable(reason[:1].lower() + reason[1:], 4 * _REPR_CHARACTERS)
    # For a value of a mapping msgspec gives the path "[...]", without the key.
    return f"{'a field' if path == '[...]' else path}: {reason}" if path else reason


def encode(value: Any) -> str:
    """Encode a value as indented JSON that `decode` reads, with a final line break."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"
