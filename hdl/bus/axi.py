"""AXI4 manager that shares one port among the core's readers and its writer, and the log of bus errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import FaultUnit
from weft.hdl.lib.ports import BusFault, BusRequest, bus_read, bus_write
from weft.hdl.lib.queues import SkidBuffer

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
        # Of several assignments to `first` the last wins, so sources are visited in reverse order.
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
            # Both addresses wrap by themselves, because `kept` is a power of two.
            write.addr.eq(write.addr + self.asked),
            read.addr.eq(read.addr + self.ended),
            under_way.eq(under_way + self.asked - self.ended),
        ]
        return m


OKAY = 0


def reader_ids(config: Config) -> dict[str, int]:
    """Return the AXI ID of each reader, in descending order of priority."""
    return {"fetch": 0, "page": 2, "load": 1} if config.softmax else {"fetch": 0, "load": 1}


def axi4_signature(config: Config) -> wiring.Signature:
    """Return the signature of an AXI4 manager: 32-bit addresses, ``bus_bytes`` of data, and IDs of 1 bit, or 2 with
    softmax."""
    id_width = max(reader_ids(config).values()).bit_length()
    members: dict[str, wiring.Member] = {}
    for channel in ("aw", "ar"):
        widths = {
            "id": id_width,
            "addr": 32,
            "len": 8,
            "size": 3,
            "burst": 2,
            "lock": 1,
            "cache": 4,
            "prot": 3,
            "qos": 4,
        }
        members |= {f"{channel}{name}": Out(width) for name, width in widths.items()}
        members |= {f"{channel}valid": Out(1), f"{channel}ready": In(1)}
    members |= {"wdata": Out(config.widths.bus), "wstrb": Out(config.bus_bytes), "wlast": Out(1)}
    members |= {"wvalid": Out(1), "wready": In(1)}
    members |= {"bid": In(id_width), "bresp": In(2), "bvalid": In(1), "bready": Out(1)}
    members |= {"rid": In(id_width), "rdata": In(config.widths.bus), "rresp": In(2), "rlast": In(1)}
    members |= {"rvalid": In(1), "rready": Out(1)}
    return wiring.Signature(members)


class AxiManager(wiring.Component):
    """Arbiter from the units' bus ports to one AXI4 port.

    Priority is fetch, page, load; a request that is valid on the AXI port stays until it is accepted. Each reader gets
    its beats in the order of its requests, in whatever order memory serves the IDs.

    RREADY does not depend on RID or RVALID: a beat is transferred only while all readers are ready, so one busy reader
    stalls the others. To avoid a deadlock, every reader's ``beat.ready`` must come from registers and become 1 again
    without another reader's beat.

    Parameters
    ----------
    config : Config

    Members
    -------
    fetch, load : In(bus_read(config))
    page : In(bus_read(config))
        Reads of page tables; with softmax only.
    store : In(bus_write(config))
    axi : Out(axi4_signature(config))
    error : Out(1)
        A response other than OKAY arrived in the previous cycle.
    clear : In(1), fault : Out(BusFault)
        See `weft.hdl.bus.axi.FaultLog`.
    read_beat, write_beat : Out(1)
        A data beat was transferred in the previous cycle.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                **{name: In(bus_read(config)) for name in reader_ids(config)},
                "store": In(bus_write(config)),
                "axi": Out(axi4_signature(config)),
                "error": Out(1),
                "clear": In(1),
                "fault": Out(BusFault),
                "read_beat": Out(1),
                "write_beat": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        size = (self.config.bus_bytes - 1).bit_length()
        for channel in ("aw", "ar"):
            constants = {"size": size, "burst": 1, "cache": 0b0011}  # INCR, normal memory, bufferable
            m.d.comb += [getattr(self.axi, channel + name).eq(value) for name, value in constants.items()]
        self._read(m)
        self._write(m)
        self._log(m)
        m.d.sync += [
            self.read_beat.eq(self.axi.rvalid & self.axi.rready),
            self.write_beat.eq(self.axi.wvalid & self.axi.wready),
        ]
        return m

    def _log(self, m: Module) -> None:
        axi = self.axi
        m.submodules.log = log = FaultLog(self.config, [*reader_ids(self.config), "store"])
        beat = axi.rvalid & axi.rready
        for name, identity in reader_ids(self.config).items():
            port, request = log.source[name], getattr(self, name).request
            mine = beat & (axi.rid == identity)
            m.d.comb += [
                port.asked.eq(request.valid & request.ready),
                port.address.eq(request.payload.address),
                port.ended.eq(mine & axi.rlast),
                port.failed.eq(mine & (axi.rresp != OKAY)),
                port.response.eq(axi.rresp),
            ]
        port, request = log.source["store"], self.store.request
        m.d.comb += [
            port.asked.eq(request.valid & request.ready),
            port.address.eq(request.payload.address),
            port.ended.eq(axi.bvalid),
            port.failed.eq(axi.bvalid & (axi.bresp != OKAY)),
            port.response.eq(axi.bresp),
            log.clear.eq(self.clear),
            self.error.eq(log.error),
            self.fault.eq(log.fault),
        ]

    def _read(self, m: Module) -> None:
        axi = self.axi
        free = Signal(name="read_free")
        chosen, chosen_id = Signal(BusRequest, name="read_chosen"), Signal.like(axi.arid, name="read_id")
        ports = [getattr(self, name) for name in reader_ids(self.config)]
        higher_request: Value = Const(0)  # a reader of higher priority has a request
        for name, identity in reader_ids(self.config).items():
            request, beat = getattr(self, name).request, getattr(self, name).beat
            with m.If(~higher_request):
                m.d.comb += [chosen.eq(request.payload), chosen_id.eq(identity)]
            others_ready = Cat(other.beat.ready for other in ports if other.beat is not beat).all()
            m.d.comb += [
                request.ready.eq(free & ~higher_request),
                beat.payload.eq(axi.rdata),
                beat.valid.eq(axi.rvalid & (axi.rid == identity) & others_ready),
            ]
            higher_request = higher_request | request.valid
        m.d.comb += axi.rready.eq(Cat(port.beat.ready for port in ports).all())
        address = self._channel(m, "ar", axi.arvalid, axi.arready, Cat(axi.arid, axi.araddr, axi.arlen))
        m.d.comb += [
            free.eq(address.ready),
            address.valid.eq(higher_request),
            address.payload.eq(Cat(chosen_id, chosen.address, (chosen.beats - 1)[:8])),
        ]

    def _write(self, m: Module) -> None:
        axi, request, beat = self.axi, self.store.request, self.store.beat
        address = self._channel(m, "aw", axi.awvalid, axi.awready, Cat(axi.awaddr, axi.awlen))
        # AXI allows the beats of a burst before its address, so both channels advance on their own.
        words = self._channel(m, "w", axi.wvalid, axi.wready, Cat(axi.wdata, axi.wstrb, axi.wlast))
        m.d.comb += [
            request.ready.eq(address.ready),
            address.valid.eq(request.valid),
            address.payload.eq(Cat(request.payload.address, (request.payload.beats - 1)[:8])),
            beat.ready.eq(words.ready),
            words.valid.eq(beat.valid),
            words.payload.eq(Cat(beat.payload.data, beat.payload.strobe, beat.payload.last)),
            axi.bready.eq(1),
            self.store.confirmed.eq(axi.bvalid),
        ]

    def _channel(self, m: Module, name: str, valid: Value, ready: Value, payload: Value) -> Any:
        """Drive an AXI channel from a skid buffer; returns the buffer's input stream."""
        m.submodules[f"{name}_skid"] = registers = SkidBuffer(len(payload))
        m.d.comb += [valid.eq(registers.o.valid), registers.o.ready.eq(ready)]
        m.d.comb += payload.eq(registers.o.payload)
        return registers.i


PAGE = 4096
"""An AXI burst must not cross an address that is a multiple of this."""
MAX_BEATS = 256


def block_beats(config: Config, beats: int = MAX_BEATS) -> int:
    """Return the number of bus words in an aligned block. A burst ends at a block's end, so its length follows from its
    address without a counter."""
    return min(beats, MAX_BEATS, PAGE // config.bus_bytes)


def run_layout(tag: int = 1) -> data.StructLayout:
    """Return the layout of a run of ``bytes`` (at least 1) from ``address`` on, with a tag of `tag` bits."""
    return data.StructLayout({"address": 32, "bytes": 32, "tag": tag})


class BurstSplitter(wiring.Component):
    """Splitter of runs of bytes into the bursts that cover them, in order, one burst per cycle.

    Parameters
    ----------
    config : Config
    beats : int
        Maximum beats of a burst, a power of two. Bursts end at multiples of `block_beats` bus words.
    tag : int
        Width of a run's tag in bits.

    Members
    -------
    run : In(stream of run_layout(tag))
    request : Out(stream of BusRequest)
    last : Out(1)
        With ``request``: it is the last burst of its run.
    tag : Out(tag)
        With ``request``: the tag of its run.
    idle : Out(1)
        No run is pending.
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
        # Breaks the combinational path from `request.ready` to `run.ready`.
        burst = data.StructLayout({"request": BusRequest, "last": 1, "tag": len(self.tag)})
        m.submodules.bursts = bursts = SkidBuffer(burst)
        cut = bursts.i.payload
        active = Signal()
        tag = Signal.like(self.tag)
        word = Signal(32 - align)
        rest = Signal(32)  # words of the run after the current one
        room = Signal(inside)  # words of the block after the current one
        last = Signal()  # rest <= room, computed a cycle earlier
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
            # The block's last word has all low bits set, so no subtraction is needed.
            room.eq(~word[:inside]),
            # Wraps in a run's last block, where it is not used.
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
                # The first burst of a run may begin anywhere in its block.
                last.eq(following.rest <= ~following.word[:inside]),
                tag.eq(following.tag),
            ]
        with m.Elif(move):  # not the last burst: continue with the next block
            m.d.sync += [
                word.eq(((word >> inside) + 1) << inside),
                rest.eq(left),
                # The next block begins at its first word, so its room is `block - 1`.
                last.eq(~left[inside:].any()),
            ]
        return m
