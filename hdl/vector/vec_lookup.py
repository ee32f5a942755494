"""The look-up tables of the vector unit, through which results pass on their way to the writer."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import Lookup, Vec
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.operands import LOOKUP_LATENCY
from weft.hdl.vector.probabilities import delayed, lane_tables
from weft.hdl.vector.vec_streams import is_kind, results_layout, view


class VecLookup(wiring.Component):
    """A rigid pipeline of `LOOKUP_LATENCY` cycles. Results of a `Vec` with ``lookup`` become entries of its table,
    those of all other instructions pass unchanged. `Lookup` fills a table.

    Parameters
    ----------
    config : Config
        With look-up tables.

    Members
    -------
    load, payload : In(1), In(Vec.layout())
        An instruction starts, which may be a `Lookup`.
    looks_up, chosen : In(1), In
        Whether results are looked up, and in which table: so much ahead of them as the elements that they are made of
        are not with `weft.hdl.vector.vec.VecOperands` yet.
    byte_valid, byte : In(1), In(8)
        An element, which `Lookup` stores.
    i, o : In(results_layout(config)), Out(results_layout(config))
    outside : In(1)
        There is no result, and `index` and `table` tell what `entries` become two cycles later. With the kernel engine
        only, like the members below.
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
        # The last results of the instruction before need so long until they are out.
        table, looks_up = (delayed(m, value, LOOKUP_LATENCY + 1) for value in (self.chosen, self.looks_up))
        fills, entry = Signal(), Signal(range(depth))
        byte, fill = Signal(8, reset_less=True), Signal()
        m.d.sync += [byte.eq(self.byte), fill.eq(fills & self.byte_valid)]
        filling = view(Lookup, self.payload)
        with m.If(self.load):
            m.d.sync += [
                fills.eq(is_kind(Lookup, self.payload)),
                entry.eq(Cat(filling.entry, filling.table)),
            ]
        with m.Elif(fill):
            m.d.sync += entry.eq(entry + 1)

        # Entry 0 is that of -128. A single table leaves nothing of its number.
        indices = [Cat(result[:7], ~result[7], table) for result in self.i.bytes]
        if self.config.kernel:
            indices = [
                Mux(self.outside, Cat(self.index[lane], self.table), index)
                for lane, index in enumerate(indices)
            ]
        found = lane_tables(m, depth, indices, fill, entry, byte, exclusive=True)
        passed = delayed(m, self.i.as_value(), LOOKUP_LATENCY)
        m.d.comb += self.o.eq(data.View(results_layout(self.config), passed))
        with m.If(looks_up):
            m.d.comb += [self.o.bytes[lane].eq(output) for lane, output in enumerate(found)]
        if self.config.kernel:
            m.d.comb += [self.entries[lane].eq(output) for lane, output in enumerate(found)]
        return m
