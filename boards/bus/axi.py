"""AXI4 ports of cores on boards: a bridge to a memory port, and a gate.

The gate lets the manager be reset while memory still works on its bursts.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import PAGE, memory_port, write_layout
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.isa.config import Config
from weft.hdl.lib.queues import BlockFifo, SkidBuffer

PIECE_BYTES = 256
"""Block size in bytes at which bursts are cut into commands. This is long enough for SDRAM, yet buffers for two pieces
are small, and reads and writes do not delay each other for long."""


def _id_width(config: Config) -> int:
    return axi4_signature(config).members["arid"].shape


def piece_beats(config: Config) -> int:
    """Return the largest number of beats per piece."""
    return max(PIECE_BYTES // config.bus_bytes, 1)


def piece_layout(config: Config) -> data.StructLayout:
    """Return the layout of a part of a burst: ``more`` beats after the first; ``last`` marks the burst's last piece."""
    width = max((piece_beats(config) - 1).bit_length(), 1)
    return data.StructLayout({"id": _id_width(config), "last": 1, "more": width, "address": 32})


class Pieces(wiring.Component):
    """Cuts the bursts of an address channel into pieces.

    Parameters
    ----------
    config : Config

    Members
    -------
    burst : In(stream of id, length - 1, address)
    piece : Out(stream of piece_layout(config))
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        burst = data.StructLayout({"id": _id_width(config), "len": 8, "address": 32})
        super().__init__(
            {"burst": In(stream.Signature(burst)), "piece": Out(stream.Signature(piece_layout(config)))}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        align = (self.config.bus_bytes - 1).bit_length()
        inside = (piece_beats(self.config) - 1).bit_length()
        page = (PAGE // self.config.bus_bytes - 1).bit_length()  # a burst stays within its page
        burst, piece = self.burst.payload, self.piece.payload
        active = Signal()
        identity = Signal.like(burst.id)
        word = Signal(32 - align)
        more = Signal(8)  # beats after the first
        room = Signal(inside)  # words in the memory block after the first
        last = Signal()  # the piece ends the burst; a register, because it drives the core's ready
        move = Signal()
        left = Signal(8)  # beats after the first of the next piece
        m.d.comb += [
            room.eq(~word[:inside]),
            left.eq(more - room - 1),
            move.eq(~self.piece.valid | self.piece.ready),
            self.burst.ready.eq(~active | (move & last)),
        ]
        with m.If(self.burst.ready):
            m.d.sync += [
                active.eq(self.burst.valid),
                identity.eq(burst.id),
                word.eq(burst.address >> align),
                more.eq(burst.len),
                last.eq(burst.len <= (~(burst.address >> align))[:inside]),
            ]
        # Continue at the next block of memory.
        with m.Elif(move):
            following = (word[inside:page] + 1)[: page - inside]
            m.d.sync += [
                word.eq(Cat(Const(0, inside), following, word[page:])),
                more.eq(left),
                last.eq(left[inside:] == 0),
            ]
        with m.If(move):
            m.d.sync += [
                self.piece.valid.eq(active),
                piece.id.eq(identity),
                piece.last.eq(last),
                piece.more.eq(Mux(last, more, room)),
                piece.address.eq(word << align),
            ]
        return m


class AxiBridge(wiring.Component):
    """AXI4 subordinate at a core's port, in front of a memory port.

    Reads are carried out in order, and so are writes. Reads and writes alternate if both are waiting. A read is sent to
    memory when there is buffer space for all its words, and a write when all its words have arrived. Memory therefore
    never waits for the core, however long the core stalls words or responses. No channel waits for another, except that
    responses follow their requests.

    The bridge supports the bursts of `weft.hdl.bus.axi.AxiManager`: INCR bursts of whole bus words from aligned
    addresses. All responses are OKAY.

    Parameters
    ----------
    config : Config
    pieces : int
        Largest number of outstanding reads, and of outstanding writes, of up to `PIECE_BYTES` each. A memory without
        latency needs no more than 4.

    Members
    -------
    axi : In(axi4_signature(config))
    memory : Out(memory_port(config.bus_bytes))
    """

    def __init__(self, config: Config, *, pieces: int = 16) -> None:
        self.config, self.pieces = config, pieces
        super().__init__(
            {"axi": In(axi4_signature(config)), "memory": Out(memory_port(config.bus_bytes))},
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        asks_read, grants_read, read = self._read(m)
        asks_write, grants_write, write = self._write(m)
        # The skid buffer prevents a combinational path from the memory's ready to the core.
        m.submodules.commands = commands = SkidBuffer(self.memory.command.payload.shape())
        wiring.connect(m, commands.o, wiring.flipped(self.memory.command))
        command, free = commands.i, commands.i.ready
        wrote = Signal()
        m.d.comb += [
            grants_read.eq(free & asks_read & (wrote | ~asks_write)),
            grants_write.eq(free & asks_write & (~wrote | ~asks_read)),
        ]
        # If both directions request, the one that was not granted last goes first.
        chosen = piece_layout(self.config)(Mux(grants_write, write, read))
        m.d.comb += [
            command.valid.eq(asks_read | asks_write),
            command.payload.write.eq(grants_write),
            command.payload.address.eq(chosen.address),
            command.payload.beats.eq(chosen.more + 1),
        ]
        with m.If(grants_read | grants_write):
            m.d.sync += wrote.eq(grants_write)
        return m

    def _pieces(self, m: Module, channel: str) -> Pieces:
        axi, pieces = self.axi, Pieces(self.config)
        m.submodules[f"{channel}_pieces"] = pieces
        m.d.comb += [
            pieces.burst.valid.eq(getattr(axi, f"{channel}valid")),
            getattr(axi, f"{channel}ready").eq(pieces.burst.ready),
            pieces.burst.payload.id.eq(getattr(axi, f"{channel}id")),
            pieces.burst.payload.len.eq(getattr(axi, f"{channel}len")),
            pieces.burst.payload.address.eq(getattr(axi, f"{channel}addr")),
        ]
        return pieces

    def _read(self, m: Module) -> tuple[Value, Signal, Value]:
        """Handle the read channels; return whether a piece requests memory, the signal that grants it, and the
        piece."""
        axi, config, longest = self.axi, self.config, piece_beats(self.config)
        pieces = self._pieces(m, "ar")
        piece = pieces.piece
        granted = Signal(name="read_granted")
        m.submodules.read_words = words = BlockFifo(config.widths.bus, 2 * longest)
        layout = piece_layout(config)
        m.submodules.read_order = order = SyncFIFO(width=layout["address"].offset, depth=self.pieces)
        # Words of the buffer that no outstanding piece has reserved.
        room = Signal(range(2 * longest + 1), init=2 * longest)
        fits = Signal()
        leaves = axi.rvalid & axi.rready
        ends = Signal()
        m.d.sync += [
            room.eq(room + leaves - Mux(granted, piece.payload.more + 1, 0)),
            # `room` is one cycle late, so `fits` is invalid in the cycle after a grant.
            fits.eq((room >= longest) & order.w_rdy & ~granted),
        ]
        head = data.StructLayout({name: layout[name].shape for name in ("id", "last", "more")})(order.r_data)
        beat = Signal.like(head.more, name="read_beat")
        m.d.comb += [
            piece.ready.eq(granted),
            order.w_data.eq(piece.payload),
            order.w_en.eq(granted),
            words.i.payload.eq(self.memory.read.payload),
            words.i.valid.eq(self.memory.read.valid),
            self.memory.read.ready.eq(1),
            ends.eq(beat == head.more),
            axi.rvalid.eq(words.o.valid),
            axi.rdata.eq(words.o.payload),
            axi.rid.eq(head.id),
            axi.rlast.eq(ends & head.last),
            words.o.ready.eq(axi.rready),
            order.r_en.eq(leaves & ends),
        ]
        # Count the beats of the oldest piece, to take it off `order` with its last one.
        with m.If(leaves):
            m.d.sync += beat.eq(Mux(ends, 0, beat + 1))
        return piece.valid & fits, granted, piece.payload.as_value()

    def _write(self, m: Module) -> tuple[Value, Signal, Value]:
        """Handle the write channels; return the same values as `_read`."""
        axi, config, longest = self.axi, self.config, piece_beats(self.config)
        pieces = self._pieces(m, "aw")
        piece = pieces.piece
        granted = Signal(name="write_granted")
        width = write_layout(config.bus_bytes).size
        m.submodules.write_words = words = BlockFifo(width, 2 * longest)
        layout = piece_layout(config)
        m.submodules.write_order = order = SyncFIFO(width=layout["more"].offset, depth=self.pieces)
        here = Signal(range(2 * longest + 1))  # words that belong to no granted piece yet
        there = Signal()  # all words of the piece have arrived; one cycle late, as `fits` of reads
        comes = axi.wvalid & axi.wready
        m.d.sync += [
            here.eq(here + comes - Mux(granted, piece.payload.more + 1, 0)),
            there.eq(piece.valid & (here > piece.payload.more) & order.w_rdy & ~granted),
        ]
        head = data.StructLayout({name: layout[name].shape for name in ("id", "last")})(order.r_data)
        reports = Signal(range(self.pieces + 1))  # completed pieces that are still in `order`
        taken = Signal(name="report_taken")
        m.d.comb += [
            piece.ready.eq(granted),
            order.w_data.eq(piece.payload),
            order.w_en.eq(granted),
            words.i.payload.eq(Cat(axi.wdata, axi.wstrb)),
            words.i.valid.eq(axi.wvalid),
            axi.wready.eq(words.i.ready),
            self.memory.write.payload.eq(words.o.payload),
            self.memory.write.valid.eq(words.o.valid),
            words.o.ready.eq(self.memory.write.ready),
            axi.bvalid.eq((reports != 0) & head.last),
            axi.bid.eq(head.id),
            taken.eq((reports != 0) & (axi.bready | ~head.last)),
            order.r_en.eq(taken),
        ]
        # Only a burst's last piece produces a response; the other pieces are taken off `order` silently.
        m.d.sync += reports.eq(reports + self.memory.written - taken)
        return there, granted, piece.payload.as_value()


WRITES = 8
"""Largest number of write bursts with words missing."""
OUTSTANDING = 256
"""Limit of unanswered bursts in each direction; one less is forwarded."""


class AxiGate(wiring.Component):
    """Gate in an AXI4 port, without latency. Write data that precedes its address waits for it.

    When closed, the gate blocks new bursts and completes the bursts that memory has already seen. It accepts the words
    that memory reads, and supplies missing words of writes with all strobes 0. Valid signals stay high until they are
    accepted, so memory sees correct AXI4 at all times.

    Parameters
    ----------
    config : Config
    writes, outstanding : int
        See `WRITES` and `OUTSTANDING`.

    Members
    -------
    port : In(axi4_signature(config))
        The manager's port. The manager must be reset while the gate is closed and idle.
    memory : Out(axi4_signature(config))
    close : In(1)
    idle : Out(1)
        The gate is closed, and memory has answered all bursts.
    """

    def __init__(self, config: Config, *, writes: int = WRITES, outstanding: int = OUTSTANDING) -> None:
        self.config, self.writes, self.outstanding = config, writes, outstanding
        super().__init__(
            {
                "port": In(axi4_signature(config)),
                "memory": Out(axi4_signature(config)),
                "close": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        quiet = self._read(m) & self._write(m)
        m.d.sync += self.idle.eq(self.close & quiet)
        return m

    def _address(self, m: Module, channel: str, room: Value) -> tuple[Signal, Signal]:
        """Forward an address channel while there is `room`.

        Return whether an address is first offered to memory in this cycle, and whether one was already offered before.
        """
        port, memory = self.port, self.memory
        offered = Signal(name=f"{channel}_offered")
        first = Signal(name=f"{channel}_first")
        valid, ready = (getattr(memory, f"{channel}{name}") for name in ("valid", "ready"))
        m.d.comb += [
            first.eq(getattr(port, f"{channel}valid") & room & ~self.close & ~offered),
            valid.eq(first | offered),
            getattr(port, f"{channel}ready").eq(valid & ready),
        ]
        for name in ("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos"):
            m.d.comb += getattr(memory, f"{channel}{name}").eq(getattr(port, f"{channel}{name}"))
        # AXI4 forbids withdrawing an address, so an offered one stays even if the gate closes.
        m.d.sync += offered.eq(valid & ~ready)
        return first, offered

    def _read(self, m: Module) -> Value:
        """Forward the read channels; return whether none is in progress."""
        port, memory = self.port, self.memory
        # Bursts that memory has seen and not completed.
        asked = Signal(range(self.outstanding))
        first, offered = self._address(m, "ar", asked != self.outstanding - 1)
        for name in ("id", "data", "resp", "last", "valid"):
            m.d.comb += getattr(port, f"r{name}").eq(getattr(memory, f"r{name}"))
        m.d.comb += memory.rready.eq(port.rready | self.close)
        m.d.sync += asked.eq(asked + first - (memory.rvalid & memory.rready & memory.rlast))
        return ~(first | offered | asked.any())

    def _write(self, m: Module) -> Value:
        """Forward the write channels; return whether none is in progress."""
        port, memory = self.port, self.memory
        m.submodules.lengths = lengths = SyncFIFO(width=8, depth=self.writes)
        asked = Signal(range(self.outstanding))
        first, offered = self._address(m, "aw", lengths.w_rdy & (asked != self.outstanding - 1))
        # `lengths` has the length of each burst whose words have not all been sent; `beat` counts those of the oldest.
        beat = Signal(8)
        fills = Signal()  # the gate supplies the words
        last = beat == lengths.r_data
        taken = memory.wvalid & memory.wready
        m.d.comb += [
            lengths.w_data.eq(port.awlen),
            lengths.w_en.eq(first),
            lengths.r_en.eq(taken & last),
            memory.wvalid.eq(lengths.r_rdy & (port.wvalid | fills)),
            memory.wdata.eq(Mux(fills, 0, port.wdata)),
            memory.wstrb.eq(Mux(fills, 0, port.wstrb)),
            memory.wlast.eq(last),
            port.wready.eq(lengths.r_rdy & memory.wready & ~fills),
            port.bid.eq(memory.bid),
            port.bresp.eq(memory.bresp),
            port.bvalid.eq(memory.bvalid),
            memory.bready.eq(port.bready | self.close),
        ]
        # A word that is offered when the gate closes stays; the gate supplies the words after it.
        with m.If(~self.close):
            m.d.sync += fills.eq(0)
        with m.Elif(~memory.wvalid | memory.wready):
            m.d.sync += fills.eq(1)
        with m.If(taken):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))
        m.d.sync += asked.eq(asked + first - (memory.bvalid & memory.bready))
        return ~(first | offered | asked.any())
