"""Quotients and square roots in the microprogram, a digit at a time."""

from __future__ import annotations

from weft.hdl.sequential.assembler import Micro
from weft.hdl.sequential.micro import Condition, Function, Out, Port

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
