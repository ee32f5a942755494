"""The serial unit of the kernel engine for reciprocals and reciprocal square roots."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import MULTIPLIER_BITS, REGISTERS, STRIP_ROWS, Op
from weft.hdl.isa.operands import KERNEL_DIVISION_CYCLES, KERNEL_ROOT_CYCLES
from weft.hdl.vector.kernel_sequence import issue_layout

_QUOTIENT = 16
_PACKED = MULTIPLIER_BITS + 6
"""Bits of a result, which consists of a factor and an exponent."""


def register_bits(config: Config) -> int:
    """Return the bits of the address of a register of a lane group of a row."""
    return (config.groups - 1).bit_length() + (STRIP_ROWS * REGISTERS - 1).bit_length()


class KernelDivide(wiring.Component):
    """Serial unit that computes RECIPROCAL and RSQRT for a lane group, as defined by `weft.hdl.isa.MicroOp`.

    An element takes `KERNEL_DIVISION_CYCLES` cycles, and `KERNEL_ROOT_CYCLES` more for a square root. Its
    magnitude, its number of bits and its normalised value take one cycle each. Restoring algorithms then compute root
    and quotient, one bit a cycle.

    Parameters
    ----------
    config : Config

    Members
    -------
    valid, issue, elements : In(1), In(issue_layout(config)), In(lanes x int32)
        A lane group, or with ``unsigned`` one element for the whole row. Only after the `write` of the previous group.
    write, entry, results : Out(1), Out, Out(32 * lanes)
        Write `results` to the lane group `entry` of a register.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "valid": In(1),
                "issue": In(issue_layout(config)),
                "elements": In(data.ArrayLayout(signed(32), config.lanes)),
                "write": Out(1),
                "entry": Out(register_bits(config)),
                "results": Out(32 * config.lanes),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes, groups = self.config.lanes, self.config.groups
        remaining = Signal(32 * lanes, reset_less=True)
        packed = Signal(_PACKED * lanes, reset_less=True)
        uniform = Signal()
        root = Signal()
        row = Signal(range(STRIP_ROWS))
        group = Signal(range(max(groups, 2)))
        register = Signal(range(REGISTERS))
        left = Signal(range(lanes + 1))
        writing = Signal(range(groups + 1))
        step = Signal(range(KERNEL_DIVISION_CYCLES + KERNEL_ROOT_CYCLES))
        last = Signal()
        m.d.comb += last.eq(
            step == Mux(root, KERNEL_DIVISION_CYCLES + KERNEL_ROOT_CYCLES - 1, KERNEL_DIVISION_CYCLES - 1)
        )
        result = self._divide(m, remaining[:32].as_signed(), step, root)
        # Take a lane group, compute its elements one by one, then write the results.
        with m.If(self.valid):
            op = self.issue.op
            m.d.sync += [
                remaining.eq(self.elements),
                uniform.eq(op.unsigned),
                root.eq(op.op == Op.RSQRT),
                row.eq(self.issue.entry.row),
                group.eq(self.issue.entry.group),
                register.eq(op.d),
                left.eq(Mux(op.unsigned, 1, lanes)),
                step.eq(0),
            ]
        with m.Elif(left.any()):
            m.d.sync += step.eq(step + 1)
            with m.If(last):
                m.d.sync += [
                    step.eq(0),
                    left.eq(left - 1),
                    remaining.eq(remaining >> 32),
                    packed.eq(Mux(uniform, result.replicate(lanes), Cat(packed[_PACKED:], result))),
                ]
                with m.If(left == 1):
                    m.d.sync += writing.eq(Mux(uniform, groups, 1))
        with m.If(writing.any()):
            m.d.sync += [writing.eq(writing - 1), group.eq(group + 1)]
        m.d.comb += [
            self.write.eq(writing.any()),
            self.entry.eq(Cat(group[: (groups - 1).bit_length()], row, register)),
            self.results.eq(
                Cat(Cat(packed.word_select(lane, _PACKED), Const(0, 32 - _PACKED)) for lane in range(lanes))
            ),
        ]
        return m

    def _divide(self, m: Module, element: Value, step: Signal, root: Signal) -> Value:
        """Return the packed result of an element, valid in the last of its steps."""
        size = Signal(32, reset_less=True)
        highest = Signal(5, reset_less=True)
        top = Signal(32, reset_less=True)
        rest = Signal(17, reset_less=True)
        square = Signal(18, reset_less=True)
        quotient = Signal(_QUOTIENT, reset_less=True)
        base = Signal(16, reset_less=True)
        exponent = Signal(6, reset_less=True)
        negative = element[-1]
        nothing = Signal(reset_less=True)
        dividing = Signal()
        rooting = Signal()
        m.d.comb += [
            rooting.eq(root & (step >= 3) & (step < 3 + KERNEL_ROOT_CYCLES)),
            dividing.eq((step >= 3) & ~rooting),
        ]
        # Trial subtractions: `less` of the quotient, `below` of the root. A negative sign gives digit 0.
        divisor = Signal(17)
        doubled = Signal(18)
        less = Signal(signed(19))
        trial = Signal(18)
        grown = Signal(20)
        below = Signal(signed(21))
        m.d.comb += [
            divisor.eq(Mux(root, base << 1, top[15:])),
            doubled.eq(rest << 1),
            less.eq(doubled - divisor),
            trial.eq((base << 2) | 1),
            grown.eq(Cat(top[-2:], square)),
            below.eq(grown - trial),
        ]
        with m.If(step == 0):
            m.d.sync += [
                size.eq(Mux(negative, -element, element)[:32]),
                nothing.eq(~element.any() | (root & negative)),
            ]
        with m.Elif(step == 1):
            # The number of bits minus 1. For roots the number of bits is rounded up to an even number.
            m.d.sync += highest.eq(_highest(size) | root)
        with m.Elif(step == 2):
            m.d.sync += [
                top.eq(size << ~highest),
                exponent.eq(Mux(root, highest >> 1, highest) + 1),
                rest.eq(1 << 16),
                square.eq(0),
                base.eq(0),
            ]
        with m.Elif(rooting):
            m.d.sync += [
                top.eq(top << 2),
                square.eq(Mux(below[-1], grown, below)),
                base.eq(Cat(~below[-1], base)),
            ]
        last_step = Mux(root, KERNEL_DIVISION_CYCLES + KERNEL_ROOT_CYCLES - 1, KERNEL_DIVISION_CYCLES - 1)
        with m.Elif(dividing & (step != last_step)):
            m.d.sync += [
                rest.eq(Mux(less[-1], doubled, less)),
                quotient.eq(Cat(~less[-1], quotient)),
            ]
        factor = Signal(MULTIPLIER_BITS)
        m.d.comb += factor.eq(Mux(negative, -quotient, quotient))
        # The reciprocal of 0, and the root of a negative number, are the largest factor.
        with m.If(nothing):
            m.d.comb += factor.eq((1 << _QUOTIENT) - 1)
        return Cat(factor, Mux(nothing, 0, exponent))


def _highest(value: Value) -> Value:
    """Return the index of the highest set bit of a non-zero value, by recursive halving, which keeps paths short."""
    if len(value) == 2:
        return value[1]
    half = len(value) // 2
    upper = value[half:].any()
    return Cat(Mux(upper, _highest(value[half:]), _highest(value[:half])), upper)
