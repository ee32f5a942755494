"""A gate in a memory port: lets one who asks be reset while memory still works for it."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.port import MAX_BEATS, memory_port

OUTSTANDING = 64
"""More commands than a memory and what is in front of it take at a time."""


class Gate(wiring.Component):
    """Passes a memory port on, without delay.

    Closed, it holds back commands; those that went through before come to their end as far as the one who asked takes
    and gives words by itself, as `weft.boards.axi_bridge.AxiBridge` does.

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
