"""The packer: vectors into the bytes of bus beats."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.burst import PAGE, block_beats
from weft.hdl.isa.config import Config
from weft.hdl.lib.ports import bus_write_data
from weft.hdl.lib.skid_buffer import SkidBuffer


def vector_layout(config: Config) -> data.StructLayout:
    """A vector on its way to DRAM: its low ``count`` bytes go to ``pointer`` (address modulo a page) and on;
    ``last``: of its run."""
    return data.StructLayout(
        {
            "pointer": (PAGE - 1).bit_length(),
            "count": (config.n - 1).bit_length() + 1,
            "last": 1,
            "data": config.widths.vector,
        }
    )


def _rotated_layout(config: Config) -> data.StructLayout:
    """A vector rotated to its place: the lanes that it fills, those from its first one on (``here``), whether it
    reaches the end of the beat (``full``) or beyond (``spill``)."""
    flags = dict.fromkeys(("full", "spill", "last", "block_end"), 1)
    width = config.bus_bytes
    return data.StructLayout({"data": 8 * width, "lanes": width, "here": width, **flags})


class Packer(wiring.Component):
    """Packs runs of vectors into write beats: a vector in and a beat out per cycle, and a further cycle where a run
    ends in the beat after its last vector's first byte. The vectors of a run are contiguous in memory.

    Parameters
    ----------
    config : Config

    Members
    -------
    vector : In(stream of vector_layout(config))
    beat : Out(stream of bus_write_data(config))
        Cut into the same bursts as `weft.hdl.bus.burst.BurstSplitter` cuts the runs.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "vector": In(stream.Signature(vector_layout(config))),
                "beat": Out(stream.Signature(bus_write_data(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = self.config.bus_bytes
        align = (width - 1).bit_length()
        vector, beat = self.vector.payload, self.beat.payload
        offset = vector.pointer[:align]

        # First stage: the vector rotated to its place in the beat, around the end into the next one.
        m.submodules.stage = stage = SkidBuffer(_rotated_layout(self.config))
        wide = stage.i.payload
        mask = Cat(*(vector.count > lane for lane in range(self.config.n)))
        end = offset + vector.count
        m.d.comb += [
            stage.i.valid.eq(self.vector.valid),
            self.vector.ready.eq(stage.i.ready),
            wide.data.eq(self._rotate(m, "data", vector.data, offset, 8)),
            wide.lanes.eq(self._rotate(m, "mask", mask, offset, 1)),
            wide.here.eq(Cat(*(offset <= byte for byte in range(width)))),
            wide.full.eq(end >= width),
            wide.spill.eq(end > width),
            wide.last.eq(vector.last),
            wide.block_end.eq((vector.pointer >> align)[: (block_beats(self.config) - 1).bit_length()].all()),
        ]
        rotated, lanes, here = stage.o.payload.data, stage.o.payload.lanes, stage.o.payload.here
        full, spill, last = stage.o.payload.full, stage.o.payload.spill, stage.o.payload.last
        valid, block_end, taken = stage.o.valid, stage.o.payload.block_end, Signal()
        m.d.comb += stage.o.ready.eq(taken)

        # Second stage: the rotated bytes join what earlier vectors left of the beat.
        residue = Signal(8 * width)
        strobe = Signal(width)
        flush = Signal()
        joined = Signal(8 * width)
        select = Cat(*(bit.replicate(8) for bit in here))
        m.d.comb += [
            joined.eq((rotated & select) | (residue & ~select)),
            self.beat.valid.eq(flush | (valid & (full | last))),
            taken.eq(valid & ~flush & (self.beat.ready | ~(full | last))),
            beat.data.eq(Mux(flush, residue, joined)),
            beat.strobe.eq(strobe | Mux(flush, 0, lanes & here)),
            beat.last.eq(flush | block_end | (last & ~spill)),
        ]
        with m.If(taken):
            m.d.sync += [
                residue.eq(Mux(full, rotated, joined)),
                strobe.eq(Mux(full, lanes & ~here, Mux(last, 0, strobe | (lanes & here)))),
                flush.eq(last & spill),
            ]
        with m.Elif(flush & self.beat.ready):
            m.d.sync += [flush.eq(0), strobe.eq(0)]
        return m

    def _rotate(self, m: Module, name: str, value: Value, offset: Value, unit: int) -> Value:
        """`value` in a bus word, rotated up by `offset` units of `unit` bits."""
        size = unit * self.config.bus_bytes
        for bit in range(len(offset)):
            extended = Signal(size, name=f"{name}_in{bit}")
            stage = Signal(size, name=f"{name}_out{bit}")
            m.d.comb += [
                extended.eq(value),
                stage.eq(Mux(offset[bit], extended.rotate_left(unit << bit), extended)),
            ]
            value = stage
        return value
