"""What the instructions of the VEC queue do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.hdl.isa import Reduce
from weft.hdl.sequential.micro import Condition, Function, Index, Out, Port

if TYPE_CHECKING:
    from weft.hdl.sequential.microprogram import Micro

_LEAST = -(1 << 31)
_OCTAVE, _REACH, _LOWEST = 128, 2048, -256
_SHIFT_MAX = 31
_ANYWHERE = 1 << 24
"""More columns than a row of scores has."""
_VEC, _SOFTMAX, _NORMALISE = range(3)
"""What ``body`` chooses."""


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
        m.copy("body", _VEC)
        m.copy("f.y_ob", 0)
        m.st("f.x_ob")
    m.jump("outputs")


def softmax(m: Micro) -> None:
    """`weft.hdl.isa.Softmax`: ``y`` counts the columns up to the length, ``x`` those up to the diagonal."""
    m.call("parameters")
    absolute, there, done = m.fresh(), m.fresh(), m.fresh()
    m.ld("f.relative")
    m.jump(absolute, Condition.ZERO)
    m.base("f.register")
    m.jump(there)
    m.label(absolute)
    m.ld(0)
    m.label(there)
    m.st("start")
    for field, limit in (("f.length", "f.y"), ("f.diagonal", "f.x")):
        m.ld(field)
        m.add("start")
        m.low(m.constant((1 << 15) - 1))
        m.high(m.constant(-(1 << 15)))
        if limit == "f.x":
            m.add(1)
        m.st(limit)
    m.copy("f.s_ob", 0)
    m.st("f.y_oy")
    m.st("f.x_ob")
    m.st("f.x_ox")
    m.copy("f.y_ob", -m.config.n)
    m.copy("body", _SOFTMAX)
    m.ld("f.causal")
    m.jump(done, Condition.ZERO)
    m.copy("f.x_ox", 1)
    m.copy("f.x_ob", -m.config.n)
    m.jump("outputs")
    m.label(done)
    m.copy("f.x", m.constant(_ANYWHERE))
    m.jump("outputs")


def normalise(m: Micro) -> None:
    """`weft.hdl.isa.Normalise`."""
    m.copy("f.s_ox", 0)
    m.copy("body", _NORMALISE)
    m.jump("outputs")


def table(m: Micro) -> None:
    """`weft.hdl.isa.Table`."""
    m.ld(0, Out.TABLE_ADDRESS)

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
    """Routines that instructions share."""
    _parameters(m)
    _outputs(m)
    _read(m)
    _vec_body(m)
    if m.config.softmax:
        _softmax_body(m)
        _normalise_body(m)
        _halve(m)


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
    names = ["src", "dst", "b", *(["s"] if m.config.softmax else [])]

    def moves(level: str, above: str, also: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
        return [
            (f"{name}.{level}", f"f.{name}" if above == "f" else f"{name}.{above}", f"f.{name}_{level}")
            for name in (*names, *also)
        ]

    def ob() -> None:
        m.loop("f.oy", oy, [*moves("oy", "ob"), ("y.oy", "y.ob" if m.config.softmax else "f.y", "f.y_oy")])

    def oy() -> None:
        x = ("x.ox", "x.ob" if m.config.softmax else "f.x", "f.x_ox")
        m.loop("f.ox", ox, [*moves("ox", "oy"), x])

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
    m.loop("f.ob", ob, moves("ob", "f", ("y", "x") if m.config.softmax else ()))
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


def _push(m: Micro) -> None:
    """A byte of the output from the product."""
    m.ld("f.zero")
    m.op(Function.ROUND, Port.PRODUCT)
    m.low("f.high")
    m.high("f.low", Out.PUSH)


def _vec_body(m: Micro) -> None:
    """An output vector, a column after the other."""
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
    _push(m)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.jump("output")
    m.label(adds)
    m.ld("b.ox", Out.SCRATCHPAD_READ)
    again = m.label()
    m.ld(Port.ELEMENT)
    m.add(Index())
    m.st("value")
    _add(m)
    m.ld(2)
    m.op(Function.ADD, "pair", out=Out.INDEX, write=True)
    _push(m)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.jump("output")
    m.label("vec.many")
    _vec_many(m)


def _vec_many(m: Micro) -> None:
    """The same with reduction, second operand, or elements out of range."""
    one, most = m.fresh(), m.fresh()
    m.ld(m.constant(_LEAST))
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
    m.ld(m.constant(_LEAST))
    start = m.fresh()
    m.jump(start)
    m.label(first)
    m.ld(0)
    m.label(start)
    m.st("reduced")
    m.loop("f.ry", lambda: _row(m), [("src.ry", "src.ox", "f.src_ry"), ("y.ry", "y.oy", "f.y_ry")])
    m.ld("pair", Out.INDEX)
    m.ld("reduced")
    m.add(Index(), Out.MULTIPLICAND)
    m.st("value")
    plain, finish = m.fresh(), m.fresh()
    m.ld("f.add")
    m.jump(plain, Condition.ZERO)
    m.ld("b.ox", Out.SCRATCHPAD_READ)
    _add(m)
    m.jump(finish)
    m.label(plain)
    m.ld(Index(1), Out.PARAMETER_SHIFT)
    m.out(Out.MULTIPLY)
    m.label(finish)
    m.advance("pair", 2)
    _push(m)
    m.jump(one, Condition.COLUMN_ZERO, unless=True)
    m.jump("output")


def _add(m: Micro) -> None:
    """Multiply the second operand, then ``value``."""
    m.ld(Port.BYTE)
    m.sub("f.b_zero", Out.MULTIPLICAND)
    m.ld(0, Out.SHIFT)
    m.ld("f.b_mantissa", Out.MULTIPLY)
    m.ld(Port.PRODUCT)
    m.ld("value", Out.MULTIPLICAND)
    m.ld(Index(1), Out.PARAMETER_SHIFT)
    m.out(Out.MULTIPLY_ADD)


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

    m.loop("f.rx", element, [("src.rx", "src.ry", "f.src_rx"), ("x.rx", "x.ox", "f.x_rx")])


def _softmax_body(m: Micro) -> None:
    """Probabilities of a row's group: first all logits and their maximum, then the table."""
    m.label("softmax.body")
    m.ld("x.ox")
    m.low("y.oy")
    m.st("limit")
    m.st("valid")
    m.call("read")
    m.ld(0, Out.COLUMN)
    m.copy("pair", m.constant_block("parameters"))
    m.copy("logit", m.constant_block("logits"))
    m.copy("top", m.constant(_LOWEST * _OCTAVE))
    again, masked = m.label(), m.fresh()
    m.ld("pair", Out.INDEX)
    m.ld(Port.ELEMENT)
    m.add(Index(), Out.MULTIPLICAND)
    m.ld(Index(1), Out.PARAMETER_SHIFT)
    m.out(Out.MULTIPLY)
    m.advance("pair", 2)
    m.ld("logit", Out.INDEX)
    m.ld(0)
    m.op(Function.ROUND, Port.PRODUCT)
    m.low(m.constant((1 << 15) - 1))
    m.high(m.constant(-(1 << 15)))
    m.st(Index())
    m.st("y")
    m.advance("valid", -1)
    m.jump(masked, Condition.NEGATIVE)
    m.ld("y")
    m.high("top")
    m.st("top")
    m.label(masked)
    m.advance("logit", 1)
    m.out(Out.COLUMN_NEXT)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.ld("top")
    m.add(_OCTAVE - 1)
    m.op(Function.AND, -_OCTAVE)
    m.st("ceiling")
    _shifted(m, _OCTAVE.bit_length() - 1)
    m.st("e")
    _probabilities(m)
    _state(m)
    m.jump("output")


def _probabilities(m: Micro) -> None:
    reach = m.constant(_REACH)
    m.copy("valid", "limit")
    m.copy("logit", m.constant_block("logits"))
    m.copy("total", 0)
    again, nothing, there = m.label(), m.fresh(), m.fresh()
    m.ld("logit", Out.INDEX)
    m.advance("valid", -1)
    m.jump(nothing, Condition.NEGATIVE)
    m.ld("ceiling")
    m.sub(Index())
    m.sub(reach)
    m.jump(nothing, Condition.NEGATIVE, unless=True)
    m.add(reach, Out.TABLE_ADDRESS)
    m.ld(Port.TABLE)
    m.jump(there)
    m.label(nothing)
    m.ld(0)
    m.label(there)
    m.st("p")
    m.op(Function.ADD, "total", write=True)
    m.ld("p")
    m.sub(_OCTAVE if m.config.wide_activations else 0, Out.PUSH)
    m.advance("logit", 1)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)


def _state(m: Micro) -> None:
    """The row's state behind the group, and its alignment."""
    old, final, align = m.fresh(), m.fresh(), m.fresh()
    m.ld("s.ox")
    m.index("states", 2)
    m.copy("m", Index())
    m.copy("l", Index(1))
    m.ld("f.first")
    m.jump(old, Condition.ZERO)
    m.ld("f.ob.left")
    m.sub("f.ob")
    m.jump(old, Condition.ZERO, unless=True)
    m.copy("m", _LOWEST)
    m.copy("l", 0)
    m.label(old)
    m.ld("f.final")
    m.jump(final, Condition.ZERO, unless=True)
    m.ld("m")
    m.high("e")
    m.st("peak")
    m.st(Index())
    m.sub("m")
    m.low(_SHIFT_MAX)
    m.st("u")
    m.st("places")
    m.ld("l")
    m.call("halve.unsigned")
    m.st("l")
    m.ld("peak")
    m.sub("e")
    m.low(_SHIFT_MAX)
    m.st("v")
    m.st("places")
    m.ld("total")
    m.ld(Port.APPEND)
    m.op(Function.AND, -256)
    m.call("halve")
    m.add("l")
    m.st(Index(1))
    m.ld("u")
    m.sub("v")
    m.jump(align)
    m.label(final)
    m.ld("m")
    m.sub("e")
    m.high(0)
    m.low(_SHIFT_MAX)
    m.label(align)
    m.st("a")
    m.ld("b.ox")
    m.index("alignments")
    m.ld("a")
    m.st(Index())


def _normalise_body(m: Micro) -> None:
    """A vector of a row, whose reciprocal is found ahead of its first one."""
    m.label("normalise.body")
    row, plain = m.fresh(), m.fresh()
    m.ld("f.ox.left")
    m.sub("f.ox")
    m.jump(row, Condition.ZERO, unless=True)
    _reciprocal(m)
    m.label(row)
    m.copy("a", 0)
    m.ld("f.scaled")
    m.jump(plain, Condition.ZERO)
    m.ld("b.ox")
    m.index("alignments")
    m.copy("a", Index())
    m.label(plain)
    m.ld("a")
    m.add("bits")
    m.add("f.exponent")
    m.high(0)
    m.low(63)
    m.st("a")
    m.call("read")
    m.ld(0, Out.COLUMN)
    again = m.label()
    m.ld(Port.ELEMENT)
    m.add("z", Out.MULTIPLICAND)
    m.ld("a", Out.SHIFT)
    m.ld("r", Out.MULTIPLY)
    _push(m)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.jump("output")


def _reciprocal(m: Micro) -> None:
    """``bits``, ``r`` and ``z``, which is to be added."""
    normal, divide, digit, none = m.fresh(), m.fresh(), m.fresh(), m.fresh()
    m.ld("s.ox")
    m.index("states", 2)
    m.copy("r", 0)
    m.st("bits")
    m.ld(Index(1))
    m.st("l")
    m.st("t")
    m.jump(none, Condition.ZERO)
    m.copy("bits", 32)
    m.label(normal)
    m.ld("t")
    m.jump(divide, Condition.NEGATIVE)
    m.add(Port.ACCUMULATOR)
    m.st("t")
    m.advance("bits", -1)
    m.jump(normal)
    m.label(divide)
    _shifted(m, 15)
    m.op(Function.AND, m.constant((1 << 17) - 1))
    m.st("t")
    m.copy("rest", "f.scale")
    m.copy("digits", 16)
    m.label(digit)
    less = m.fresh()
    m.ld("r")
    m.add(Port.ACCUMULATOR)
    m.st("r")
    m.ld("rest")
    m.add(Port.ACCUMULATOR)
    m.st("rest")
    m.sub("t")
    m.jump(less, Condition.NEGATIVE)
    m.st("rest")
    m.advance("r", 1)
    m.label(less)
    m.advance("digits", -1)
    m.jump(digit, Condition.ZERO, unless=True)
    m.label(none)
    _zero_part(m)


def _zero_part(m: Micro) -> None:
    """``z``: what the zero point of V takes from the row, negated, and with what probabilities are stored less."""
    positive, minus, done = m.fresh(), m.fresh(), m.fresh()
    m.copy("places", 8)
    m.ld("l")
    m.call("halve.unsigned")
    m.out(Out.MULTIPLICAND)
    m.ld(0, Out.SHIFT)
    m.ld("f.v_zero")
    m.jump(positive, Condition.NEGATIVE, unless=True)
    m.ld(0)
    m.sub("f.v_zero")
    m.label(positive)
    m.out(Out.MULTIPLY)
    m.copy("z", Port.RAW)
    m.ld("f.v_zero")
    m.jump(minus, Condition.NEGATIVE, unless=True)
    m.jump(done)
    m.label(minus)
    m.ld(0)
    m.sub("z")
    m.st("z")
    m.label(done)
    if m.config.wide_activations:
        m.ld("f.source")
        for _ in range(7):
            m.add(Port.ACCUMULATOR)
        m.op(Function.ADD, "z", write=True)


def _shifted(m: Micro, places: str | int) -> None:
    """Shift the accumulator right, arithmetic."""
    m.out(Out.MULTIPLICAND)
    m.ld(places, Out.SHIFT)
    m.ld(1, Out.MULTIPLY)
    m.ld(Port.RAW)


def _halve(m: Micro) -> None:
    """``rsh`` of `weft.hdl.isa`: the accumulator shifted right by ``places``, halves up."""
    none = m.fresh()
    m.label("halve")
    m.st("whole")
    m.out(Out.MULTIPLICAND)
    m.ld("places", Out.SHIFT)
    m.jump(none, Condition.ZERO)
    m.ld(1, Out.MULTIPLY)
    m.ld(0)
    m.op(Function.ROUND, Port.RAW)
    m.back()
    m.label(none)
    m.ld("whole")
    m.back()
    # The result for a negative number is 2**(32 - places) too small: twice what -2**31 becomes.
    m.label("halve.unsigned")
    m.jump("halve", Condition.NEGATIVE, unless=True)
    m.out(Out.MULTIPLICAND)
    m.ld("places", Out.SHIFT)
    m.ld(1, Out.MULTIPLY)
    m.ld(0)
    m.op(Function.ROUND, Port.RAW)
    m.st("whole")
    m.ld(m.constant(_LEAST), Out.MULTIPLICAND)
    m.ld("places", Out.SHIFT)
    m.ld(1, Out.MULTIPLY)
    m.ld("whole")
    m.sub(Port.RAW)
    m.sub(Port.RAW)
    m.back()
