"""The microprogram of MICROCODE and KERNEL.

A micro-operation is taken apart once for a strip of rows. Then each row goes through the same steps: a vector from
memory is staged, as are registers that are to be shifted; the operation's own loop goes over the lanes; and what goes to
memory, which was staged, too, is written. The operation calls `_row`, which returns once for every row.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.hdl.isa import Kernel, Microcode
from weft.hdl.isa.config import LOOKUP_ENTRIES
from weft.hdl.isa.kernel import MULTIPLIER_BITS, SOURCES, STRIP_ROWS, TARGETS, Op
from weft.hdl.sequential.assembler import Micro, carries_out
from weft.hdl.sequential.micro import Condition, Function, Index, Lane, MemoryOut, Out, Part, Port
from weft.hdl.sequential.micro_divide import digits, normalised, root, shifted, top
from weft.hdl.sequential.micro_vector import LEAST, lookup_table, times
from weft.hdl.sequential.tables import address_step

_A, _B, _RESULT = Lane(Part.FIRST), Lane(Part.SECOND), Lane(Part.RESULT)
_A_MEMORY = 1 << 10
"""The bit of the first word of a micro-operation that says that its first operand is staged."""
_OPERANDS = (*SOURCES, *TARGETS)
_QUOTIENT = 65535


@carries_out(Microcode)
def microcode(m: Micro) -> None:
    """`weft.hdl.isa.Microcode`: a micro-operation is two words: its bits up to `end`; the number, and from bit 24 on the
    target."""
    _entry(m, "f.entry", "to")

    def op() -> None:
        for width, name in ((24, "low"), (7, "high"), (8, "target"), (24, "number")):
            m.take(width, name)
        m.ld("to", Out.INDEX)
        for upper, lower, odd in (("high", "low", 0), ("target", "number", 1)):
            m.ld(upper)
            for _ in range(3):
                _byte_left(m)
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


def _byte_left(m: Micro) -> None:
    """Shift the accumulator left by 8."""
    m.ld(Port.APPEND)
    m.op(Function.AND, -256)


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
        m.st("rows")
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
    m.copy("second", Index(1))
    for width, name in (
        (1, "op.low"), (3, "op.high"), (3, "shift.bits"), (3, "shift.bytes"), (1, "a_memory"), (2, "a"), (1, "from.behind"),
        (1, "unsigned"), (1, "fill"), (1, "trash"), (3, "trash"), (3, "trash"), (1, "d_memory"), (1, "d"),
        (2, "to.behind"), (1, "floor"), (1, "scaled"), (1, "again"), (1, "end"),
    ):  # fmt: skip
        m.take(width, name)
    m.ld("second", Out.BITS)
    m.take(24, "immediate", signed=True)
    _reads(m)
    _writes(m)
    _dispatch(m)
    m.label("kernel.done")
    _follow(m)


def _reads(m: Micro) -> None:
    """The first row's vector of the first operand in memory, and what becomes of its elements."""
    nothing, mask, whole, there = m.fresh(), m.fresh(), m.fresh(), m.fresh()
    m.copy("staged", "word")
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


def _dispatch(m: Micro) -> None:
    """Go to the operation: first by all bits of its number but the lowest."""
    kinds = [op for op in Op if op is not Op.TABLE or m.config.lookup_tables]
    for half in range(len(Op) + 1 >> 1):
        pair = [op for op in kinds if op >> 1 == half]
        other = m.fresh()
        m.ld("op.high")
        m.sub(half)
        m.jump(other, Condition.ZERO, unless=True)
        for op in pair:
            if op is not pair[-1]:
                m.ld("op.low")
                m.jump(_label(op), Condition.ZERO)
            else:
                m.jump(_label(op))
        m.label(other)
    bodies: dict[Op, Callable[[Micro], None]] = {
        Op.MUL: _multiply,
        Op.SELECT: _select,
        Op.INDEX: _index,
        Op.TABLE: _table,
        Op.RECIPROCAL: _divide,
    }
    for op in kinds:
        if op in _SIMPLE:
            m.label(_label(op))
            m.call("kernel.row")
            _lanes(m, lambda op=op: _SIMPLE[op](m))  # type: ignore[misc]
        elif op in bodies:
            bodies[op](m)


def _label(op: Op) -> str:
    return f"kernel.{op.name.lower()}"


def _lanes(m: Micro, body: Callable[[], None]) -> None:
    """`body` for each lane, and then the next row."""
    again = m.label()
    body()
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")


def _keep(m: Micro, part: Part = Part.RESULT) -> None:
    """The accumulator is the result of this lane; go to the next one."""
    m.st(Lane(part, next=True))


def _combined(first: Lane, function: Function, second: Lane) -> Callable[[Micro], None]:
    def body(m: Micro) -> None:
        m.ld(first)
        m.op(function, second)
        _keep(m)

    return body


def _less(m: Micro) -> None:
    """The predicate is anything but 0 where it holds."""
    m.ld(_A)
    m.low(_B)
    m.sub(_B)
    _keep(m, Part.PREDICATE)


def _equal(m: Micro) -> None:
    """The difference becomes -1, 0 or 1, then 0 or 1, and then -1 where it was 0."""
    m.ld(_A)
    m.sub(_B)
    m.high(-1)
    m.low(1)
    m.op(Function.AND, 1)
    m.sub(1)
    _keep(m, Part.PREDICATE)


_SIMPLE = {
    Op.ADD: _combined(_A, Function.ADD, _B),
    Op.SUB: _combined(_A, Function.SUB, _B),
    Op.RSUB: _combined(_B, Function.SUB, _A),
    Op.MIN: _combined(_A, Function.MIN, _B),
    Op.MAX: _combined(_A, Function.MAX, _B),
    Op.LT: _less,
    Op.EQ: _equal,
}


def _select(m: Micro) -> None:
    m.label(_label(Op.SELECT))
    m.call("kernel.row")

    def body() -> None:
        second, there = m.fresh(), m.fresh()
        m.ld(Lane(Part.PREDICATE))
        m.jump(second, Condition.ZERO)
        m.ld(_A)
        m.jump(there)
        m.label(second)
        m.ld(_B)
        m.label(there)
        _keep(m)

    _lanes(m, body)


def _index(m: Micro) -> None:
    m.label(_label(Op.INDEX))
    _unshifted(m)
    m.call("kernel.row")
    m.ld("element")
    m.sub(1)
    m.st("count")

    def body() -> None:
        m.advance("count", 1)
        m.add(_B)
        _keep(m)

    _lanes(m, body)


def _unshifted(m: Micro) -> None:
    """The first operand is taken as it is."""
    m.copy("shift.bytes", 0)
    m.st("shift.bits")


def _table(m: Micro) -> None:
    m.label(_label(Op.TABLE))
    _unshifted(m)
    m.copy("f.table", "immediate")
    lookup_table(m, LOOKUP_ENTRIES // 2)  # an element of 0 has the entry in the middle
    m.st("entries")
    m.call("kernel.row")

    def body() -> None:
        m.ld(_A)
        m.low(127)
        m.high(-128)
        times(m, address_step(m.config))
        m.add("entries", Out.TABLE_ADDRESS)
        m.ld(Port.TABLE)
        # Its sign.
        m.add(128)
        m.op(Function.AND, 255)
        m.sub(128)
        _keep(m)

    _lanes(m, body)


def _multiply(m: Micro) -> None:
    """While the product is made, its shift is set, and the kind of rounding found out."""
    plain, down = m.fresh(), m.fresh()
    m.label(_label(Op.MUL))
    m.ld("shift.bytes")
    times(m, 8)
    m.add("shift.bits")
    m.st("shift")
    _unshifted(m)
    m.ld("scaled")
    m.jump(plain, Condition.ZERO)
    m.ld(63)
    m.label(plain)
    m.st("scale")
    m.call("kernel.row")
    again = m.label()
    m.ld(_A, Out.MULTIPLICAND)
    m.ld(_B)
    m.memory(MemoryOut.MULTIPLY_SIGNED)
    m.ld(Port.EXPONENT)
    m.op(Function.AND, "scale")
    m.add("shift")
    m.low(63, Out.SHIFT)
    m.ld("floor")
    m.jump(down, Condition.ZERO, unless=True)
    m.ld(0)
    m.op(Function.ROUND, Port.PRODUCT)
    _keep(m)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")
    m.label(down)
    m.ld(Port.PRODUCT)
    _keep(m)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")


def _divide(m: Micro) -> None:
    """RECIPROCAL and RSQRT."""
    for op, is_root in ((Op.RECIPROCAL, 0), (Op.RSQRT, 1)):
        m.label(_label(op))
        m.copy("root", is_root)
        if not is_root:
            m.jump("kernel.serial")
    m.label("kernel.serial")
    _unshifted(m)
    m.call("kernel.row")
    again, positive, one, rooted = m.label(), m.fresh(), m.fresh(), m.fresh()
    m.copy("packed", m.constant(_QUOTIENT))
    m.ld(_A)
    m.st("value")
    m.st("t")
    m.jump("kernel.quotient", Condition.ZERO)
    m.jump(positive, Condition.NEGATIVE, unless=True)
    m.ld("root")
    m.jump("kernel.quotient", Condition.ZERO, unless=True)
    m.ld(0)
    m.sub("value")
    m.st("t")
    m.label(positive)
    normalised(m)
    m.ld("root")
    m.jump(rooted, Condition.ZERO, unless=True)
    m.ld("t")
    top(m)
    m.jump("kernel.digits")
    m.label(rooted)
    root(m)
    m.label("kernel.digits")
    _packed(m)
    m.label("kernel.quotient")
    m.ld("unsigned")
    m.jump(one, Condition.ZERO)
    _lanes(m, lambda: _result(m))
    m.label(one)
    _result(m)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")


def _result(m: Micro) -> None:
    m.ld("packed")
    _keep(m)


def _packed(m: Micro) -> None:
    """Divide by ``t``: the quotient, with the sign of ``value``, below the exponent."""
    positive = m.fresh()
    m.copy("r", 0)
    m.copy("rest", m.constant(1 << 16))
    digits(m)
    m.ld("value")
    m.jump(positive, Condition.NEGATIVE, unless=True)
    m.ld(0)
    m.sub("r")
    m.st("r")
    m.label(positive)
    m.ld("r")
    m.op(Function.AND, m.constant((1 << MULTIPLIER_BITS) - 1))
    m.st("r")
    m.ld("bits")
    for _ in range(2):
        _byte_left(m)
    times(m, 1 << MULTIPLIER_BITS - 16)
    m.add("r")
    m.st("packed")


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
    m.copy("rows.now", "rows")
    m.copy("row", 0)
    m.label("kernel.row.next")
    m.ld("word")
    m.memory(MemoryOut.OPERATION)
    _stage(m)
    m.ld("row", Out.INDEX)
    _shift(m)
    m.back()
    m.label("kernel.write")
    registers, done = m.fresh(), m.fresh()
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
    m.advance("rows.now", -1)
    m.jump(done, Condition.ZERO)
    m.jump("kernel.row.next")
    m.label(done)
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
    _keep(m, Part.STAGED)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.label(nothing)


def _shift(m: Micro) -> None:
    """The first operand shifted to the left, which is staged then: a pass over the lanes for each byte and bit."""
    for name, body in (("shift.bytes", lambda: _byte_left(m)), ("shift.bits", lambda: m.add(Port.ACCUMULATOR))):
        done, more = m.fresh(), m.fresh()
        m.ld(name)
        m.jump(done, Condition.ZERO)
        m.st("passes")
        m.label(more)
        again = m.label()
        m.ld(_A)
        body()
        _keep(m, Part.STAGED)
        m.jump(again, Condition.LANES_ZERO, unless=True)
        m.ld("staged")
        m.memory(MemoryOut.OPERATION)
        m.advance("passes", -1)
        m.jump(more, Condition.ZERO, unless=True)
        m.label(done)
