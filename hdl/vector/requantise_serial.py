"""Requantisation without multipliers, a bit a cycle, for FPGA families whose multipliers are all in the array."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, ShapeLike, Signal, Value, signed

from weft.hdl.isa.config import Config
from weft.hdl.lib.multipliers import INFERRED, Multipliers
from weft.hdl.vector.requantise import Requantise

_NARROW = 9
"""Bits that the quotient is saturated to: with any zero point, what does not fit is outside of int8."""


def requantiser(config: Config, tag: ShapeLike, multipliers: Multipliers = INFERRED) -> Requantise:
    """The requantiser beside an array of `multipliers`: serial if the array takes them all, unless there is softmax."""
    if multipliers.dual and not config.softmax:
        return SerialRequantise(config, tag)
    return Requantise(config, tag)


class SerialRequantise(Requantise):
    """Does what `Requantise` does, one result at a time: the last element of a reduction may come after the result of
    the one before at the soonest. The other elements may come at any time.

    A result takes a cycle for every bit of the mantissa (two with ``add``), then one for every 8 places of ``shift``
    and one for every place left over, and 4 more.
    """

    serial = True

    def elaborate(self, platform: object) -> Module:
        m = Module()
        add, bits = self.settings.add, self.config.mantissa_bits
        accept, adding, multiplying, shifting, rounding = (
            Signal(name=name) for name in ("accept", "adding", "multiplying", "shifting", "rounding")
        )
        step, other_turn, arrived = Signal(range(bits)), Signal(), Signal()
        m.d.comb += accept.eq(self.valid & self.last)
        m.d.sync += [
            adding.eq(accept),
            rounding.eq(shifting & arrived),
            self.result_valid.eq(rounding),
        ]
        with m.If(accept):
            m.d.sync += Value.cast(self.result_tag).eq(Value.cast(self.tag))
        with m.If(adding):
            m.d.sync += [multiplying.eq(1), step.eq(0), other_turn.eq(0)]
        with m.If(multiplying):
            m.d.sync += other_turn.eq(add & ~other_turn)
            with m.If(other_turn | ~add):
                m.d.sync += step.eq(step + 1)
                with m.If(step == bits - 1):
                    m.d.sync += [multiplying.eq(0), shifting.eq(1)]
        with m.If(shifting & arrived):
            m.d.sync += shifting.eq(0)

        other_bit = self.settings.b_mantissa.bit_select(step, 1)
        there = []
        for lane in range(self.config.lanes):
            result, done = self._serial_lane(
                m, lane, accept, adding, multiplying, other_turn, other_bit, shifting
            )
            there.append(done)
            m.d.sync += self.results[lane].eq(result)
        m.d.comb += arrived.eq(Cat(*there).all())
        return m

    def _serial_lane(
        self,
        m: Module,
        lane: int,
        accept: Signal,
        adding: Signal,
        multiplying: Signal,
        other_turn: Signal,
        other_bit: Value,
        shifting: Signal,
    ) -> tuple[Value, Value]:
        """One lane; returns what the result's register takes, and whether the product is shifted to its place."""

        def state(shape: ShapeLike, name: str) -> Signal:
            return Signal(shape, name=f"{name}_{lane}", reset_less=True)

        settings, column, bits = self.settings, self.columns[lane], self.config.mantissa_bits
        reduced = self._reduce(m, lane)
        value, other = state(signed(32), "value"), state(signed(9), "other")
        # `low` holds what is left of the mantissa, and from the top the product's low bits.
        high, low = state(signed(34), "high"), state(bits, "low")
        bytes_left, bits_left = state(3, "bytes_left"), state(3, "bits_left")
        guard, sticky = state(1, "guard"), state(1, "sticky")
        with m.If(accept):
            m.d.sync += [
                value.eq(column.bias),
                other.eq(self._difference(self.second[lane])),
                low.eq(column.mantissa),
                Cat(bits_left, bytes_left).eq(column.shift),
                Cat(guard, sticky).eq(0),
                high.eq(0),
            ]
        with m.If(adding):
            m.d.sync += value.eq(value + reduced)

        term = Signal(signed(33), name=f"term_{lane}")
        total = Signal(signed(34), name=f"total_{lane}")
        m.d.comb += [
            term.eq(Mux(multiplying & Mux(other_turn, other_bit, low[0]), Mux(other_turn, other, value), 0)),
            total.eq(high + term),
        ]
        with m.If(multiplying & settings.add & ~other_turn):
            m.d.sync += high.eq(total)
        with m.Elif(shifting & bytes_left.any()):
            m.d.sync += [
                Cat(low, high).eq(Cat(low, high).as_signed() >> 8),
                bytes_left.eq(bytes_left - 1),
                guard.eq(low[7]),
                sticky.eq(sticky | guard | low[:7].any()),
            ]
        with m.Elif(multiplying | shifting & bits_left.any()):
            m.d.sync += Cat(low, high).eq(Cat(low, total).as_signed() >> 1)
            with m.If(shifting):
                m.d.sync += [bits_left.eq(bits_left - 1), guard.eq(low[0]), sticky.eq(sticky | guard)]

        above = Cat(low[_NARROW - 1 :], high)
        limit = Cat((~high[-1]).replicate(_NARROW - 1), high[-1])
        quotient = Mux(above.all() | ~above.any(), low[:_NARROW], limit).as_signed()
        rounded = state(signed(_NARROW + 2), "rounded")
        m.d.sync += rounded.eq(quotient + (guard & (sticky | low[0])) + settings.zero)
        return self._clamp(rounded), ~(bytes_left.any() | bits_left.any())
