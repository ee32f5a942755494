"""The microprogram of VEC, TABLE and LOOKUP, and the loops that all instructions of the VEC queue share."""

from __future__ import annotations

from weft.hdl.isa import Lookup, Reduce, Table, Vec
from weft.hdl.isa.config import LOOKUP_ENTRIES
from weft.hdl.sequential.assembler import Micro, carries_out, moved
from weft.hdl.sequential.micro import Condition, Function, Index, Operand, Out, Port
from weft.hdl.sequential.tables import address_step, first_lookup

LEAST = -(1 << 31)
VEC, SOFTMAX, NORMALISE = range(3)
"""Values of the variable ``body``: the instruction whose vectors the loops compute."""


@carries_out(Vec)
def vec(m: Micro) -> None:
    """`weft.hdl.isa.Vec`."""
    m.call("parameters")
    m.ld("f.ry")
    m.add("f.rx")
    m.sub(2)
    m.st("many")
    # Two operands of the scratchpad cannot be read at a time.
    m.ld("f.add")
    m.op(Function.AND, "f.source")
    m.op(Function.ADD, "many", write=True)
    if m.config.softmax:
        m.copy("body", VEC)
        m.copy("f.y_ob", 0)
        m.st("f.x_ob")
    if m.config.lookup_tables:
        lookup_table(m, LOOKUP_ENTRIES // 2)  # an output of 0 has the entry in the middle
        m.st("entries")
    m.jump("outputs")


@carries_out(Table)
def table(m: Micro) -> None:
    """`weft.hdl.isa.Table`."""
    m.ld(0, Out.TABLE_ADDRESS)
    _fill(m)


@carries_out(Lookup)
def lookup(m: Micro) -> None:
    """`weft.hdl.isa.Lookup`."""
    lookup_table(m, "f.entry")
    m.out(Out.TABLE_ADDRESS)
    _fill(m)


def lookup_table(m: Micro, entry: Operand) -> None:
    """The address of an entry of look-up table ``f.table`` to the accumulator."""
    m.ld("f.table")
    m.ld(Port.APPEND)
    m.op(Function.AND, -LOOKUP_ENTRIES)
    m.add(entry)
    times(m, address_step(m.config))
    m.add(m.constant(first_lookup(m.config) * address_step(m.config)))


def times(m: Micro, factor: int) -> None:
    """Multiply the accumulator by a power of two."""
    for _ in range(factor.bit_length() - 1):
        m.add(Port.ACCUMULATOR)


def _fill(m: Micro) -> None:
    """Bytes of the vectors that `Table` or `Lookup` names, from the table's address on."""

    def vector() -> None:
        m.ld("from", Out.SCRATCHPAD_READ)
        m.ld(0, Out.COLUMN)
        again = m.label()
        m.ld(Port.BYTE, Out.TABLE_WRITE)
        m.out(Out.COLUMN_NEXT)
        m.jump(again, Condition.COLUMN_ZERO, unless=True)

    one = m.constant(1)
    m.loop("f.vectors", vector, [("from", "f.src", one)])


def shared(m: Micro) -> None:
    """Routines of `vec` that others use, too."""
    _parameters(m)
    _outputs(m)
    _read(m)
    _vec_body(m)
    if m.config.lookup_tables:
        _looked_up(m)


def _parameters(m: Micro) -> None:
    """Parameters of every column to a pair of words: bias; mantissa, and shift from bit 24 on."""
    m.label("parameters")
    m.ld(-1, Out.A_STEP)
    m.ld(0, Out.COLUMN)
    m.copy("pair", m.constant_block("parameters"))
    m.copy("columns", m.config.n)
    again = m.label()
    m.ld("pair", Out.INDEX)
    for odd in range(2):
        m.ld("f.params")
        m.add(4 * odd + 3, Out.A)
        m.ld(0)
        for _ in range(4):
            m.out(Out.READ_A)
            m.ld(Port.APPEND)
        m.st(Index(odd))
    m.out(Out.COLUMN_NEXT)
    m.advance("pair", 2)
    m.advance("columns", -1)
    m.jump(again, Condition.ZERO, unless=True)
    m.back()


def _outputs(m: Micro) -> None:
    """The loops over outputs, with addresses of source, destination, a second operand or alignment, and state."""
    operands = moved(Vec, "src", "dst", "b")
    if m.config.softmax:
        # Softmax counts columns in the coordinates, which therefore move with groups, too.
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
        m.copy("from", "src.ox")
        if m.config.softmax:
            m.ld("body")
            m.jump("vec.body", Condition.ZERO)
            m.sub(1)
            m.jump("softmax.body", Condition.ZERO)
            m.jump("normalise.body")
        else:
            m.jump("vec.body")
        m.label("output")
        m.ld("dst.ox", Out.SCRATCHPAD_WRITE)

    m.label("outputs")
    m.ld("f.source", Out.SOURCE)
    m.walk("ob", ob, operands)
    m.jump("next")


def _read(m: Micro) -> None:
    """Read the row or vector at ``from``."""
    m.label("read")
    accumulator = m.fresh()
    m.ld("f.source")
    m.jump(accumulator, Condition.ZERO)
    m.ld("from", Out.SCRATCHPAD_READ)
    m.back()
    m.label(accumulator)
    m.ld("from", Out.C)
    m.out(Out.ACCUMULATOR_READ)
    m.back()


def _in_range(m: Micro, y: str, x: str, otherwise: str) -> None:
    for value, bound in ((y, "f.h"), (x, "f.w")):
        m.ld(value, Out.X)
        m.ld(bound, Out.BOUND)
        m.jump(otherwise, Condition.IN_RANGE, unless=True)


def push(m: Micro) -> None:
    """A byte of the output from the product."""
    m.ld("f.zero")
    m.op(Function.ROUND, Port.PRODUCT)
    m.low("f.high")
    m.high("f.low", Out.PUSH)


def _vec_body(m: Micro) -> None:
    """An output vector, a column after the other."""
    done = "vec.output" if m.config.lookup_tables else "output"
    m.label("vec.body")
    m.copy("pair", m.constant_block("parameters"))
    m.ld(0, Out.COLUMN)
    m.ld("many")
    m.jump("vec.many", Condition.ZERO, unless=True)
    _in_range(m, "y.oy", "x.ox", "vec.many")
    m.ld("pair", Out.INDEX)
    m.call("read")
    m.ld("f.add")
    adds = m.fresh()
    m.jump(adds, Condition.ZERO, unless=True)
    again = m.label()
    m.ld(Port.ELEMENT)
    m.add(Index(), Out.MULTIPLICAND)
    m.ld(Index(1), Out.PARAMETER_SHIFT)
    m.out(Out.MULTIPLY)
    m.ld(2)
    m.op(Function.ADD, "pair", out=Out.INDEX, write=True)
    push(m)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.jump(done)
    m.label(adds)
    m.ld("b.ox", Out.SCRATCHPAD_READ)
    again = m.label()
    m.ld(Port.ELEMENT)
    m.add(Index())
    m.st("value")
    _add(m)
    m.ld(2)
    m.op(Function.ADD, "pair", out=Out.INDEX, write=True)
    push(m)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.jump(done)
    m.label("vec.many")
    _vec_many(m)
    m.jump(done)


def _vec_many(m: Micro) -> None:
    """The same with reduction, second operand, or elements out of range."""
    one, most = m.fresh(), m.fresh()
    m.ld(m.constant(LEAST))
    m.st("least")
    m.ld("f.reduce")
    m.sub(Reduce.MAX)
    m.jump(most, Condition.ZERO)
    m.copy("least", "f.pad")
    m.label(most)
    m.label(one)
    m.ld("f.reduce")
    m.sub(Reduce.MAX)
    first = m.fresh()
    m.jump(first, Condition.ZERO, unless=True)
    m.ld(m.constant(LEAST))
    start = m.fresh()
    m.jump(start)
    m.label(first)
    m.ld(0)
    m.label(start)
    m.st("reduced")
    m.walk("ry", lambda: _row(m), moved(Vec, "src"))
    if m.config.multiply:
        _multiply(m)
    m.ld("pair", Out.INDEX)
    m.ld("reduced")
    m.add(Index(), Out.MULTIPLICAND)
    m.st("value")
    plain, finish = m.fresh(), m.fresh()
    m.ld("f.add")
    if m.config.multiply:
        m.sub("f.multiply")
    m.jump(plain, Condition.ZERO)
    m.ld("b.ox", Out.SCRATCHPAD_READ)
    _add(m)
    m.jump(finish)
    m.label(plain)
    m.ld(Index(1), Out.PARAMETER_SHIFT)
    m.out(Out.MULTIPLY)
    m.label(finish)
    m.advance("pair", 2)
    push(m)
    m.jump(one, Condition.COLUMN_ZERO, unless=True)


def _looked_up(m: Micro) -> None:
    """With ``lookup``, the output goes through its table: it is written, read back, and made anew."""
    m.label("vec.output")
    m.ld("f.lookup")
    m.jump("output", Condition.ZERO)
    m.ld("dst.ox", Out.SCRATCHPAD_WRITE)
    m.ld("dst.ox", Out.SCRATCHPAD_READ)
    again = m.label()
    m.ld(Port.BYTE)
    times(m, address_step(m.config))
    m.add("entries", Out.TABLE_ADDRESS)
    m.ld(Port.TABLE, Out.PUSH)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.jump("output")


def _add(m: Micro) -> None:
    """Multiply the second operand, then ``value``."""
    m.ld(Port.BYTE)
    m.sub("f.b_zero", Out.MULTIPLICAND)
    if m.config.multiply:
        _negate(m)
    m.ld(0, Out.SHIFT)
    m.ld("f.b_mantissa", Out.MULTIPLY)
    m.ld(Port.PRODUCT)
    m.ld("value", Out.MULTIPLICAND)
    m.ld(Index(1), Out.PARAMETER_SHIFT)
    m.out(Out.MULTIPLY_ADD)


def _negate(m: Micro) -> None:
    """With ``subtract``, the second operand less its zero point, which is the multiplicand, counts negative."""
    done = m.fresh()
    m.st("element")
    m.ld("f.subtract")
    m.jump(done, Condition.ZERO)
    m.ld(0)
    m.sub("element", Out.MULTIPLICAND)
    m.label(done)


def _multiply(m: Micro) -> None:
    """With ``multiply``, the product of the element and the second operand, as a b = a (b + 256) - 256 a: multipliers
    are unsigned."""
    done = m.fresh()
    m.ld("f.multiply")
    m.jump(done, Condition.ZERO)
    m.ld("b.ox", Out.SCRATCHPAD_READ)
    m.ld("reduced")
    m.sub("f.pad", Out.MULTIPLICAND)
    m.st("element")
    m.ld(0, Out.SHIFT)
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
    """A row of the reduction, for one column."""

    def element() -> None:
        outside, there, total, keep = m.fresh(), m.fresh(), m.fresh(), m.fresh()
        _in_range(m, "y.ry", "x.rx", outside)
        m.copy("from", "src.rx")
        m.call("read")
        m.copy("element", Port.ELEMENT)
        m.jump(there)
        m.label(outside)
        m.copy("element", "least")
        m.label(there)
        m.ld("f.reduce")
        m.jump(keep, Condition.ZERO)
        m.sub(Reduce.MAX)
        m.jump(total, Condition.ZERO, unless=True)
        m.ld("element")
        m.high("reduced")
        done = m.fresh()
        m.jump(done)
        m.label(total)
        m.ld("element")
        m.add("reduced")
        m.jump(done)
        m.label(keep)
        m.ld("element")
        m.label(done)
        m.st("reduced")

    m.walk("rx", element, moved(Vec, "src"))
