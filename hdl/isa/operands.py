"""Operands: the memory that instructions read and write, declared once beside their fields.

An operand lies in one memory. Its first address is a field of the instruction, and each loop around it adds a stride
per iteration. From these declarations come the addresses of the golden interpreter, the accesses of the program
checker, the address generators of the units and of the cycle model, what tasks of the compiler touch, and the reference
page.
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
    """Memories that instructions address, by the name of what an address counts."""

    SCRATCHPAD = "scratchpad vector"
    ACCUMULATOR = "accumulator row"
    ALIGNMENTS = "alignment"
    STATES = "row state"
    TABLE = "table entry"
    LOOKUP = "look-up table"
    KERNEL = "micro-operation"
    DRAM = "byte"

    __hash__ = object.__hash__  # members are unique; that of `Enum` hashes their names

    def size(self, config: Config) -> int:
        """Addresses of a memory on the chip."""
        return int(getattr(config, _SIZES[self]))

    def width(self, config: Config) -> int:
        """Bits of an address of a memory on the chip."""
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
    """Iterations of a loop: the product of a number, of fields and of parameters of the configuration; with `per`, a
    parameter, that many times fewer, rounded up.
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
        """As a formula; parameters of the configuration in capitals if they are a letter."""
        names = [name.upper() if len(name) == 1 else name for name in self.parameters]
        factors = [*([str(self.number)] if self.number != 1 else []), *self.fields, *names]
        product = " * ".join(factors) or "1"
        return product if self.per is None else f"ceil({product} / {self.per.upper()})"


LANES = Count(parameters=("n",))
"""N iterations."""


@dataclass(frozen=True)
class Loop:
    """One loop around an operand.

    Parameters
    ----------
    name : str
        Of the loop.
    count : str or Count
        Its iterations: a field, or what is computed from fields.
    stride : str or int
        Addresses from one iteration to the next: a field or a number.
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
    """A coordinate that has to lie from 0 to before `limit`, as 16-bit two's complement, for an element to be read.

    It starts at the field `name`, and field ``{name}_{loop}`` is added per iteration of each of its two `loops`.
    """

    name: str
    limit: str
    loops: tuple[str, str]

    def stride(self, loop: str) -> str | int:
        """The step of the coordinate per iteration of a loop: a field, or 0."""
        return f"{self.name}_{loop}" if loop in self.loops else 0

    def nest(self, instruction: Any, *names: str) -> list[tuple[int, int]]:
        """Iterations of the loops of these names, and what is added to the coordinate for each."""
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
    """Something that an instruction reads or writes.

    Parameters
    ----------
    name : str
        The field with the first address.
    memory : Memory
        Where it lies.
    loops : sequence of Loop
        Loops around it, outermost first. In memories on the chip addresses are modulo 2**16.
    write : bool
        Whether it is written; else it is read.
    when : mapping of str to int
        The instruction has this operand only if these fields have these values.
    bounds : sequence of Bound
        Coordinates that decide which elements are read.
    register : str, optional
        In DRAM, the field with the base register that addresses are relative to.
    start : int, optional
        The first address, if it is no field.
    distinct : sequence of str
        Loops whose iterations must have an address each. What they must not do otherwise is in `clash`.
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
        """Whether the instruction has this operand."""
        for name, value in self.when.items():  # noqa: SIM110 -- programs ask this very often
            if getattr(instruction, name) != value:
                return False
        return True

    def first(self, instruction: Any) -> int:
        """The first address, if no stride is taken."""
        return int(getattr(instruction, self.name)) if self.start is None else self.start

    def nest(self, instruction: Any, config: Config, *names: str) -> list[tuple[int, int]]:
        """Iterations and strides of the loops of these names in the order of `loops`; of all, if none are given."""
        if names not in self._readers:
            self._readers[names] = _reader([loop for loop in self.loops if not names or loop.name in names])
        return self._readers[names](instruction, config)

    @cached_property
    def _readers(self) -> dict[tuple[str, ...], Callable[[Any, Config], list[tuple[int, int]]]]:
        """What reads the loops of these names: programs ask this very often."""
        return {}

    def stride(self, loop: str) -> str | int:
        """The stride of a loop, 0 if there is none around this operand."""
        return next((item.stride for item in self.loops if item.name == loop), 0)


def _reader(loops: Sequence[Loop]) -> Callable[[Any, Config], list[tuple[int, int]]]:
    """What reads iterations and strides of loops from an instruction: all at once, if they are fields."""
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


def over(operand: str, *loops: str) -> tuple[Loop, ...]:
    """Loops that are named like the fields with their iterations; field ``{operand}_{loop}`` is the stride."""
    return tuple(Loop(loop, loop, f"{operand}_{loop}") for loop in loops)


READ_LATENCY = 3
"""From a granted read request to its data, for scratchpad and accumulator alike."""
LOOKUP = 2
"""Of look-up tables behind the vector unit's results, whether an instruction uses them or not."""
DIVISION = 8
"""Of a division in the vector unit: two bits of the quotient, one of the product each."""

KERNEL_RESULT = 10
"""Of the kernel engine: from the cycle in which an element is read, or would be, to its result."""
KERNEL_SPACING = 8
"""From a result of the kernel engine being issued to an operation that reads it: registers are read 3 cycles after the
issue, and written in the cycle of `KERNEL_RESULT`."""

KERNEL_DIVISION = 20
"""Of a reciprocal in the kernel engine: 16 bits, and 4 cycles around them."""
KERNEL_ROOT = 16
"""Of the square root before it."""


def kernel_least(groups: int) -> int:
    """Cycles of a micro-operation at least: with ``swap`` it reads other lane groups than it writes."""
    return KERNEL_SPACING + groups - 1


def kernel_serial(elements: int, groups: int, *, root: bool) -> int:
    """Cycles of a reciprocal of `elements` lanes, one by one, whose results go to `groups` lane groups: 5 until
    the element is there, less the 3 after which the next operation reads it, and one more."""
    return 3 + elements * (KERNEL_DIVISION + (KERNEL_ROOT if root else 0)) + groups


def lookup_latency(config: Config) -> int:
    """What look-up tables add to the way of results."""
    return LOOKUP if config.lookup_tables else 0


def vec_overhead(config: Config) -> int:
    """From accepting a `Vec` to accepting the next instruction of the queue, beyond one for each read that it issues
    and each element that is out of range, when no read is refused."""
    return 23 + lookup_latency(config)


VEC_EARLY = 9
"""The same where the next instruction is a `Vec` of the accumulator without a second operand, and this one a `Vec`: its
parameter block is read while the results of this one leave. Not with the sequential requantisation of
`weft.hdl.vector.requantise`."""


def aligning(config: Config) -> int:
    """Choosing which of a sum and a product to shift, and shifting it, on the way into the accumulator."""
    return 2 if config.softmax else 0


def rmw_latency(config: Config) -> int:
    """From a row of products at the accumulator until reads see it: a read granted then, or a row that adds to it
    arriving then, finds the sum. No tile of the array takes less, whatever its rows."""
    return READ_LATENCY + 1 + aligning(config)
