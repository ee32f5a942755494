"""One multiplier and shifter, a bit a cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

_FIT = 30
"""Bits of the saturated result but its sign: less than 31, so that rounding up cannot overflow."""


class Multiplier(wiring.Component):
    """``(multiplicand * multiplier + before) / 2**shift``: a cycle for every bit of the multiplier, then one for every
    8 places of `shift` and one for every place left over.

    Parameters
    ----------
    bits : int
        Of the multiplier.

    Members
    -------
    value : In(32)
        What the strobes below take.
    set_multiplicand : In(1)
        Take it from `value`, signed.
    set_shift, shift : In(1), In(6)
        Take the shift; before `start`.
    start : In(1)
        Go, with this multiplier, unsigned.
    keep : In(1)
        With `start`: the last product is ``before``; otherwise that is 0. It must have been shifted by 0.
    ready : Out(1)
        The results below hold.
    raw : In(1)
    result : Out(32)
        Rounded down, and saturated to 31 bits, or with `raw` modulo 2**32.
    round : Out(1)
        What to add to `result` so that it is rounded to the nearest, halves to the even, or with `raw` up; 0 if it was
        saturated.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        super().__init__(
            {
                "value": In(32),
                "set_multiplicand": In(1),
                "set_shift": In(1),
                "shift": In(6),
                "start": In(1),
                "keep": In(1),
                "ready": Out(1),
                "result": Out(32),
                "raw": In(1),
                "round": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = self.bits
        multiplicand = Signal(signed(32), reset_less=True)
        # `low` holds what is left of the multiplier, and from the top the product's low bits.
        high, low = Signal(signed(34), reset_less=True), Signal(bits, reset_less=True)
        product = Cat(low, high).as_signed()
        left, shift, going = Signal(range(bits + 1)), Signal(6), Signal()
        guard, sticky = Signal(reset_less=True), Signal(reset_less=True)
        with m.If(self.set_multiplicand):
            m.d.sync += multiplicand.eq(self.value)
        with m.If(self.set_shift):
            m.d.sync += shift.eq(self.shift)
        total = Signal(signed(35))
        m.d.comb += [
            total.eq(high + Mux(low[0], multiplicand, 0)),
            self.ready.eq(~going),
        ]
        with m.If(self.start):
            m.d.sync += [
                going.eq(1),
                left.eq(bits),
                low.eq(self.value),
                high.eq(Mux(self.keep, product[:34], 0)),
                Cat(guard, sticky).eq(0),
            ]
        with m.Elif(left != 0):
            m.d.sync += [left.eq(left - 1), high.eq(total >> 1), low.eq(Cat(low[1:], total[0]))]
        with m.Elif(going & shift[3:].any()):
            m.d.sync += [
                Cat(low, high).eq(product >> 8),
                guard.eq(product[7]),
                sticky.eq(sticky | guard | product[:7].any()),
                shift[3:].eq(shift[3:] - 1),
            ]
        with m.Elif(going & shift.any()):
            m.d.sync += [
                Cat(low, high).eq(product >> 1),
                guard.eq(product[0]),
                sticky.eq(sticky | guard),
                shift[:3].eq(shift[:3] - 1),
            ]
        with m.Else():
            m.d.sync += going.eq(0)
        sign, fits = product[-1], Signal()
        m.d.comb += [
            fits.eq(self.raw | product[_FIT:].all() | ~product[_FIT:].any()),
            self.result.eq(Mux(fits, product[:32], Cat(Const(1 << _FIT, _FIT + 1), sign))),
            self.round.eq(fits & guard & (self.raw | sticky | product[0])),
        ]
        return m
