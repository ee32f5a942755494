"""The AXI4 manager: the readers and the writer on one port."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.faults import FaultLog
from weft.hdl.isa.config import Config
from weft.hdl.lib.ports import BusFault, BusRequest, bus_read, bus_write
from weft.hdl.lib.queues import SkidBuffer

OKAY = 0


def readers(config: Config) -> dict[str, int]:
    """The readers and their IDs. One before another in this order has priority."""
    return {"fetch": 0, "page": 2, "load": 1} if config.softmax else {"fetch": 0, "load": 1}


def axi4_signature(config: Config) -> wiring.Signature:
    """An AXI4 port seen from the manager: 32-bit addresses, ``bus_bytes`` of data, IDs of 2 bits with softmax,
    else 1."""
    id_width = max(readers(config).values()).bit_length()
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
    """Merges the bus ports of the units onto AXI4.

    Fetch goes before page, and page before load; a request that stands on the port stays until it is taken. Readers
    get their beats in the order of their requests, whatever order the IDs return in.

    RREADY does not depend on RID or RVALID: a beat passes only while all readers are ready for one, so a reader that
    is not makes the others wait. Every reader's ``beat.ready`` must come from registers and return without another
    reader's beat.

    Parameters
    ----------
    config : Config

    Members
    -------
    fetch, load : In(bus_read(config))
    page : In(bus_read(config))
        With softmax only.
    store : In(bus_write(config))
    axi : Out(axi4_signature(config))
    error : Out(1)
        A response other than OKAY came in the cycle before.
    clear : In(1), fault : Out(BusFault)
        See `weft.hdl.bus.faults.FaultLog`.
    read_beat, write_beat : Out(1)
        A data beat was transferred in the cycle before.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                **{name: In(bus_read(config)) for name in readers(config)},
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
        """Keep addresses, for the case that memory answers with an error."""
        axi = self.axi
        m.submodules.log = log = FaultLog(self.config, [*readers(self.config), "store"])
        beat = axi.rvalid & axi.rready
        for name, identity in readers(self.config).items():
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
        ports = [getattr(self, name) for name in readers(self.config)]
        asked: Value = Const(0)  # by a reader of higher priority
        for name, identity in readers(self.config).items():
            request, beat = getattr(self, name).request, getattr(self, name).beat
            with m.If(~asked):
                m.d.comb += [chosen.eq(request.payload), chosen_id.eq(identity)]
            others_ready = Cat(other.beat.ready for other in ports if other.beat is not beat).all()
            m.d.comb += [
                request.ready.eq(free & ~asked),
                beat.payload.eq(axi.rdata),
                beat.valid.eq(axi.rvalid & (axi.rid == identity) & others_ready),
            ]
            asked = asked | request.valid
        m.d.comb += axi.rready.eq(Cat(port.beat.ready for port in ports).all())
        address = self._channel(m, "ar", axi.arvalid, axi.arready, Cat(axi.arid, axi.araddr, axi.arlen))
        m.d.comb += [
            free.eq(address.ready),
            address.valid.eq(asked),
            address.payload.eq(Cat(chosen_id, chosen.address, (chosen.beats - 1)[:8])),
        ]

    def _write(self, m: Module) -> None:
        axi, request, beat = self.axi, self.store.request, self.store.beat
        address = self._channel(m, "aw", axi.awvalid, axi.awready, Cat(axi.awaddr, axi.awlen))
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
        """Drive a channel from registers in both directions; returns the stream to send to it."""
        m.submodules[f"{name}_skid"] = registers = SkidBuffer(len(payload))
        m.d.comb += [valid.eq(registers.o.valid), registers.o.ready.eq(ready)]
        m.d.comb += payload.eq(registers.o.payload)
        return registers.i


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
