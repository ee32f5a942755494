"""Gate in an AXI4 port: lets the manager be reset while memory still works on its bursts."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import axi4_signature
from weft.hdl.isa.config import Config

WRITES = 8
"""Largest number of write bursts with words missing."""
OUTSTANDING = 256
"""Limit of unanswered bursts in each direction; one less is forwarded."""


class AxiGate(wiring.Component):
    """Gate in an AXI4 port, without latency. Write data that precedes its address waits for it.

    When closed, the gate blocks new bursts and completes the bursts that memory has already seen. It accepts the words
    that memory reads, and supplies missing words of writes with all strobes 0. Valid signals stay high until they are
    accepted, so memory sees correct AXI4 at all times.

    Parameters
    ----------
    config : Config
    writes, outstanding : int
        See `WRITES` and `OUTSTANDING`.

    Members
    -------
    port : In(axi4_signature(config))
        The manager's port. The manager must be reset while the gate is closed and idle.
    memory : Out(axi4_signature(config))
    close : In(1)
    idle : Out(1)
        The gate is closed, and memory has answered all bursts.
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
        """Forward an address channel while there is `room`.

        Return whether an address is first offered to memory in this cycle, and whether one was already offered before.
        """
        port, memory = self.port, self.memory
        offered = Signal(name=f"{channel}_offered")
        first = Signal(name=f"{channel}_first")
        valid, ready = (getattr(memory, f"{channel}{name}") for name in ("valid", "ready"))
        m.d.comb += [
            first.eq(getattr(port, f"{channel}valid") & room & ~self.close & ~offered),
            valid.eq(first | offered),
            getattr(port, f"{channel}ready").eq(valid & ready),
        ]
        for name in ("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos"):
            m.d.comb += getattr(memory, f"{channel}{name}").eq(getattr(port, f"{channel}{name}"))
        # AXI4 forbids withdrawing an address, so an offered one stays even if the gate closes.
        m.d.sync += offered.eq(valid & ~ready)
        return first, offered

    def _read(self, m: Module) -> Value:
        """Forward the read channels; return whether none is in progress."""
        port, memory = self.port, self.memory
        # Bursts that memory has seen and not completed.
        asked = Signal(range(self.outstanding))
        first, offered = self._address(m, "ar", asked != self.outstanding - 1)
        for name in ("id", "data", "resp", "last", "valid"):
            m.d.comb += getattr(port, f"r{name}").eq(getattr(memory, f"r{name}"))
        m.d.comb += memory.rready.eq(port.rready | self.close)
        m.d.sync += asked.eq(asked + first - (memory.rvalid & memory.rready & memory.rlast))
        return ~(first | offered | asked.any())

    def _write(self, m: Module) -> Value:
        """Forward the write channels; return whether none is in progress."""
        port, memory = self.port, self.memory
        m.submodules.lengths = lengths = SyncFIFO(width=8, depth=self.writes)
        asked = Signal(range(self.outstanding))
        first, offered = self._address(m, "aw", lengths.w_rdy & (asked != self.outstanding - 1))
        # `lengths` has the length of each burst whose words have not all been sent; `beat` counts those of the oldest.
        beat = Signal(8)
        fills = Signal()  # the gate supplies the words
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
        # A word that is offered when the gate closes stays; the gate supplies the words after it.
        with m.If(~self.close):
            m.d.sync += fills.eq(0)
        with m.Elif(~memory.wvalid | memory.wready):
            m.d.sync += fills.eq(1)
        with m.If(taken):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))
        m.d.sync += asked.eq(asked + first - (memory.bvalid & memory.bready))
        return ~(first | offered | asked.any())
