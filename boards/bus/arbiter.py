"""Several memory ports onto one."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import MAX_BEATS, Command, memory_port
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.isa.config import Config


class _Turns(wiring.Component):
    """Says whose words come next: that of the oldest command whose words have not all been transferred.

    Members
    -------
    push : In(1)
        A command of `port` for `beats` words.
    room : Out(1)
        `push` is possible.
    valid, turn : Out(1), Out
        Words of a command are to come, and to or from which port.
    word : In(1)
        One is transferred.
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
    """Merges memory ports: a command a cycle, of the ports that ask the one that went longest ago; a cycle's delay.

    Memory serves one command after the other, so a port must be able to take at once what it reads, and have at hand
    what it writes, before it asks, or all others wait for it. (`weft.boards.bus.axi_bridge.AxiBridge` does so.)

    Parameters
    ----------
    bus_bytes : int
    ports : int
    commands : int
        Reads, and writes, that may be on their way. A memory without latency needs no more than 2.

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
        m.submodules.reads = reads = _Turns(self.ports, self.commands)
        m.submodules.writes = writes = _Turns(self.ports, self.commands)
        m.submodules.reports = reports = SyncFIFO(width=reads.index, depth=self.commands)
        memory, ports = self.memory, list(self.port)
        granted, chosen, taken = self._choose(m, reads.room & writes.room & reports.w_rdy)
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

    def _choose(self, m: Module, room: Value) -> tuple[Signal, Signal, Value]:
        """Pass a command on; returns the port, the command, and whether one is passed in this cycle."""
        command = self.memory.command
        asks = [port.command.valid for port in self.port]
        last, granted = Signal(range(max(self.ports, 2))), Signal(range(max(self.ports, 2)))
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


class Direct(wiring.Component):
    """Does what `weft.boards.bus.axi_bridge.AxiBridge` does for a core that sends what
    `weft.hdl.sequential.mover.Mover` does: bursts of one beat, each after the response to the one before, its words
    offered with its address and taken at once. All responses are OKAY.

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
"""More commands than a memory and what is in front of it take at a time."""


class Gate(wiring.Component):
    """Passes a memory port on, without delay.

    Closed, it holds back commands; those that went through before come to their end as far as the one who asked takes
    and gives words by itself, as `weft.boards.bus.axi_bridge.AxiBridge` does.

    Parameters
    ----------
    bus_bytes : int
    commands, beats : int
        Commands that are on their way at most, and words of each.

    Members
    -------
    port : In(memory_port(bus_bytes))
    memory : Out(memory_port(bus_bytes))
    close : In(1)
    idle : Out(1)
        The gate is closed, and memory has done all it was asked for.
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
