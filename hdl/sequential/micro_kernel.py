"""The microprogram of MICROCODE and KERNEL; `weft.hdl.sequential.micro_kernel_ops` has the operations.

A micro-operation is taken apart once for a strip of rows. Then each row goes through the same steps: a vector from
memory is staged, as are registers that are to be shifted; the operation's own loop goes over the lanes; and what goes
to memory, which was staged, too, is written. The operation calls ``kernel.row``, which returns once for every row.
"""

from __future__ import annotations

from weft.hdl.isa import Kernel, Microcode
from weft.hdl.isa.kernel import SOURCES, STRIP_ROWS, TARGETS, micro_places
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
    carries_out,
)
from weft.hdl.sequential.micro_kernel_ops import byte_left, dispatch, keep, shifted
from weft.hdl.sequential.micro_vector import LEAST, times

_FIRST_BITS = micro_places()["target"].position
"""Bits of a micro-operation that are its first word."""
_A_MEMORY = 1 << micro_places()["a_memory"].position
"""The bit that says that the first operand is staged."""
_SPLIT = {
    "op": {"op.low": 1, "op.high": 3},
    "shift": {"shift.bits": 3, "shift.bytes": 3},
    "a": {"a": 2, "from.behind": 1},
    "d": {"d": 1, "to.behind": 2},
    # The processor has these.
    "b_immediate": {"trash": 1},
    "b": {"trash": 3},
    "swap": {"trash": 3},
}
"""Fields that are taken in parts, the lowest one first."""
_OPERANDS = (*SOURCES, *TARGETS)


@carries_out(Microcode)
def microcode(m: Micro) -> None:
    """`weft.hdl.isa.Microcode`: of a micro-operation, two words are kept. The first one has its bits up to ``end``, the
    second one the immediate number, and the target from bit 24 on."""
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
    """The address of the words of a micro-operation."""
    m.ld(number)
    m.add(Port.ACCUMULATOR)
    m.add(m.constant_block("microcode"))
    m.st(target)


@carries_out(Kernel)
def kernel(m: Micro) -> None:
    """`weft.hdl.isa.Kernel`: strips of rows."""
    _entry(m, "f.start", "first")
    part = m.fresh()
    m.ld("f.tail")
    m.sub(m.config.n)
    m.jump(part, Condition.ZERO, unless=True)
    m.st("f.tail")
    m.label(part)

    def block() -> None:
        m.copy("rows.left", "f.oy")
        for name in _OPERANDS:
            m.copy(f"{name}.strip", f"f.{name}")
        strip = m.label()
        m.ld("rows.left")
        m.low(STRIP_ROWS)
        times(m, m.config.n)
        m.st("rows.end")
        m.copy("at", "first")
        m.call("kernel.columns")
        _operation(m)
        m.label("kernel.strip")
        for name in _OPERANDS:
            m.ld(f"f.{name}_oy")
            times(m, STRIP_ROWS)
            m.op(Function.ADD, f"{name}.strip", write=True)
        done = m.fresh()
        m.advance("rows.left", -STRIP_ROWS)
        m.jump(done, Condition.NEGATIVE)
        m.jump(strip, Condition.ZERO, unless=True)
        m.label(done)

    m.loop("f.ob", block, [(f"f.{name}", f"f.{name}", f"f.{name}_ob") for name in _OPERANDS])
    m.jump("next")
    _columns(m)
    _row(m)


def _columns(m: Micro) -> None:
    """The first column is the current one."""
    m.label("kernel.columns")
    m.copy("columns.left", "f.ox")
    for name in _OPERANDS:
        m.copy(f"{name}.column", f"{name}.strip")
    m.copy("element", 0)
    m.back()


def _operation(m: Micro) -> None:
    """A micro-operation for all rows of the strip, and which one follows."""
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
    """The first row's vector of the first operand in memory, and what becomes of its elements."""
    nothing, mask, whole, there = m.fresh(), m.fresh(), m.fresh(), m.fresh()
    m.copy("staged", "word")
    m.ld("shift.bits")
    m.add("shift.bytes")
    m.add("a_memory")
    m.st("prepares")
    m.ld("a_memory")
    m.jump(nothing, Condition.ZERO)
    m.copy("from.source", "f.source")
    _choose(m, "a", "from", SOURCES)
    m.label(nothing)
    m.ld("a_memory")
    m.jump(there, Condition.ZERO, unless=True)
    m.ld("word")
    m.add(m.constant(_A_MEMORY))
    m.st("staged")
    m.label(there)
    m.copy("mask", -1)
    m.ld("unsigned")
    m.op(Function.AND, "from.source")
    m.jump(mask, Condition.ZERO)
    m.copy("mask", 255)
    m.label(mask)
    m.copy("behind", 0)
    m.ld("columns.left")
    m.sub(1)
    m.jump(whole, Condition.ZERO, unless=True)
    m.copy("behind", "f.tail")
    m.label(whole)


def _writes(m: Micro) -> None:
    """The first row's vector of the result in memory."""
    nothing = m.fresh()
    m.ld("d_memory")
    m.jump(nothing, Condition.ZERO)
    _choose(m, "d", "to", TARGETS)
    m.label(nothing)


def _choose(m: Micro, number: str, address: str, names: tuple[str, ...]) -> None:
    """The address of an operand by its number, and its step from row to row. All but the first one are in the
    scratchpad."""
    there = m.fresh()
    m.ld(number)
    for index, name in enumerate(names):
        other = m.fresh()
        if name != names[-1]:
            m.jump(other, Condition.ZERO, unless=True)
        m.copy(f"{address}.step", f"f.{name}_oy")
        m.copy(address, f"{name}.column")
        if index and names == SOURCES:
            m.copy("from.source", 1)
        if name != names[-1]:
            m.jump(there)
            m.label(other)
            m.sub(1)
    m.label(there)
    m.advance(address, f"{address}.behind")


def _follow(m: Micro) -> None:
    """Choose the micro-operation behind this one."""
    straight, last = m.fresh(), m.fresh()
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
    shifted(m, 24)
    m.op(Function.AND, 255)
    m.add(Port.ACCUMULATOR)
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
    """Make a row's operands ready, and return; behind the last row, the micro-operation is done."""
    m.label("kernel.row")
    m.copy("row", 0)
    row, ready = m.label(), m.fresh()
    m.ld("prepares")
    m.jump(ready, Condition.ZERO)
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
    registers = m.fresh()
    m.ld("d_memory")
    m.jump(registers, Condition.ZERO)
    again = m.label()
    m.ld(Lane(Part.STAGED, next=True))
    m.low(127)
    m.high(-128, Out.PUSH)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.ld("to", Out.SCRATCHPAD_WRITE)
    m.advance("to", "to.step")
    m.label(registers)
    m.advance("row", m.config.n)
    m.sub("rows.end")
    m.jump(row, Condition.ZERO, unless=True)
    m.jump("kernel.done")


def _stage(m: Micro) -> None:
    """The row's vector in memory."""
    nothing, rows, there = m.fresh(), m.fresh(), m.fresh()
    m.ld("a_memory")
    m.jump(nothing, Condition.ZERO)
    m.ld("from.source", Out.SOURCE)
    m.jump(rows, Condition.ZERO)
    m.ld("from", Out.SCRATCHPAD_READ)
    m.jump(there)
    m.label(rows)
    m.ld("from", Out.C)
    m.out(Out.ACCUMULATOR_READ)
    m.label(there)
    m.advance("from", "from.step")
    m.ld(0, Out.COLUMN)
    m.out(Out.INDEX)
    again = m.label()
    m.ld(Port.ELEMENT)
    m.op(Function.AND, "mask")
    m.st(Lane(Part.STAGED, next=True), Out.COLUMN_NEXT)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    # Elements behind the row's end.
    zero = m.fresh()
    m.ld("behind", Out.INDEX)
    m.jump(nothing, Condition.ZERO)
    m.ld("fill")
    m.jump(zero, Condition.ZERO)
    m.ld(m.constant(LEAST))
    m.label(zero)
    again = m.label()
    keep(m, Part.STAGED)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.label(nothing)


def _shift(m: Micro) -> None:
    """The first operand shifted to the left, which is staged then: a pass over the lanes for each byte and bit."""
    for name, body in (
        ("shift.bytes", lambda: byte_left(m)),
        ("shift.bits", lambda: m.add(Port.ACCUMULATOR)),
    ):
        done, more = m.fresh(), m.fresh()
        m.ld(name)
        m.jump(done, Condition.ZERO)
        m.st("passes")
        m.label(more)
        again = m.label()
        m.ld(Lane(Part.FIRST))
        body()
        keep(m, Part.STAGED)
        m.jump(again, Condition.LANES_ZERO, unless=True)
        m.ld("staged")
        m.memory(MemoryOut.OPERATION)
        m.advance("passes", -1)
        m.jump(more, Condition.ZERO, unless=True)
        m.label(done)
