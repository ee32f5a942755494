"""One multiplier and shifter, two bits a cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

_FIT = 30
"""Bits of the saturated result but its sign: less than 31, so that rounding up cannot overflow."""


def digits(bits: int, signed_bits: int) -> int:
    """Digits of two bits that a multiplier takes: the highest bit of the last one is that below it, as a sign is."""
    return max(bits, signed_bits) // 2 + 1


class Multiplier(wiring.Component):
    """``(multiplicand * multiplier + before) / 2**shift``: a cycle for every digit of the multiplier, see `digits`,
    then one for every 8 places of `shift`, one for every 2 that are left over, and one for the last.

    Digits are -1, 0, 1 and 2, so that each takes one sum: what would be 3 or 4 is 4 less, and adds 1 to the next digit.
    With an odd shift the multiplier is doubled, and shifted by one place more: all shifts are by 2 or 8 places.

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
        Take the shift for the next start.
    start : In(1)
        Go, with this multiplier, unsigned. The shift is `shift` if none was set.
    keep : In(1)
        With `start`: the last product is ``before``, or half of it if the shift is odd; otherwise that is 0. That
        product must have been shifted by 0.
    wide : In(1)
        With `start`: the multiplier is signed, and has `signed_bits`; the shift was set. The result is saturated to 32
        bits, also rounded.
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
        self.digits = digits(bits, signed_bits)
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
        multiplicand = Signal(signed(32), reset_less=True)
        # `low` holds what is left of the multiplier, and from the top the product's low bits.
        high, low = Signal(signed(34), reset_less=True), Signal(2 * self.digits, reset_less=True)
        product = Cat(low, high).as_signed()
        left, shift, going = Signal(range(self.digits + 1)), Signal(6), Signal()
        guard, sticky = Signal(reset_less=True), Signal(reset_less=True)
        with m.If(self.set_multiplicand):
            m.d.sync += multiplicand.eq(self.value)
        multiplies, odd = Signal(), Signal()
        given = Signal(6)
        m.d.comb += [
            multiplies.eq(left != 0),
            self.ready.eq(~going),
            given.eq(shift | (Mux(self.wide, 0, self.shift) if self.signed_bits else self.shift)),
            odd.eq(given[0]),
        ]
        total = self._total(m, multiplies, low, high, multiplicand)
        value: Value = self.value[: self.unsigned_bits]
        if self.signed_bits:
            value = Mux(self.wide, self.value[: self.signed_bits].as_signed(), value)
        with m.If(self.set_shift):
            m.d.sync += shift.eq(self.shift)
        with m.If(self.start):
            m.d.sync += [
                going.eq(1),
                left.eq(self.digits),
                low.eq(Mux(odd, value << 1, value)),
                high.eq(Mux(self.keep, product[:34], 0)),
                Cat(guard, sticky).eq(0),
                shift.eq(given),
            ]
        with m.Elif(going & ~multiplies & shift[3:].any()):
            m.d.sync += [
                Cat(low, high).eq(product >> 8),
                guard.eq(product[7]),
                sticky.eq(sticky | guard | product[:7].any()),
                shift[3:].eq(shift[3:] - 1),
            ]
        with m.Elif(going & (multiplies | shift[:3].any())):
            # Two places are those of a digit of 0.
            m.d.sync += [low.eq(Cat(low[2:], total[:2])), high.eq(total >> 2)]
            with m.If(multiplies):
                m.d.sync += left.eq(left - 1)
            with m.Else():
                m.d.sync += [guard.eq(product[1]), sticky.eq(sticky | guard | product[0]), shift[0].eq(0)]
                with m.If(~shift[0]):
                    m.d.sync += shift[1:3].eq(shift[1:3] - 1)
        with m.Else():
            m.d.sync += going.eq(0)
        self._results(m, product, guard, sticky)
        return m

    def _total(
        self, m: Module, multiplies: Signal, low: Signal, high: Signal, multiplicand: Signal
    ) -> Signal:
        """`high`, and the next digit times the multiplicand."""
        carry, digit = Signal(), Signal(2)
        addend, total = Signal(signed(34)), Signal(signed(35))
        with m.If(self.start):
            m.d.sync += carry.eq(0)
        with m.Else():
            m.d.sync += carry.eq(multiplies & low[1] & (low[0] | carry))
        m.d.comb += digit.eq(Mux(multiplies, low[:2] + carry, 0))  # 3 is -1
        with m.Switch(digit):
            with m.Case(1):
                m.d.comb += addend.eq(multiplicand)
            with m.Case(2):
                m.d.comb += addend.eq(multiplicand << 1)
            with m.Case(3):
                m.d.comb += addend.eq(~multiplicand)
        m.d.comb += total.eq((Cat(1, high).as_signed() + Cat(digit.all(), addend).as_signed())[1:])
        return total

    def _results(self, m: Module, product: Value, guard: Signal, sticky: Signal) -> None:
        sign, fits = product[-1], Signal()
        m.d.comb += [
            fits.eq(self.raw | product[_FIT:].all() | ~product[_FIT:].any()),
            self.result.eq(Mux(fits, product[:32], Cat(Const(1 << _FIT, _FIT + 1), sign))),
            self.round.eq(fits & guard & (self.raw | sticky | product[0])),
        ]
        if not self.signed_bits:
            return
        whole = Signal()
        most = ~product[31] & product[:31].all()
        with m.If(self.start):
            m.d.sync += whole.eq(self.wide)
        with m.If(whole):
            m.d.comb += [
                fits.eq(product[31:].all() | ~product[31:].any()),
                self.result.eq(Mux(fits, product[:32], Cat((~sign).replicate(31), sign))),
                self.round.eq(fits & guard & (sticky | product[0]) & ~most),
            ]
