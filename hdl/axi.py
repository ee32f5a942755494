"""The AXI4 manager: two readers and one writer on one port."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.config import Config
from weft.hdl.ports import BusRequest, bus_read, bus_write

FETCH_ID = 0
LOAD_ID = 1
OKAY = 0


def axi4_signature(config: Config) -> wiring.Signature:
    """An AXI4 port seen from the manager: 32-bit addresses, ``bus_bytes`` of data, 1-bit IDs."""
    members: dict[str, wiring.Member] = {}
    for channel in ("aw", "ar"):
        widths = {
            "id": 1,
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
    members |= {"bid": In(1), "bresp": In(2), "bvalid": In(1), "bready": Out(1)}
    members |= {"rid": In(1), "rdata": In(config.widths.bus), "rresp": In(2), "rlast": In(1)}
    members |= {"rvalid": In(1), "rready": Out(1)}
    return wiring.Signature(members)


class AxiManager(wiring.Component):
    """Merges the bus ports of the units onto AXI4.

    Fetch goes before load; a request that stands on the port stays until it is taken. Readers get their beats in the
    order of their requests, whatever order the two IDs return in.

    Parameters
    ----------
    config : Config

    Members
    -------
    fetch, load : In(bus_read(config))
    store : In(bus_write(config))
    axi : Out(axi4_signature(config))
    error : Out(1)
        A response other than OKAY, for one cycle.
    read_beat, write_beat : Out(1)
        A data beat is transferred in this cycle.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "fetch": In(bus_read(config)),
                "load": In(bus_read(config)),
                "store": In(bus_write(config)),
                "axi": Out(axi4_signature(config)),
                "error": Out(1),
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
        axi = self.axi
        m.d.sync += [
            self.read_beat.eq(axi.rvalid & axi.rready),
            self.write_beat.eq(axi.wvalid & axi.wready),
            self.error.eq(
                (axi.rvalid & axi.rready & (axi.rresp != OKAY)) | (axi.bvalid & (axi.bresp != OKAY))
            ),
        ]
        return m

    def _read(self, m: Module) -> None:
        axi, fetch, load = self.axi, self.fetch, self.load
        free = Signal(name="read_free")
        chosen = Signal(BusRequest, name="read_chosen")
        m.d.comb += [
            free.eq(~axi.arvalid | axi.arready),
            fetch.request.ready.eq(free),
            load.request.ready.eq(free & ~fetch.request.valid),
            chosen.eq(Mux(fetch.request.valid, fetch.request.payload, load.request.payload)),
        ]
        with m.If(free):
            m.d.sync += [
                axi.arvalid.eq(fetch.request.valid | load.request.valid),
                axi.arid.eq(Mux(fetch.request.valid, FETCH_ID, LOAD_ID)),
                axi.araddr.eq(chosen.address),
                axi.arlen.eq(chosen.beats - 1),
            ]
        m.d.comb += [
            fetch.beat.payload.eq(axi.rdata),
            load.beat.payload.eq(axi.rdata),
            fetch.beat.valid.eq(axi.rvalid & (axi.rid == FETCH_ID)),
            load.beat.valid.eq(axi.rvalid & (axi.rid == LOAD_ID)),
            axi.rready.eq(Mux(axi.rid == FETCH_ID, fetch.beat.ready, load.beat.ready)),
        ]

    def _write(self, m: Module) -> None:
        axi, request, beat = self.axi, self.store.request, self.store.beat
        m.d.comb += [
            request.ready.eq(~axi.awvalid | axi.awready),
            beat.ready.eq(~axi.wvalid | axi.wready),
            axi.bready.eq(1),
            self.store.confirmed.eq(axi.bvalid),
        ]
        with m.If(request.ready):
            m.d.sync += [
                axi.awvalid.eq(request.valid),
                axi.awaddr.eq(request.payload.address),
                axi.awlen.eq(request.payload.beats - 1),
            ]
        with m.If(beat.ready):
            m.d.sync += [
                axi.wvalid.eq(beat.valid),
                axi.wdata.eq(beat.payload.data),
                axi.wstrb.eq(beat.payload.strobe),
                axi.wlast.eq(beat.payload.last),
            ]
