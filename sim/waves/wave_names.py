"""The names in a waveform file, VCD or FST: what its header says, without the values."""

from __future__ import annotations

import enum
import io
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_HIERARCHY_LZ4 = 6  # the kind of block in an FST file that names everything
_SHORTEST_MATCH = 4


class _Entry(enum.IntEnum):
    """Kinds of entries in it; those below are variables."""

    ATTRIBUTE = 252
    ATTRIBUTE_END = 253
    SCOPE = 254
    UPSCOPE = 255


@dataclass(frozen=True)
class Variable:
    """A signal: the names of its scopes and its own, and its range of bits, ``[7:0]``, empty for one bit."""

    scopes: tuple[str, ...]
    name: str
    range: str

    @property
    def path(self) -> str:
        """Scopes and name, without the range."""
        return ".".join((*self.scopes, self.name))


def variables(path: Path) -> list[Variable]:
    """All variables of a file, in its order.

    Raises
    ------
    ValueError
        If it has no hierarchy.
    """
    with path.open("rb") as file:
        found = list(_fst(_hierarchy(file)) if path.suffix == ".fst" else _vcd(file))
    return found


def _variable(scopes: list[str], words: list[str]) -> Variable:
    return Variable(tuple(scopes), words[0], "".join(words[1:]))


def _vcd(file: BinaryIO) -> Iterator[Variable]:
    scopes: list[str] = []
    for line in file:
        match line.decode().split():
            case ["$scope", _, name, "$end"]:
                scopes.append(name)
            case ["$upscope", "$end"]:
                scopes.pop()
            case ["$var", _, _, _, *words, "$end"]:
                yield _variable(scopes, words)
            case ["$enddefinitions", "$end"]:
                return


def _hierarchy(file: BinaryIO) -> io.BytesIO:
    """The hierarchy of an FST file. Its blocks are a byte of kind, 8 of a length that counts itself, and contents."""
    while len(head := file.read(9)) == 9:
        kind, length = struct.unpack(">BQ", head)
        if kind == _HIERARCHY_LZ4:
            size = int.from_bytes(file.read(8))
            return io.BytesIO(unpack(file.read(length - 16), size))
        file.seek(length - 8, io.SEEK_CUR)
    raise ValueError(f"{file.name} has no hierarchy")


def _fst(file: io.BytesIO) -> Iterator[Variable]:
    scopes: list[str] = []
    while kind := file.read(1):
        match kind[0]:
            case _Entry.SCOPE:
                file.read(1)
                scopes.append(_text(file))
                _text(file)
            case _Entry.UPSCOPE:
                scopes.pop()
            case _Entry.ATTRIBUTE:
                file.read(2)
                _text(file)
                _number(file)
            case _Entry.ATTRIBUTE_END:
                pass
            case _:
                file.read(1)
                yield _variable(scopes, _text(file).split())
                _number(file)
                _number(file)


def _text(file: io.BytesIO) -> str:
    return b"".join(itertools.takewhile(lambda byte: byte != b"\0", iter(lambda: file.read(1), b""))).decode()


def _number(file: io.BytesIO) -> int:
    """Seven bits a byte, low ones first; the eighth says that there are more."""
    value = shift = 0
    while (byte := file.read(1)[0]) & 128:
        value, shift = value | (byte & 127) << shift, shift + 7
    return value | byte << shift


def unpack(packed: bytes, size: int) -> bytes:
    """The `size` bytes of which `packed` is an LZ4 block.

    Raises
    ------
    ValueError
        If it is no such block.
    """
    file, out = io.BytesIO(packed), bytearray()
    while token := file.read(1):
        literals, match = token[0] >> 4, token[0] & 15
        out += file.read(_length(file, literals))
        if not (distance := int.from_bytes(file.read(2), "little")):
            break
        start, count = len(out) - distance, _length(file, match) + _SHORTEST_MATCH
        if start < 0:
            break
        # A match may reach into what it makes.
        run = bytes(out[start : start + count])
        out += (run * (count // len(run) + 1))[:count]
    if len(out) != size:
        raise ValueError(f"{len(packed)} bytes are no LZ4 block of {size}")
    return bytes(out)


def _length(file: io.BytesIO, four_bits: int) -> int:
    """Four bits of a token, and if these are all ones, the bytes that follow, up to the first that is not."""
    length = four_bits
    while four_bits == 15:
        byte = file.read(1)[0]
        length += byte
        if byte != 255:
            break
    return length
