"""The operations of kernels in the microprogram: a loop over the lanes of a row each.

Each one calls ``kernel.row``, behind which it is for every row of the strip, and goes on with ``kernel.write`` behind
its loop: see `weft.hdl.sequential.micro_kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from weft.hdl.isa.config import LOOKUP_ENTRIES
from weft.hdl.isa.kernel import MULTIPLIER_BITS, Op
from weft.hdl.sequential.assembler import (
    Condition,
    Function,
    Lane,
    MemoryOut,
    Micro,
    Out,
    Part,
    Port,
    address_step,
)
from weft.hdl.sequential.micro_vector import lookup_table, times

_TOP_BITS = 17
_DIGITS = 16


def shifted(m: Micro, places: str | int) -> None:
    """Shift the accumulator right, arithmetic."""
    m.out(Out.MULTIPLICAND)
    m.ld(places, Out.SHIFT)
    m.ld(1, Out.MULTIPLY)
    m.ld(Port.RAW)


def normalised(m: Micro) -> None:
    """Shift ``t``, which is not 0, to the left until its highest bit is set: ``bits`` are those it had. The accumulator
    holds it, too."""
    normal, divide = m.fresh(), m.fresh()
    m.copy("bits", 32)
    m.label(normal)
    m.ld("t")
    m.jump(divide, Condition.NEGATIVE)
    m.add(Port.ACCUMULATOR)
    m.st("t")
    m.advance("bits", -1)
    m.jump(normal)
    m.label(divide)


def top(m: Micro) -> None:
    """The top 17 bits of the accumulator to ``t``."""
    shifted(m, 32 - _TOP_BITS)
    m.op(Function.AND, m.constant((1 << _TOP_BITS) - 1))
    m.st("t")


def digits(m: Micro) -> None:
    """Append 16 digits of ``rest / t`` to ``r``."""
    digit = m.fresh()
    m.copy("digits", _DIGITS)
    m.label(digit)
    m.ld("r")
    m.add(Port.ACCUMULATOR)
    m.st("r")
    m.ld("rest")
    m.add(Port.ACCUMULATOR)
    m.st("rest")
    _subtracted(m, "t", digit)


def _subtracted(m: Micro, amount: str, digit: str) -> None:
    """Take `amount` from the rest, which the accumulator holds, if that leaves no less than 0: then the last digit of
    ``r`` is 1. Go on at `digit` if there are more of ``digits``."""
    less = m.fresh()
    m.sub(amount)
    m.jump(less, Condition.NEGATIVE)
    m.st("rest")
    m.advance("r", 1)
    m.label(less)
    m.advance("digits", -1)
    m.jump(digit, Condition.ZERO, unless=True)


def root(m: Micro) -> None:
    """Twice the square root of ``t``, which `normalised` made, to ``t``, and half of ``bits``.

    Odd ``bits`` first become one more, and ``t`` is halved.
    """
    even, digit = m.fresh(), m.fresh()
    m.ld("bits")
    m.op(Function.AND, 1)
    m.jump(even, Condition.ZERO)
    m.advance("bits", 1)
    m.ld("t")
    shifted(m, 1)
    m.op(Function.AND, m.constant((1 << 31) - 1))
    m.st("t")
    m.label(even)
    m.ld("bits")
    shifted(m, 1)
    m.st("bits")
    m.copy("r", 0)
    m.st("rest")
    m.copy("digits", _DIGITS)
    m.label(digit)
    for _ in range(2):
        zero = m.fresh()
        m.ld("rest")
        m.op(Function.ADD, "rest", write=True)
        m.ld("t")
        m.jump(zero, Condition.NEGATIVE, unless=True)
        m.advance("rest", 1)
        m.ld("t")
        m.label(zero)
        m.op(Function.ADD, "t", write=True)
    m.ld("r")
    m.op(Function.ADD, "r", write=True)
    m.add(Port.ACCUMULATOR)
    m.add(1)
    m.st("trial")
    m.ld("rest")
    _subtracted(m, "trial", digit)
    m.ld("r")
    m.add(Port.ACCUMULATOR)
    m.st("t")


_A, _B = Lane(Part.FIRST), Lane(Part.SECOND)
_QUOTIENT = 65535


def byte_left(m: Micro) -> None:
    """Shift the accumulator left by 8."""
    m.ld(Port.APPEND)
    m.op(Function.AND, -256)


def dispatch(m: Micro) -> None:
    """Go to the operation: first by all bits of its number but the lowest."""
    kinds = [op for op in Op if op is not Op.TABLE or m.config.lookup_tables]
    for half in range(len(Op) + 1 >> 1):
        pair = [op for op in kinds if op >> 1 == half]
        other = m.fresh()
        m.ld("op.high")
        m.sub(half)
        m.jump(other, Condition.ZERO, unless=True)
        if len(pair) > 1:
            m.ld("op.low")
            m.jump(_label(pair[0]), Condition.ZERO)
        m.jump(_label(pair[-1]))
        m.label(other)
    for op, body in _SIMPLE.items():
        m.label(_label(op))
        m.call("kernel.row")
        _lanes(m, partial(body, m))
    for write in (_select, _index, _multiply, _divide, *([_table] if m.config.lookup_tables else [])):
        write(m)


def _label(op: Op) -> str:
    return f"kernel.{op.name.lower()}"


def _lanes(m: Micro, body: Callable[[], None]) -> None:
    """`body` for each lane, and then the next row."""
    again = m.label()
    body()
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")


def keep(m: Micro, part: Part = Part.RESULT) -> None:
    """The accumulator is the result of this lane; go to the next one."""
    m.st(Lane(part, next=True))


def _combined(first: Lane, function: Function, second: Lane) -> Callable[[Micro], None]:
    def body(m: Micro) -> None:
        m.ld(first)
        m.op(function, second)
        keep(m)

    return body


def _less(m: Micro) -> None:
    """The predicate is anything but 0 where it holds."""
    m.ld(_A)
    m.low(_B)
    m.sub(_B)
    keep(m, Part.PREDICATE)


def _equal(m: Micro) -> None:
    """The difference becomes -1, 0 or 1, then 0 or 1, and then -1 where it was 0."""
    m.ld(_A)
    m.sub(_B)
    m.high(-1)
    m.low(1)
    m.op(Function.AND, 1)
    m.sub(1)
    keep(m, Part.PREDICATE)


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
        keep(m)

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
        keep(m)

    _lanes(m, body)


def _unshifted(m: Micro) -> None:
    """The first operand is taken as it is."""
    m.copy("shift.bytes", 0)
    m.st("shift.bits")
    m.copy("prepares", "a_memory")


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
        keep(m)

    _lanes(m, body)


def _multiply(m: Micro) -> None:
    """While the product is made, the kind of rounding is found out."""
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
    m.ld(Port.EXPONENT)
    m.op(Function.AND, "scale")
    m.add("shift")
    m.low(63, Out.SHIFT)
    m.ld(_B)
    m.memory(MemoryOut.MULTIPLY_SIGNED)
    m.ld("floor")
    m.jump(down, Condition.ZERO, unless=True)
    m.ld(0)
    m.op(Function.ROUND, Port.PRODUCT)
    keep(m)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")
    m.label(down)
    m.ld(Port.PRODUCT)
    keep(m)
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
    keep(m)


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
        byte_left(m)
    times(m, 1 << MULTIPLIER_BITS - 16)
    m.add("r")
    m.st("packed")
