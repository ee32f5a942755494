"""The look-up tables of the vector unit, through which results pass on their way to the writer."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import Lookup, Vec
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.operands import LOOKUP_LATENCY
from weft.hdl.vector.probabilities import delay, lane_tables
from weft.hdl.vector.vec_streams import is_kind, results_layout, view


class VecLookup(wiring.Component):
    """Look-up tables that replace results: a pipeline of `LOOKUP_LATENCY` cycles without back-pressure.

    Results of a `Vec` with ``lookup`` become entries of its table; results of other instructions pass unchanged.
    `Lookup` fills a table.

    Parameters
    ----------
    config : Config
        With look-up tables.

    Members
    -------
    load, payload : In(1), In(Vec.layout())
        An instruction starts, which may be a `Lookup`.
    looks_up, chosen : In(1), In
        Results are looked up; in which table. They apply to `o` of `LOOKUP_LATENCY + 1` cycles later.
    byte_valid, byte : In(1), In(8)
        An element for `Lookup` to store.
    i, o : In(results_layout(config)), Out(results_layout(config))
    outside : In(1)
        There is no result in this cycle, and `entries` become those of `index` and `table` two cycles later. This and
        the members below only with the kernel engine.
    index, table, entries : In(lanes x 8), In, Out(lanes x 8)
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        lanes = data.ArrayLayout(8, config.lanes)
        outside = {
            "outside": In(1),
            "index": In(lanes),
            "table": In(range(max(config.lookup_tables, 2))),
            "entries": Out(lanes),
        }
        super().__init__(
            {
                "load": In(1),
                "payload": In(Vec.layout()),
                "looks_up": In(1),
                "chosen": In(range(max(config.lookup_tables, 2))),
                "byte_valid": In(1),
                "byte": In(8),
                "i": In(results_layout(config)),
                "o": Out(results_layout(config)),
                **(outside if config.kernel else {}),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        depth = LOOKUP_ENTRIES * self.config.lookup_tables
        # Delayed until the last results of the previous instruction have left.
        table = delay(m, self.chosen, LOOKUP_LATENCY + 1, "table")
        looks_up = delay(m, self.looks_up, LOOKUP_LATENCY + 1, "looks_up")
        fills = Signal()
        entry = Signal(range(depth))
        table_byte = Signal(8, reset_less=True)
        fill = Signal()
        m.d.sync += [table_byte.eq(self.byte), fill.eq(fills & self.byte_valid)]
        filling = view(Lookup, self.payload)
        with m.If(self.load):
            m.d.sync += [
                fills.eq(is_kind(Lookup, self.payload)),
                entry.eq(Cat(filling.entry, filling.table)),
            ]
        with m.Elif(fill):
            m.d.sync += entry.eq(entry + 1)

        # Entry 0 belongs to -128. With a single table, `table` has no bits.
        indices = [Cat(result[:7], ~result[7], table) for result in self.i.bytes]
        if self.config.kernel:
            indices = [
                Mux(self.outside, Cat(self.index[lane], self.table), index)
                for lane, index in enumerate(indices)
            ]
        outputs = lane_tables(m, depth, indices, fill, entry, table_byte, exclusive=True)
        passed = delay(m, self.i.as_value(), LOOKUP_LATENCY, "passed")
        m.d.comb += self.o.eq(data.View(results_layout(self.config), passed))
        with m.If(looks_up):
            m.d.comb += [self.o.bytes[lane].eq(output) for lane, output in enumerate(outputs)]
        if self.config.kernel:
            m.d.comb += [self.entries[lane].eq(output) for lane, output in enumerate(outputs)]
        return m
