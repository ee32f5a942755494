"""Instructions and micro-operations of the kernel engine, which runs short programs on rows of vectors.

A *kernel* is a list of `MicroOp`. `Microcode` writes it to the engine's memory, and `Kernel` runs it on tensors. Each
row has `REGISTERS` registers of N int32 and a predicate of N bits, and all rows run the same micro-operations. Rows run
interleaved in strips of `STRIP_ROWS`. This hides the latency of the arithmetic, so that a micro-operation takes one
cycle per `lanes` elements.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from weft.hdl.errors import IsaError
from weft.hdl.isa.config import Config, Feature
from weft.hdl.isa.encoding import (
    Instruction,
    Opcode,
    Place,
    Queue,
    bits,
    count,
    field_places,
    stride,
    values_of,
    word_of,
)
from weft.hdl.isa.operands import Loop, Memory, Operand, loops_over
from weft.hdl.isa.vector import Source, VectorInstruction

REGISTERS = 8
"""Registers of a row, N int32 each."""
STRIP_ROWS = 8
"""Rows that run interleaved."""
MULTIPLIER_BITS = 18
"""Bits of the second factor of a product, signed: the width of FPGA multipliers."""
MICRO_OPS = 7
"""Maximum number of micro-operations in a `Microcode`."""
MICRO_BITS = 63
"""Bits of a micro-operation."""
SOURCES = ("src", "b", "c", "d")
"""Operands that a micro-operation can read, by the number in its field `a`; plus 4 for their second vector."""
TARGETS = ("dst", "dst2")
"""Operands that a micro-operation can write, by the number in its field `d`; plus 2 for their second vector."""
INT32_MIN = -(1 << 31)
MAX_COLUMN_VECTORS = 2
"""Maximum number of an operand's vectors per column."""


class Op(enum.IntEnum):
    """Operation of a `MicroOp`."""

    ADD = 0
    SUB = 1
    RSUB = 2
    MUL = 3
    MIN = 4
    MAX = 5
    LT = 6
    EQ = 7
    SELECT = 8
    INDEX = 9
    TABLE = 10
    RECIPROCAL = 11
    RSQRT = 12


SERIAL = (Op.RECIPROCAL, Op.RSQRT)
"""Operations that are computed element by element."""
COMPARISONS = (Op.LT, Op.EQ)
"""Operations whose result is the predicate."""
_UNARY = (Op.TABLE, *SERIAL)
"""Operations without an operand B."""


@dataclass(frozen=True)
class MicroOp:
    """Step of a kernel, applied to every element of the current column of every row.

    All operands are int32::

        A = register a, or with `a_memory` the vector of operand `a` (0 src, 1 b, 2 c, 3 d; plus 4: the second vector
            of operands with two) of the row's current column: int8, uint8 with `unsigned`, int32 for src in the
            accumulator; elements past the row's end are 0, or -2**31 with `fill`
        B = register b, or with `b_immediate` the number `immediate`; with `swap` s > 0, element j of B is element
            j ^ 2**(s-1) of the register, and the result must not go to that register
        S = A << shift modulo 2**32

    Results, modulo 2**32::

        ADD, SUB, RSUB    S + B, S - B, B - S
        MIN, MAX          the smaller, the larger of S and B
        LT, EQ            the predicate becomes S < B, S = B; no register is written
        SELECT            S where the predicate holds, else B
        INDEX             B + the element's number in its row
        MUL               sat32(A * f / 2**min(shift + e, 63)), rounded half to even, or down with `floor`; f are the
                          low 18 bits of B, signed, and e is 0, or with `scaled` bits 18 to 23 of B
        TABLE             entry min(max(A, -128), 127) + 128 of look-up table `immediate`, as int8
        RECIPROCAL        about 1 / A, as f and e of a B for MUL with f * 2**-(15+e) = 1 / A: with E the number of bits
                          of |A|, and t the top 17 bits of |A| * 2**32, f = min(floor(2**32 / t), 65535) with the sign
                          of A, and e = E
        RSQRT             about 1 / sqrt(A), likewise: with E the number of bits of A, rounded up to an even number, and
                          s = floor(sqrt(A * 2**(32-E))), f = min(floor(2**31 / s), 65535) and e = E / 2

    For RECIPROCAL of 0, and for RSQRT of a number that is not positive, f is 65535 and e is 0.

    With `unsigned`, RECIPROCAL and RSQRT compute the result of element 0 for all elements. The result goes to register
    `d`, or with `d_memory` to operand `d` (0 dst, 1 dst2; plus 2: its second vector), saturated to int8.

    With `again`, if the current column is not the last, the next column becomes current and the kernel continues with
    micro-operation `target`; after the last column the first one becomes current again. With `end`, the kernel ends.
    """

    op: int = bits(4, "see `Op`")
    shift: int = bits(6, "bits to shift by")
    a_memory: int = bits(1, "the first operand is in memory")
    a: int = bits(3, "register, or operand in memory")
    unsigned: int = bits(1, "bytes are unsigned; element 0 for all")
    fill: int = bits(1, "elements past the row's end are -2**31")
    b_immediate: int = bits(1, "the second operand is the immediate number")
    b: int = bits(3, "register")
    swap: int = bits(3, "distance of exchanged elements")
    d_memory: int = bits(1, "the result goes to memory")
    d: int = bits(3, "register, or operand in memory")
    floor: int = bits(1, "round down")
    scaled: int = bits(1, "the second operand has an exponent")
    again: int = bits(1, "repeat for the next column")
    end: int = bits(1, "last micro-operation of the kernel")
    target: int = bits(8, "micro-operation to continue with under `again`, counted from the kernel's first")
    immediate: int = bits(24, "number", signed=True)

    def encode(self) -> int:
        """Encode to an integer of `MICRO_BITS` bits. Raises `IsaError` for a value that does not fit its field."""
        for name, place in micro_places().items():
            value = getattr(self, name)
            if not place.low <= value <= place.high:
                raise IsaError(
                    f"micro-operation field {name!r} is {value}, outside {place.low} to {place.high}"
                )
        return word_of(self, micro_places())

    @classmethod
    @lru_cache(maxsize=1 << 12)  # the checker decodes all micro-operations of every KERNEL in a program
    def decode(cls, word: int) -> MicroOp:
        """Decode an integer that `encode` returned."""
        return cls(**values_of(word, micro_places()))

    @classmethod
    def layout(cls) -> data.StructLayout:
        """Return the Amaranth layout of the `MICRO_BITS` bits."""
        return data.StructLayout(
            {
                name: signed(place.width) if place.signed else unsigned(place.width)
                for name, place in micro_places().items()
            }
        )


@cache
def micro_places() -> dict[str, Place]:
    """Return the places of a micro-operation's fields by name, in order of their bits."""
    return field_places(MicroOp)


@dataclass(frozen=True)
class Microcode(Instruction):
    """Write `count` micro-operations to the kernel engine's memory, ``op0`` at `entry`, and so on."""

    OPCODE = Opcode.MICROCODE
    QUEUE = Queue.VEC
    REQUIRES = Feature.KERNEL
    OPERANDS = (Operand("entry", Memory.KERNEL, (Loop("op", "count", 1),), write=True),)

    entry: int = bits(8, "first entry")
    count: int = bits(3, "micro-operations", least=1, default=1)
    op0: int = bits(MICRO_BITS, "a `MicroOp`")
    op1: int = bits(MICRO_BITS, "the second `MicroOp`")
    op2: int = bits(MICRO_BITS, "the third `MicroOp`")
    op3: int = bits(MICRO_BITS, "the fourth `MicroOp`")
    op4: int = bits(MICRO_BITS, "the fifth `MicroOp`")
    op5: int = bits(MICRO_BITS, "the sixth `MicroOp`")
    op6: int = bits(MICRO_BITS, "the seventh `MicroOp`")

    @property
    def ops(self) -> tuple[int, ...]:
        """Encoded micro-operations."""
        return tuple(getattr(self, f"op{index}") for index in range(self.count))


_ROWS = ("ob", "oy", "ox")


def _vectors(operand: str) -> tuple[Loop, ...]:
    # One or two vectors for each column of each row.
    return (*loops_over(operand, *_ROWS), Loop("vector", f"{operand}_vectors", 1))


@dataclass(frozen=True)
class Kernel(VectorInstruction):
    """Run a kernel on rows of vectors, from scratchpad or accumulator to scratchpad.

    There are ``ob * oy`` rows of ``ox`` columns. A column has N elements; the last column has `tail` elements, or N if
    `tail` is 0. An operand has one vector for each column of each row, or two at successive addresses for the bytes of
    wider elements. The kernel starts at entry `start` of the engine's memory and ends with its first micro-operation
    with ``end``. It runs once for every row, starting with column 0 as the current column; `MicroOp` defines its steps.
    Registers and predicates are undefined at the start.

    Rows run in strips of `STRIP_ROWS` with a common ``ob``: a micro-operation runs for all rows of a strip before the
    next one starts. No result may overwrite a vector that the instruction reads, with one exception: an operand may
    have exactly the addresses of a result, each of them once, if no micro-operation after the first write to memory
    reads that operand.
    """

    OPCODE = Opcode.KERNEL
    REQUIRES = Feature.KERNEL
    OPERANDS = (
        Operand("src", Memory.ACCUMULATOR, _vectors("src"), when={"source": Source.ACCUMULATOR}),
        Operand("src", Memory.SCRATCHPAD, _vectors("src"), when={"source": Source.SCRATCHPAD}),
        Operand("b", Memory.SCRATCHPAD, _vectors("b"), when={"with_b": 1}),
        Operand("c", Memory.SCRATCHPAD, _vectors("c"), when={"with_c": 1}),
        Operand("d", Memory.SCRATCHPAD, _vectors("d"), when={"with_d": 1}),
        Operand("start", Memory.KERNEL, ()),
        Operand("dst", Memory.SCRATCHPAD, _vectors("dst"), write=True),
        Operand("dst2", Memory.SCRATCHPAD, _vectors("dst2"), write=True, when={"with_dst2": 1}),
    )

    start: int = bits(8, "the kernel's first micro-operation")
    tail: int = bits(8, "elements of the last column; 0 for all")
    with_b: int = bits(1, "there is an operand `b`")
    with_c: int = bits(1, "there is an operand `c`")
    with_d: int = bits(1, "there is an operand `d`")
    with_dst2: int = bits(1, "there is a second destination")
    src_vectors: int = count("vectors of a column", 2)
    dst_vectors: int = count("vectors of a column", 2)
    b_vectors: int = count("vectors of a column", 2)
    c_vectors: int = count("vectors of a column", 2)
    d_vectors: int = count("vectors of a column", 2)
    dst2_vectors: int = count("vectors of a column", 2)
    b: int = bits(16, "first vector of operand `b`")
    b_ob: int = stride("operand `b`")
    b_oy: int = stride("operand `b`")
    b_ox: int = stride("operand `b`")
    c: int = bits(16, "first vector of operand `c`")
    c_ob: int = stride("operand `c`")
    c_oy: int = stride("operand `c`")
    c_ox: int = stride("operand `c`")
    d: int = bits(16, "first vector of operand `d`")
    d_ob: int = stride("operand `d`")
    d_oy: int = stride("operand `d`")
    d_ox: int = stride("operand `d`")
    dst2: int = bits(16, "first vector of the second destination")
    dst2_ob: int = stride("second destination")
    dst2_oy: int = stride("second destination")
    dst2_ox: int = stride("second destination")


def kernel_at(memory: Sequence[int | None], start: int) -> tuple[MicroOp, ...]:
    """Decode the kernel at entry `start` of a memory of encoded micro-operations, None where nothing was written.

    Raises `IsaError` if the kernel has no end or unwritten entries.
    """
    ops = []
    for word in memory[start:]:
        if word is None:
            raise IsaError(
                f"the kernel from entry {start} on has micro-operations that no MICROCODE before it wrote"
            )
        ops.append(MicroOp.decode(word))
        if ops[-1].end:
            return tuple(ops)
    raise IsaError(f"the kernel from entry {start} on has no micro-operation with 'end'")


def check_kernel(ops: Sequence[MicroOp], instruction: Kernel, config: Config) -> None:
    """Check a kernel and the operands of its `Kernel` instruction.

    Raises `IsaError`, naming the micro-operation, for a broken rule or an access to an operand that the instruction
    does not have.
    """
    for name in (*SOURCES, *TARGETS):
        if getattr(instruction, f"{name}_vectors") > MAX_COLUMN_VECTORS:
            raise IsaError(
                f"'{name}_vectors' is {getattr(instruction, f'{name}_vectors')}, more than {MAX_COLUMN_VECTORS}"
            )
    if instruction.tail > config.n:
        raise IsaError(f"'tail' is {instruction.tail}, more than the {config.n} elements of a vector")
    loop_end = -1
    for index, op in enumerate(ops):
        if reason := _find_fault(op, instruction, config):
            raise IsaError(f"micro-operation {index} of the kernel {reason}")
        if op.again and not loop_end < op.target <= index:
            raise IsaError(
                f"micro-operation {index} of the kernel has target {op.target}: a loop must start after the previous "
                f"loop, from {loop_end + 1} to {index}"
            )
        loop_end = index if op.again else loop_end
    if ops[-1].op in SERIAL:
        raise IsaError(
            f"the kernel ends with {Op(ops[-1].op).name}, which another micro-operation must follow"
        )
    _check_initialised(ops)


def _check_initialised(ops: Sequence[MicroOp]) -> None:
    """Raise `IsaError` if a register or the predicate is read before it is written: it may hold data of other rows."""
    # One pass suffices because the first iteration of a loop contains all its operations. Reading r for r - r is
    # allowed: the result is 0 for any r.
    written: set[int] = set()
    compared = False
    for index, op in enumerate(ops):
        read = {op.a} if not op.a_memory and op.op != Op.INDEX else set()
        if not op.b_immediate and op.op not in _UNARY:
            read.add(op.b)
        different = op.a_memory or op.b_immediate or op.shift or op.swap or op.a != op.b
        undefined = read - written if different or op.op not in (Op.SUB, Op.RSUB) else set()
        if undefined:
            raise IsaError(
                f"micro-operation {index} of the kernel reads register {min(undefined)}, which no earlier one writes"
            )
        if op.op == Op.SELECT and not compared:
            raise IsaError(
                f"micro-operation {index} of the kernel is SELECT, but no earlier one is a comparison"
            )
        if op.op in COMPARISONS:
            compared = True
        elif not op.d_memory:
            written.add(op.d)


def _find_fault(op: MicroOp, instruction: Kernel, config: Config) -> str | None:
    if op.op not in set(Op):
        return f"has the unknown operation {op.op}"
    if op.a_memory and not _has(instruction, SOURCES, op.a):
        return f"reads operand {op.a}, which the instruction does not have"
    if op.d_memory and not _has(instruction, TARGETS, op.d):
        return f"writes to destination {op.d}, which the instruction does not have"
    if op.d_memory and op.op in (*SERIAL, *COMPARISONS):
        return f"writes the result of {Op(op.op).name} to memory"
    if not op.b_immediate and 1 << op.swap > config.n:
        return f"exchanges elements at distance {1 << op.swap - 1}, but vectors have {config.n}"
    if op.swap and not (op.b_immediate or op.d_memory or op.op in COMPARISONS) and op.d == op.b:
        return f"exchanges elements of register {op.b}, which it writes"
    if op.op == Op.TABLE and not 0 <= op.immediate < config.lookup_tables:
        return f"looks up table {op.immediate}, but the configuration has {config.lookup_tables}"
    return None


def _has(instruction: Kernel, names: Sequence[str], number: int) -> bool:
    """Check whether the instruction has the operand and vector with a number of `SOURCES` or `TARGETS`."""
    vector, index = divmod(number, len(names))
    exists = any(item.name == names[index] and item.applies(instruction) for item in instruction.OPERANDS)
    return exists and vector < getattr(instruction, f"{names[index]}_vectors")
