"""Memory map of a device program: where constants, code and every buffer lie.

Each base register has an area; areas follow one another from address 0. The first area holds constants, then the
code; each other area holds the buffers of one kind. Loaders place a program by this map, and the program checker
takes permitted reads and writes from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from weft.compiler.ir.views import Buffer
from weft.hdl.checker.program import Extent, Extents
from weft.hdl.schema import short_repr

CONSTANTS = 0
"""Base register of constants and code."""
TEMPS = 1
"""Base register of buffers between operators."""
INPUTS = 2
"""Base register of buffers that the host writes before a program runs."""
OUTPUTS = 3
"""Base register of buffers that the host reads after a program has run."""

PAGES = 4
"""Base register of the pages of keys and values that the host keeps."""
TABLES = 5
"""Base register of page tables."""
LENGTH = 6
"""Base register that holds the number of keys in the pages, not an address."""

STATES = 7
"""Base register of buffers that keep their contents between runs."""

BASE_OF_KIND = {
    "temp": TEMPS,
    "input": INPUTS,
    "output": OUTPUTS,
    "pages": PAGES,
    "table": TABLES,
    "state": STATES,
}
_COMPACT_KINDS = ("temp", "input", "output")
"""Kinds of buffers that share the area of `TEMPS` in compact programs. Inputs occupy it until they are read, outputs
from when they are written."""
ALIGN = 64
"""Alignment in DRAM in bytes: a multiple of the presets' widest bus."""
_ALIGNMENT = 256
"""Bytes. A multiple of every bus word; short bursts then cross 4 KiB pages as rarely as possible."""
_WRITTEN = ("temp", "output", "state")


def base_of(kind: str, compact: bool) -> int:
    """Return the base register of buffers of a kind."""
    return TEMPS if compact and kind in _COMPACT_KINDS else BASE_OF_KIND[kind]


@dataclass(frozen=True)
class Areas:
    """Memory areas of one device program.

    Parameters
    ----------
    constants, code : int
        Sizes in bytes; code begins where constants end.
    buffers : mapping of str to Buffer
    offsets : mapping of str to int
        Offset of each buffer in bytes from the start of its kind's area.
    compact : bool
        Inputs and outputs share the area of temporaries, and areas without buffers occupy no memory.
    """

    constants: int
    code: int
    buffers: Mapping[str, Buffer]
    offsets: Mapping[str, int]
    compact: bool = False

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Bytes of each base register's area."""
        ends = {CONSTANTS: self.constants + _up(self.code, ALIGN)} | dict.fromkeys(BASE_OF_KIND.values(), 0)
        if all(buffer.kind != "state" for buffer in self.buffers.values()):
            # Programs without states have no base register for them.
            del ends[STATES]
        for name, buffer in self.buffers.items():
            base = base_of(buffer.kind, self.compact)
            ends[base] = max(ends[base], _up(self.offsets[name] + buffer.size, ALIGN))
        return ends

    @cached_property
    def bases(self) -> dict[int, int]:
        """Address in each base register."""
        return self.assign_bases()

    def assign_bases(self, constants_at: int | None = None) -> dict[int, int]:
        """Return the address in each base register.

        `constants_at` is an address outside this memory for constants and code; None puts them in this memory.
        """
        bases, address = {} if constants_at is None else {CONSTANTS: constants_at}, 0
        for base in sorted(self.sizes.keys() - bases.keys()):
            bases[base] = address
            address += self._area_bytes(base)
        return bases

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that a device needs."""
        return sum(map(self._area_bytes, self.sizes))

    @property
    def values_bytes(self) -> int:
        """Bytes of memory that a device needs if constants and code are stored elsewhere."""
        return self.memory_bytes - self._area_bytes(CONSTANTS)

    def _area_bytes(self, base: int) -> int:
        return _up(max(self.sizes[base], 0 if self.compact else 1), _ALIGNMENT)

    @cached_property
    def extents(self) -> Extents:
        """Memory that instructions may read and write, for the program checker."""
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
        """Return the address of a buffer, with areas at `bases` (default: `self.bases`)."""
        return (bases or self.bases)[base_of(self.buffers[name].kind, self.compact)] + self.offsets[name]


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
