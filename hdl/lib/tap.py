"""A short memory between two points of a rigid pipeline, where values travel at their own pace."""

from __future__ import annotations

from amaranth.hdl import Module, ShapeLike, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out


class Tap(wiring.Component):
    """Words come out in the order they went in. It counts nothing: who takes a word knows that it is there.

    Parameters
    ----------
    shape : shape
    words : int
        Words that are between the two points at most.

    Members
    -------
    push : In(1)
        Put `i` in; it may be taken from the next cycle on.
    i : In(shape)
    pop : In(1)
        Have taken `o`.
    o : Out(shape)
        The oldest word. Not from a register.
    """

    def __init__(self, shape: ShapeLike, words: int) -> None:
        self.shape = shape
        self.words = words
        super().__init__({"push": In(1), "i": In(shape), "pop": In(1), "o": Out(shape)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        depth = 1 << max(self.words - 1, 1).bit_length()
        # Read without a clock, so that it becomes distributed memory.
        m.submodules.ram = ram = memory.Memory(shape=self.shape, depth=depth, init=[])
        store, fetch = ram.write_port(), ram.read_port(domain="comb")
        write_at, read_at = Signal(range(depth)), Signal(range(depth))
        m.d.sync += [write_at.eq(write_at + self.push), read_at.eq(read_at + self.pop)]
        m.d.comb += [
            store.en.eq(self.push),
            store.addr.eq(write_at),
            store.data.eq(self.i),
            fetch.addr.eq(read_at),
            self.o.eq(fetch.data),
        ]
        return m
