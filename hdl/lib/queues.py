"""Queues that Amaranth's library lacks: a FIFO in block RAM, a FIFO of one word, and a skid buffer."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ShapeLike, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

BLOCK_RAM = {"ram_style": "block"}
"""Attributes that make synthesis put a memory into block RAM, however small it is."""


class BlockFifo(wiring.Component):
    """FIFO in block RAM: one word in and one word out a cycle, with a latency of two cycles.

    Parameters
    ----------
    shape : shape
    depth : int
        Words in memory, a power of two. The output register holds one more word.

    Members
    -------
    i : In(stream of shape)
    o : Out(stream of shape)
        Directly from the memory, which on most FPGAs leaves little time for logic in the same cycle.
    """

    def __init__(self, shape: ShapeLike, depth: int) -> None:
        if depth < 2 or depth & depth - 1:
            raise ValueError(
                f"the depth of a queue in block RAM must be a power of two, at least 2, not {depth}"
            )
        self.shape = shape
        self.depth = depth
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.ram = ram = Memory(shape=self.shape, depth=self.depth, init=[], attrs=BLOCK_RAM)
        store = ram.write_port()
        fetch = ram.read_port()
        # One bit more than an address: the parity of the wraps distinguishes full from empty.
        written = Signal(range(2 * self.depth))
        read = Signal(range(2 * self.depth))
        top = len(written) - 1
        same = Signal()
        read_next = Signal()
        m.d.comb += [
            same.eq(written[:top] == read[:top]),
            self.i.ready.eq(~same | (written[top] == read[top])),
            store.en.eq(self.i.valid & self.i.ready),
            store.addr.eq(written),
            store.data.eq(self.i.payload),
            # A word is never read in the cycle that writes it. The comparison of addresses makes this visible to
            # synthesis, which otherwise adds logic for memories that do not return the old word.
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
    """Return a FIFO in distributed memory; a register if the depth is one word."""
    return SyncFIFO(width=width, depth=depth) if depth > 1 else SyncFIFOBuffered(width=width, depth=depth)


class SkidBuffer(wiring.Component):
    """Stream register with two entries: one transfer a cycle, one cycle of latency, and no path from `o` to `i`.

    It is used where back-pressure would otherwise pass through several units in one cycle.

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
        # The second entry, filled when `o` stalls. While it is full, `i` stalls.
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
