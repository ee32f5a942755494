"""The microprogram of MICROCODE and KERNEL; `weft.hdl.sequential.micro_kernel_ops` has the operations.

A micro-operation is decoded once for a strip of rows. Then each row takes the same steps. Operands from memory, and
registers to be shifted, are staged. The operation's loop iterates over the lanes. A staged result is written to memory.
The operation calls ``kernel.row``, which returns once for each row.
"""

from __future__ import annotations

from weft.hdl.isa import Kernel, Microcode
from weft.hdl.isa.kernel import INT32_MIN, SOURCES, STRIP_ROWS, TARGETS, micro_places
from weft.hdl.sequential.assembler import (
    Condition,
    Function,
    Index,
    Lane,
    MemoryOut,
    Micro,
    Out,
    Part,
    Port,
    implements,
)
from weft.hdl.sequential.micro_kernel_ops import byte_left, dispatch, shift_right, store_lane
from weft.hdl.sequential.micro_vector import multiply_by

_FIRST_BITS = micro_places()["target"].position
"""Bits of a micro-operation in its first word."""
_A_MEMORY = 1 << micro_places()["a_memory"].position
"""Bit of the first word: the first operand is staged."""
_SPLIT = {
    "op": {"op.low": 1, "op.high": 3},
    "shift": {"shift.bits": 3, "shift.bytes": 3},
    "a": {"a": 2, "from.behind": 1},
    "d": {"d": 1, "to.behind": 2},
    # The processor decodes these fields itself.
    "b_immediate": {"trash": 1},
    "b": {"trash": 3},
    "swap": {"trash": 3},
}
"""Fields that are stored in parts, lowest bits first."""
_OPERANDS = (*SOURCES, *TARGETS)


@implements(Microcode)
def microcode(m: Micro) -> None:
    """Write `weft.hdl.isa.Microcode`, which stores a micro-operation in two words.

    The first word has the bits up to ``end``. The second has the immediate, with the target from bit 24 on.
    """
    _entry(m, "f.entry", "to")

    def op() -> None:
        for width, name in ((24, "low"), (_FIRST_BITS - 24, "high"), (8, "target"), (24, "number")):
            m.take(width, name)
        m.ld("to", Out.INDEX)
        for upper, lower, odd in (("high", "low", 0), ("target", "number", 1)):
            m.ld(upper)
            for _ in range(3):
                byte_left(m)
            m.add(lower)
            m.st(Index(odd))
        m.advance("to", 2)

    m.loop("f.count", op)
    m.call("rest")


def _entry(m: Micro, number: str, target: str) -> None:
    """Store the address of a micro-operation's words in `target`."""
    m.ld(number)
    m.add(Port.ACCUMULATOR)
    m.add(m.constant_block("microcode"))
    m.st(target)


@implements(Kernel)
def kernel(m: Micro) -> None:
    """Write `weft.hdl.isa.Kernel`: the loops over blocks and strips of rows."""
    _entry(m, "f.start", "first")
    partial = m.new_label()
    # A tail of N elements is a full vector, which 0 stands for.
    m.ld("f.tail")
    m.sub(m.config.n)
    m.jump(partial, Condition.ZERO, unless=True)
    m.st("f.tail")
    m.label(partial)

    def block() -> None:
        m.copy("rows.left", "f.oy")
        for name in _OPERANDS:
            m.copy(f"{name}.strip", f"f.{name}")
        strip = m.label()
        m.ld("rows.left")
        m.minimum(STRIP_ROWS)
        multiply_by(m, m.config.n)
        m.st("rows.end")
        m.copy("at", "first")
        m.call("kernel.columns")
        _operation(m)
        m.label("kernel.strip")
        for name in _OPERANDS:
            m.ld(f"f.{name}_oy")
            multiply_by(m, STRIP_ROWS)
            m.op(Function.ADD, f"{name}.strip", write=True)
        done = m.new_label()
        m.advance("rows.left", -STRIP_ROWS)
        m.jump(done, Condition.NEGATIVE)
        m.jump(strip, Condition.ZERO, unless=True)
        m.label(done)

    m.loop("f.ob", block, [(f"f.{name}", f"f.{name}", f"f.{name}_ob") for name in _OPERANDS])
    m.jump("next")
    _columns(m)
    _row(m)


def _columns(m: Micro) -> None:
    """Write the routine that makes the first column the current column."""
    m.label("kernel.columns")
    m.copy("columns.left", "f.ox")
    for name in _OPERANDS:
        m.copy(f"{name}.column", f"{name}.strip")
    m.copy("element", 0)
    m.back()


def _operation(m: Micro) -> None:
    """Write the code of a micro-operation for all rows of the strip, and the choice of the next one."""
    m.label("kernel.op")
    m.ld("at", Out.INDEX)
    m.copy("word", Index())
    m.out(Out.BITS)
    m.memory(MemoryOut.OPERATION)
    m.copy("second", Index(1))
    for name, place in micro_places().items():
        if place.position < _FIRST_BITS:
            for part, width in _SPLIT.get(name, {name: place.width}).items():
                m.take(width, part)
    m.ld("second", Out.BITS)
    m.take(24, "immediate", signed=True)
    _reads(m)
    _writes(m)
    dispatch(m)
    m.label("kernel.done")
    _follow(m)


def _reads(m: Micro) -> None:
    """Prepare reads of the first operand from memory: the first row's address, and the masks of its elements."""
    registers, mask, full, staged = m.new_label(), m.new_label(), m.new_label(), m.new_label()
    # ``staged``: the first word with `a_memory` set, for operations on a staged first operand.
    m.copy("staged", "word")
    m.ld("shift.bits")
    m.add("shift.bytes")
    m.add("a_memory")
    m.st("prepares")
    m.ld("a_memory")
    m.jump(registers, Condition.ZERO)
    m.copy("from.source", "f.source")
    _choose(m, "a", "from", SOURCES)
    m.label(registers)
    m.ld("a_memory")
    m.jump(staged, Condition.ZERO, unless=True)
    m.ld("word")
    m.add(m.constant(_A_MEMORY))
    m.st("staged")
    m.label(staged)
    m.copy("mask", -1)
    m.ld("unsigned")
    m.op(Function.AND, "from.source")
    m.jump(mask, Condition.ZERO)
    m.copy("mask", 255)
    m.label(mask)
    m.copy("behind", 0)
    # Only the last column may have invalid elements.
    m.ld("columns.left")
    m.sub(1)
    m.jump(full, Condition.ZERO, unless=True)
    m.copy("behind", "f.tail")
    m.label(full)


def _writes(m: Micro) -> None:
    """Prepare writes of the result to memory: the first row's address."""
    nothing = m.new_label()
    m.ld("d_memory")
    m.jump(nothing, Condition.ZERO)
    _choose(m, "d", "to", TARGETS)
    m.label(nothing)


def _choose(m: Micro, number: str, address: str, names: tuple[str, ...]) -> None:
    """Select the address of an operand by its number, and its step from row to row.

    All operands but the first are in the scratchpad.
    """
    chosen = m.new_label()
    m.ld(number)
    for index, name in enumerate(names):
        other = m.new_label()
        if name != names[-1]:
            m.jump(other, Condition.ZERO, unless=True)
        m.copy(f"{address}.step", f"f.{name}_oy")
        m.copy(address, f"{name}.column")
        if index and names == SOURCES:
            m.copy("from.source", 1)
        if name != names[-1]:
            m.jump(chosen)
            m.label(other)
            m.sub(1)
    m.label(chosen)
    m.advance(address, f"{address}.behind")


def _follow(m: Micro) -> None:
    """Select the next micro-operation."""
    straight, last = m.new_label(), m.new_label()
    m.ld("again")
    m.jump(straight, Condition.ZERO)
    m.ld("columns.left")
    m.sub(1)
    m.jump(last, Condition.ZERO)
    m.st("columns.left")
    for name in _OPERANDS:
        m.advance(f"{name}.column", f"f.{name}_ox")
    m.advance("element", m.config.n)
    m.ld("second")
    shift_right(m, 24)
    m.op(Function.AND, 255)
    m.add(Port.ACCUMULATOR)  # a micro-operation takes two words
    m.add("first")
    m.st("at")
    m.jump("kernel.op")
    m.label(last)
    m.call("kernel.columns")
    m.label(straight)
    m.ld("end")
    m.jump("kernel.strip", Condition.ZERO, unless=True)
    m.advance("at", 2)
    m.jump("kernel.op")


def _row(m: Micro) -> None:
    """Write the routine that prepares a row's operands and returns; after the last row, the micro-operation is done."""
    m.label("kernel.row")
    m.copy("row", 0)
    row, ready = m.label(), m.new_label()
    m.ld("prepares")
    m.jump(ready, Condition.ZERO)
    # `_shift` of the previous row has selected the staged vector as the first operand.
    m.ld("word")
    m.memory(MemoryOut.OPERATION)
    _stage(m)
    m.ld("row", Out.INDEX)
    _shift(m)
    m.back()
    m.label(ready)
    m.ld("row", Out.INDEX)
    m.back()
    m.label("kernel.write")
    registers = m.new_label()
    m.ld("d_memory")
    m.jump(registers, Condition.ZERO)
    again = m.label()
    m.ld(Lane(Part.STAGED, next=True))
    m.minimum(127)
    m.maximum(-128, Out.PUSH)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.ld("to", Out.SCRATCHPAD_WRITE)
    m.advance("to", "to.step")
    m.label(registers)
    m.advance("row", m.config.n)
    m.sub("rows.end")
    m.jump(row, Condition.ZERO, unless=True)
    m.jump("kernel.done")


def _stage(m: Micro) -> None:
    """Stage the row's vector from memory."""
    done, rows, copy = m.new_label(), m.new_label(), m.new_label()
    m.ld("a_memory")
    m.jump(done, Condition.ZERO)
    m.ld("from.source", Out.SOURCE)
    m.jump(rows, Condition.ZERO)
    m.ld("from", Out.SCRATCHPAD_READ)
    m.jump(copy)
    m.label(rows)
    m.ld("from", Out.C)
    m.out(Out.ACCUMULATOR_READ)
    m.label(copy)
    m.advance("from", "from.step")
    m.ld(0, Out.COLUMN)
    m.out(Out.INDEX)
    again = m.label()
    m.ld(Port.ELEMENT)
    m.op(Function.AND, "mask")
    m.st(Lane(Part.STAGED, next=True), Out.COLUMN_NEXT)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    # Replace elements beyond the end of the row.
    zero = m.new_label()
    m.ld("behind", Out.INDEX)
    m.jump(done, Condition.ZERO)
    m.ld("fill")
    m.jump(zero, Condition.ZERO)
    m.ld(m.constant(INT32_MIN))
    m.label(zero)
    again = m.label()
    store_lane(m, Part.STAGED)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.label(done)


def _shift(m: Micro) -> None:
    """Shift the first operand to the left into the staged vector, in one pass over the lanes for each byte and bit."""
    for name, body in (
        ("shift.bytes", lambda: byte_left(m)),
        ("shift.bits", lambda: m.add(Port.ACCUMULATOR)),
    ):
        done, more = m.new_label(), m.new_label()
        m.ld(name)
        m.jump(done, Condition.ZERO)
        m.st("passes")
        m.label(more)
        again = m.label()
        m.ld(Lane(Part.FIRST))
        body()
        store_lane(m, Part.STAGED)
        m.jump(again, Condition.LANES_ZERO, unless=True)
        m.ld("staged")
        m.memory(MemoryOut.OPERATION)
        m.advance("passes", -1)
        m.jump(more, Condition.ZERO, unless=True)
        m.label(done)
