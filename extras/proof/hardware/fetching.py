"""Properties of `weft.hdl.control.fetch` without loops: requests to memory, and parts for queues."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.parity import has_odd_group
from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Bounded, CutBench, Invariant, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import assume_answers, stable, transfer, within
from weft.hdl.control.fetch import BURST_BYTES, BURSTS, PAGE, Fetch, queue_kinds
from weft.hdl.isa import WORD_BITS, Opcode, Queue

_AFTER_BUFFER = 3
"""Maximum number of parts after the prefetch buffer: one in a register, two in a skid buffer."""
_WATCHED = (*range(8), 8, -1)
"""Bits of a part that are compared: the opcode, the first bit after it, and the last bit."""


class _Running:
    """State of a fetch as seen from outside, with the assumptions about its users.

    Assumed, as its documentation says: a start comes while it is idle, and not with a stop; memory only answers
    requests.
    """

    def __init__(self, m: Module, bench: Bench) -> None:
        dut = bench.dut
        request, beat = dut.bus.request, dut.bus.beat
        self.running = bench.peek("running")
        bench.assume(~dut.start | dut.idle & ~dut.stop)
        self.ports = [getattr(dut, queue.name.lower()) for queue in Queue]
        self.valid: Value = Cat(port.valid for port in self.ports).any()
        self.accepted: Value = Cat(port.valid & port.ready for port in self.ports).any()
        beats = Mux(transfer(request), request.payload.beats, 0)
        self.owed = assume_answers(m, bench, "owed", asked=beats, answer=beat.valid, limit=256)
        self.watched = Cat(
            *(self.ports[0].payload.data[bit] for bit in _WATCHED), self.ports[0].payload.index
        )
        self.parts = max(WORD_BITS // len(self.ports[0].payload.data), 1)
        self.index = Signal(range(max(self.parts, 2)), name="expected_index")
        last = self.index == self.parts - 1
        with m.If(dut.start):
            m.d.sync += self.index.eq(0)
        with m.Elif(self.accepted):
            m.d.sync += self.index.eq(Mux(last, 0, self.index + 1))


class FetchBench(CutBench, unit=Fetch):
    """From a start on, words are requested in order, up to the ends of their blocks, and no more than there is room
    for. Words of another page are requested only after all earlier words are used. The parts of an instruction go to
    its queue, in order, until a stop or a word that is no instruction, which is an error unless it is END. Fetch is
    idle when nothing is owed. A word that has changed in the buffer is reported when it leaves.

    The bus is narrow, and the prefetch buffer holds any words, with any parity.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.burst = BURST_BYTES // self.config.bus_bytes
        self.state = state = _Running(m, self)
        began = ago(m, dut.start, 1, "start", reset=True)
        ran = ago(m, state.running, 1, "running", reset=True)
        self.claim("runs from a start", ~state.running | began | ran)
        self.claim("a stop ends it", implies(ago(m, dut.stop, 1, "stop", reset=True), ~state.running))
        self.claim(
            "an error ends it", implies(ago(m, dut.error, 1, "error", reset=True), ~state.running | began)
        )
        unused, asked = self._claim_requests(m)
        self._claim_places(unused + asked)
        self._claim_idle(m, unused)
        self._claim_parts(m)
        self._claim_parity(m)

    def _claim_requests(self, m: Module) -> tuple[Signal, Value]:
        """Claim the requests; return the number of words that were requested and not used before, and of this cycle's
        request.
        """
        dut, state, burst = self.dut, self.state, self.burst
        request, bus = dut.bus.request, self.config.bus_bytes
        stable(m, self, request, "request")
        address, beats = request.payload.address, request.payload.beats
        new = request.valid & ~ago(m, request.valid & ~request.ready, 1, "request_waited", reset=True)
        following, unused = Signal(32, name="following"), Signal(range(256), name="held")
        align = (bus - 1).bit_length()
        m.d.sync += unused.eq(unused + Mux(new, beats, 0) - state.accepted)
        with m.If(new):
            m.d.sync += following.eq(address + beats * bus)
        with m.If(dut.start):
            m.d.sync += [following.eq(dut.program[align:] << align), unused.eq(0)]
        self.claim("memory may answer at any time", dut.bus.beat.ready)
        self.claim("one burst after the other", ~new | (address == following))
        next_address = Mux(new, address + beats * bus, following)
        self.claim("where the next burst begins", self.peek("address") == next_address[:32])
        place = (address >> align)[: (burst - 1).bit_length()]
        self.claim("to the end of its block", ~request.valid | (beats == burst - place))
        self.claim(
            "a page when all ahead is used", ~new | (address[: (PAGE - 1).bit_length()] != 0) | (unused == 0)
        )
        self.claim(
            "no more than there is room for", ~state.running | (unused <= burst * BURSTS + _AFTER_BUFFER)
        )
        within(m, self, state.running & (unused == 0) & ~request.valid, 3, "asks")
        self.cover("as much as there is room for", state.running & (unused == burst * BURSTS))
        return unused, Mux(new, beats, 0)

    def _claim_places(self, unused: Value) -> None:
        """Claim where words are in the unit: induction needs these invariants."""
        dut, state, depth = self.dut, self.state, self.burst * BURSTS
        request = dut.bus.request
        pending, level = self.peek("pending"), self.peek("buffer.level")
        asked = Mux(request.valid, request.payload.beats, 0)
        self.claim("words that are pending", pending == state.owed + level + asked)
        self.claim("pending", pending <= depth)
        left, full = self.peek("parts.left"), self.peek("skid.full")
        ahead = self.peek("skid.o__valid")
        self.claim(
            "words that were not handed out", ~state.running | (unused == pending + left + full + ahead)
        )
        self.claim("the spare word comes after another", ~full | ahead)

    def _claim_idle(self, m: Module, unused: Signal) -> None:
        dut, state = self.dut, self.state
        request = dut.bus.request
        quiet = (state.owed == 0) & ~request.valid & ~state.running
        self.claim("idle when nothing is owed", ~dut.idle | quiet)
        within(m, self, quiet & ~dut.idle, self.burst * BURSTS + 1, "idle")
        waits = state.running & (unused != 0) & (state.owed == 0) & ~request.valid & ~state.valid
        within(m, self, waits, 4, "hands out")
        self.cover("idle again", dut.idle & ago(m, ~dut.idle, 1, "busy", reset=True))

    def _claim_parts(self, m: Module) -> None:
        dut, state = self.dut, self.state
        ports, payload = state.ports, state.ports[0].payload
        opcode = payload.data[:8]
        kinds = queue_kinds(self.config)
        wanted = Cat(Cat(opcode == int(kind.OPCODE) for kind in kinds[queue]).any() for queue in Queue)
        queue = Signal(len(ports), name="queue")
        m.d.sync += queue.eq(Mux(state.index == 0, wanted, queue))
        first = state.index == 0
        valids = Cat(port.valid for port in ports)
        self.claim("to one queue", ~state.valid | (valids == Mux(first, wanted, queue)))
        self.claim("while it runs", ~state.valid | state.running)
        self.claim("part after part", ~state.valid | (payload.index == state.index))
        self.claim(
            "an error is no instruction", ~dut.error | first & ~wanted.any() & (opcode != int(Opcode.END))
        )
        self.claim("an error is no part", ~dut.error | state.running & ~state.valid)
        for port, which in zip(ports, Queue, strict=True):
            name = which.name.lower()
            shown = Cat(*(port.payload.data[bit] for bit in _WATCHED), port.payload.index)
            self.claim(f"payload for {name}", shown == state.watched)
            stopped = dut.stop & port.valid
            waited = ago(m, port.valid & ~port.ready & ~stopped, 1, f"{name}_waited", reset=True)
            before = ago(m, shown, 1, f"{name}_before")
            self.claim(f"a part for {name} stays", ~waited | port.valid & (shown == before))
        self.cover("the last part of an instruction", state.accepted & (state.index == state.parts - 1))
        self.cover("an error", dut.error)

    def _claim_parity(self, m: Module) -> None:
        (memory,) = self.memories
        (read,), (write,) = memory.read_ports, memory.write_ports
        self.claim("the buffer gets words that are right", ~has_odd_group(write.data, 32))
        leaves = self.peek("buffer.r_rdy") & self.peek("buffer.r_en") & self.state.running
        due = ago(m, leaves & has_odd_group(read.data, 32), 1, "due", reset=True)
        self.claim("a word that leaves the buffer and has changed", self.dut.wrong == due)
        self.cover("wrong", due)


class OrderBench(Bench, unit=Fetch):
    """Parts are the words that memory gave since the start, in order; fetch ends at END.

    The bus is narrow. The bench records some bits of all words that memory has given since the start.
    """

    def watch(self, m: Module) -> None:
        dut, state = self.dut, _Running(m, self)
        beat, payload = dut.bus.beat, state.ports[0].payload
        depth = 1 << (BURST_BYTES // self.config.bus_bytes * BURSTS + _AFTER_BUFFER).bit_length()
        words = Array(Signal(len(_WATCHED), name=f"word{index}") for index in range(depth))
        at, first = Signal(range(depth), name="at"), Signal(range(depth), name="first")
        coming, leaving = (Cat(value[bit] for bit in _WATCHED) for value in (beat.payload, payload.data))
        m.d.sync += first.eq(first + state.accepted)
        with m.If(beat.valid):
            m.d.sync += [words[at].eq(coming), at.eq(at + 1)]
        with m.If(dut.start):
            m.d.sync += [at.eq(0), first.eq(0)]
        here = at != first
        self.claim("out of nothing", ~(state.valid | dut.error) | here)
        self.claim("order", ~(state.valid | dut.error) | (leaving == words[first]))
        ends = here & (state.index == 0) & (words[first][:8] == int(Opcode.END))
        within(m, self, state.running & ends, 6, "END ends")
        self.cover("three parts", (first == 3) & state.running)
        self.cover("END", state.running & ends & (first != 0))


def properties() -> Iterator[Property]:
    for bus in (64, 32):
        config = SMALLEST.replace(bus_bytes=bus, parity=1)
        yield FetchBench.proves(
            "control/fetch", f"requests and parts, {bus} bytes", Invariant(), config, cover=40
        )
        yield OrderBench.proves(
            "control/fetch", f"order, {bus} bytes", Bounded(12), SMALLEST.replace(bus_bytes=bus), part=True
        )
