"""From the AXI4 port of a sequential core to a memory port, without a buffer."""

from __future__ import annotations

from amaranth.hdl import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.port import memory_port
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.isa.config import Config


class Direct(wiring.Component):
    """Does what `weft.boards.axi_bridge.AxiBridge` does for a core that sends what
    `weft.hdl.sequential.mover.Mover` does: bursts of one beat, each after the response to the one before, its words
    offered with its address and taken at once. All responses are OKAY.

    Parameters
    ----------
    config : Config

    Members
    -------
    axi : In(axi4_signature(config))
    memory : Out(memory_port(config.bus_bytes))
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {"axi": In(axi4_signature(config)), "memory": Out(memory_port(config.bus_bytes))},
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi, memory = self.axi, self.memory
        m.d.comb += [
            memory.command.valid.eq(axi.arvalid | axi.awvalid),
            memory.command.payload.write.eq(axi.awvalid),
            memory.command.payload.address.eq(Mux(axi.awvalid, axi.awaddr, axi.araddr)),
            memory.command.payload.beats.eq(1),
            axi.arready.eq(memory.command.ready & ~axi.awvalid),
            axi.awready.eq(memory.command.ready),
            memory.write.valid.eq(axi.wvalid),
            memory.write.payload.data.eq(axi.wdata),
            memory.write.payload.strobe.eq(axi.wstrb),
            axi.wready.eq(memory.write.ready),
            memory.read.ready.eq(1),
            axi.rvalid.eq(memory.read.valid),
            axi.rdata.eq(memory.read.payload),
            axi.rlast.eq(1),
            axi.bvalid.eq(memory.written),
        ]
        return m
