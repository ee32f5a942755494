"""A skid buffer: a stream whose both directions come from registers."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ShapeLike, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


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
