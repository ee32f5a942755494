"""A gate in an AXI4 port: lets the manager behind it be reset while memory still works for it."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import axi4_signature
from weft.hdl.isa.config import Config

WRITES = 8
"""Bursts of writes that may be without all their words."""
OUTSTANDING = 256
"""More bursts than are passed on, each way, before the first is answered."""


class AxiGate(wiring.Component):
    """Passes an AXI4 port on, without delay but for words that come before their address, which wait for it.

    Closed, it holds back bursts, and ends those that memory already knows: it takes the words that memory reads, and
    gives words without any byte for writes whose words have not all come. What is offered stays until it is taken, so
    that memory never sees anything but AXI4.

    Parameters
    ----------
    config : Config
    writes, outstanding : int
        See `WRITES` and `OUTSTANDING`.

    Members
    -------
    port : In(axi4_signature(config))
        The manager's. It must be reset while the gate is closed and idle.
    memory : Out(axi4_signature(config))
    close : In(1)
    idle : Out(1)
        The gate is closed, and memory has answered all it was asked for.
    """

    def __init__(self, config: Config, *, writes: int = WRITES, outstanding: int = OUTSTANDING) -> None:
        self.config, self.writes, self.outstanding = config, writes, outstanding
        super().__init__(
            {
                "port": In(axi4_signature(config)),
                "memory": Out(axi4_signature(config)),
                "close": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        quiet = self._read(m) & self._write(m)
        m.d.sync += self.idle.eq(self.close & quiet)
        return m

    def _address(self, m: Module, channel: str, room: Value) -> tuple[Signal, Signal]:
        """Pass an address channel on while there is `room`. Returns whether an address is offered to memory for the
        first time in this cycle, and whether one stood there already."""
        port, memory = self.port, self.memory
        offered, first = Signal(name=f"{channel}_offered"), Signal(name=f"{channel}_first")
        valid, ready = (getattr(memory, f"{channel}{name}") for name in ("valid", "ready"))
        m.d.comb += [
            first.eq(getattr(port, f"{channel}valid") & room & ~self.close & ~offered),
            valid.eq(first | offered),
            getattr(port, f"{channel}ready").eq(valid & ready),
        ]
        for name in ("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos"):
            m.d.comb += getattr(memory, f"{channel}{name}").eq(getattr(port, f"{channel}{name}"))
        m.d.sync += offered.eq(valid & ~ready)
        return first, offered

    def _read(self, m: Module) -> Value:
        """The two channels of reads; returns whether nothing is under way."""
        port, memory = self.port, self.memory
        asked = Signal(range(self.outstanding))
        first, offered = self._address(m, "ar", asked != self.outstanding - 1)
        for name in ("id", "data", "resp", "last", "valid"):
            m.d.comb += getattr(port, f"r{name}").eq(getattr(memory, f"r{name}"))
        m.d.comb += memory.rready.eq(port.rready | self.close)
        m.d.sync += asked.eq(asked + first - (memory.rvalid & memory.rready & memory.rlast))
        return ~(first | offered | asked.any())

    def _write(self, m: Module) -> Value:
        """The three channels of writes; returns as `_read` does."""
        port, memory = self.port, self.memory
        m.submodules.lengths = lengths = SyncFIFO(width=8, depth=self.writes)
        asked = Signal(range(self.outstanding))
        first, offered = self._address(m, "aw", lengths.w_rdy & (asked != self.outstanding - 1))
        beat = Signal(8)
        fills = Signal()  # words are the gate's own
        last = beat == lengths.r_data
        taken = memory.wvalid & memory.wready
        m.d.comb += [
            lengths.w_data.eq(port.awlen),
            lengths.w_en.eq(first),
            lengths.r_en.eq(taken & last),
            memory.wvalid.eq(lengths.r_rdy & (port.wvalid | fills)),
            memory.wdata.eq(Mux(fills, 0, port.wdata)),
            memory.wstrb.eq(Mux(fills, 0, port.wstrb)),
            memory.wlast.eq(last),
            port.wready.eq(lengths.r_rdy & memory.wready & ~fills),
            port.bid.eq(memory.bid),
            port.bresp.eq(memory.bresp),
            port.bvalid.eq(memory.bvalid),
            memory.bready.eq(port.bready | self.close),
        ]
        with m.If(~self.close):
            m.d.sync += fills.eq(0)
        with m.Elif(~memory.wvalid | memory.wready):
            m.d.sync += fills.eq(1)
        with m.If(taken):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))
        m.d.sync += asked.eq(asked + first - (memory.bvalid & memory.bready))
        return ~(first | offered | asked.any())
