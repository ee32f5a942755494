"""Properties of `weft.hdl.vector.softmax`: the states of rows."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, Property
from weft.hdl.isa.config import Config
from weft.hdl.vector.probabilities import PEAK, PEAK_BITS
from weft.hdl.vector.softmax import ALIGNED, TOTAL, WRITTEN, RowStates

_CONFIG = Config(n=2, lanes=2, bus_bytes=4, row_states=4)
_READ = 2
"""Cycles from an address to its state."""
_LIMIT = 31
"""Limit of differences of exponents."""


class UpdateBench(Bench):
    """Maximum, sum and alignment follow from the old state, the vector's exponent and its sum by their definition, each
    in the documented cycle and for all values.

    The inputs are free, as are the states that are read. `final` is constant, as users guarantee.
    """

    UNIT = RowStates

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m, "final")
        m.d.comb += dut.final.eq(self.constant(m, 1, "final"))
        old = self.peek("old", PEAK_BITS + 32)
        self.claim("sum of the state", dut.sum == old[PEAK_BITS:])
        # Values of the cycle in which the sum of the vector comes.
        late = TOTAL - _READ
        fresh = ago(m, dut.fresh, TOTAL, "fresh")
        before = ago(m, old, late, "before")
        maximum = Mux(fresh, PEAK, before[:PEAK_BITS].as_signed())
        sum_before = Mux(fresh, 0, before[PEAK_BITS:])
        peak = ago(m, dut.peak, late, "peak").as_signed()
        total = dut.total << 8

        following = Mux(peak > maximum, peak, maximum)
        down, own = (_limited(following - value) for value in (maximum, peak))  # u, v
        whole = (rsh(m, sum_before, down, "u") + rsh(m, total, own, "v"))[:32]
        aligned = Mux(dut.final, _limited(Mux(maximum > peak, maximum - peak, 0)), down - own)

        # A reset clears the valid bits of the pipeline, not its data.
        update = ago(m, dut.valid, ALIGNED, "update", reset=True)
        self.claim("alignment comes in its cycle", dut.aligned == update)
        due = ago(m, aligned, ALIGNED - TOTAL, "alignment").as_signed()
        self.claim("alignment", implies(update, dut.alignment == due))
        written = ago(m, update, WRITTEN - ALIGNED, "written", reset=True)
        self.claim("it is written in its cycle", dut.written == written)
        word = self.peek("store__data", PEAK_BITS + 32)
        exponent, rest = (ago(m, v, WRITTEN - TOTAL, n) for v, n in ((following, "m"), (whole, "l")))
        self.claim("maximum", implies(written, word[:PEAK_BITS].as_signed() == exponent.as_signed()))
        self.claim("sum", implies(written, word[PEAK_BITS:] == rest))
        self.claim("final keeps states", self.peek("store__en", 1) == (written & ~dut.final))
        address = self.peek("store__addr", len(dut.address))
        self.claim("where it is written", address == dut.write_address)
        self.cover("a state that rises", written & (word[PEAK_BITS:] > 1 << 16) & (exponent.as_signed() == 5))


class MemoryBench(Bench):
    """A read returns the state that was written last to its address.

    One address, which may be any, is watched: two cycles after a read of it comes the state that was written to it last
    since the reset.
    """

    UNIT = RowStates

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        watched = self.constant(m, len(dut.address), "watched")
        word, old = (self.peek(name, PEAK_BITS + 32) for name in ("store__data", "old"))
        content, known = Signal(PEAK_BITS + 32, reset_less=True), Signal()
        writes = self.peek("store__en", 1) & (self.peek("store__addr", len(dut.address)) == watched)
        with m.If(writes):
            m.d.sync += [content.eq(word), known.eq(1)]
        read = ago(m, (dut.address == watched) & known, _READ, "read", reset=True)
        due = ago(m, content, _READ, "due")
        self.claim("reads what was written", implies(read, old == due))
        self.cover("reads what was written", read & (due[PEAK_BITS:] > 300))


def rsh(m: Module, value: Value, shift: Value, name: str) -> Value:
    """Return ``value / 2**shift``, rounded half up, as `weft.sim.golden.memories.rsh`."""
    half = Signal(_LIMIT + 1, name=f"half_{name}")
    m.d.comb += half.eq((1 << shift) >> 1)
    return (value + half) >> shift


def _limited(value: Value) -> Value:
    """Return a non-negative difference, limited to 31."""
    return Mux(value > _LIMIT, _LIMIT, value[:5].as_unsigned())


def properties() -> Iterator[Property]:
    yield UpdateBench.proves("vector/row_states", "update", Induction(9), _CONFIG)
    yield MemoryBench.proves("vector/row_states", "memory of 4", Invariant(), _CONFIG)
