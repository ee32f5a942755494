"""Masks of softmax: columns of a row of scores within the length of the sequence, and up to the causal diagonal."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config

_WIDTH = 21
"""Bits of a signed distance: int16, and 4096 groups of 128 columns."""


class Mask(wiring.Component):
    """Follows the loops of a `weft.hdl.isa.Softmax` instruction. Of the N columns of a vector, the first `by_length`
    lie within the length, and the first `by_diagonal` before the diagonal.

    Parameters
    ----------
    config : Config

    Members
    -------
    start : In(1)
        A new instruction; the fields below are there from the next cycle on, until the last step.
    causal, relative, register, length, diagonal : In
        Fields of the instruction.
    bases : In(BASES x 32)
        Base registers. Without loops only: with them ``register`` is what the register holds.
    ready : Out(1)
        The outputs below hold for the first vector or, later on, the current one.
    step : In(1)
        Go to the next vector; the inputs below say where the current one stands.
    last_ox, last_oy : In(1)
        It is the last of its loop.
    by_length, by_diagonal : Out(range(N + 1))
    """

    def __init__(self, config: Config) -> None:
        self.n, self.loops = config.n, bool(config.loops)
        super().__init__(
            {
                "start": In(1),
                "causal": In(1),
                "relative": In(1),
                "register": In(32) if config.loops else In(range(BASES)),
                "length": In(signed(16)),
                "diagonal": In(signed(16)),
                **({} if config.loops else {"bases": In(data.ArrayLayout(32, BASES))}),
                "ready": Out(1),
                "step": In(1),
                "last_ox": In(1),
                "last_oy": In(1),
                "by_length": Out(range(config.n + 1)),
                "by_diagonal": Out(range(config.n + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        left = Signal(signed(_WIDTH), reset_less=True)  # columns within the length, from this group on
        outer = Signal(signed(_WIDTH), reset_less=True)  # columns before the diagonal for ox = 0
        inner = Signal(signed(_WIDTH), reset_less=True)  # the same for this row

        # One adder for both limits, one after the other.
        phase = Signal(3)
        base, total = Signal(32, reset_less=True), Signal(signed(32), reset_less=True)
        limit = Signal(signed(16))
        fits = total[15:].all() | ~total[15:].any()
        m.d.comb += limit.eq(Mux(fits, total[:16], Cat((~total[31]).replicate(15), total[31])))
        held = self.register if self.loops else self.bases[self.register]
        m.d.sync += [
            base.eq(Mux(self.relative, held, 0)),
            total.eq(base + Mux(phase[1], self.diagonal, self.length)),
        ]
        m.d.comb += self.ready.eq(phase[2])
        with m.If(self.start):
            m.d.sync += phase.eq(0)
        with m.Elif(~self.ready):
            m.d.sync += phase.eq(phase + 1)
        with m.If(phase == 2):
            m.d.sync += left.eq(limit)
        with m.If(phase == 3):
            m.d.sync += Cat(outer, inner).eq((limit + Const(1, signed(_WIDTH)))[:_WIDTH].replicate(2))

        following = Signal(signed(_WIDTH))
        group = self.last_ox & self.last_oy
        m.d.comb += following.eq(
            Mux(self.last_ox, outer, inner) + Mux(self.last_ox, Mux(group, -self.n, 0), 1)
        )
        with m.If(self.step):
            m.d.sync += inner.eq(following)
            with m.If(group):
                m.d.sync += [outer.eq(following), left.eq(left - self.n)]

        m.d.comb += [
            self.by_length.eq(self._clamp(left)),
            self.by_diagonal.eq(Mux(self.causal, self._clamp(inner), self.n)),
        ]
        return m

    def _clamp(self, value: Value) -> Value:
        bits = (self.n - 1).bit_length()
        return Mux(value[-1], 0, Mux(value[bits:-1].any(), self.n, value[:bits]))
