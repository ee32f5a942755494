"""The microprogram of VEC, TABLE and LOOKUP, and the loops that the instructions of the VEC queue share."""

from __future__ import annotations

from weft.hdl.isa import Lookup, Reduce, Table, Vec
from weft.hdl.isa.config import LOOKUP_ENTRIES
from weft.hdl.isa.kernel import INT32_MIN
from weft.hdl.sequential.assembler import (
    Condition,
    Function,
    Index,
    Micro,
    Operand,
    Out,
    Port,
    address_step,
    first_lookup,
    implements,
    loops_of,
)


@implements(Vec)
def vec(m: Micro) -> None:
    """Write `weft.hdl.isa.Vec`."""
    m.call("parameters")
    if m.config.softmax:
        m.copy("f.y_ob", 0)
        m.st("f.x_ob")
    if m.config.lookup_tables:
        lookup_table(m, LOOKUP_ENTRIES // 2)  # an output of 0 selects the middle entry
        m.st("entries")
    # ``many`` is non-zero if an output has several elements or products: ry + rx - 2 (+ multiply).
    m.ld("f.ry")
    m.add("f.rx")
    m.sub(2)
    if m.config.multiply:
        m.add("f.multiply")
    m.st("many")
    m.add("f.add")
    m.jump("vec.checks", Condition.ZERO, unless=True)
    for stride in ("f.y_oy", "f.x_ox"):
        m.ld(stride)
        m.jump("vec.checks", Condition.ZERO, unless=True)
    _in_range(m, "f.y", "f.x", "vec.checks")
    m.jump("vec.plain")


@implements(Table)
def table(m: Micro) -> None:
    """Write `weft.hdl.isa.Table`."""
    m.ld(0, Out.TABLE_ADDRESS)
    _fill(m)


@implements(Lookup)
def lookup(m: Micro) -> None:
    """Write `weft.hdl.isa.Lookup`."""
    lookup_table(m, "f.entry")
    m.out(Out.TABLE_ADDRESS)
    _fill(m)


def lookup_table(m: Micro, entry: Operand) -> None:
    """Load the address of an entry of look-up table ``f.table`` into the accumulator."""
    m.ld("f.table")
    m.ld(Port.APPEND)
    m.op(Function.AND, -LOOKUP_ENTRIES)
    m.add(entry)
    multiply_by(m, address_step(m.config))
    m.add(m.constant(first_lookup(m.config) * address_step(m.config)))


def multiply_by(m: Micro, factor: int) -> None:
    """Multiply the accumulator by a power of two."""
    for _ in range(factor.bit_length() - 1):
        m.add(Port.ACCUMULATOR)


def _fill(m: Micro) -> None:
    """Write the loop that copies the bytes of the instruction's vectors to the table, from its address on."""

    def vector() -> None:
        m.ld("from", Out.SCRATCHPAD_READ)
        m.ld(0, Out.COLUMN)
        again = m.label()
        m.ld(Port.BYTE, Out.TABLE_WRITE)
        m.out(Out.COLUMN_NEXT)
        m.jump(again, Condition.COLUMN_ZERO, unless=True)

    m.loop("f.vectors", vector, [("from", "f.src", m.constant(1))])


def write_shared(m: Micro) -> None:
    """Write the routines of `vec` that other instructions use too."""
    _parameters(m)
    _outputs(m)
    _add(m)
    _vec_many(m)
    _checks(m)
    _plain(m)
    if m.config.lookup_tables:
        _look_up(m)


def _parameters(m: Micro) -> None:
    """Write the routine that stores each column's parameters in two words: bias; mantissa, with the shift from bit 24
    on."""
    m.label("parameters")
    m.ld(-1, Out.A_STEP)
    m.ld(0, Out.COLUMN)
    m.ld(m.constant_block("parameters"))
    m.st("pair", Out.INDEX)
    again = m.label()
    m.ld("f.params")
    m.add(7, Out.A)
    # The vectors of the block are read backwards, so that the highest byte is appended first.
    for odd in (1, 0):
        for _ in range(4):
            m.out(Out.READ_A)
            m.ld(Port.APPEND)
        m.st(Index(odd))
    _next_pair(m)
    m.out(Out.COLUMN_NEXT)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.back()


def _outputs(m: Micro) -> None:
    """Write the loops over outputs, with the addresses of source, destination, second operand or alignment, and state.

    The routine is called once. For each output it returns to the body that computes the vector, which ends with a jump
    to ``output``. Unless the body itself makes calls, the return address stays valid for the next output.
    """
    operands = loops_of(Vec, "src", "dst", "b")
    if m.config.softmax:
        # Softmax counts columns in the coordinates, which therefore also move with groups.
        operands = {name: operands[name] for name in ("src", "dst", "b")} | {
            "s": ("ob", "oy", "ox"),
            "y": ("ob", *operands["y"]),
            "x": ("ob", *operands["x"]),
        }

    def ob() -> None:
        m.walk("oy", oy, operands)

    def oy() -> None:
        m.walk("ox", ox, operands)

    def ox() -> None:
        m.back()
        m.label("output")
        m.ld("dst.ox", Out.SCRATCHPAD_WRITE)

    m.label("outputs")
    m.ld("f.source", Out.SOURCE)
    m.walk("ob", ob, operands)
    m.jump("next")


def read(m: Micro, address: str) -> None:
    """Read both the row and the vector at an address; `Out.SOURCE` selects the one to use."""
    m.ld(address, Out.SCRATCHPAD_READ)
    m.out(Out.C)
    m.out(Out.ACCUMULATOR_READ)


def _in_range(m: Micro, y: str, x: str, otherwise: str) -> None:
    for value, bound in ((y, "f.h"), (x, "f.w")):
        m.ld(value, Out.X)
        m.ld(bound, Out.BOUND)
        m.jump(otherwise, Condition.IN_RANGE, unless=True)


def push(m: Micro) -> None:
    """Append a byte of the output, computed from the product."""
    m.ld("f.zero")
    m.op(Function.ROUND, Port.PRODUCT)
    m.minimum("f.high")
    m.maximum("f.low", Out.PUSH)


def _end_label(m: Micro) -> str:
    """Return the label at which to continue after an output vector."""
    return "vec.output" if m.config.lookup_tables else "output"


def _first_column(m: Micro) -> None:
    m.ld(0, Out.COLUMN)
    m.ld(m.constant_block("parameters"))
    m.st("pair", Out.INDEX)


def _next_pair(m: Micro) -> None:
    m.ld(2)
    m.op(Function.ADD, "pair", out=Out.INDEX, write=True)


def _plain(m: Micro) -> None:
    """Write the body of an output of a single element in range, without a second operand.

    While a column's product is computed, the previous column's byte is pushed and the next column is read: elements are
    one column ahead of bytes.
    """
    m.label("vec.plain")
    m.call("outputs")
    m.label("plain.body")
    read(m, "src.ox")
    _first_column(m)
    m.ld(Port.ELEMENT)
    m.add(Index(), Out.MULTIPLICAND)
    m.ld(Index(1), Out.MULTIPLY)
    m.out(Out.COLUMN_NEXT)
    again = m.label()
    _next_pair(m)
    m.ld(Port.ELEMENT)
    m.add(Index())
    m.st("value")
    push(m)
    m.ld("value", Out.MULTIPLICAND)
    m.ld(Index(1), Out.MULTIPLY)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    push(m)
    if not m.config.lookup_tables:
        m.jump("output")


def _checks(m: Micro) -> None:
    """Write the body of outputs that may be out of range, or have several elements or a second operand.

    Both operands are read for every column, because they may be in the same memory.
    """
    m.label("vec.checks")
    m.call("outputs")
    m.jump("checks.body")
    m.label("checks.next")
    m.call(_end_label(m))
    m.label("checks.body")
    m.ld("many")
    m.jump("vec.many", Condition.ZERO, unless=True)
    _in_range(m, "y.oy", "x.ox", "vec.many")
    m.ld("f.add")
    m.jump("plain.body", Condition.ZERO)
    _first_column(m)
    again = m.label()
    read(m, "src.ox")
    m.ld(Port.ELEMENT)
    m.add(Index())
    m.st("value")
    m.call("add")
    _next_pair(m)
    push(m)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.jump("checks.next")


def _vec_many(m: Micro) -> None:
    """Write the body, column by column, of outputs with reductions, elements out of range, or products of elements."""
    least, start = m.new_label(), m.new_label()
    m.label("vec.many")
    _first_column(m)
    m.ld("f.reduce")
    m.sub(Reduce.MAX)
    m.jump(least, Condition.ZERO)
    m.copy("first", 0)
    m.ld("f.pad")
    m.jump(start)
    m.label(least)
    m.ld(m.constant(INT32_MIN))
    m.st("first")
    m.label(start)
    m.st("outside")
    column = m.label()
    m.copy("reduced", "first")
    m.walk("ry", lambda: _row(m), loops_of(Vec, "src"))
    if m.config.multiply:
        _multiply(m)
    m.ld("reduced")
    m.add(Index(), Out.MULTIPLICAND)
    m.st("value")
    plain, finish = m.new_label(), m.new_label()
    m.ld("f.add")
    if m.config.multiply:
        m.sub("f.multiply")
    m.jump(plain, Condition.ZERO)
    m.call("add")
    m.jump(finish)
    m.label(plain)
    m.ld(Index(1), Out.MULTIPLY)
    m.label(finish)
    _next_pair(m)
    push(m)
    m.jump(column, Condition.COLUMN_ZERO, unless=True)
    m.jump("checks.next")


def _look_up(m: Micro) -> None:
    """Write the code of ``lookup``: write the output, read it back, and replace its bytes by table entries."""
    m.label("vec.output")
    m.ld("f.lookup")
    m.jump("output", Condition.ZERO)
    m.ld(0, Out.COLUMN)
    m.ld("dst.ox", Out.SCRATCHPAD_WRITE)
    m.ld("dst.ox", Out.SCRATCHPAD_READ)
    again = m.label()
    m.ld(Port.BYTE)
    multiply_by(m, address_step(m.config))
    m.add("entries", Out.TABLE_ADDRESS)
    m.ld(Port.TABLE, Out.PUSH)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.jump("output")


def _add(m: Micro) -> None:
    """Write the routine that multiplies the second operand, then ``value``, and adds the products.

    With an odd shift, the multiplier halves the first product, so the second operand is doubled before.
    """
    plus, even = m.new_label(), m.new_label()
    m.label("add")
    m.ld("b.ox", Out.SCRATCHPAD_READ)
    m.ld(Port.BYTE)
    m.sub("f.b_zero")
    m.st("element", Out.MULTIPLICAND)
    if m.config.multiply:
        m.ld("f.subtract")
        m.jump(plus, Condition.ZERO)
        m.ld(0)
        m.sub("element")
        m.st("element", Out.MULTIPLICAND)
        m.label(plus)
    m.ld(Index(1))
    m.op(Function.AND, m.constant(1 << 24))
    m.jump(even, Condition.ZERO)
    m.ld("element")
    m.add("element", Out.MULTIPLICAND)
    m.label(even)
    m.ld("f.b_mantissa", Out.MULTIPLY)
    m.ld(Port.PRODUCT)
    m.ld("value", Out.MULTIPLICAND)
    m.ld(Index(1), Out.MULTIPLY_ADD)
    m.back()


def _multiply(m: Micro) -> None:
    """Write the code of ``multiply``: the product of the element and the second operand.

    It computes a * b as a * (b + 256) - 256 * a, because multipliers are unsigned.
    """
    done = m.new_label()
    m.ld("f.multiply")
    m.jump(done, Condition.ZERO)
    m.ld("b.ox", Out.SCRATCHPAD_READ)
    m.ld("reduced")
    m.sub("f.pad", Out.MULTIPLICAND)
    m.st("element")
    m.ld(Port.BYTE)
    m.sub("f.b_zero")
    m.add(m.constant(256), Out.MULTIPLY)
    m.ld(Port.PRODUCT)
    m.ld(0)
    m.sub("element", Out.MULTIPLICAND)
    m.ld(m.constant(256), Out.MULTIPLY_ADD)
    m.copy("reduced", Port.PRODUCT)
    m.label(done)


def _row(m: Micro) -> None:
    """Write the loop over a row of the reduction, for one column."""

    def element() -> None:
        outside, loaded, total, keep, done = (m.new_label() for _ in range(5))
        _in_range(m, "y.ry", "x.rx", outside)
        read(m, "src.rx")
        m.ld(Port.ELEMENT)
        m.jump(loaded)
        m.label(outside)
        m.ld("outside")
        m.label(loaded)
        m.st("element")
        m.ld("f.reduce")
        m.jump(keep, Condition.ZERO)
        m.sub(Reduce.MAX)
        m.jump(total, Condition.ZERO, unless=True)
        m.ld("element")
        m.maximum("reduced")
        m.jump(done)
        m.label(keep)
        m.st("reduced")
        m.label(total)
        m.ld("element")
        m.add("reduced")
        m.label(done)
        m.st("reduced")

    m.walk("rx", element, loops_of(Vec, "src"))
