"""Parser of the GGUF container: metadata as plain Python values, tensors as views of the file's bytes.

The package `gguf` has a reader that trusts every count: an array of 2**60 numbers keeps it busy for ever, and its
memory grows meanwhile. Detecting such a file means walking all of it, which is a parser already. This module therefore
takes only the list of types and their sizes from `gguf`, and compares every count with the size of the file before it
allocates anything.
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

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import MAX_ELEMENTS
from weft.extras.language.compiler.libraries import import_library
from weft.hdl.schema import printable, short_repr

MAGIC = b"GGUF"
SUFFIX = ".gguf"
VERSIONS = (2, 3)
Value: TypeAlias = int | float | bool | str | np.ndarray | tuple[str, ...]
"""Value of a metadata entry: arrays of numbers are numpy arrays, arrays of text are tuples."""
Source: TypeAlias = str | os.PathLike[str] | bytes

_MAX_FILE_BYTES = 1 << 33
"""Twice the address space of a device."""
_MAX_ENTRIES = 1 << 16
"""Limit for metadata entries, and for tensors."""
_MAX_ARRAY_LENGTH = 1 << 22
_MAX_RANK = 4
_MAX_ALIGNMENT = 1 << 16
_MAX_NAME_BYTES = 128
"""Limit for names of tensors and keys of metadata."""
_NUMBER_TYPES = {
    "UINT8": "u1", "INT8": "i1", "UINT16": "u2", "INT16": "i2", "UINT32": "u4", "INT32": "i4", "UINT64": "u8",
    "INT64": "i8", "FLOAT32": "f4", "FLOAT64": "f8", "BOOL": "u1",
}  # fmt: skip
"""GGUF's number types and the numpy types that they have."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """Tensor as a file stores it.

    Attributes
    ----------
    name : str
    kind : str
        GGUF's name of the tensor's type: ``F32``, ``Q8_0``.
    shape : tuple of int
        In numpy's order, with the contiguous dimension last (a GGUF file lists it first).
    content : numpy.ndarray of uint8
        Encoded bytes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    content: np.ndarray

    @property
    def label(self) -> str:
        """Name for messages."""
        return f"tensor {self.name!r}"


@dataclass(frozen=True, eq=False)
class File:
    """Contents of a GGUF file: metadata by key, and tensors by name."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]


def is_gguf(head: bytes) -> bool:
    """Return whether `head`, the first bytes of a file, is that of a GGUF file."""
    return head[:4] == MAGIC


def load(source: Source) -> tuple[np.ndarray, str]:
    """Read the bytes of a file.

    Returns
    -------
    (numpy.ndarray of uint8, str)
        The bytes, and a name of the file for messages.

    Raises
    ------
    CompileError
        If the file cannot be read, or has more than `_MAX_FILE_BYTES`.
    """
    if isinstance(source, bytes):
        return np.frombuffer(source, np.uint8), f"the model of {len(source):,} bytes"
    path = Path(source)
    try:
        if path.exists() and not path.is_file():
            raise CompileError(f"cannot read model {path}: it is no regular file")
        if path.is_file() and path.stat().st_size > _MAX_FILE_BYTES:
            raise CompileError(
                f"{path} has {path.stat().st_size:,} bytes; weft reads models of up to {_MAX_FILE_BYTES:,}"
            )
        return np.fromfile(path, np.uint8), str(path)
    except CompileError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CompileError(f"cannot read model {printable(str(path))}: {printable(why)}") from None


def parse(data: np.ndarray, label: str) -> File:
    """Parse the bytes of a GGUF file, which messages call `label`.

    Raises
    ------
    CompileError
        If they are no GGUF file, have another version or byte order, or are truncated or damaged.
    """
    return _Parser(data, label).file()


@functools.cache
def _value_types() -> dict[int, str]:
    return {int(kind): kind.name for kind in import_library("gguf").GGUFValueType}


@functools.cache
def _tensor_types() -> dict[int, tuple[str, int, int]]:
    """Return name, elements of a block and bytes of a block, by type code."""
    gguf = import_library("gguf")
    sizes = gguf.GGML_QUANT_SIZES
    return {int(kind): (kind.name, *sizes[kind]) for kind in gguf.GGMLQuantizationType if kind in sizes}


class _Parser:
    """Parser of one file, from beginning to end."""

    def __init__(self, data: np.ndarray, label: str) -> None:
        self._data = data
        self._label = label
        self._position = 0

    def file(self) -> File:
        head = self._data[:8].tobytes()
        if not is_gguf(head):
            first_bytes = repr(head[:4])[1:] if head else "missing"
            raise CompileError(
                f"{self._label} is no GGUF file: the first four bytes of one are 'GGUF', here they are {first_bytes}"
            )
        self._read_bytes(4, "the head")
        self._check_version(int(self._read_number("u4", "the version")))
        # Least bytes: length of a name, rank, type and offset; and length of a key, type and a value of one byte.
        tensors = self._read_count("tensors", 24)
        entries = self._read_count("metadata entries", 13)
        metadata: dict[str, Value] = {}
        for at in range(entries):
            key = self._read_name(f"the key of metadata entry {at}")
            if key in metadata:
                raise self._error(f"has the metadata {key!r} twice")
            metadata[key] = self._read_value(f"metadata {key!r}")
        infos = [self._read_tensor_info(at) for at in range(tensors)]
        return File(metadata, self._locate_tensors(infos, self._alignment(metadata)))

    def _error(self, why: str) -> CompileError:
        return CompileError(f"{self._label} {why}")

    def _check_version(self, version: int) -> None:
        if version in VERSIONS:
            return
        # A small number in big-endian order has zeros in its lower half.
        if version & 0xFFFF == 0:
            raise self._error("has its numbers in big-endian order; weft reads little-endian GGUF files")
        raise self._error(f"is of version {version} of GGUF; weft reads {' and '.join(map(str, VERSIONS))}")

    def _read_bytes(self, size: int, subject: str) -> np.ndarray:
        start, left = self._position, self._data.size - self._position
        if size > left:
            raise self._error(
                f"is truncated or damaged: {subject} has {size:,} bytes, and {left:,} are left of the file"
            )
        self._position += size
        return self._data[start : self._position]

    def _read_number(self, dtype: str, subject: str) -> int | float:
        kind = np.dtype(f"<{dtype}")
        value: int | float = np.frombuffer(self._read_bytes(kind.itemsize, subject).tobytes(), kind)[0].item()
        return value

    def _read_size(self, subject: str) -> int:
        return int(self._read_number("u8", subject))

    def _read_count(self, subject: str, minimum_bytes: int) -> int:
        """Read the number of `subject`, each of which takes `minimum_bytes` or more."""
        count = self._read_size(f"the number of {subject}")
        if count > _MAX_ENTRIES:
            raise self._error(f"says that it has {count:,} {subject}; weft takes up to {_MAX_ENTRIES:,}")
        if count * minimum_bytes > self._data.size - self._position:
            raise self._error(f"is truncated or damaged: it says that it has {count:,} {subject}")
        return count

    def _read_name(self, subject: str) -> str:
        """Read a name, with characters that messages cannot show replaced."""
        return printable(self._read_text(subject, _MAX_NAME_BYTES))

    def _read_text(self, subject: str, limit: int | None = None) -> str:
        size = self._read_size(subject)
        if limit is not None and size > limit:
            raise self._error(f"is damaged: {subject} has {size:,} bytes, where up to {limit} are allowed")
        try:
            return self._read_bytes(size, subject).tobytes().decode()
        except UnicodeDecodeError:
            raise self._error(f"is damaged: {subject} is not UTF-8 text") from None

    def _read_value(self, subject: str) -> Value:
        kind = self._read_type(subject)
        if kind == "STRING":
            return self._read_text(subject)
        if kind == "ARRAY":
            return self._read_array(subject)
        return self._as_values(np.array([self._read_number(_NUMBER_TYPES[kind], subject)]), kind, subject)[
            0
        ].item()

    def _read_type(self, subject: str) -> str:
        code = int(self._read_number("u4", subject))
        kind = _value_types().get(code)
        if kind is None or kind not in {*_NUMBER_TYPES, "STRING", "ARRAY"}:
            raise self._error(f"is damaged: {subject} has type {code}, which GGUF does not have")
        return kind

    def _read_array(self, subject: str) -> Value:
        kind = self._read_type(f"an element of {subject}")
        if kind == "ARRAY":
            raise self._error(f"has arrays in the array {subject}, which weft does not read")
        count = self._read_size(f"the length of {subject}")
        if count > _MAX_ARRAY_LENGTH:
            raise self._error(f"has {count:,} elements in {subject}; weft takes up to {_MAX_ARRAY_LENGTH:,}")
        if kind == "STRING":
            return self._read_strings(count, subject)
        dtype = np.dtype(_NUMBER_TYPES[kind]).newbyteorder("<")
        raw = self._read_bytes(count * dtype.itemsize, subject)
        return self._as_values(np.frombuffer(raw.tobytes(), dtype), kind, subject)

    def _read_strings(self, count: int, subject: str) -> tuple[str, ...]:
        # Vocabularies have hundreds of thousands of strings; calling `_read_text` for each would be slow.
        data, at, items = self._data.data, self._position, []
        length = struct.Struct("<Q")
        for index in range(count):
            if at + 8 > len(data) or at + 8 + (size := length.unpack_from(data, at)[0]) > len(data):
                raise self._error(
                    f"is truncated or damaged: element {index} of {subject} ends beyond the file"
                )
            at += 8 + size
            items.append(bytes(data[at - size : at]))
        self._position = at
        try:
            return tuple(item.decode() for item in items)
        except UnicodeDecodeError:
            wrong = next(at for at, item in enumerate(items) if "\ufffd" in item.decode(errors="replace"))
            raise self._error(f"is damaged: element {wrong} of {subject} is not UTF-8 text") from None

    def _as_values(self, values: np.ndarray, kind: str, subject: str) -> np.ndarray:
        if kind != "BOOL":
            return values
        if values.size and values.max() > 1:
            raise self._error(f"is damaged: {subject} is {values.max()}, where only 0 and 1 are truth values")
        return values.astype(bool)

    def _read_tensor_info(self, index: int) -> tuple[str, str, tuple[int, ...], int, int]:
        """Read name, type, shape, offset and size in bytes of a tensor."""
        name = self._read_name(f"the name of tensor {index}")
        rank = int(self._read_number("u4", f"tensor {name!r}"))
        if not 1 <= rank <= _MAX_RANK:
            raise self._error(
                f"has tensor {name!r} of {rank:,} dimensions; GGUF has tensors of 1 to {_MAX_RANK}"
            )
        shape = tuple(self._read_size(f"tensor {name!r}") for _ in range(rank))[::-1]
        code, offset = int(self._read_number("u4", f"tensor {name!r}")), self._read_size(f"tensor {name!r}")
        sizes = "x".join(map(str, shape))
        if math.prod(shape) > MAX_ELEMENTS or 0 in shape:
            raise self._error(
                f"has tensor {name!r} of shape {sizes}, {math.prod(shape):,} elements; weft takes 1 to {MAX_ELEMENTS:,}"
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
        alignment = metadata.get("general.alignment", 32)
        # In Python, bool is a subclass of int.
        is_integer = isinstance(alignment, int) and not isinstance(alignment, bool)
        if not is_integer or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):  # type: ignore[operator]
            raise self._error(
                f"has general.alignment {short_repr(alignment)}; it must be a power of two up to {_MAX_ALIGNMENT:,}"
            )
        return int(alignment)  # type: ignore[arg-type]

    def _locate_tensors(
        self, infos: list[tuple[str, str, tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, StoredTensor]:
        """Return the tensors with their bytes, which follow all headers and must not overlap."""
        start = -(-self._position // alignment) * alignment
        room = self._data.size - start
        tensors: dict[str, StoredTensor] = {}
        for name, kind, shape, offset, size in infos:
            if name in tensors:
                raise self._error(f"has two tensors {name!r}")
            if offset % alignment:
                raise self._error(f"has tensor {name!r} at offset {offset:,}, no multiple of {alignment}")
            if offset + size > room:
                raise self._error(
                    f"is truncated or damaged: tensor {name!r} has {size:,} bytes at offset {offset:,} of the "
                    f"{max(room, 0):,} after the file's head"
                )
            content = self._data[start + offset : start + offset + size]
            tensors[name] = StoredTensor(name, kind, shape, content)
        # Tensors that share bytes would let a small file claim much memory.
        places = sorted((offset, offset + size, name) for name, _, _, offset, size in infos)
        for (_, end, first), (offset, _, second) in itertools.pairwise(places):
            if offset < end:
                raise self._error(f"has tensors {first!r} and {second!r} in the same bytes")
        return tensors
