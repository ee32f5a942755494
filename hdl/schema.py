"""JSON files that weft reads: of bounded size, decoded by a schema, and refused in one sentence.

A schema is any type that msgspec decodes: structs, dataclasses, typed collections. What a schema cannot say (ranges
that depend on each other, names that must exist) is checked by whoever reads the file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from weft.hdl.errors import WeftError

T = TypeVar("T")

LIMIT = 64 << 20
"""Bytes that a file may have unless its reader says otherwise."""
_SHOWN = 60
"""Characters of a value that messages show."""


class SchemaError(WeftError, ValueError):
    """A file that does not hold what it should: what is wrong, and where in the file; not which file."""


class _Head(msgspec.Struct):
    """The version, which is read first: other versions may have any other fields."""

    format: str | msgspec.UnsetType = msgspec.UNSET


def printable(text: str, limit: int | None = None) -> str:
    """`text` for a terminal or a message: control characters, line breaks and marks that reverse the direction of
    writing are escaped, and what is longer than `limit` characters is cut in the middle."""
    shown = text if text.isprintable() else "".join(map(_visible, text))
    if limit is None or len(shown) <= limit:
        return shown
    head = (limit - 3) // 2
    return f"{shown[:head]}...{shown[len(shown) - (limit - 3 - head) :]}"


def _visible(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def shown(value: object) -> str:
    """The representation of a value from a file, short enough for a message."""
    try:
        return printable(repr(value), _SHOWN)
    except ValueError:  # Python does not write integers of more than 4300 digits
        return f"an integer of {value.bit_length():,} bits" if isinstance(value, int) else "a huge value"
    except RecursionError:
        return "a value that is nested too deeply"


def read_bytes(path: Path, limit: int = LIMIT, size: int | None = None) -> bytes:
    """Read a regular file: a pipe or a device may never end.

    The file that is checked is the file that is read, whatever its name leads to meanwhile.

    Raises
    ------
    SchemaError
        If it is no regular file, has more than `limit` bytes or not exactly `size`, or its name cannot be that of a
        file.
    OSError
        If it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise SchemaError(f"no file has such a name ({error})") from None
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise SchemaError("it is not a regular file")
        if size is not None and found.st_size != size:
            raise SchemaError(f"it has {found.st_size:,} bytes, not {shown(size)}")
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
    """JSON as a `kind`.

    Parameters
    ----------
    raw : bytes
        UTF-8 text.
    kind : type
        The schema; with `format`, an object with a field ``format``.
    format : str
        What the field ``format`` must hold; it is looked at before everything else.
    optional : bool
        Take a file without this field, too.

    Raises
    ------
    SchemaError
        If `raw` is not JSON, of another format, or does not fit the schema.
    """
    if format is not None:
        found = _decoded(raw, _Head).format
        absent = found is msgspec.UNSET
        if found != format and not (absent and optional):
            said = "no format" if absent else f"format {shown(found)}"
            raise SchemaError(f"it has {said}, and this version of weft reads {format!r}")
    return _decoded(raw, kind)


def _decoded(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise SchemaError(_reason(str(error))) from None
    except msgspec.DecodeError as error:
        what = str(error).removeprefix("JSON is malformed: ")
        raise SchemaError(f"it is not JSON ({what[:1].lower()}{what[1:]})") from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"it is not UTF-8 text (byte {error.start} of a string)") from None
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None


def _reason(message: str) -> str:
    """msgspec's message with the place in front: ``Expected `int`, got `str` - at `$.a[0]``` as
    ``a[0]: expected int, got str``. Of mappings it does not say which field: ``[...]``."""
    what, _, where = message.partition(" - at `$")
    what = re.sub(r"`([^`]*)`", r"\1", what)
    place = printable(where.removesuffix("`").removeprefix("."))
    what = printable(what[:1].lower() + what[1:], 4 * _SHOWN)
    return f"{'a field' if place == '[...]' else place}: {what}" if place else what


def encode(value: Any) -> str:
    """Indented JSON of what `decode` reads, with a line break at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"
