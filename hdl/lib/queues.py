"""Queues that the library lacks: in block memory, for what is too deep for distributed memory; and of one word."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ShapeLike, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

BLOCK_RAM = {"ram_style": "block"}
"""Attributes of a memory that synthesis is to put into block RAM, however small it is."""


class BlockFifo(wiring.Component):
    """Words come out in the order they went in, two cycles later at the earliest; one goes in and one out a cycle.

    Parameters
    ----------
    shape : shape
    depth : int
        Words in memory, a power of two; one more stands at the output.

    Members
    -------
    i : In(stream of shape)
    o : Out(stream of shape)
        Straight from the memory, which on most parts is too slow for much logic behind it.
    """

    def __init__(self, shape: ShapeLike, depth: int) -> None:
        if depth < 2 or depth & depth - 1:
            raise ValueError(f"the depth of a queue in block memory is a power of two from 2 on, not {depth}")
        self.shape = shape
        self.depth = depth
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.ram = ram = Memory(shape=self.shape, depth=self.depth, init=[], attrs=BLOCK_RAM)
        store, fetch = ram.write_port(), ram.read_port()
        # One bit more than an address: how often they wrapped tells full from empty.
        written, read = Signal(range(2 * self.depth)), Signal(range(2 * self.depth))
        top = len(written) - 1
        same, read_next = Signal(), Signal()
        m.d.comb += [
            same.eq(written[:top] == read[:top]),
            self.i.ready.eq(~same | (written[top] == read[top])),
            store.en.eq(self.i.valid & self.i.ready),
            store.addr.eq(written),
            store.data.eq(self.i.payload),
            # A word is never read in the cycle that writes it; saying it with addresses spares synthesis the logic
            # that would return the old word from memories that cannot.
            read_next.eq((written != read) & (~self.o.valid | self.o.ready)),
            fetch.en.eq(read_next & ~(store.en & same)),
            fetch.addr.eq(read),
            self.o.payload.eq(fetch.data),
        ]
        m.d.sync += [written.eq(written + store.en), read.eq(read + read_next)]
        with m.If(read_next):
            m.d.sync += self.o.valid.eq(1)
        with m.Elif(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        return m


def register_or_fifo(width: int, depth: int) -> SyncFIFO | SyncFIFOBuffered:
    """A queue in distributed memory; if it holds only one word, a register."""
    return SyncFIFO(width=width, depth=depth) if depth > 1 else SyncFIFOBuffered(width=width, depth=depth)


class SkidBuffer(wiring.Component):
    """Two entries: one transfer a cycle, one cycle of latency, and no path from `o` to `i`.

    It stands where a refusal would otherwise go through several units in one cycle.

    Parameters
    ----------
    shape : shape
        Payload.

    Members
    -------
    i : In(stream of shape)
        ``ready`` is a register.
    o : Out(stream of shape)
        ``valid`` and ``payload`` are registers.
    """

    def __init__(self, shape: ShapeLike) -> None:
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        i, o = self.i, self.o
        kept = Signal.like(Value.cast(o.payload), name="kept", reset_less=True)
        full = Signal()
        move = Signal()
        m.d.comb += [i.ready.eq(~full), move.eq(~o.valid | o.ready)]
        with m.If(~full):
            m.d.sync += kept.eq(Value.cast(i.payload))
        with m.If(move):
            m.d.sync += [
                full.eq(0),
                o.valid.eq(i.valid | full),
                Value.cast(o.payload).eq(Mux(full, kept, Value.cast(i.payload))),
            ]
        with m.Elif(i.valid):
            m.d.sync += full.eq(1)
        return m
