"""Which burst memory answered with an error."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import FaultUnit
from weft.hdl.lib.ports import BusFault

KEPT = 16
"""Addresses that are kept for each source of bursts, a power of two. A LUT RAM of most FPGAs is as deep."""
OUTSTANDING = 256
"""More bursts than are on their way for one source, a power of two."""


class FaultLog(wiring.Component):
    """Keeps the addresses of bursts that are on their way, and the first error with the address of its burst.

    Sources do not wait for it: if more bursts of a source are on their way than addresses are kept, the address of an
    error is not known.

    Parameters
    ----------
    config : Config
    sources : sequence of str
        Names of `FaultUnit`s, in lower case. Of errors in one cycle that of the first of them counts.
    kept, outstanding : int
        See `KEPT` and `OUTSTANDING`.

    Members
    -------
    clear : In(1)
        Forget the error.
    <source>__asked, <source>__address : In(1), In(32)
        A burst is asked for. Memory answers those of one source in order.
    <source>__ended : In(1)
        The last answer to a burst comes.
    <source>__failed, <source>__response : In(1), In(2)
        An answer that comes is an error.
    error : Out(1)
        There was an error in the cycle before.
    fault : Out(BusFault)
        The first error since `clear`, from the cycle on that follows `error`.
    """

    def __init__(
        self, config: Config, sources: Sequence[str], *, kept: int = KEPT, outstanding: int = OUTSTANDING
    ) -> None:
        self.config, self.sources = config, tuple(sources)
        self.kept, self.outstanding = kept, outstanding
        port = wiring.Signature(
            {"asked": Out(1), "address": Out(32), "ended": Out(1), "failed": Out(1), "response": Out(2)}
        )
        super().__init__(
            {
                "clear": In(1),
                **dict.fromkeys(self.sources, In(port)),
                "error": Out(1),
                "fault": Out(BusFault),
            }
        )

    @property
    def source(self) -> dict[str, wiring.PureInterface]:
        """The ports of the sources, by name."""
        return {name: getattr(self, name) for name in self.sources}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        align = (self.config.bus_bytes - 1).bit_length()
        first = Signal(BusFault)
        for name, port in reversed(self.source.items()):
            m.submodules[name] = log = _Addresses(32 - align, self.kept, self.outstanding)
            # A register, as answers come late in the cycle.
            ended, failed, response = (
                Signal(size, name=f"{name}_{what}")
                for what, size in (("ended", 1), ("failed", 1), ("response", 2))
            )
            m.d.sync += [ended.eq(port.ended), failed.eq(port.failed), response.eq(port.response)]
            m.d.comb += [
                log.asked.eq(port.asked),
                log.address.eq(port.address >> align),
                log.ended.eq(ended),
            ]
            with m.If(failed):
                m.d.comb += [
                    self.error.eq(1),
                    first.unit.eq(FaultUnit[name.upper()]),
                    first.response.eq(response),
                    first.known.eq(log.known),
                    first.address.eq(Mux(log.known, log.oldest << align, 0)),
                ]
        with m.If(self.clear):
            m.d.sync += self.fault.eq(0)
        with m.Elif(self.error & (self.fault.unit == FaultUnit.NONE)):
            m.d.sync += self.fault.eq(first)
        return m


class _Addresses(wiring.Component):
    """The addresses of bursts on their way. The oldest one is there if they are fewer than `kept`.

    Members
    -------
    asked : In(1), address : In(width)
    ended : In(1)
        The oldest one has come to its end; not in the cycle in which it is asked for.
    oldest : Out(width), known : Out(1)
        Its address, if that is still there.
    """

    def __init__(self, width: int, kept: int, outstanding: int) -> None:
        self.kept, self.outstanding = kept, outstanding
        super().__init__(
            {
                "asked": In(1),
                "address": In(width),
                "ended": In(1),
                "oldest": Out(width),
                "known": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(shape=len(self.address), depth=self.kept, init=[])
        write, read = memory.write_port(), memory.read_port(domain="comb")
        under_way = Signal(range(self.outstanding))
        m.d.comb += [
            write.data.eq(self.address),
            write.en.eq(self.asked),
            self.oldest.eq(read.data),
            self.known.eq(under_way < self.kept),
        ]
        m.d.sync += [
            write.addr.eq(write.addr + self.asked),
            read.addr.eq(read.addr + self.ended),
            under_way.eq(under_way + self.asked - self.ended),
        ]
        return m
