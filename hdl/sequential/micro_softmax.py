"""The microprogram of SOFTMAX and NORMALISE."""

from __future__ import annotations

from weft.hdl.isa import Normalise, Softmax
from weft.hdl.isa.kernel import INT32_MIN
from weft.hdl.sequential.assembler import Condition, Function, Index, Micro, Out, Port, implements
from weft.hdl.sequential.micro_kernel_ops import append_digits, normalise_left, shift_right, take_top_bits
from weft.hdl.sequential.micro_vector import push, read

_OCTAVE, _REACH, _LOWEST = 128, 2048, -256
_SHIFT_MAX = 31
_ANYWHERE = 1 << 24
"""Exceeds the number of columns of a row of scores."""


@implements(Softmax)
def softmax(m: Micro) -> None:
    """Write `weft.hdl.isa.Softmax`: ``y`` counts the columns up to the length, ``x`` the columns up to the diagonal."""
    m.call("parameters")
    absolute, started, unmasked, masked = m.new_label(), m.new_label(), m.new_label(), m.new_label()
    m.ld("f.relative")
    m.jump(absolute, Condition.ZERO)
    m.base("f.register")
    m.jump(started)
    m.label(absolute)
    m.ld(0)
    m.label(started)
    m.st("start")
    for field, limit in (("f.length", "f.y"), ("f.diagonal", "f.x")):
        m.ld(field)
        m.add("start")
        m.minimum(m.constant((1 << 15) - 1))
        m.maximum(m.constant(-(1 << 15)))
        if limit == "f.x":
            m.add(1)  # the diagonal itself is valid
        m.st(limit)
    # The limits move against the columns: N less in each group; the diagonal moves by 1 in each row.
    m.copy("f.s_ob", 0)
    m.st("f.y_oy")
    m.st("f.x_ob")
    m.st("f.x_ox")
    m.copy("f.y_ob", -m.config.n)
    m.ld("f.causal")
    m.jump(unmasked, Condition.ZERO)
    m.copy("f.x_ox", 1)
    m.copy("f.x_ob", -m.config.n)
    m.jump(masked)
    m.label(unmasked)
    m.copy("f.x", m.constant(_ANYWHERE))
    m.label(masked)
    m.call("outputs")
    m.jump("softmax.body")


@implements(Normalise)
def normalise(m: Micro) -> None:
    """Write `weft.hdl.isa.Normalise`."""
    m.copy("f.s_ox", 0)
    m.call("outputs")
    m.jump("normalise.body")


def write_shared(m: Micro) -> None:
    """Write the routines to which the loops of `weft.hdl.sequential.micro_vector` jump."""
    _softmax_body(m)
    _normalise_body(m)
    _halve(m)


def _softmax_body(m: Micro) -> None:
    """Write the body of a group of scores: all logits and their maximum, then the probabilities."""
    m.label("softmax.next")
    m.call("output")
    m.label("softmax.body")
    m.ld("x.ox")
    m.minimum("y.oy")
    m.st("limit")
    m.st("valid")
    read(m, "src.ox")
    m.ld(0, Out.COLUMN)
    m.copy("pair", m.constant_block("parameters"))
    m.copy("logit", m.constant_block("logits"))
    m.copy("top", m.constant(_LOWEST * _OCTAVE))
    again, masked = m.label(), m.new_label()
    m.ld("pair", Out.INDEX)
    m.ld(Port.ELEMENT)
    m.add(Index(), Out.MULTIPLICAND)
    m.ld(Index(1), Out.MULTIPLY)
    m.advance("pair", 2)
    m.ld("logit", Out.INDEX)
    m.ld(0)
    m.op(Function.ROUND, Port.PRODUCT)
    m.minimum(m.constant((1 << 15) - 1))
    m.maximum(m.constant(-(1 << 15)))
    m.st(Index())
    m.st("y")
    m.advance("valid", -1)
    m.jump(masked, Condition.NEGATIVE)
    m.ld("y")
    m.maximum("top")
    m.st("top")
    m.label(masked)
    m.advance("logit", 1)
    m.out(Out.COLUMN_NEXT)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    # Round the maximum up to a whole octave: the exponent ``e``.
    m.ld("top")
    m.add(_OCTAVE - 1)
    m.op(Function.AND, -_OCTAVE)
    m.st("ceiling")
    shift_right(m, _OCTAVE.bit_length() - 1)
    m.st("e")
    _probabilities(m)
    _state(m)
    m.jump("softmax.next")


def _probabilities(m: Micro) -> None:
    reach = m.constant(_REACH)
    m.copy("valid", "limit")
    m.copy("logit", m.constant_block("logits"))
    m.copy("total", 0)
    again, nothing, add = m.label(), m.new_label(), m.new_label()
    m.ld("logit", Out.INDEX)
    m.advance("valid", -1)
    m.jump(nothing, Condition.NEGATIVE)
    m.ld("ceiling")
    m.sub(Index())
    m.sub(reach)
    m.jump(nothing, Condition.NEGATIVE, unless=True)
    m.add(reach, Out.TABLE_ADDRESS)
    m.ld(Port.TABLE)
    m.jump(add)
    m.label(nothing)
    m.ld(0)
    m.label(add)
    m.st("p")
    m.op(Function.ADD, "total", write=True)
    m.ld("p")
    m.sub(_OCTAVE if m.config.wide_activations else 0, Out.PUSH)
    m.advance("logit", 1)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)


def _state(m: Micro) -> None:
    """Update the row's state after the group, and store its alignment."""
    old, final, align = m.new_label(), m.new_label(), m.new_label()
    m.ld("s.ox")
    m.index("states", 2)
    m.copy("m", Index())
    m.copy("l", Index(1))
    # The state restarts in the first group of an instruction with ``first``.
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
    m.maximum("e")
    m.st("peak")
    m.st(Index())
    m.sub("m")
    m.minimum(_SHIFT_MAX)
    m.st("u")
    m.st("places")
    m.ld("l")
    m.call("halve.unsigned")
    m.st("l")
    m.ld("peak")
    m.sub("e")
    m.minimum(_SHIFT_MAX)
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
    m.maximum(0)
    m.minimum(_SHIFT_MAX)
    m.label(align)
    m.st("a")
    m.ld("b.ox")
    m.index("alignments")
    m.ld("a")
    m.st(Index())


def _normalise_body(m: Micro) -> None:
    """Write the body of a vector of a row; the row's first vector computes the reciprocal."""
    m.label("normalise.next")
    m.call("output")
    m.label("normalise.body")
    row, plain = m.new_label(), m.new_label()
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
    m.maximum(0)
    m.minimum(63)
    m.st("a")
    read(m, "src.ox")
    m.ld(0, Out.COLUMN)
    again = m.label()
    m.ld(Port.ELEMENT)
    m.add("z", Out.MULTIPLICAND)
    m.ld("a", Out.SHIFT)
    m.ld("r", Out.MULTIPLY)
    push(m)
    m.jump(again, Condition.COLUMN_ZERO, unless=True)
    m.jump("normalise.next")


def _reciprocal(m: Micro) -> None:
    """Compute ``bits``, ``r``, and ``z``, which is to be added to elements."""
    none = m.new_label()
    m.ld("s.ox")
    m.index("states", 2)
    m.copy("r", 0)
    m.st("bits")
    m.ld(Index(1))
    m.st("l")
    m.st("t")
    m.jump(none, Condition.ZERO)
    normalise_left(m)
    take_top_bits(m)
    m.copy("rest", "f.scale")
    append_digits(m)
    m.label(none)
    _zero_part(m)


def _zero_part(m: Micro) -> None:
    """Compute ``z``: the negated contribution of the zero point of V, plus the offset of stored probabilities."""
    positive, minus, done = m.new_label(), m.new_label(), m.new_label()
    # Multipliers are unsigned: multiply by the magnitude of the zero point, then apply its sign.
    m.copy("places", 8)
    m.ld("l")
    m.call("halve.unsigned")
    m.out(Out.MULTIPLICAND)
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
        # The scratchpad holds probabilities of 8 bits minus 128.
        m.ld("f.source")
        for _ in range(7):
            m.add(Port.ACCUMULATOR)
        m.op(Function.ADD, "z", write=True)


def _halve(m: Micro) -> None:
    """Write the routines of ``rsh`` of `weft.hdl.isa`: shift the accumulator right by ``places``, rounding half up."""
    m.label("halve")
    m.out(Out.MULTIPLICAND)
    m.ld("places", Out.SHIFT)
    m.ld(1, Out.MULTIPLY)
    m.ld(0)
    m.op(Function.ROUND, Port.RAW)
    m.back()
    # For a number read as negative the result is 2**(32 - places) too small: twice the result for -2**31.
    m.label("halve.unsigned")
    m.jump("halve", Condition.NEGATIVE, unless=True)
    m.out(Out.MULTIPLICAND)
    m.ld("places", Out.SHIFT)
    m.ld(1, Out.MULTIPLY)
    m.ld(0)
    m.op(Function.ROUND, Port.RAW)
    m.st("shifted")
    m.ld(m.constant(INT32_MIN), Out.MULTIPLICAND)
    m.ld("places", Out.SHIFT)
    m.ld(1, Out.MULTIPLY)
    m.ld("shifted")
    m.sub(Port.RAW)
    m.sub(Port.RAW)
    m.back()
