"""The AXI4 manager: the readers and the writer on one port."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.faults import FaultLog
from weft.hdl.isa.config import Config
from weft.hdl.lib.ports import BusFault, BusRequest, bus_read, bus_write
from weft.hdl.lib.skid_buffer import SkidBuffer

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
