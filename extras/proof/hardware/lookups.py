"""Properties of `weft.hdl.vector.vec_lookup`: the effect of LOOKUP, and look-ups of VEC."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.isa import Lookup
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.operands import LOOKUP_LATENCY
from weft.hdl.vector.vec_lookup import VecLookup
from weft.hdl.vector.vec_streams import is_kind, results_layout, view

_FIELDS_AHEAD = LOOKUP_LATENCY + 1
"""Cycles that the fields of an instruction take to this stage."""


class _OpenLookup(VecLookup):
    """The stage with one more port for its table, which shows the byte at `place`.

    `Bench.peek_word` would be slow: the table has hundreds of words.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.place = Signal(range(LOOKUP_ENTRIES * config.lookup_tables))
        self.shown = Signal(8)

    def elaborate(self, platform: object) -> Module:
        m = super().elaborate(platform)
        port = m.submodules.copy_0.read_port(domain="comb")  # two lanes share it
        m.d.comb += [port.addr.eq(self.place), self.shown.eq(port.data)]
        return m


@proves(
    "vector/vec_lookup",
    {
        "entries of one table, with the kernel engine": SMALLEST.replace(lookup_tables=1, kernel=16),
        "entries of two tables": SMALLEST.replace(lookup_tables=2),
    },
    Induction(6),
)
class LookupBench(Bench, unit=_OpenLookup):
    """Each byte of a LOOKUP is written to its entry, once. A result is the byte that was last written to the entry that
    it names, two cycles later, or passes unchanged if its instruction does not look up. Its description passes with it.

    The inputs are free. Assumed, as the reader guarantees: no byte of a LOOKUP comes in the cycle in which the next
    instruction is loaded. One entry, which may be any, is watched, with the byte that LOOKUP has written to it since
    the reset: the first byte goes to the entry that the instruction names, each other byte to the next entry. A result
    that is looked up there, in a cycle without a write, is that byte two cycles later.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.depth = LOOKUP_ENTRIES * self.config.lookup_tables
        self.entry = self.constant(m, range(self.depth), "entry")
        self.known, self.content = Signal(name="known"), Signal(8, name="content", reset_less=True)
        self._model_table(m)
        m.d.comb += dut.place.eq(self.entry)
        self.claim("the table", implies(self.known, dut.shown == self.content))
        self.looks = ago(m, dut.looks_up, _FIELDS_AHEAD, "looks", reset=True)
        chosen = ago(m, dut.chosen, _FIELDS_AHEAD, "chosen", reset=True)
        self.table = chosen[: (self.config.lookup_tables - 1).bit_length()]
        before = results_layout(self.config)(ago(m, dut.i.as_value(), LOOKUP_LATENCY, "before", reset=True))
        for name in ("write", "end", "index", "dst"):
            self.claim(f"{name} passes", Value.cast(dut.o[name]) == Value.cast(before[name]))
        for lane in range(self.config.lanes):
            self._claim_lane(m, lane, Value.cast(before.bytes[lane]))

    def _claim_lane(self, m: Module, lane: int, before: Value) -> None:
        """Claim that a result leaves unchanged, or as the content of its entry."""
        dut, place = self.dut, Signal(range(self.depth), name=f"place{lane}")
        m.d.comb += place.eq(Cat((dut.i.bytes[lane].as_signed() + 128)[:8], self.table))
        if self.config.kernel:
            with m.If(dut.outside):
                m.d.comb += place.eq(Cat(dut.index[lane], dut.table[: len(self.table)]))
        asked = self.known & ~self.writes & (place == self.entry)
        found = ago(m, asked, LOOKUP_LATENCY, f"found{lane}", reset=True)
        due = ago(m, self.content, LOOKUP_LATENCY, f"due{lane}")
        result = Value.cast(dut.o.bytes[lane])
        self.claim(f"lane {lane} passes", implies(~self.looks, result == before))
        self.claim(f"lane {lane} is looked up", implies(self.looks & found, result == due))
        self.cover(f"lane {lane} is looked up", self.looks & found & (result == 0xA5))
        if self.config.kernel:
            self.claim(f"entry of lane {lane}", implies(found, Value.cast(dut.entries[lane]) == due))

    def _model_table(self, m: Module) -> None:
        dut = self.dut
        op: Any = view(Lookup, dut.payload)
        on, following = Signal(name="on"), Signal(range(self.depth), name="next_entry")
        comes = on & dut.byte_valid
        self.assume(~(dut.load & comes))
        with m.If(dut.load):
            m.d.sync += [on.eq(is_kind(Lookup, dut.payload)), following.eq(Cat(op.entry, op.table))]
        with m.Elif(comes):
            m.d.sync += following.eq(following + 1)
        # Memory takes it a cycle later.
        self.writes = ago(m, comes, 1, "writes", reset=True)
        place, byte = ago(m, following, 1, "place"), ago(m, dut.byte, 1, "byte")
        with m.If(self.writes & (place == self.entry)):
            m.d.sync += [self.known.eq(1), self.content.eq(byte)]
        self.cover("the last entry is written", self.writes & (place == self.depth - 1))
        self.claim("filling", self.peek("fills") == on)
        self.claim("a byte is written", self.peek("fill") == self.writes)
        entry = self.peek("entry")
        due = Mux(self.writes, place, following)
        self.claim("the entry that is next", implies(on, entry == due))
        self.claim("the byte", self.peek("table_byte") == byte)
