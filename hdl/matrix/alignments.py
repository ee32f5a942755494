"""The alignments: a shift for each vector of probabilities under way, from the vector unit to the matrix unit."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In

from weft.hdl.isa.config import Config
from weft.hdl.lib import ports


class Alignments(wiring.Component):
    """A memory of ``config.alignments`` signed shifts. Nobody waits for it.

    A read in the same cycle as a write to the same address returns the old alignment.

    Parameters
    ----------
    config : Config
        With softmax.

    Members
    -------
    write : In(ports.alignment_write(config))
    mm, vec : In(ports.alignment_read(config))
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "write": In(ports.alignment_write(config)),
                "mm": In(ports.alignment_read(config)),
                "vec": In(ports.alignment_read(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(
            shape=ports.ALIGNMENT_BITS, depth=self.config.alignments, init=[]
        )
        store = memory.write_port()
        m.d.comb += self.write.ready.eq(1)
        m.d.sync += [
            store.en.eq(self.write.valid),
            store.addr.eq(self.write.address),
            store.data.eq(self.write.data),
        ]
        for name in ("mm", "vec"):
            port, fetch = getattr(self, name), memory.read_port()
            output = Signal(ports.ALIGNMENT_BITS, name=f"output_{name}", reset_less=True)
            m.d.comb += [port.ready.eq(1), port.data.eq(output)]
            m.d.sync += [fetch.en.eq(port.valid), fetch.addr.eq(port.address), output.eq(fetch.data)]
        return m
