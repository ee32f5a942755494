"""The last stage of the vector unit: results are gathered to vectors and written."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES
from weft.hdl.isa.config import Config
from weft.hdl.lib import ports
from weft.hdl.vector.vec_streams import results_layout


class VecWriter(wiring.Component):
    """Assembles lane groups to a vector, writes it, and signals after the last one of an instruction.

    Parameters
    ----------
    config : Config

    Members
    -------
    results : In(results_layout(config))
    mask : In(SEMAPHORES)
        With the last results: what their instruction signals.
    write : Out(ports.scratchpad_write(config))
        Must be granted in every cycle, ``ready`` is not looked at.
    signal : Out(SEMAPHORES)
        `mask`, for one cycle, when everything that was written can be read.
    busy : Out(1)
        Between the last results of an instruction and its `signal`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "results": In(results_layout(config)),
                "mask": In(SEMAPHORES),
                "write": Out(ports.scratchpad_write(config)),
                "signal": Out(SEMAPHORES),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        results, vector = self.results, Signal(self.config.widths.vector, reset_less=True)
        ended, signalled, mask = Signal(), Signal(), Signal.like(self.mask)
        with m.Switch(results.index):
            for index in range(self.config.groups):
                with m.Case(index):
                    m.d.sync += vector.word_select(index, 8 * self.config.lanes).eq(results.bytes)
        m.d.sync += [
            self.write.valid.eq(results.write),
            self.write.address.eq(results.dst),
            ended.eq(results.end),
            signalled.eq(ended),
            mask.eq(Mux(results.end, self.mask, 0)),
            self.signal.eq(mask),
        ]
        m.d.comb += [self.write.data.eq(vector), self.busy.eq(ended | signalled)]
        return m
