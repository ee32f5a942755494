"""The memory port, which is the internal bus between a board's memory and its users; its arbiter, and gates."""

from amaranth.hdl import Array, Cat, Module, Mux, Shape, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import axi4_signature
from weft.hdl.isa.config import Config

PAGE = 4096
"""Burst boundary in bytes: no burst crosses a multiple of it."""
MAX_BEATS = 256


# `data.Struct` evaluates annotations, so this module must not postpone them (no `from __future__ import annotations`).
class Command(data.Struct):
    """Burst of `beats` (1 to `MAX_BEATS`) bus words from byte address `address`.

    The address is a multiple of the bus width, and the burst lies within one `PAGE`.
    """

    write: unsigned(1)  # type: ignore[valid-type]
    address: unsigned(32)  # type: ignore[valid-type]
    beats: unsigned(9)  # type: ignore[valid-type]


def write_layout(bus_bytes: int) -> data.StructLayout:
    """Return the layout of a word to write. Bytes whose strobe is 0 keep their value."""
    return data.StructLayout({"data": 8 * bus_bytes, "strobe": bus_bytes})


def memory_port(bus_bytes: int) -> wiring.Signature:
    """Return the signature of a memory port, seen from the requester.

    Members
    -------
    command : Out(stream.Signature(Command))
        Commands, carried out in order. A memory may accept several before the first is complete.
    write : Out(stream.Signature(write_layout(bus_bytes)))
        Words of write commands, in the order of the commands. They may come before or after their command.
    read : In(stream.Signature(8 * bus_bytes))
        Words of read commands, in the order of the commands.
    written : In(1)
        High for one cycle when the oldest unreported write command is complete in memory.

    Addresses beyond the memory wrap around.
    """
    word: Shape = unsigned(8 * bus_bytes)
    return wiring.Signature(
        {
            "command": Out(stream.Signature(Command)),
            "write": Out(stream.Signature(write_layout(bus_bytes))),
            "read": In(stream.Signature(word)),
            "written": In(1),
        }
    )


class _TransferOrder(wiring.Component):
    """Order of data transfers: selects the port of the oldest command with words left to transfer.

    Members
    -------
    push : In(1)
        Enter a command of `port` with `beats` words.
    room : Out(1)
        `push` is allowed.
    valid, turn : Out(1), Out
        Words are left to transfer, and the number of their port.
    word : In(1)
        A word is transferred.
    """

    def __init__(self, ports: int, commands: int) -> None:
        self.commands = commands
        self.index = max((ports - 1).bit_length(), 1)
        super().__init__(
            {
                "push": In(1),
                "port": In(self.index),
                "beats": In(MAX_BEATS.bit_length()),
                "room": Out(1),
                "valid": Out(1),
                "turn": Out(self.index),
                "word": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # The queue holds waiting commands; `turn` and `more` are the current one, with `more` words after the next.
        layout = data.StructLayout({"port": self.index, "more": (MAX_BEATS - 1).bit_length()})
        m.submodules.queue = queue = SyncFIFO(width=layout.size, depth=self.commands)
        head = layout(queue.r_data)
        more = Signal.like(head.more)
        move = ~self.valid | (self.word & (more == 0))
        m.d.comb += [
            queue.w_data.eq(Cat(self.port, (self.beats - 1)[: len(more)])),
            queue.w_en.eq(self.push),
            self.room.eq(queue.w_rdy),
            queue.r_en.eq(move),
        ]
        with m.If(move):
            m.d.sync += [self.valid.eq(queue.r_rdy), self.turn.eq(head.port), more.eq(head.more)]
        with m.Elif(self.word):
            m.d.sync += more.eq(more - 1)
        return m


class Arbiter(wiring.Component):
    """Arbiter that merges memory ports, with one command per cycle and one cycle of latency.

    Among requesting ports it grants the least recently granted. The memory serves commands in order. A port must
    therefore accept the words that it reads at once, and have the words that it writes before it sends the command;
    otherwise all other ports wait for it. (`weft.boards.bus.axi.AxiBridge` does so.)

    Parameters
    ----------
    bus_bytes : int
    ports : int
    commands : int
        Largest number of outstanding reads, and of outstanding writes. A memory without latency needs no more than 2.

    Members
    -------
    port : In(memory_port(bus_bytes)).array(ports)
    memory : Out(memory_port(bus_bytes))
    """

    def __init__(self, bus_bytes: int, ports: int, *, commands: int = 16) -> None:
        if ports < 1:
            raise ValueError(f"an arbiter needs at least 1 port, not {ports}")
        self.ports, self.commands = ports, commands
        super().__init__(
            {"port": In(memory_port(bus_bytes)).array(ports), "memory": Out(memory_port(bus_bytes))}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.reads = reads = _TransferOrder(self.ports, self.commands)
        m.submodules.writes = writes = _TransferOrder(self.ports, self.commands)
        m.submodules.reports = reports = SyncFIFO(width=reads.index, depth=self.commands)
        memory, ports = self.memory, list(self.port)
        # `reports` has the port of each write whose completion memory has not reported.
        granted, chosen, taken = self._forward_command(m, reads.room & writes.room & reports.w_rdy)
        m.d.comb += [
            reads.push.eq(taken & ~chosen.write),
            writes.push.eq(taken & chosen.write),
            reports.w_en.eq(writes.push),
            reports.w_data.eq(granted),
            reports.r_en.eq(memory.written),
        ]
        for turns in (reads, writes):
            m.d.comb += [turns.port.eq(granted), turns.beats.eq(chosen.beats)]

        write = Array(port.write.payload for port in ports)[writes.turn]
        m.d.comb += [
            memory.write.payload.eq(write),
            memory.write.valid.eq(writes.valid & Array(port.write.valid for port in ports)[writes.turn]),
            writes.word.eq(memory.write.valid & memory.write.ready),
            memory.read.ready.eq(reads.valid & Array(port.read.ready for port in ports)[reads.turn]),
            reads.word.eq(memory.read.valid & memory.read.ready),
        ]
        for index, port in enumerate(ports):
            m.d.comb += [
                port.write.ready.eq(writes.valid & (writes.turn == index) & memory.write.ready),
                port.read.payload.eq(memory.read.payload),
                port.read.valid.eq(reads.valid & (reads.turn == index) & memory.read.valid),
                port.written.eq(memory.written & (reports.r_data == index)),
            ]
        return m

    def _forward_command(self, m: Module, room: Value) -> tuple[Signal, Signal, Value]:
        """Forward a command. Return its port, the command, and whether a command is forwarded in this cycle."""
        command = self.memory.command
        asks = [port.command.valid for port in self.port]
        last = Signal(range(max(self.ports, 2)))
        granted = Signal(range(max(self.ports, 2)))
        # Round robin: the last assignment wins, so the port after `last` has the highest priority.
        with m.Switch(last):
            for before in range(self.ports):
                with m.Case(before):
                    m.d.comb += granted.eq(before)
                    for step in range(self.ports - 1, 0, -1):
                        index = (before + step) % self.ports
                        with m.If(asks[index]):
                            m.d.comb += granted.eq(index)
        free = ~command.valid | command.ready
        taken = free & room & Cat(*asks).any()
        chosen = Signal(Command)
        m.d.comb += chosen.eq(Array(port.command.payload for port in self.port)[granted])
        for index, port in enumerate(self.port):
            m.d.comb += port.command.ready.eq(free & room & (granted == index))
        with m.If(free):
            m.d.sync += [command.valid.eq(taken), command.payload.eq(chosen)]
        with m.If(taken):
            m.d.sync += last.eq(granted)
        return granted, chosen, taken


class DirectBridge(wiring.Component):
    """Bridge from an AXI4 port to a memory port, without buffers, for `weft.hdl.sequential.mover.Mover`.

    The manager sends bursts of one beat, each after the previous response. It offers words with their address and
    accepts words at once. All responses are OKAY. Other cores need `weft.boards.bus.axi.AxiBridge`.

    Parameters
    ----------
    config : Config

    Members
    -------
    axi : In(axi4_signature(config))
    memory : Out(memory_port(config.bus_bytes))
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {"axi": In(axi4_signature(config)), "memory": Out(memory_port(config.bus_bytes))},
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi, memory = self.axi, self.memory
        m.d.comb += [
            memory.command.valid.eq(axi.arvalid | axi.awvalid),
            memory.command.payload.write.eq(axi.awvalid),
            memory.command.payload.address.eq(Mux(axi.awvalid, axi.awaddr, axi.araddr)),
            memory.command.payload.beats.eq(1),
            axi.arready.eq(memory.command.ready & ~axi.awvalid),
            axi.awready.eq(memory.command.ready),
            memory.write.valid.eq(axi.wvalid),
            memory.write.payload.data.eq(axi.wdata),
            memory.write.payload.strobe.eq(axi.wstrb),
            axi.wready.eq(memory.write.ready),
            memory.read.ready.eq(1),
            axi.rvalid.eq(memory.read.valid),
            axi.rdata.eq(memory.read.payload),
            axi.rlast.eq(1),
            axi.bvalid.eq(memory.written),
        ]
        return m


OUTSTANDING = 64
"""Exceeds the number of commands that a memory and the queues in front of it accept at a time."""


class Gate(wiring.Component):
    """Gate in a memory port, without latency.

    When closed it blocks new commands. Earlier commands complete as long as the requester accepts and supplies words
    without waiting, as `weft.boards.bus.axi.AxiBridge` does.

    Parameters
    ----------
    bus_bytes : int
    commands, beats : int
        Largest number of outstanding commands, and of words per command.

    Members
    -------
    port : In(memory_port(bus_bytes))
    memory : Out(memory_port(bus_bytes))
    close : In(1)
    idle : Out(1)
        The gate is closed, and memory has completed all commands.
    """

    def __init__(self, bus_bytes: int, commands: int = OUTSTANDING, beats: int = MAX_BEATS) -> None:
        self.commands, self.beats = commands, beats
        super().__init__(
            {
                "port": In(memory_port(bus_bytes)),
                "memory": Out(memory_port(bus_bytes)),
                "close": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        port, memory = wiring.flipped(self.port), self.memory
        command = memory.command
        open_ = ~self.close
        m.d.comb += [
            command.payload.eq(port.command.payload),
            command.valid.eq(port.command.valid & open_),
            port.command.ready.eq(command.ready & open_),
            port.written.eq(memory.written),
        ]
        wiring.connect(m, port.write, wiring.flipped(memory).write)
        wiring.connect(m, port.read, wiring.flipped(memory).read)

        # Words that memory still has to deliver, and writes that it still has to report.
        words = Signal(range(max(self.commands * self.beats, 2)))
        writes = Signal(range(max(self.commands, 2)))
        taken = command.valid & command.ready
        asked = Mux(taken & ~command.payload.write, command.payload.beats[: len(words)], 0)
        m.d.sync += [
            words.eq(words + asked - (memory.read.valid & memory.read.ready)),
            writes.eq(writes + (taken & command.payload.write) - memory.written),
            self.idle.eq(self.close & ~words.any() & ~writes.any()),
        ]
        return m
