"""Properties of the arbiter and the gates between memory and its users."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value

from weft.boards.bus.port import MAX_BEATS, Arbiter, Command, Gate
from weft.extras.proof.hardware.pipelines import flag, was
from weft.extras.proof.hardware.property import Bench, Invariant, proves
from weft.extras.proof.hardware.streams import (
    Order,
    WatchedItem,
    assume_answers,
    assume_stable,
    stable,
    transfer,
    within,
)


def at_most_one(values: list[Value]) -> Value:
    """Return whether at most one of `values` is 1."""
    return (sum(values, start=values[0] & 0) <= 1) & 1


def number_of(flags: list[Value]) -> Value:
    """Return the position of the flag that is 1; at most one may be."""
    number: Value = Cat(*flags) & 0
    for index, chosen in enumerate(flags):
        number = number | Mux(chosen, index, 0)
    return number[: max((len(flags) - 1).bit_length(), 1)]


class Bursts(WatchedItem):
    """Claim that all words of a command, and no others, are transferred at its port.

    The watched command may be any, so the claim about its last word holds for the commands before it, too. Therefore
    `ends` may be taken from the unit.

    Parameters
    ----------
    m, bench
    push : value
        A command is taken, from port number `port`, for `beats` words.
    word : value
        A word is transferred at the memory.
    ends : value
        The word is the last of its command.
    ports : list of value
        By port, whether it transfers a word.
    most : int
        Maximum number of commands of which words are still to be transferred.
    """

    def __init__(
        self, m: Module, bench: Bench, name: str, push: Value, port: Value, beats: Value, *,
        word: Value, ends: Value, ports: list[Value], most: int,
    ) -> None:  # fmt: skip
        super().__init__(m, bench, name, push=push, pop=ends, most=most, shown=word)
        current = self.oldest
        whose = Signal(range(max(len(ports), 2)), name=f"{name}_whose")
        more = Signal(range(MAX_BEATS), name=f"{name}_more_words")
        several = Signal(name=f"{name}_several")
        with m.If(current & word):
            m.d.sync += more.eq(more - 1)
        with m.If(self.starts):
            m.d.sync += [whose.eq(port), more.eq(beats - 1), several.eq(beats > 2)]
        bench.claim(f"{name} at one port", (Cat(*ports).any() == word) & at_most_one(ports))
        bench.claim(f"{name} at its port", ~(current & word) | (number_of(ports) == whose))
        bench.claim(f"{name} ends with its last word", ~current | (ends == (word & (more == 0))))
        bench.cover(f"{name} full", self.inside == most)
        bench.cover(f"{name} of three words end", current & ends & several & (whose == len(ports) - 1))


@proves("boards/arbiter", {f"order and turns of {ports}": (ports, 2) for ports in (1, 2, 3)}, Invariant())
class ArbiterBench(Bench, unit=Arbiter):
    """Commands come to the memory in the order in which they are taken, one a cycle while there is room; while a port
    waits no other one goes twice; all words and reports are those of the port whose command it is.

    An arbiter with `ports` ports for `commands` commands.

    Ports keep what they offer until it is taken, and ask for 1 to `MAX_BEATS` words; a port that asks need not have its
    words. Memory keeps the word that it offers, and reports no more writes than it was asked for.
    """

    def __init__(self, ports: int, commands: int) -> None:
        super().__init__(1, ports, commands=commands)
        self.commands = commands

    def watch(self, m: Module) -> None:
        ports, memory = list(self.dut.port), self.dut.memory
        for index, port in enumerate(ports):
            assume_stable(m, self, port.command, f"command_{index}")
            assume_stable(m, self, port.write, f"write_{index}")
            beats = port.command.payload.beats
            self.assume(~port.command.valid | ((beats != 0) & (beats <= MAX_BEATS)))
            stable(m, self, port.read, f"read_{index}")
        assume_stable(m, self, memory.read, "memory_read")
        stable(m, self, memory.command, "command")
        stable(m, self, memory.write, "write")
        takes = [transfer(port.command) for port in ports]
        self.claim("one command a cycle", at_most_one(takes))
        chosen = Array(Value.cast(port.command.payload) for port in ports)[number_of(takes)]
        command = Command(chosen)
        taken = Cat(*takes).any()
        commands = Order(m, self, i=(taken, chosen), o=memory.command, most=1, name="command")
        self.claim("a cycle's delay", memory.command.valid == (commands.inside != 0))
        reads, writes = self._words(m, command, taken, number_of(takes))
        reports = self._reports(m, taken & command.write, number_of(takes))
        room = (reads < self.commands) & (writes < self.commands) & (reports < self.commands)
        free = ~memory.command.valid | memory.command.ready
        asks = [port.command.valid for port in ports]
        self.claim("a command each cycle", taken | ~(Cat(*asks).any() & free & room))
        self._turns(m, asks, takes)

    def _words(self, m: Module, command: Any, taken: Value, port: Value) -> tuple[Value, Value]:
        """Claim the words of reads and writes; return the numbers of commands whose words are incomplete."""
        inside = []
        for kind, write in (("read", 0), ("write", 1)):
            channels = [getattr(port, kind) for port in self.dut.port]
            memory = getattr(self.dut.memory, kind)
            word, moved = transfer(memory), [transfer(channel) for channel in channels]
            ends = word & (self.peek(f"{kind}s.more") == 0)
            push, most = taken & (command.write == write), self.commands + 1
            bursts = Bursts(
                m, self, f"{kind}s", push, port, command.beats, word=word, ends=ends, ports=moved, most=most
            )
            inside.append(bursts.inside)
            whose = Array(Value.cast(channel.payload) for channel in channels)[number_of(moved)]
            self.claim(f"{kind}s unchanged", ~word | (Value.cast(memory.payload) == whose))
            ready = Cat(*((channel.valid if write else channel.ready) for channel in channels)).all()
            waits = (bursts.inside != 0) & ready & (memory.ready if write else memory.valid) & ~word
            within(m, self, waits, 2, f"{kind}s")
        return inside[0], inside[1]

    def _reports(self, m: Module, write: Value, port: Value) -> Value:
        """Claim that reports go to the ports that wrote, in order; return how many are due."""
        reported, written = self.dut.memory.written, [port.written for port in self.dut.port]
        goes, comes = (write, port + 1), (reported, number_of(written) + 1)
        reports = Order(m, self, i=goes, o=comes, most=self.commands, name="report")
        self.assume(~reported | (reports.inside != 0))
        self.claim("a report to one port", (Cat(*written).any() == reported) & at_most_one(written))
        return reports.inside

    def _turns(self, m: Module, asks: list[Value], takes: list[Value]) -> None:
        """Claim that any other port gets at most one turn while a port waits."""
        count = len(asks)
        one, other = (self.constant(m, range(max(count, 2)), name) for name in ("one", "other"))
        passed = Signal()
        goes = Array(takes)[other]
        waits = Array(asks)[one] & ~Array(takes)[one]
        m.d.sync += passed.eq(waits & (passed | goes))
        legal = (one < count) & (other < count) & (one != other)
        self.claim("each other port at most once", ~(legal & waits & passed & goes))
        if count > 1:
            self.cover("it is passed", legal & passed)


@proves("boards/gate", "closing", Invariant(), 4, 3)
class GateBench(Bench, unit=Gate):
    """Open, a gate passes all; closed, it passes no command, and tells that it is idle when nothing is owed.

    A gate for fewer than `commands` commands of at most `beats` words.

    Assumed: memory gives no more words, and reports no more writes, than were requested.
    """

    def __init__(self, commands: int, beats: int) -> None:
        self.commands, self.beats = commands, beats
        super().__init__(1, commands, beats)

    def watch(self, m: Module) -> None:
        port, memory, close = self.dut.port, self.dut.memory, self.dut.close
        command = memory.command
        beats = command.payload.beats
        self.assume(~port.command.valid | ((beats != 0) & (beats <= self.beats)))
        same = Value.cast(command.payload) == Value.cast(port.command.payload)
        self.claim("an open gate passes commands", close | (same & (command.valid == port.command.valid)))
        self.claim("an open gate passes what memory takes", close | (port.command.ready == command.ready))
        self.claim("a closed gate passes nothing", ~close | ~(command.valid | port.command.ready))
        for name, source, sink in (("write", port.write, memory.write), ("read", memory.read, port.read)):
            whole = (source.valid == sink.valid) & (source.ready == sink.ready)
            self.claim(name, whole & (Value.cast(source.payload) == Value.cast(sink.payload)))
        self.claim("written", port.written == memory.written)
        taken, write = transfer(command), command.payload.write
        # The counters have one bit more than needed, so they never wrap.
        most, asked = 2 * self.commands, Mux(taken & ~write, beats, 0)
        words = assume_answers(
            m, self, "words_owed", asked=asked, answer=memory.read, limit=most * self.beats
        )
        writes = assume_answers(
            m, self, "writes_owed", asked=taken & write, answer=memory.written, limit=most
        )
        self.assume((words <= (self.commands - 1) * self.beats) & (writes < self.commands))
        before = was(m, close & (words == 0) & (writes == 0))
        self.claim("idle while it is closed and nothing is owed", self.dut.idle == before)
        worked = flag(m, transfer(memory.read), 0, "has_read")
        self.cover("idle after a read", self.dut.idle & worked)
        self.cover("as many writes as there may be", writes == self.commands - 1)
