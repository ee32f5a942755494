"""The scratchpad, and the vector that is made for it."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.lib.parity import Coding


class Scratchpad(wiring.Component):
    """Vectors of N bytes; one port reads, another writes what was pushed.

    Parameters
    ----------
    config : Config

    Members
    -------
    read, read_address : In(1), In
    vector : Out(8 * N)
        In the cycle after `read`, until the next one.
    push, byte : In(1), In(8)
        Append a byte to the vector that is made; N bytes are a whole one.
    write, write_address : In(1), In
        Write it.
    write_byte, column : In(1), In(range(N))
        Write its first byte to this column only, and turn the vector by one.
    wrong : Out(1)
        With `parity` only: the vector had changed since it was written; in the cycle after `read`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        address = config.widths.scratchpad_address
        super().__init__(
            {
                "read": In(1),
                "read_address": In(address),
                "vector": Out(config.widths.vector),
                "push": In(1),
                "byte": In(8),
                "write": In(1),
                "write_address": In(address),
                "write_byte": In(1),
                "column": In(range(config.n)),
            }
            | ({"wrong": Out(1)} if config.parity else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self.config
        coding = Coding(config, 8)
        size = coding.width(8)
        m.submodules.memory = memory = Memory(shape=config.n * size, depth=config.scratchpad_size, init=[])
        read, write = memory.read_port(), memory.write_port(granularity=size)
        made = Signal(config.widths.vector, reset_less=True)
        with m.If(self.push):
            m.d.sync += made.eq(Cat(made[8:], self.byte))
        with m.Elif(self.write_byte):
            m.d.sync += made.eq(Cat(made[8:], made[:8]))
        vector, changed = coding.decode(read.data)
        if coding.checked:
            known = Signal()
            m.d.sync += known.eq(self.read)
            m.d.comb += self.wrong.eq(known & changed)
        m.d.comb += [
            read.en.eq(self.read),
            read.addr.eq(self.read_address),
            self.vector.eq(vector),
            write.addr.eq(self.write_address),
            write.data.eq(coding.encode(Mux(self.write_byte, made[:8].replicate(config.n), made))),
            write.en.eq(Mux(self.write, (1 << config.n) - 1, Mux(self.write_byte, 1 << self.column, 0))),
        ]
        return m
