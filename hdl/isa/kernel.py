"""The kernel engine's instructions and micro-operations: short programs over rows of elements.

A *kernel* is a list of `MicroOp`, which `Microcode` puts into the engine's memory and `Kernel` runs on tensors. It
works on rows of vectors. Each row has `REGISTERS` registers of N int32, a predicate of N bits, and all rows run the
same micro-operations, `STRIP_ROWS` of them side by side: that hides the latency of the arithmetic, so that each
micro-operation takes a cycle for every `lanes` elements. This is a vector processor whose vectors lie across rows.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from weft.hdl.isa.config import Config, Feature
from weft.hdl.isa.encoding import (
    Instruction,
    IsaError,
    Opcode,
    Place,
    Queue,
    bits,
    count,
    packed,
    stride,
    values_of,
    word_of,
)
from weft.hdl.isa.operands import Loop, Memory, Operand, over
from weft.hdl.isa.vector import Source, VectorInstruction

REGISTERS = 8
"""Registers of a row, each of N int32."""
STRIP_ROWS = 8
"""Rows that run side by side."""
MULTIPLIER_BITS = 18
"""Bits of the second factor of a product, signed: what multipliers of FPGAs take."""
MICRO_OPS = 7
"""Micro-operations in one `Microcode`."""
MICRO_BITS = 63
"""Bits of a micro-operation."""
SOURCES = ("src", "b", "c", "d")
"""The operands that a micro-operation may read, by the number in its field `a`; plus 4 for the vector behind."""
TARGETS = ("dst", "dst2")
"""The operands that a micro-operation may write, by the number in its field `d`; plus 2 for the vector behind."""
LEAST = -(1 << 31)
MOST_VECTORS = 2
"""Vectors of an operand in a column at most."""


class Op(enum.IntEnum):
    """What a micro-operation computes: see `MicroOp`."""

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
"""Operations that are computed one element after the other."""
COMPARISONS = (Op.LT, Op.EQ)
"""Operations whose result is the predicate."""
_ONE_OPERAND = (Op.TABLE, *SERIAL)
"""Operations that have no B."""


@dataclass(frozen=True)
class MicroOp:
    """One step of a kernel, for every element of the current column of every row.

    Operands, int32 all of them::

        A = register a, or with `a_memory` the vector of operand `a` (0 src, 1 b, 2 c, 3 d; plus 4: the one behind
            it, of operands with two vectors) of the row's current column: int8, uint8 with `unsigned`, int32 for src in
            the accumulator; elements behind the row's end are 0, or -2**31 with `fill`
        B = register b, or with `b_immediate` the number `immediate`; with `swap` s > 0, element j of the register is
            its element j ^ 2**(s-1), and the result must go elsewhere
        S = A << shift modulo 2**32

    Results, modulo 2**32::

        ADD, SUB, RSUB    S + B, S - B, B - S
        MIN, MAX          the smaller, the larger of S and B
        LT, EQ            the predicate becomes S < B, S = B; no register changes
        SELECT            S where the predicate holds, else B
        INDEX             B + the element's number in its row
        MUL               sat32(A * f / 2**min(shift + e, 63)), rounded half to even, or down with `floor`; f are the
                          low 18 bits of B, signed, and e is 0, or with `scaled` bits 18 to 23 of B
        TABLE             entry min(max(A, -128), 127) + 128 of look-up table `immediate`, as int8
        RECIPROCAL        about 1 / A, as a B with f and e so that f * 2**-(15+e) is it: with E the number of bits of
                          |A|, and t the top 17 bits of |A| * 2**32, f = min(floor(2**32 / t), 65535), or the negative
                          of that if A is, and e = E
        RSQRT             about 1 / sqrt(A), likewise: with E the number of bits of A, rounded up to an even number, and
                          s = floor(sqrt(A * 2**(32-E))), f = min(floor(2**31 / s), 65535) and e = E / 2

    For an A of 0 under RECIPROCAL, or not above 0 under RSQRT, f is 65535 and e is 0.

    With `unsigned`, RECIPROCAL and RSQRT compute that of element 0, and it is the result for all elements. The result
    goes to register `d`, or with `d_memory` to operand `d` (0 dst, 1 dst2; plus 2: the vector behind it), saturated to
    int8.

    With `again`, if the column is not the last one, the next column is the current one and the micro-operation
    `target` of the kernel follows; behind the last column the first one is the current one again. With `end`, nothing
    follows.
    """

    op: int = bits(4, "see `Op`")
    shift: int = bits(6, "places")
    a_memory: int = bits(1, "the first operand is in memory")
    a: int = bits(3, "register, or operand in memory")
    unsigned: int = bits(1, "bytes are unsigned; element 0 for all")
    fill: int = bits(1, "elements behind the row's end are the smallest")
    b_immediate: int = bits(1, "the second operand is the immediate number")
    b: int = bits(3, "register")
    swap: int = bits(3, "distance of exchanged elements")
    d_memory: int = bits(1, "the result goes to memory")
    d: int = bits(3, "register, or operand in memory")
    floor: int = bits(1, "round down")
    scaled: int = bits(1, "the second operand has an exponent")
    again: int = bits(1, "another column")
    end: int = bits(1, "last one")
    target: int = bits(8, "micro-operation that follows with `again`, counted from the kernel's first")
    immediate: int = bits(24, "number", signed=True)

    def encode(self) -> int:
        """The micro-operation in `MICRO_BITS` bits. Raises `IsaError` for a value that does not fit its field."""
        for name, place in micro_places().items():
            value = getattr(self, name)
            if not place.low <= value <= place.high:
                raise IsaError(
                    f"micro-operation field {name!r} is {value}, outside {place.low} to {place.high}"
                )
        return word_of(self, micro_places())

    @classmethod
    @lru_cache(maxsize=1 << 12)  # every KERNEL of a program has all of its micro-operations looked at
    def decode(cls, word: int) -> MicroOp:
        """What `encode` made."""
        return cls(**values_of(word, micro_places()))

    @classmethod
    def layout(cls) -> data.StructLayout:
        """The Amaranth layout of the `MICRO_BITS` bits."""
        return data.StructLayout(
            {
                name: signed(place.width) if place.signed else unsigned(place.width)
                for name, place in micro_places().items()
            }
        )


@cache
def micro_places() -> dict[str, Place]:
    """The fields of a micro-operation by name, in order."""
    return packed(MicroOp)


@dataclass(frozen=True)
class Microcode(Instruction):
    """Put micro-operations into the kernel engine's memory: ``op0`` at `entry`, and so on, `count` of them."""

    OPCODE = Opcode.MICROCODE
    QUEUE = Queue.VEC
    REQUIRES = Feature.KERNEL
    OPERANDS = (Operand("entry", Memory.KERNEL, (Loop("op", "count", 1),), write=True),)

    entry: int = bits(8, "first entry")
    count: int = bits(3, "micro-operations", least=1, default=1)
    op0: int = bits(MICRO_BITS, "a `MicroOp`")
    op1: int = bits(MICRO_BITS, "the second one")
    op2: int = bits(MICRO_BITS, "the third one")
    op3: int = bits(MICRO_BITS, "the fourth one")
    op4: int = bits(MICRO_BITS, "the fifth one")
    op5: int = bits(MICRO_BITS, "the sixth one")
    op6: int = bits(MICRO_BITS, "the seventh one")

    @property
    def ops(self) -> tuple[int, ...]:
        """The words of the micro-operations."""
        return tuple(getattr(self, f"op{index}") for index in range(self.count))


_ROWS = ("ob", "oy", "ox")


def _vectors(operand: str) -> tuple[Loop, ...]:
    """Loops over the vectors of an operand of `Kernel`: one or two for each column of each row."""
    return (*over(operand, *_ROWS), Loop("vector", f"{operand}_vectors", 1))


@dataclass(frozen=True)
class Kernel(VectorInstruction):
    """Run a kernel on rows of vectors: scratchpad or accumulator in, scratchpad out.

    Rows are ``ob`` times ``oy``, and each has ``ox`` columns of N elements, but for the last column, which has `tail`
    (all N if that is 0). An operand has one vector for each column of each row, or two, one behind the other: the bytes
    of wider elements. The kernel, from entry `start` of the engine's memory up to its first micro-operation with
    ``end``, runs once for every row, with column 0 as the current one at first; `MicroOp` tells what its steps do.
    Registers and predicates are undefined at first.

    Rows run in strips of `STRIP_ROWS` with the same ``ob``, a micro-operation for all rows of a strip before the next
    one. No result may overwrite what the instruction reads, with one exception: an operand with the very addresses of
    a result, each of them once, if no micro-operation behind the first that writes to memory reads that operand.
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
    """The micro-operations of the kernel that starts at an entry of a memory of words, of which None are not known.
    Raises `IsaError` if it has no end."""
    found = []
    for word in memory[start:]:
        if word is None:
            raise IsaError(
                f"the kernel from entry {start} on has micro-operations that no MICROCODE before it wrote"
            )
        found.append(_decoded(word))
        if found[-1].end:
            return tuple(found)
    raise IsaError(f"the kernel from entry {start} on has no micro-operation with 'end'")


@lru_cache(1 << 12)
def _decoded(word: int) -> MicroOp:
    return MicroOp.decode(word)


def check_kernel(ops: Sequence[MicroOp], instruction: Kernel, config: Config) -> None:
    """Raise `IsaError`, naming the micro-operation, for a kernel that breaks a rule, or reads or writes an operand
    that the instruction does not have."""
    for name in (*SOURCES, *TARGETS):
        if getattr(instruction, f"{name}_vectors") > MOST_VECTORS:
            raise IsaError(
                f"'{name}_vectors' is {getattr(instruction, f'{name}_vectors')}, more than {MOST_VECTORS}"
            )
    if instruction.tail > config.n:
        raise IsaError(f"'tail' is {instruction.tail}, more than the {config.n} elements of a vector")
    looped = -1
    for index, op in enumerate(ops):
        if reason := _fault(op, instruction, config):
            raise IsaError(f"micro-operation {index} of the kernel {reason}")
        if op.again and not looped < op.target <= index:
            raise IsaError(
                f"micro-operation {index} of the kernel has target {op.target}: loops start behind the one before, "
                f"from {looped + 1} to {index}"
            )
        looped = index if op.again else looped
    if ops[-1].op in SERIAL:
        raise IsaError(f"the kernel ends with {Op(ops[-1].op).name}, behind which one more has to follow")
    _check_filled(ops)


def _check_filled(ops: Sequence[MicroOp]) -> None:
    """Raise `IsaError` for a register, or the predicate, that is read before it is written: its contents are of rows
    that were computed before, and which these are nobody knows. Loops are no matter, as their first turn has all; and a
    register less itself is 0, whatever it holds."""
    filled: set[int] = set()
    compared = False
    for index, op in enumerate(ops):
        read = {op.a} if not op.a_memory and op.op != Op.INDEX else set()
        if not op.b_immediate and op.op not in _ONE_OPERAND:
            read.add(op.b)
        changes = op.a_memory or op.b_immediate or op.shift or op.swap or op.a != op.b
        unknown = read - filled if changes or op.op not in (Op.SUB, Op.RSUB) else set()
        if unknown:
            raise IsaError(
                f"micro-operation {index} of the kernel reads register {min(unknown)}, which none in front of it writes"
            )
        if op.op == Op.SELECT and not compared:
            raise IsaError(
                f"micro-operation {index} of the kernel is SELECT, but none in front of it compares anything"
            )
        if op.op in COMPARISONS:
            compared = True
        elif not op.d_memory:
            filled.add(op.d)


def _fault(op: MicroOp, instruction: Kernel, config: Config) -> str | None:
    """What is wrong with a micro-operation, if anything."""
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
    """Whether the instruction has an operand, and the vector of it that a number stands for."""
    vector, index = divmod(number, len(names))
    known = any(item.name == names[index] and item.applies(instruction) for item in instruction.OPERANDS)
    return known and vector < getattr(instruction, f"{names[index]}_vectors")
