"""The running maximum and sum of every row of scores under way."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.lib.ports import ALIGNMENT_BITS
from weft.hdl.vector.probabilities import PEAK, PEAK_BITS, delayed, sum_width

TOTAL = 3
"""Cycles from `RowStates.valid` to the sum of the same vector."""
ALIGNED = 5
"""Cycles from `RowStates.valid` to the alignment."""
WRITTEN = 6
"""Cycles from `RowStates.valid` to the write; reads later than that return the new state."""
_CLAMP = 31


class RowStates(wiring.Component):
    """Row states, and a rigid pipeline that updates them. Defined by `weft.hdl.isa.Softmax`, whose ``e`` is `peak`.

    As one of ``u`` and ``v`` is 0, only one of the two sums is shifted.

    Parameters
    ----------
    config : Config

    Members
    -------
    address : In(range(row_states))
        Of the state to read.
    sum : Out(32)
        ``l`` of the state that stood at `address` two cycles ago, from a register.
    valid : In(1)
        Update the state at `address`. Not before the last update of the same state is written.
    fresh : In(1)
        Read with `valid`: start from m = -256, l = 0 instead.
    peak : In(int10)
        Two cycles after `valid`.
    total : In(sum_width)
        `TOTAL` cycles after `valid`.
    final : In(1)
        Keep states. Must not change while updates are under way.
    aligned, alignment : Out(1), Out(signed)
        `ALIGNED` cycles after `valid`.
    written, write_address : Out(1), In(range(row_states))
        `WRITTEN` cycles after `valid`: where the state comes from, once more.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "address": In(range(config.row_states)),
                "sum": Out(32),
                "valid": In(1),
                "fresh": In(1),
                "peak": In(signed(PEAK_BITS)),
                "total": In(sum_width(config)),
                "final": In(1),
                "aligned": Out(1),
                "alignment": Out(signed(ALIGNMENT_BITS)),
                "written": Out(1),
                "write_address": In(range(config.row_states)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        state = data.StructLayout({"m": signed(PEAK_BITS), "l": 32})
        m.submodules.ram = ram = memory.Memory(shape=state, depth=self.config.row_states, init=[])
        fetch, store = ram.read_port(), ram.write_port()
        old = Signal(state, reset_less=True)
        m.d.comb += [fetch.en.eq(1), fetch.addr.eq(self.address), self.sum.eq(old.l)]
        m.d.sync += old.eq(fetch.data)

        # Two cycles after `valid`: how far apart the maxima are, both ways.
        fresh = delayed(m, self.fresh, 2)
        maximum, peak = Signal(signed(PEAK_BITS)), Signal(signed(PEAK_BITS), reset_less=True)
        before = Signal(signed(PEAK_BITS), reset_less=True)
        old_sum = Signal(32, reset_less=True)
        higher, lower = (
            Signal(signed(PEAK_BITS + 1), name=name, reset_less=True) for name in ("higher", "lower")
        )
        m.d.comb += maximum.eq(Mux(fresh, PEAK, old.m))
        m.d.sync += [
            peak.eq(self.peak),
            before.eq(maximum),
            old_sum.eq(Mux(fresh, 0, old.l)),
            higher.eq(self.peak - maximum),
            lower.eq(maximum - self.peak),
        ]

        # Three: the one that is lower is to be shifted.
        rising = Signal()
        apart = Signal(PEAK_BITS + 1)
        m.d.comb += [rising.eq(~higher[-1]), apart.eq(Mux(rising, higher, lower))]
        added = self.total << 8
        amount = Signal(range(_CLAMP + 1), reset_less=True)
        rose = Signal(reset_less=True)
        shifted, kept = Signal(32, reset_less=True), Signal(32, reset_less=True)
        following = Signal(signed(PEAK_BITS), reset_less=True)
        m.d.sync += [
            amount.eq(Mux(apart[5:].any(), _CLAMP, apart[:5])),
            rose.eq(rising),
            following.eq(Mux(rising, peak, before)),
            shifted.eq(Mux(rising, old_sum, added)),
            kept.eq(Mux(rising, added, old_sum)),
        ]

        # Four: the bit that is shifted out last rounds.
        quotient = Signal(33, reset_less=True)
        kept_next = Signal(32, reset_less=True)
        m.d.sync += [
            quotient.eq(Cat(0, shifted)[:33] >> amount),
            kept_next.eq(kept),
            self.alignment.eq(Mux(self.final, Mux(rose, 0, amount), Mux(rose, amount, -amount))),
        ]

        # Five.
        m.d.sync += [
            store.data.l.eq(kept_next + quotient[1:] + quotient[0]),
            store.data.m.eq(delayed(m, following, 1)),
        ]
        written = delayed(m, self.valid, ALIGNED)
        m.d.comb += self.aligned.eq(written)
        m.d.sync += self.written.eq(written)
        m.d.comb += [store.en.eq(self.written & ~self.final), store.addr.eq(self.write_address)]
        return m
