"""Operands of instructions: declarations of the memory that they read and write, and latencies of the units.

An operand is in one memory. Its first address is a field of the instruction, and each loop around it adds a stride
per iteration. The declarations yield the addresses in the golden interpreter, the program checker, the compiler, the
address generators of the hardware and of the cycle model, and the reference page.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

from weft.hdl.isa.config import Config


class Memory(enum.Enum):
    """Memory that instructions address; the value is the name of the thing at one address."""

    SCRATCHPAD = "scratchpad vector"
    ACCUMULATOR = "accumulator row"
    ALIGNMENTS = "alignment"
    STATES = "row state"
    TABLE = "table entry"
    LOOKUP = "look-up table"
    KERNEL = "micro-operation"
    DRAM = "byte"

    __hash__ = object.__hash__  # faster than `Enum.__hash__`, which hashes the name; members are unique

    def size(self, config: Config) -> int:
        """Return the number of addresses of an on-chip memory."""
        return int(getattr(config, _SIZES[self]))

    def width(self, config: Config) -> int:
        """Return the width in bits of an address of an on-chip memory."""
        return (self.size(config) - 1).bit_length()


_SIZES = {
    Memory.SCRATCHPAD: "scratchpad_size",
    Memory.ACCUMULATOR: "accumulator_size",
    Memory.ALIGNMENTS: "alignments",
    Memory.STATES: "row_states",
    Memory.TABLE: "table_depth",
    Memory.LOOKUP: "lookup_tables",
    Memory.KERNEL: "kernel",
}


@dataclass(frozen=True)
class Count:
    """Iteration count of a loop: `number` times instruction fields times configuration parameters.

    With `per`, the product is divided by this configuration parameter and rounded up.
    """

    fields: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    per: str | None = None
    number: int = 1

    def of(self, instruction: Any, config: Config) -> int:
        total = self.number
        for name in self.fields:
            total *= getattr(instruction, name)
        for name in self.parameters:
            total *= getattr(config, name)
        return total if self.per is None else -(-total // getattr(config, self.per))

    def __str__(self) -> str:
        """Format the count as a formula; one-letter configuration parameters become capitals."""
        names = [name.upper() if len(name) == 1 else name for name in self.parameters]
        factors = [*([str(self.number)] if self.number != 1 else []), *self.fields, *names]
        product = " * ".join(factors) or "1"
        return product if self.per is None else f"ceil({product} / {self.per.upper()})"


LANES = Count(parameters=("n",))
"""N iterations, one per column of the array."""


@dataclass(frozen=True)
class Loop:
    """Loop around an operand.

    Parameters
    ----------
    name : str
        Name of the loop.
    count : str or Count
        Number of iterations: a field's name or a computed count.
    stride : str or int
        Address increment per iteration: a field's name or a number.
    """

    name: str
    count: str | Count
    stride: str | int

    def iterations(self, instruction: Any, config: Config) -> int:
        if isinstance(self.count, str):
            return int(getattr(instruction, self.count))
        return self.count.of(instruction, config)

    def step(self, instruction: Any) -> int:
        return self.stride if isinstance(self.stride, int) else int(getattr(instruction, self.stride))


@dataclass(frozen=True)
class Bound:
    """Coordinate with bounds: an element is read only if ``0 <= coordinate < limit``, in 16-bit two's complement.

    The coordinate starts at the value of field `name`. Each iteration of its two `loops` adds field ``{name}_{loop}``.
    `limit` is the name of a field.
    """

    name: str
    limit: str
    loops: tuple[str, str]

    def stride(self, loop: str) -> str | int:
        """Return the increment of the coordinate per iteration of `loop`: a field's name, or 0."""
        return f"{self.name}_{loop}" if loop in self.loops else 0

    def nest(self, instruction: Any, *names: str) -> list[tuple[int, int]]:
        """Return iterations and coordinate increment of each of the named loops."""
        strides = [self.stride(name) for name in names]
        return [
            (
                int(getattr(instruction, name)),
                stride if isinstance(stride, int) else getattr(instruction, stride),
            )
            for name, stride in zip(names, strides, strict=True)
        ]


@dataclass(frozen=True)
class Operand:
    """Memory operand of an instruction.

    Parameters
    ----------
    name : str
        Field with the first address.
    memory : Memory
    loops : sequence of Loop
        Loops around the operand, outermost first. Addresses of on-chip memories are modulo 2**16.
    write : bool
        True if the instruction writes it, False if it reads it.
    when : mapping of str to int
        Field values with which the instruction has this operand.
    bounds : sequence of Bound
        Coordinates that decide which elements are read.
    register : str, optional
        In DRAM, the field with the number of the base register that addresses are relative to.
    start : int, optional
        First address, if it is not in a field.
    distinct : sequence of str
        Loops whose iterations must all have different addresses.
    clash : str
        Error message for two iterations with one address.
    """

    name: str
    memory: Memory
    loops: Sequence[Loop]
    write: bool = False
    when: Mapping[str, int] = field(default_factory=dict)
    bounds: Sequence[Bound] = ()
    register: str | None = None
    start: int | None = None
    distinct: Sequence[str] = ()
    clash: str = ""

    def applies(self, instruction: Any) -> bool:
        """Check whether the instruction has this operand."""
        for name, value in self.when.items():  # noqa: SIM110 -- hot path: faster than `all`
            if getattr(instruction, name) != value:
                return False
        return True

    def first(self, instruction: Any) -> int:
        """Return the address of the first iteration."""
        return int(getattr(instruction, self.name)) if self.start is None else self.start

    def nest(self, instruction: Any, config: Config, *names: str) -> list[tuple[int, int]]:
        """Return iterations and stride of the named loops in the order of `loops`, or of all loops without names."""
        if names not in self._readers:
            self._readers[names] = _reader([loop for loop in self.loops if not names or loop.name in names])
        return self._readers[names](instruction, config)

    @cached_property
    def _readers(self) -> dict[tuple[str, ...], Callable[[Any, Config], list[tuple[int, int]]]]:
        # Cache of `nest`, which is called for every instruction of a program.
        return {}

    def stride(self, loop: str) -> str | int:
        """Return the stride of a loop, or 0 if the operand is not inside it."""
        return next((item.stride for item in self.loops if item.name == loop), 0)


def _reader(loops: Sequence[Loop]) -> Callable[[Any, Config], list[tuple[int, int]]]:
    # If all counts and strides are fields, one `attrgetter` reads them faster than a loop.
    names = [name for loop in loops for name in (loop.count, loop.stride)]
    if not names or not all(isinstance(name, str) for name in names):
        return lambda instruction, config: [
            (loop.iterations(instruction, config), loop.step(instruction)) for loop in loops
        ]
    read = attrgetter(*map(str, names))

    def fields(instruction: Any, config: Config) -> list[tuple[int, int]]:
        values = read(instruction)
        return list(zip(values[::2], values[1::2], strict=True))

    return fields


def loops_over(operand: str, *loops: str) -> tuple[Loop, ...]:
    """Return loops whose counts are the fields of their names, with strides in the fields ``{operand}_{loop}``."""
    return tuple(Loop(loop, loop, f"{operand}_{loop}") for loop in loops)


READ_LATENCY = 3
"""Cycles from a granted read request of scratchpad or accumulator to its data."""
LOOKUP_LATENCY = 2
"""Cycles that look-up tables add to the vector unit's results, used or not."""
DIVISION_LATENCY = 8
"""Cycles of a division in the vector unit: each computes two bits of the quotient and one of the product."""

KERNEL_LATENCY = 10
"""Cycles in the kernel engine from the issue of an element to its result."""
KERNEL_SPACING = 8
"""Cycles in the kernel engine from the issue of an operation to the issue of one that reads its result. Registers are
read 3 cycles after the issue, and written `KERNEL_LATENCY` cycles after it."""

KERNEL_DIVISION_CYCLES = 20
"""Cycles per reciprocal in the kernel engine: 16 for the bits of the quotient, and 4 of overhead."""
KERNEL_ROOT_CYCLES = 16
"""Additional cycles for the square root before a reciprocal."""


def kernel_min_cycles(groups: int) -> int:
    """Return the minimum cycles of a micro-operation; with ``swap`` it reads other lane groups than it writes."""
    return KERNEL_SPACING + groups - 1


def kernel_serial_cycles(elements: int, groups: int, *, root: bool) -> int:
    """Return the cycles of a reciprocal of `elements` lanes, one by one, with results for `groups` lane groups."""
    # The first 3: the element arrives after 5 cycles, the next operation reads 3 cycles after its issue, and one more.
    return 3 + elements * (KERNEL_DIVISION_CYCLES + (KERNEL_ROOT_CYCLES if root else 0)) + groups


def lookup_latency(config: Config) -> int:
    """Return the cycles that look-up tables add to the vector unit's results."""
    return LOOKUP_LATENCY if config.lookup_tables else 0


def vec_overhead(config: Config) -> int:
    """Return the cycles from accepting a `Vec` to accepting the queue's next instruction without stalls.

    One cycle for each read and each out-of-range element comes in addition.
    """
    return 23 + lookup_latency(config)


VEC_EARLY_OVERHEAD = 9
"""`vec_overhead` between two `Vec` if the second reads the accumulator and has no second operand: its parameter block
is read while the first one's results leave. Not with the sequential requantisation of `weft.hdl.vector.requantise`."""


def alignment_latency(config: Config) -> int:
    """Return the cycles that alignment of sums and products adds in front of the accumulator."""
    return 2 if config.softmax else 0


def rmw_latency(config: Config) -> int:
    """Return the cycles from a row of products at the accumulator's input until reads return the new sum.

    It is also the minimum distance of two rows that add to one address, and no tile of the array takes less.
    """
    return READ_LATENCY + 1 + alignment_latency(config)
