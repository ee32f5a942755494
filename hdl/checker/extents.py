"""Contents of DRAM while a program runs: pieces behind base registers, each of which may be read, written or both."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from weft.hdl.checker.accesses import Dram, ProgramError, verb
from weft.hdl.isa import BASES

_END = 1 << 32
"""One past the last DRAM address."""


@dataclass(frozen=True)
class Extent:
    """`size` bytes from `offset` on behind base register `base`, and what instructions may do there.

    Bytes that are `shared` may belong to several extents of one base register: what lies there at a time is for the
    program to order. All others belong to one.
    """

    name: str
    base: int
    offset: int
    size: int
    read: bool = True
    write: bool = True
    shared: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.size

    def __str__(self) -> str:
        return f"{self.name} (bytes {self.offset} to {self.end - 1})"


@dataclass(frozen=True)
class Extents:
    """All of memory that a program may touch.

    With loops a program may change registers. A piece behind one of those says what instructions may reach from
    wherever it points when they pass fetch: that this is memory which the program may touch, and apart from what is
    behind other registers, the caller vouches for.

    Parameters
    ----------
    pieces : sequence of Extent
        An instruction must stay within one of those that it may read or write.
    addresses : mapping of int to int
        What base registers hold when the program runs, as far as that is known: pieces behind different ones must not
        meet either, nor lie beyond the 32 bits of an address.
    numbers : set of int
        Base registers that hold a number that instructions are relative to.
    pages : mapping of int to int
        Base registers of pages that the host keeps, with that of their page table. Nobody else knows where in them
        paged LOADs read.
    """

    pieces: Sequence[Extent]
    addresses: Mapping[int, int]
    numbers: frozenset[int] = frozenset()
    pages: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def behind(cls, sizes: Mapping[int, int]) -> Extents:
        """So many bytes behind each base register, all to be read and written."""
        return cls([Extent(f"area {base}", base, 0, size) for base, size in sizes.items()], {})

    def check(self, registers: int = BASES) -> None:
        """Raises `ProgramError` if a piece is not in memory, or if two of them meet that must not; there are so many
        `registers`."""
        placed = []
        for piece in self.pieces:
            if not 0 <= piece.base < registers:
                raise ProgramError(
                    f"{piece.name} is behind base register {piece.base}; there are {registers}"
                )
            start = self.addresses.get(piece.base, 0) + piece.offset
            if piece.offset < 0 or piece.size < 0 or start + piece.size > _END:
                raise ProgramError(
                    f"{piece.name}: {piece.size} bytes at offset {piece.offset} are not in memory, which ends at {_END}"
                )
            if piece.size:
                # Without an address, a base register has a memory of its own.
                placed.append((-1 if piece.base in self.addresses else piece.base, start, piece))
        placed.sort(key=lambda item: item[:2])
        last: dict[int, tuple[int, Extent]] = {}
        for memory, start, piece in placed:
            end, before = last.get(memory, (0, piece))
            alike = piece.shared and before.shared and piece.base == before.base
            if start < end and not alike:
                raise ProgramError(f"{piece} and {before} overlap in memory")
            if start + piece.size >= end:
                last[memory] = (start + piece.size, piece)

    def check_access(self, access: Dram) -> None:
        """Raises `ProgramError` if an access is not within a piece that it may touch."""
        starts, ends = self._allowed.get((access.base, access.write), ((), ()))
        index = bisect.bisect_right(starts, access.low)
        if not index or ends[index - 1] < access.high:
            raise ProgramError(self._refusal(access))

    def allow(self, base: int, write: bool, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The same for many accesses, each from byte `low` to before byte `high` behind `base`: whether it may be."""
        starts, ends = self._allowed.get((base, write), ((), ()))
        if not starts:
            return np.zeros(len(low), bool)
        index = np.searchsorted(np.array(starts), low, "right")
        return (index > 0) & (np.array(ends)[index - 1] >= high)

    @cached_property
    def _allowed(self) -> Mapping[tuple[int, bool], tuple[Sequence[int], Sequence[int]]]:
        """By base register and direction: where pieces start, sorted, and the last end of all up to there."""
        found: dict[tuple[int, bool], tuple[list[int], list[int]]] = {}
        for piece in sorted(self.pieces, key=lambda piece: piece.offset):
            for write, may in ((False, piece.read), (True, piece.write)):
                if may:
                    starts, ends = found.setdefault((piece.base, write), ([], []))
                    starts.append(piece.offset)
                    ends.append(max(ends[-1] if ends else 0, piece.end))
        return found

    def _refusal(self, access: Dram) -> str:
        who = f"{verb(access.write)} bytes {access.low} to {access.high - 1} of base register {access.base}"
        mine = [piece for piece in self.pieces if piece.base == access.base]
        if not mine:
            return f"base register {access.base} is not set for this program"
        met = [piece for piece in mine if piece.offset < access.high and access.low < piece.end]
        forbidden = [piece for piece in met if not (piece.write if access.write else piece.read)]
        if forbidden:
            return f"{who}, but no instruction may do so in {forbidden[0]}"
        if met:
            return f"{who}, which leaves {met[0]}"
        return f"{who}, where nothing is"
