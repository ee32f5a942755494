"""Properties of `weft.hdl.vector.requantise`: requantisation without multipliers."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.arithmetic import half_even
from weft.extras.proof.hardware.memories import small
from weft.extras.proof.hardware.pipelines import implies
from weft.extras.proof.hardware.property import Bench, Bounded, Property
from weft.hdl.vector.requantise import SerialRequantise

_BITS = 9
"""Smallest width of mantissas."""
_ENDS = 1 << _BITS - 1 | 1
"""Bits of mantissas that may be 1. The unit treats all bits alike, and a proof of all takes too long."""
_FEW = 4
"""Width of elements and biases."""
_TAG = 3
_DEPTH = 18


class SerialBench(Bench):
    """An element plus its bias, times the mantissa, plus the second operand times its own mantissa, is shifted by any
    number, rounded half to even and clamped. The result comes in the documented number of cycles, with its tag.

    Only the first and last bit of mantissas are free, the others are 0; elements and biases have few bits. Assumed:
    settings do not change; reductions are of one element, because properties of the parallel unit prove longer ones; an
    element comes when the result of the one before is complete.
    """

    UNIT = SerialRequantise

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m, "settings")
        settings, column = dut.settings, dut.columns[0]
        m.d.comb += Value.cast(settings).eq(self.constant(m, len(Value.cast(settings)), "settings"))
        self.assume(~dut.valid | dut.first & dut.last)
        for number in (dut.elements[0], column.bias):
            few = number[_FEW - 1 :]
            self.assume(few.all() | ~few.any())
        for mantissa in (column.mantissa, settings.b_mantissa):
            self.assume((mantissa & ~_ENDS) == 0)
        comes, pending, tag = Signal(name="comes"), Signal(name="pending"), Signal(_TAG, name="expected_tag")
        m.d.comb += comes.eq(dut.valid & dut.last)
        self.assume(~comes | ~pending | dut.result_valid)
        value = (dut.elements[0] + column.bias)[:32].as_signed()
        second = dut.second[0]
        difference = Mux(settings.subtract, settings.b_zero - second, second - settings.b_zero)
        product = Signal(signed(33 + _BITS), name="exact")
        shift, left = Signal(6, name="shift"), Signal(range(64), name="left")
        with m.If(comes):
            m.d.sync += [
                product.eq(value * column.mantissa + Mux(settings.add, difference * settings.b_mantissa, 0)),
                shift.eq(column.shift),
                tag.eq(dut.tag),
                left.eq(Mux(settings.add, 2 * _BITS, _BITS) + column.shift[3:] + column.shift[:3] + 4),
            ]
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        m.d.sync += pending.eq(comes | pending & ~dut.result_valid)
        self.claim("a result in its cycle", dut.result_valid == (pending & (left == 1)))
        self.claim("its tag", implies(dut.result_valid, dut.result_tag == tag))
        total = Signal(signed(len(product) + 2), name="rounded_total")
        m.d.comb += total.eq(half_even(m, product, shift, "rounded") + settings.zero)
        result = Mux(total < settings.low, settings.low, total)
        result = Mux(result > settings.high, settings.high, result)
        self.claim("result", implies(dut.result_valid, dut.results[0] == result[:8].as_signed()))
        self.cover("rounded", dut.result_valid & (shift == 3) & (dut.results[0] == 2))


def properties() -> Iterator[Property]:
    yield SerialBench.proves(
        "vector/requantise_serial",
        "results",
        Bounded(_DEPTH),
        small(n=2, lanes=1, mantissa_bits=_BITS),
        _TAG,
        cover=_DEPTH,
    )
