"""A GGUF file as plain Python values, all of it checked: the only module that knows the container's form.

The reader of the package `gguf` believes every count: an array of 2**60 numbers keeps it busy for ever, and memory
grows meanwhile. To know that a file is none of these one has to walk through all of it, which is all that reading is.
So the package only says here which types there are, and how large; what a file claims is held against its size before
anything is made of it. Tensors stay views of the file's bytes.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.onnx.limits import ELEMENTS
from weft.extras.language.compiler.libraries import library
from weft.hdl.schema import printable, short_repr

MAGIC = b"GGUF"
"""The first bytes of every file."""
SUFFIX = ".gguf"
VERSIONS = (2, 3)
Value: TypeAlias = int | float | bool | str | np.ndarray | tuple[str, ...]
"""Metadata: arrays of numbers are of numpy, arrays of text are tuples."""
Source: TypeAlias = str | os.PathLike[str] | bytes

_LARGEST = 1 << 33
"""Bytes of the largest file that is read: twice what addresses of a device reach."""
_ENTRIES = 1 << 16
"""Most entries of metadata, and most tensors."""
_ITEMS = 1 << 22
"""Most elements of an array of metadata."""
_RANK = 4
"""Most dimensions of a tensor."""
_ALIGNMENT = 1 << 16
"""Largest alignment of tensors."""
_NAME = 128
"""Bytes of the longest name of a tensor or key of metadata."""
_NUMBERS = {
    "UINT8": "u1", "INT8": "i1", "UINT16": "u2", "INT16": "i2", "UINT32": "u4", "INT32": "i4", "UINT64": "u8",
    "INT64": "i8", "FLOAT32": "f4", "FLOAT64": "f8", "BOOL": "u1",
}  # fmt: skip
"""GGUF's types of numbers, and numpy's."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor of the file.

    Attributes
    ----------
    name : str
    kind : str
        Its type by GGUF's name: ``F32``, ``Q8_0``.
    shape : tuple of int
        With the dimension whose elements lie side by side last, as numpy has it; the file has it first.
    content : numpy.ndarray of uint8
        Its bytes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    content: np.ndarray

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"tensor {self.name!r}"


@dataclass(frozen=True, eq=False)
class File:
    """Metadata by key, and tensors by name."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, Stored]


def is_gguf(head: bytes) -> bool:
    """Whether a file that begins with `head` is a GGUF file."""
    return head[:4] == MAGIC


def load(source: Source) -> tuple[np.ndarray, str]:
    """The bytes of a file, uint8, and what messages call it.

    Raises
    ------
    CompileError
        If it cannot be read, or is larger than weft reads.
    """
    if isinstance(source, bytes):
        return np.frombuffer(source, np.uint8), f"the model of {len(source):,} bytes"
    path = Path(source)
    try:
        if path.exists() and not path.is_file():
            raise CompileError(f"cannot read model {path}: it is no regular file")
        if path.is_file() and path.stat().st_size > _LARGEST:
            raise CompileError(
                f"{path} has {path.stat().st_size:,} bytes; weft reads models of up to {_LARGEST:,}"
            )
        return np.fromfile(path, np.uint8), str(path)
    except CompileError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CompileError(f"cannot read model {printable(str(path))}: {printable(why)}") from None


def parse(data: np.ndarray, what: str) -> File:
    """Read the bytes of a file, which messages call `what`.

    Raises
    ------
    CompileError
        If they are no GGUF file, of another version or byte order, truncated or damaged.
    """
    return _Parser(data, what).file()


@functools.cache
def _value_types() -> dict[int, str]:
    return {int(kind): kind.name for kind in library("gguf").GGUFValueType}


@functools.cache
def _tensor_types() -> dict[int, tuple[str, int, int]]:
    """Names of tensors' types, with elements and bytes of a block."""
    gguf = library("gguf")
    sizes = gguf.GGML_QUANT_SIZES
    return {int(kind): (kind.name, *sizes[kind]) for kind in gguf.GGMLQuantizationType if kind in sizes}


class _Parser:
    """Reads one file from begin to end."""

    def __init__(self, data: np.ndarray, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    def file(self) -> File:
        head = self._data[:8].tobytes()
        if not is_gguf(head):
            found = repr(head[:4])[1:] if head else "missing"
            raise CompileError(
                f"{self._what} is no GGUF file: the first four bytes of one are 'GGUF', here they are {found}"
            )
        self._take(4, "the head")
        self._check_version(int(self._number("u4", "the version")))
        tensors = self._count("tensors", 24)
        entries = self._count("metadata entries", 13)
        metadata: dict[str, Value] = {}
        for at in range(entries):
            key = self._name(f"the key of metadata entry {at}")
            if key in metadata:
                raise self._error(f"has the metadata {key!r} twice")
            metadata[key] = self._value(f"metadata {key!r}")
        infos = [self._tensor_info(at) for at in range(tensors)]
        return File(metadata, self._contents(infos, self._alignment(metadata)))

    def _error(self, why: str) -> CompileError:
        return CompileError(f"{self._what} {why}")

    def _check_version(self, version: int) -> None:
        if version in VERSIONS:
            return
        if version & 0xFFFF == 0:
            raise self._error("has its numbers in big-endian order; weft reads little-endian GGUF files")
        raise self._error(f"is of version {version} of GGUF; weft reads {' and '.join(map(str, VERSIONS))}")

    def _take(self, size: int, of: str) -> np.ndarray:
        """The next bytes."""
        start, left = self._at, self._data.size - self._at
        if size > left:
            raise self._error(
                f"is truncated or damaged: {of} has {size:,} bytes, and {left:,} are left of the file"
            )
        self._at += size
        return self._data[start : self._at]

    def _number(self, dtype: str, of: str) -> int | float:
        kind = np.dtype(f"<{dtype}")
        value: int | float = np.frombuffer(self._take(kind.itemsize, of).tobytes(), kind)[0].item()
        return value

    def _size(self, of: str) -> int:
        return int(self._number("u8", of))

    def _count(self, of: str, least: int) -> int:
        """A count of things that have at least so many bytes each."""
        count = self._size(f"the number of {of}")
        if count > _ENTRIES:
            raise self._error(f"says that it has {count:,} {of}; weft takes up to {_ENTRIES:,}")
        if count * least > self._data.size - self._at:
            raise self._error(f"is truncated or damaged: it says that it has {count:,} {of}")
        return count

    def _name(self, of: str) -> str:
        """A name as messages can show it, too."""
        return printable(self._text(of, _NAME))

    def _text(self, of: str, limit: int | None = None) -> str:
        size = self._size(of)
        if limit is not None and size > limit:
            raise self._error(f"is damaged: {of} has {size:,} bytes, where up to {limit} are allowed")
        try:
            return self._take(size, of).tobytes().decode()
        except UnicodeDecodeError:
            raise self._error(f"is damaged: {of} is not UTF-8 text") from None

    def _value(self, of: str) -> Value:
        kind = self._kind(of)
        if kind == "STRING":
            return self._text(of)
        if kind == "ARRAY":
            return self._array(of)
        return self._checked(np.array([self._number(_NUMBERS[kind], of)]), kind, of)[0].item()

    def _kind(self, of: str) -> str:
        code = int(self._number("u4", of))
        kind = _value_types().get(code)
        if kind is None or kind not in {*_NUMBERS, "STRING", "ARRAY"}:
            raise self._error(f"is damaged: {of} has type {code}, which GGUF does not have")
        return kind

    def _array(self, of: str) -> Value:
        kind = self._kind(f"an element of {of}")
        if kind == "ARRAY":
            raise self._error(f"has arrays in the array {of}, which weft does not read")
        count = self._size(f"the length of {of}")
        if count > _ITEMS:
            raise self._error(f"has {count:,} elements in {of}; weft takes up to {_ITEMS:,}")
        if kind == "STRING":
            return self._strings(count, of)
        dtype = np.dtype(_NUMBERS[kind]).newbyteorder("<")
        raw = self._take(count * dtype.itemsize, of)
        return self._checked(np.frombuffer(raw.tobytes(), dtype), kind, of)

    def _strings(self, count: int, of: str) -> tuple[str, ...]:
        """Vocabularies have hundreds of thousands of them, so this does without `_text`."""
        data, at, found = self._data.data, self._at, []
        length = struct.Struct("<Q")
        for index in range(count):
            if at + 8 > len(data) or at + 8 + (size := length.unpack_from(data, at)[0]) > len(data):
                raise self._error(f"is truncated or damaged: element {index} of {of} ends behind the file")
            at += 8 + size
            found.append(bytes(data[at - size : at]))
        self._at = at
        try:
            return tuple(item.decode() for item in found)
        except UnicodeDecodeError:
            wrong = next(at for at, item in enumerate(found) if "\ufffd" in item.decode(errors="replace"))
            raise self._error(f"is damaged: element {wrong} of {of} is not UTF-8 text") from None

    def _checked(self, values: np.ndarray, kind: str, of: str) -> np.ndarray:
        """Numbers as they are, and bytes as truth values."""
        if kind != "BOOL":
            return values
        if values.size and values.max() > 1:
            raise self._error(f"is damaged: {of} is {values.max()}, where only 0 and 1 are truth values")
        return values.astype(bool)

    def _tensor_info(self, index: int) -> tuple[str, str, tuple[int, ...], int, int]:
        """Name, type, shape, offset and bytes."""
        name = self._name(f"the name of tensor {index}")
        rank = int(self._number("u4", f"tensor {name!r}"))
        if not 1 <= rank <= _RANK:
            raise self._error(f"has tensor {name!r} of {rank:,} dimensions; GGUF has tensors of 1 to {_RANK}")
        shape = tuple(self._size(f"tensor {name!r}") for _ in range(rank))[::-1]
        code, offset = int(self._number("u4", f"tensor {name!r}")), self._size(f"tensor {name!r}")
        sizes = "x".join(map(str, shape))
        if math.prod(shape) > ELEMENTS or 0 in shape:
            raise self._error(
                f"has tensor {name!r} of shape {sizes}, {math.prod(shape):,} elements; weft takes 1 to {ELEMENTS:,}"
            )
        if code not in _tensor_types():
            raise self._error(f"has tensor {name!r} of type {code}, which GGUF does not have")
        kind, block, size = _tensor_types()[code]
        if shape[-1] % block:
            raise self._error(
                f"has tensor {name!r} of shape {sizes} and type {kind}, which has blocks of {block} elements in a row"
            )
        return name, kind, shape, offset, math.prod(shape) // block * size

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        given = metadata.get("general.alignment", 32)
        # A truth value is an integer to Python.
        whole = isinstance(given, int) and not isinstance(given, bool)
        if not whole or not 0 < given <= _ALIGNMENT or given & (given - 1):  # type: ignore[operator]
            raise self._error(
                f"has general.alignment {short_repr(given)}; it must be a power of two up to {_ALIGNMENT:,}"
            )
        return int(given)  # type: ignore[arg-type]

    def _contents(
        self, infos: list[tuple[str, str, tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, Stored]:
        """The bytes of tensors, which lie behind all that tells of them, none in another."""
        start = -(-self._at // alignment) * alignment
        room = self._data.size - start
        tensors: dict[str, Stored] = {}
        for name, kind, shape, offset, size in infos:
            if name in tensors:
                raise self._error(f"has two tensors {name!r}")
            if offset % alignment:
                raise self._error(f"has tensor {name!r} at offset {offset:,}, no multiple of {alignment}")
            if offset + size > room:
                raise self._error(
                    f"is truncated or damaged: tensor {name!r} has {size:,} bytes at offset {offset:,} of the "
                    f"{max(room, 0):,} behind the file's head"
                )
            content = self._data[start + offset : start + offset + size]
            tensors[name] = Stored(name, kind, shape, content)
        places = sorted((offset, offset + size, name) for name, _, _, offset, size in infos)
        for (_, end, first), (offset, _, second) in itertools.pairwise(places):
            if offset < end:
                raise self._error(f"has tensors {first!r} and {second!r} in the same bytes")
        return tensors
