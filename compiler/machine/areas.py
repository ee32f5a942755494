"""Where everything of a device program lies in memory: the one place that says so.

The areas of the base registers follow one another from address 0. The first holds constants and, behind them, the code;
the others hold buffers, one kind each. Whoever loads a program puts it there, and the program checker takes what may be
read and written from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from weft.compiler.ir.graph import Buffer
from weft.compiler.machine.memory import (
    ALIGN,
    BASE_OF_KIND,
    CONSTANTS,
    LENGTH,
    PAGES,
    STATES,
    TABLES,
    TEMPS,
    base_of,
)
from weft.hdl.checker.program import Extent, Extents
from weft.hdl.schema import short_repr

_ALIGNMENT = 256
"""Of areas, in bytes: any bus word, and short bursts that do not cross pages more often than they must."""
_WRITTEN = ("temp", "output", "state")
"""Kinds of buffers that programs write."""


@dataclass(frozen=True)
class Areas:
    """The memory of one device program.

    Parameters
    ----------
    constants, code : int
        Their bytes; code begins where constants end.
    buffers : mapping of str to Buffer
    offsets : mapping of str to int
        Of the same buffers, in bytes from where the area of their kind starts.
    compact : bool
        Inputs and outputs share the area of temporaries, and areas without buffers take nothing.
    """

    constants: int
    code: int
    buffers: Mapping[str, Buffer]
    offsets: Mapping[str, int]
    compact: bool = False

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Bytes behind each base register."""
        ends = {CONSTANTS: self.constants + _up(self.code, ALIGN)} | dict.fromkeys(BASE_OF_KIND.values(), 0)
        if all(buffer.kind != "state" for buffer in self.buffers.values()):
            del ends[STATES]
        for name, buffer in self.buffers.items():
            base = base_of(buffer.kind, self.compact)
            ends[base] = max(ends[base], _up(self.offsets[name] + buffer.size, ALIGN))
        return ends

    @cached_property
    def bases(self) -> dict[int, int]:
        """The address in each base register."""
        return self.placed()

    def placed(self, kept: int | None = None) -> dict[int, int]:
        """The address in each base register, if constants and code are `kept` at an address outside memory, or in it
        like all else."""
        found, at = {} if kept is None else {CONSTANTS: kept}, 0
        for base in sorted(self.sizes.keys() - found.keys()):
            found[base] = at
            at += self._taken(base)
        return found

    @property
    def memory_bytes(self) -> int:
        """Memory that a device needs."""
        return sum(map(self._taken, self.sizes))

    @property
    def values_bytes(self) -> int:
        """Memory that a device needs where constants and code are elsewhere."""
        return self.memory_bytes - self._taken(CONSTANTS)

    def _taken(self, base: int) -> int:
        return _up(max(self.sizes[base], 0 if self.compact else 1), _ALIGNMENT)

    @cached_property
    def extents(self) -> Extents:
        """What instructions may read and write, for the program checker."""
        pieces = [
            Extent("the constants", CONSTANTS, 0, self.constants, write=False),
            Extent("the code", CONSTANTS, self.constants, self.code, read=False, write=False),
        ]
        for name, buffer in self.buffers.items():
            pieces.append(
                Extent(
                    f"{buffer.kind} {short_repr(name)}",
                    base := base_of(buffer.kind, self.compact),
                    self.offsets[name],
                    buffer.size,
                    write=buffer.kind in _WRITTEN,
                    shared=base == TEMPS,
                )
            )
        kinds = {buffer.kind for buffer in self.buffers.values()}
        # Offsets are those of pages of keys and values, or of rows of constants.
        paged = {PAGES if "pages" in kinds else CONSTANTS: TABLES} if "table" in kinds else {}
        return Extents(pieces, self.bases, frozenset({LENGTH} if "pages" in kinds else ()), paged)

    def address(self, name: str, bases: Mapping[int, int] | None = None) -> int:
        """The address of a buffer, if areas are at `bases`."""
        return (bases or self.bases)[base_of(self.buffers[name].kind, self.compact)] + self.offsets[name]


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
