"""A long fixed delay in memory instead of flip-flops."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out


class Delay(wiring.Component):
    """A delay line for words without reset: a memory that is read a fixed distance behind its writes.

    Parameters
    ----------
    width : int
    cycles : int
        The delay, at least 3.

    Members
    -------
    i : In(width)
    o : Out(width)
        `i` of `cycles` cycles ago, from a register. Unspecified for the first `cycles` cycles after reset.
    """

    def __init__(self, width: int, cycles: int) -> None:
        if cycles < 3:
            raise ValueError(f"a delay line takes at least 3 cycles, not {cycles}")
        self.width = width
        self.cycles = cycles
        super().__init__({"i": In(width), "o": Out(width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        distance = self.cycles - 2  # the memory's read takes one cycle, the output register another
        depth = 1 << distance.bit_length()
        m.submodules.ram = ram = memory.Memory(shape=self.width, depth=depth, init=[])
        store, fetch = ram.write_port(), ram.read_port()
        write_at, read_at = Signal(range(depth)), Signal(range(depth), init=depth - distance)
        m.d.sync += [write_at.eq(write_at + 1), read_at.eq(read_at + 1), self.o.eq(fetch.data)]
        m.d.comb += [
            store.en.eq(1),
            store.addr.eq(write_at),
            store.data.eq(self.i),
            # Always; saying so spares synthesis the logic for reading a word while it is written.
            fetch.en.eq(read_at != write_at),
            fetch.addr.eq(read_at),
        ]
        return m
