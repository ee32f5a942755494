"""Log of bus errors: the address of the first burst that memory answered with an error."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import FaultUnit
from weft.hdl.lib.ports import BusFault

LOGGED_ADDRESSES = 16
"""Addresses logged for each source, a power of two: the depth of a LUT RAM on most FPGAs."""
MAX_OUTSTANDING = 256
"""Exclusive upper limit of a source's outstanding bursts, a power of two."""


class FaultLog(wiring.Component):
    """Log of outstanding bursts' addresses and of the first error.

    The log never stalls a source. If a source has more outstanding bursts than the log has entries, the address of an
    error is reported as unknown.

    Parameters
    ----------
    config : Config
    sources : sequence of str
        Names of `FaultUnit` members in lower case. If several sources fail in one cycle, the first in this sequence
        is reported.
    kept, outstanding : int
        See `LOGGED_ADDRESSES` and `MAX_OUTSTANDING`.

    Members
    -------
    clear : In(1)
        Clear `fault`.
    <source>__asked, <source>__address : In(1), In(32)
        A burst is requested. Memory answers the bursts of one source in order.
    <source>__ended : In(1)
        The last response to the source's oldest burst arrives.
    <source>__failed, <source>__response : In(1), In(2)
        An arriving response is an error, and its AXI code.
    error : Out(1)
        An error arrived in the previous cycle.
    fault : Out(BusFault)
        The first error since `clear`, one cycle after `error`.
    """

    def __init__(
        self,
        config: Config,
        sources: Sequence[str],
        *,
        kept: int = LOGGED_ADDRESSES,
        outstanding: int = MAX_OUTSTANDING,
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
        """Ports of the sources by name."""
        return {name: getattr(self, name) for name in self.sources}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        align = (self.config.bus_bytes - 1).bit_length()
        first = Signal(BusFault)
        for name, port in reversed(self.source.items()):
            m.submodules[name] = log = _Addresses(32 - align, self.kept, self.outstanding)
            # Registered because responses arrive late in the cycle.
            ended = Signal(name=f"{name}_ended")
            failed = Signal(name=f"{name}_failed")
            response = Signal(2, name=f"{name}_response")
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
    """Addresses of one source's outstanding bursts, in a ring buffer that overwrites its oldest entries.

    Members
    -------
    asked : In(1), address : In(width)
        A burst is requested.
    ended : In(1)
        The oldest burst ends; never in the cycle in which it is requested.
    oldest : Out(width), known : Out(1)
        Address of the oldest burst; `known` is 0 if it may have been overwritten.
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
        write = memory.write_port()
        read = memory.read_port(domain="comb")
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
