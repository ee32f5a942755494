"""Runs of bytes to bursts of the bus."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.lib.ports import BusRequest
from weft.hdl.lib.skid_buffer import SkidBuffer

PAGE = 4096
"""Bytes that an AXI burst must not cross a multiple of."""
MAX_BEATS = 256


def block_beats(config: Config, beats: int = MAX_BEATS) -> int:
    """Beats in a block of memory: bursts end at multiples of this, so that where one ends is seen from its address
    alone, without counting."""
    return min(beats, MAX_BEATS, PAGE // config.bus_bytes)


def run_layout(tag: int = 1) -> data.StructLayout:
    """``bytes`` (at least 1) from ``address`` on, and `tag` bits that go with them."""
    return data.StructLayout({"address": 32, "bytes": 32, "tag": tag})


class BurstSplitter(wiring.Component):
    """Cuts runs of bytes into bursts that cover them, in order, a burst per cycle.

    Parameters
    ----------
    config : Config
    beats : int
        Limit of a burst, a power of two. Bursts end at multiples of `block_beats` bus words.
    tag : int
        Width of the tag of a run.

    Members
    -------
    run : In(stream of run_layout(tag))
    request : Out(stream of BusRequest)
    last : Out(1)
        With ``request``: the final burst of its run.
    tag : Out(tag)
        With ``request``: the tag of its run.
    idle : Out(1)
        No burst is left.
    """

    def __init__(self, config: Config, *, beats: int = MAX_BEATS, tag: int = 1) -> None:
        self.config = config
        self.block = block_beats(config, beats)
        super().__init__(
            {
                "run": In(stream.Signature(run_layout(tag))),
                "request": Out(stream.Signature(BusRequest)),
                "last": Out(1),
                "tag": Out(tag),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        align = (self.config.bus_bytes - 1).bit_length()
        inside = (self.block - 1).bit_length()
        request = self.request.payload
        run = data.StructLayout({"word": 32 - align, "rest": 32, "tag": len(self.tag)})
        m.submodules.skid = waiting = SkidBuffer(run)
        coming, following = waiting.i.payload, waiting.o.payload
        # A refused burst must not reach back to runs in the same cycle either.
        burst = data.StructLayout({"request": BusRequest, "last": 1, "tag": len(self.tag)})
        m.submodules.bursts = bursts = SkidBuffer(burst)
        cut = bursts.i.payload
        active = Signal()
        tag = Signal.like(self.tag)
        word = Signal(32 - align)
        rest = Signal(32)  # words of the run after the first
        room = Signal(inside)  # words of the block after the first
        last = Signal()  # rest <= room, found out a cycle before
        move = Signal()
        left = Signal(32)
        m.d.comb += [
            waiting.i.valid.eq(self.run.valid),
            self.run.ready.eq(waiting.i.ready),
            coming.word.eq(self.run.payload.address >> align),
            coming.rest.eq(
                (self.run.payload.bytes + self.run.payload.address[:align] - 1)[:33] >> align,
            ),
            coming.tag.eq(self.run.payload.tag),
            room.eq(~word[:inside]),
            left.eq(rest - room - 1),
            bursts.i.valid.eq(active),
            move.eq(bursts.i.ready),
            cut.request.address.eq(word << align),
            cut.request.beats.eq(Mux(last, rest[:inside], room) + 1),
            cut.last.eq(last),
            cut.tag.eq(tag),
            waiting.o.ready.eq(~active | (move & last)),
            self.request.valid.eq(bursts.o.valid),
            bursts.o.ready.eq(self.request.ready),
            request.eq(bursts.o.payload.request),
            self.last.eq(bursts.o.payload.last),
            self.tag.eq(bursts.o.payload.tag),
            self.idle.eq(~waiting.o.valid & ~active & ~bursts.o.valid),
        ]
        with m.If(waiting.o.ready):
            m.d.sync += [
                active.eq(waiting.o.valid),
                word.eq(following.word),
                rest.eq(following.rest),
                last.eq(following.rest <= ~following.word[:inside]),
                tag.eq(following.tag),
            ]
        with m.Elif(move):  # not the last burst: on to the next block
            m.d.sync += [
                word.eq(((word >> inside) + 1) << inside),
                rest.eq(left),
                last.eq(~left[inside:].any()),
            ]
        return m
