"""The words of the microprogram.

The processor has a 32-bit accumulator and a data memory of 32-bit words. A word of the microprogram either calculates
or decides what comes next. One that calculates applies a function to the accumulator and a source (data memory, a
constant, a port of a unit), and the result goes to the accumulator, to a unit (`Out`) and to data memory as it says.

Words are executed as if one after the other: what needs the result of a word ahead of it waits for it in hardware.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Function(enum.IntEnum):
    """Functions of the accumulator ``a`` and the source ``b``."""

    KEEP = 0  # a
    LOAD = 1  # b
    ADD = 2
    SUB = 3  # a - b
    AND = 4
    MIN = 5
    MAX = 6
    ROUND = 7  # a + b, plus 1 if what `Port.PRODUCT` or `Port.RAW` lost rounds up
    FIELD = 8  # the next bits of the instruction; the width takes the place of the unit


class Source(enum.IntEnum):
    MEMORY = 0
    INDEXED = (
        1  # data memory at the index register, its lowest bit ored with that of the operand; or see `Lane`
    )
    CONSTANT = 2
    PORT = 3


class Port(enum.IntEnum):
    """Ports of the units, which a word can read."""

    ACCUMULATOR = 0  # of the processor
    WORD = 1  # the next 32 bits from memory
    PRODUCT = 2  # of `Multiplier`, when it is done, saturated
    RAW = 3  # the same modulo 2**32; rounded, halves go up
    ELEMENT = 4  # the current column of the accumulator row or scratchpad vector read last
    BYTE = 5  # the current column of the scratchpad vector
    SUM = 6  # the current column of the array's last row of sums
    APPEND = 7  # the processor's accumulator shifted left by 8, and `BYTE` below it
    TABLE = 8  # the table's entry
    EXPONENT = 9  # bits 18 to 23 of the processor's accumulator; with kernels only


class Out(enum.IntEnum):
    """Inputs of the units, to which the result of a word can go."""

    NONE = 0
    INDEX = 1
    MULTIPLICAND = 2
    SHIFT = 3  # of the next start
    MULTIPLY = 5  # start, by the result; if no shift was given, that is the bits from 24 on
    MULTIPLY_ADD = 6  # the same, added to the last product
    COLUMN = 7
    PUSH = 8  # a byte to the vector under way
    SCRATCHPAD_WRITE = 9  # the vector, to this address
    BYTE_WRITE = 10  # its first byte, to the current column of this address; and turn it
    SCRATCHPAD_READ = 11
    ACCUMULATOR_READ = 12
    ACCUMULATOR_WRITE = 13  # this to the current column of the row at `C`, and go to the next column
    SOURCE = 14  # what `ELEMENT` reads: 1 the scratchpad
    A = 15
    A_STEP = 16
    READ_A = 17  # read the vector at `A`, and step
    WEIGHT = 18  # the vector read last is the current column of weights; go to the next column
    C = 19
    C_STEP = 20
    X = 21
    X_STEP = 22
    BOUND = 23
    ROW_VALID = 24  # take the range check of `X` for that of the row
    ROWS = 25  # start that many
    MODE = 26  # of rows: bit 0: no sums are written, bits 8 to 15: pad, 16 to 23: zero
    TABLE_ADDRESS = 27
    TABLE_WRITE = 28  # and go to the next entry
    MEMORY = 29  # see `MemoryOut`, by the operand's upper bits
    COLUMN_NEXT = 30
    BITS = 31  # the word that `FIELD` takes apart


class MemoryOut(enum.IntEnum):
    """Inputs of the memory unit, for `Out.MEMORY`: the operand of a KEEP with the source CONSTANT."""

    ADDRESS = 0
    REMAIN = 1
    SKIP = 2
    LENGTH = 3
    FILL = 4
    GATHER = 5  # bytes of memory to the vector
    SCATTER = 6  # bytes of the vector read last to memory
    FLUSH = 7
    FINISH = 8
    EVENTS = 9
    OPERATION = 10  # the first word of a micro-operation, which says what `Lane` means; with kernels only
    MULTIPLY_SIGNED = 11  # as `Out.MULTIPLY`, by the low 18 bits, signed; with kernels only
    NARROW = 12  # bytes that are gathered hold two values of 4 bits; with these only


class Condition(enum.IntEnum):
    ALWAYS = 0
    ZERO = 1
    NEGATIVE = 2
    STARTED = 3
    COLUMN_ZERO = 4
    IN_RANGE = 5
    ROWS_DONE = 6
    MEMORY_IDLE = 7  # nothing on its way
    MOVED = 8  # gathered or scattered
    LENGTH_ZERO = 9
    LANES_ZERO = (
        10  # behind a word that went to the `next` lane: that is the first one again; with kernels only
    )


@dataclass(frozen=True)
class Index:
    """Data memory at the index register; `odd` chooses the upper one of a pair."""

    odd: int = 0


class Part(enum.IntEnum):
    """What a kernel works on, in data memory; with kernels only. The index register says of which row and lane."""

    FIRST = 1  # register `a` of the micro-operation, or with `a_memory` the staged vector
    SECOND = 2  # register `b` at the lane that `swap` exchanges it with, or the immediate number
    RESULT = 3  # register `d`, or with `d_memory` the staged vector
    PREDICATE = 4
    STAGED = 5  # a vector of a lane each, the same for all rows


PART_BITS = 3


@dataclass(frozen=True)
class Lane:
    """A lane of a `Part`; with `next` the index register goes to the next lane, and from the last one to the first."""

    part: Part
    next: bool = False

    @property
    def number(self) -> int:
        """As an operand: above the lowest bit the part, then `next`."""
        return self.part << 1 | self.next << 1 + PART_BITS


PORTS, CONDITIONS = len(Port) - 1, len(Condition) - 1
"""Ports and conditions that there are without kernels."""
Operand = str | int | Port | Index | Lane

WIDTHS = (1, 2, 3, 7, 8, 12, 16, 24, 32, 4)
"""Widths of fields of instructions, by their number in a word of the microprogram."""
FUNCTION_BITS, SOURCE_BITS, OUT_BITS, CONDITION_BITS = 4, 2, 5, 4
OPERAND_LOW = 1 + FUNCTION_BITS + SOURCE_BITS + 1 + OUT_BITS
"""Bit that operand or target start from. Below, from bit 0: 1 for a jump; then function, source, write, out, or
condition, negation, call, return."""
