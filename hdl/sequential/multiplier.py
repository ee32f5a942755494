"""One multiplier and shifter, a bit a cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
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
    signed_bits : int
        Of the multiplier with `wide`, or 0: there is no such input, and nothing that only it needs.

    Members
    -------
    value : In(32)
        What the strobes below take.
    set_multiplicand : In(1)
        Take it from `value`, signed.
    set_shift, shift : In(1), In(6)
        Take the shift; before `start`, or at most `bits` cycles later.
    start : In(1)
        Go, with this multiplier, unsigned.
    keep : In(1)
        With `start`: the last product is ``before``; otherwise that is 0. It must have been shifted by 0.
    wide : In(1)
        With `start`: the multiplier is signed, and has `signed_bits`. The result is saturated to 32 bits, also rounded.
    ready : Out(1)
        The results below hold.
    raw : In(1)
    result : Out(32)
        Rounded down, and saturated to 31 bits, or with `raw` modulo 2**32.
    round : Out(1)
        What to add to `result` so that it is rounded to the nearest, halves to the even, or with `raw` up; 0 if it was
        saturated.
    """

    def __init__(self, bits: int, signed_bits: int = 0) -> None:
        self.unsigned_bits, self.signed_bits = bits, signed_bits
        self.bits = max(bits, signed_bits)
        super().__init__(
            {
                **({"wide": In(1)} if signed_bits else {}),
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
        value: Value = self.value
        whole: Signal | None = None
        if self.signed_bits:
            value, whole = self._signed(m, left == 1, (high, low, multiplicand), total)
        with m.If(self.start):
            m.d.sync += [
                going.eq(1),
                left.eq(bits),
                low.eq(value),
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
        if whole is not None:
            most = ~product[31] & product[:31].all()
            with m.If(whole):
                m.d.comb += [
                    fits.eq(product[31:].all() | ~product[31:].any()),
                    self.result.eq(Mux(fits, product[:32], Cat((~sign).replicate(31), sign))),
                    self.round.eq(fits & guard & (sticky | product[0]) & ~most),
                ]
        return m

    def _signed(
        self, m: Module, last: Value, operands: tuple[Value, Value, Value], total: Signal
    ) -> tuple[Value, Signal]:
        """With `wide`, the last bit of the multiplier counts negative. Returns the multiplier to start with, and
        whether the result has 32 bits."""
        high, low, multiplicand = operands
        whole = Signal()
        with m.If(self.start):
            m.d.sync += whole.eq(self.wide)
        turned = whole & last
        addend = Mux(low[0], multiplicand, 0) ^ turned.replicate(34).as_signed()
        m.d.comb += total.eq((Cat(1, high).as_signed() + Cat(turned, addend).as_signed())[1:])
        factor = Mux(self.wide, self.value[: self.signed_bits].as_signed(), self.value[: self.unsigned_bits])
        return factor, whole
