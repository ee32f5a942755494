"""The operations of kernels in the microprogram, each of which is a loop over the lanes of a row.

An operation calls ``kernel.row``, which returns once for each row of the strip, and ends its loop with a jump to
``kernel.write``, see `weft.hdl.sequential.micro_kernel`.
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
from weft.hdl.sequential.micro_vector import lookup_table, multiply_by

_TOP_BITS = 17
_DIGITS = 16


def shift_right(m: Micro, places: str | int) -> None:
    """Shift the accumulator right, arithmetically."""
    m.out(Out.MULTIPLICAND)
    m.ld(places, Out.SHIFT)
    m.ld(1, Out.MULTIPLY)
    m.ld(Port.RAW)


def normalise_left(m: Micro) -> None:
    """Shift ``t``, which is not 0, to the left until its top bit is set, and set ``bits`` to the bits that it had.

    The result is also in the accumulator.
    """
    normal, divide = m.new_label(), m.new_label()
    m.copy("bits", 32)
    m.label(normal)
    m.ld("t")
    m.jump(divide, Condition.NEGATIVE)
    m.add(Port.ACCUMULATOR)
    m.st("t")
    m.advance("bits", -1)
    m.jump(normal)
    m.label(divide)


def take_top_bits(m: Micro) -> None:
    """Store the top 17 bits of the accumulator in ``t``."""
    shift_right(m, 32 - _TOP_BITS)
    # The shift is arithmetic, so copies of the top bit remain above.
    m.op(Function.AND, m.constant((1 << _TOP_BITS) - 1))
    m.st("t")


def append_digits(m: Micro) -> None:
    """Append 16 binary digits of ``rest / t`` to ``r``."""
    digit = m.new_label()
    m.copy("digits", _DIGITS)
    m.label(digit)
    m.ld("r")
    m.add(Port.ACCUMULATOR)
    m.st("r")
    m.ld("rest")
    m.add(Port.ACCUMULATOR)
    m.st("rest")
    _subtract(m, "t", digit)


def _subtract(m: Micro, amount: str, digit: str) -> None:
    """Subtract `amount` from the rest, which is in the accumulator, if the difference is not negative.

    In this case the last digit of ``r`` becomes 1. Continue at `digit` while ``digits`` remain.
    """
    less = m.new_label()
    m.sub(amount)
    m.jump(less, Condition.NEGATIVE)
    m.st("rest")
    m.advance("r", 1)
    m.label(less)
    m.advance("digits", -1)
    m.jump(digit, Condition.ZERO, unless=True)


def square_root(m: Micro) -> None:
    """Set ``t``, which `normalise_left` has shifted, to twice its square root, and halve ``bits``.

    If ``bits`` is odd, it is first incremented and ``t`` halved.
    """
    even, digit = m.new_label(), m.new_label()
    m.ld("bits")
    m.op(Function.AND, 1)
    m.jump(even, Condition.ZERO)
    m.advance("bits", 1)
    m.ld("t")
    shift_right(m, 1)
    m.op(Function.AND, m.constant((1 << 31) - 1))
    m.st("t")
    m.label(even)
    m.ld("bits")
    shift_right(m, 1)
    m.st("bits")
    m.copy("r", 0)
    m.st("rest")
    m.copy("digits", _DIGITS)
    m.label(digit)
    # Shift the next two bits of ``t`` into the rest.
    for _ in range(2):
        zero = m.new_label()
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
    _subtract(m, "trial", digit)
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
    """Write the jumps to the operations, selected first by all bits of the opcode but the lowest."""
    kinds = [op for op in Op if op is not Op.TABLE or m.config.lookup_tables]
    for half in range(len(Op) + 1 >> 1):
        pair = [op for op in kinds if op >> 1 == half]
        other = m.new_label()
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
    """Write a loop of `body` over the lanes, which then continues with the next row."""
    again = m.label()
    body()
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")


def store_lane(m: Micro, part: Part = Part.RESULT) -> None:
    """Store the accumulator as this lane's result, and advance to the next lane."""
    m.st(Lane(part, next=True))


def _binary(first: Lane, function: Function, second: Lane) -> Callable[[Micro], None]:
    def body(m: Micro) -> None:
        m.ld(first)
        m.op(function, second)
        store_lane(m)

    return body


def _less(m: Micro) -> None:
    """Store a predicate that is non-zero if the first operand is less."""
    m.ld(_A)
    m.minimum(_B)
    m.sub(_B)
    store_lane(m, Part.PREDICATE)


def _equal(m: Micro) -> None:
    """Store a predicate that is -1 if the operands are equal, else 0.

    The difference is clamped to -1, 0 or 1, reduced to its lowest bit, and decremented.
    """
    m.ld(_A)
    m.sub(_B)
    m.maximum(-1)
    m.minimum(1)
    m.op(Function.AND, 1)
    m.sub(1)
    store_lane(m, Part.PREDICATE)


_SIMPLE = {
    Op.ADD: _binary(_A, Function.ADD, _B),
    Op.SUB: _binary(_A, Function.SUB, _B),
    Op.RSUB: _binary(_B, Function.SUB, _A),
    Op.MIN: _binary(_A, Function.MIN, _B),
    Op.MAX: _binary(_A, Function.MAX, _B),
    Op.LT: _less,
    Op.EQ: _equal,
}


def _select(m: Micro) -> None:
    m.label(_label(Op.SELECT))
    m.call("kernel.row")

    def body() -> None:
        second, chosen = m.new_label(), m.new_label()
        m.ld(Lane(Part.PREDICATE))
        m.jump(second, Condition.ZERO)
        m.ld(_A)
        m.jump(chosen)
        m.label(second)
        m.ld(_B)
        m.label(chosen)
        store_lane(m)

    _lanes(m, body)


def _index(m: Micro) -> None:
    m.label(_label(Op.INDEX))
    _ignore_shift(m)
    m.call("kernel.row")
    m.ld("element")
    m.sub(1)
    m.st("count")

    def body() -> None:
        m.advance("count", 1)
        m.add(_B)
        store_lane(m)

    _lanes(m, body)


def _ignore_shift(m: Micro) -> None:
    """Clear the shift of the first operand."""
    m.copy("shift.bytes", 0)
    m.st("shift.bits")
    m.copy("prepares", "a_memory")


def _table(m: Micro) -> None:
    m.label(_label(Op.TABLE))
    _ignore_shift(m)
    m.copy("f.table", "immediate")
    lookup_table(m, LOOKUP_ENTRIES // 2)  # an element of 0 has the entry in the middle
    m.st("entries")
    m.call("kernel.row")

    def body() -> None:
        m.ld(_A)
        m.minimum(127)
        m.maximum(-128)
        multiply_by(m, address_step(m.config))
        m.add("entries", Out.TABLE_ADDRESS)
        m.ld(Port.TABLE)
        # Sign-extend the byte.
        m.add(128)
        m.op(Function.AND, 255)
        m.sub(128)
        store_lane(m)

    _lanes(m, body)


def _multiply(m: Micro) -> None:
    """Write MUL, which selects the rounding while the product is computed."""
    plain, down = m.new_label(), m.new_label()
    m.label(_label(Op.MUL))
    m.ld("shift.bytes")
    multiply_by(m, 8)
    m.add("shift.bits")
    m.st("shift")
    _ignore_shift(m)
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
    m.minimum(63, Out.SHIFT)
    m.ld(_B)
    m.memory(MemoryOut.MULTIPLY_SIGNED)
    m.ld("floor")
    m.jump(down, Condition.ZERO, unless=True)
    m.ld(0)
    m.op(Function.ROUND, Port.PRODUCT)
    store_lane(m)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")
    m.label(down)
    m.ld(Port.PRODUCT)
    store_lane(m)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")


def _divide(m: Micro) -> None:
    """Write RECIPROCAL and RSQRT."""
    for op, is_root in ((Op.RECIPROCAL, 0), (Op.RSQRT, 1)):
        m.label(_label(op))
        m.copy("root", is_root)
        if not is_root:
            m.jump("kernel.serial")
    m.label("kernel.serial")
    _ignore_shift(m)
    m.call("kernel.row")
    again, positive, single, rooted = m.label(), m.new_label(), m.new_label(), m.new_label()
    # The result for 0, and for the root of a negative number.
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
    normalise_left(m)
    m.ld("root")
    m.jump(rooted, Condition.ZERO, unless=True)
    m.ld("t")
    take_top_bits(m)
    m.jump("kernel.digits")
    m.label(rooted)
    square_root(m)
    m.label("kernel.digits")
    _pack(m)
    m.label("kernel.quotient")
    m.ld("unsigned")
    m.jump(single, Condition.ZERO)
    _lanes(m, lambda: _result(m))
    m.label(single)
    _result(m)
    m.jump(again, Condition.LANES_ZERO, unless=True)
    m.jump("kernel.write")


def _result(m: Micro) -> None:
    m.ld("packed")
    store_lane(m)


def _pack(m: Micro) -> None:
    """Divide by ``t``, and pack the quotient, with the sign of ``value``, below the exponent."""
    positive = m.new_label()
    m.copy("r", 0)
    m.copy("rest", m.constant(1 << 16))
    append_digits(m)
    m.ld("value")
    m.jump(positive, Condition.NEGATIVE, unless=True)
    m.ld(0)
    m.sub("r")
    m.st("r")
    m.label(positive)
    m.ld("r")
    m.op(Function.AND, m.constant((1 << MULTIPLIER_BITS) - 1))
    m.st("r")
    # The exponent is above the factor: 16 places by bytes, the others by doubling.
    m.ld("bits")
    for _ in range(2):
        byte_left(m)
    multiply_by(m, 1 << MULTIPLIER_BITS - 16)
    m.add("r")
    m.st("packed")
