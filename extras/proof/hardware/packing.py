"""Properties of `weft.hdl.store`: bytes of vectors in beats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import implies, wire
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import stable, transfer, within
from weft.extras.proof.hardware.walks import skid_slots
from weft.hdl.bus.axi import PAGE, block_beats
from weft.hdl.store import Packer


@dataclass(frozen=True)
class Watched:
    """State of the watched byte.

    Attributes
    ----------
    marked, on
        It enters in this cycle; it is in the unit.
    lane, ahead, at, byte, word
        Its number in its vector, the beats before its own, its place in its beat, its value, and the beat's number in
        its page.
    begins, start
        Its run begins in its beat, and where.
    ends, end, run_on
        Its run ends in its beat, and where, or its end is not known yet.
    """

    marked: Value
    on: Value
    lane: Value
    ahead: Value
    at: Value
    byte: Value
    word: Value
    begins: Value
    start: Value
    ends: Value
    end: Value
    run_on: Value


@proves(
    "store/pack",
    {f"vectors of {n} bytes in words of 4": SMALLEST.replace(n=n, bus_bytes=4) for n in (2, 4)},
    Induction(4),
)
class PackerBench(Bench, unit=Packer):
    """Every byte of a run comes out once, in order, in its lane of its beat and with its strobe. No other strobes are
    set. Beats end bursts where blocks and runs end.

    Reader and bus are unconstrained. Assumed, as `Packer` says: vectors have 1 to ``n`` bytes, and vectors of a run
    follow each other in memory. One byte, which may be any, is watched on its way into its beat, with the beat's
    address and other lanes.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.bus, vector = dut.config.bus_bytes, dut.vector.payload
        self.offset = wire(m, vector.pointer % self.bus, range(self.bus))
        self.end = wire(m, self._end(vector), range(self.bus + dut.config.n + 1))
        stable(m, self, dut.beat, "beat")
        self.push, self.pop = transfer(dut.vector), transfer(dut.beat)
        self._assume_vectors(m)
        self._claim_beats(m)
        self._claim_byte(m)
        within(m, self, dut.vector.valid & ~dut.vector.ready & dut.beat.ready, 2, "a vector is refused")

    def _assume_vectors(self, m: Module) -> None:
        vector = self.dut.vector.payload
        self.first = Signal(init=1)
        self.following = Signal.like(vector.pointer)
        with m.If(self.push):
            m.d.sync += [self.first.eq(vector.last), self.following.eq(vector.pointer + vector.count)]
        self.assume((vector.count != 0) & (vector.count <= self.dut.config.n))
        self.assume(self.first | (vector.pointer == self.following))

    def _claim_beats(self, m: Module) -> None:
        """Count and claim the beats that are due: beats that vectors fill, and the last beat of a run."""
        beat = self.dut.beat
        self.due = Signal(range(8))
        more = wire(m, self._beats_of(self.dut.vector.payload), 2)
        m.d.sync += self.due.eq(self.due + Mux(self.push, more, 0) - self.pop)
        self.claim("no beat out of nothing", ~beat.valid | (self.due != 0))
        self.claim("no more beats than there is room for", self.due <= 5)
        within(m, self, (self.due != 0) & ~beat.valid, 1, "a beat comes")
        self.cover("two beats of a vector", self.push & (more == 2))

    def _claim_byte(self, m: Module) -> None:
        dut, vector, beat, bus = self.dut, self.dut.vector.payload, self.dut.beat.payload, self.bus
        mark, lane = self.free(1, "mark"), self.free(range(dut.config.n), "lane")
        self.assume(lane < vector.count)
        place = Signal(range(2 * bus))
        watched = Signal()
        ahead = Signal.like(self.due)
        at = Signal(range(bus))
        byte = Signal(8)
        word = Signal(range(PAGE // bus))
        begins = Signal()
        start = Signal(range(bus))
        ends = Signal()
        end = Signal(range(bus + 1))
        run_on = Signal()
        m.d.comb += place.eq(self.offset + lane)
        block = block_beats(dut.config)
        out = watched & self.pop & (ahead == 0)
        with m.If(watched & self.pop):
            m.d.sync += [ahead.eq(ahead - 1), watched.eq(ahead != 0)]
        with m.If(watched & self.push):
            # This vector continues the watched byte's run, in its beat or in a later one.
            with m.If(run_on & vector.last & (self.end <= bus)):
                m.d.sync += [ends.eq(1), end.eq(self.end)]
            m.d.sync += run_on.eq(run_on & ~vector.last & (self.end < bus))
        with m.If(mark & self.push & ~watched):
            second = place // bus != 0
            stop = self.end - Mux(second, bus, 0)
            m.d.sync += [
                Cat(watched, at).eq(Cat(1, place[: len(at)])),
                ahead.eq(self.due - self.pop + second),
                byte.eq(vector.data.word_select(lane, 8)),
                word.eq((vector.pointer + lane) % PAGE // bus),
                Cat(begins, start).eq(Cat(self.first & ~second, self.offset)),
                ends.eq(vector.last & (stop <= bus)),
                end.eq(stop),
                run_on.eq(~vector.last & (stop < bus)),
            ]
        block_end = (word + 1) % block == 0
        lanes = Cat(*(~(begins & (j < start)) & ~(ends & (j >= end)) for j in range(bus)))
        self.claim("the byte comes out", ~out | (beat.data.word_select(at, 8) == byte))
        self.claim("a strobe for it", ~out | beat.strobe.bit_select(at, 1))
        self.claim("no strobe beside the run", ~out | ((beat.strobe & ~lanes) == 0))
        self.claim("the burst ends with its block and its run", ~out | (beat.last == (block_end | ends)))
        marked = mark & self.push & ~watched
        self._claim_vectors(
            m, Watched(marked, watched, lane, ahead, at, byte, word, begins, start, ends, end, run_on)
        )
        self.cover("a byte in the middle of a run", out & ~begins & ~ends & (byte != 0))
        self.cover("a run of less than a beat", out & begins & ends & (start != 0) & (end != bus))
        self.cover("the end of a block", out & block_end & ~ends)

    def _claim_vectors(self, m: Module, byte: Watched) -> None:
        """Claim the unit's registers, from which induction starts: two vectors that wait, and the rest of a beat."""
        dut = self.dut
        self.take = self.peek("taken")
        layout = dut.vector.payload.shape()
        self.slots = slots = [Signal(layout, name=f"waiting{k}") for k in range(2)]
        (self.comes, first), (self.full, second) = skid_slots(self, "stage")
        new = dut.vector.payload
        with m.If(self.take & self.full):
            m.d.sync += slots[0].eq(slots[1])
        with m.If(self.push & (~self.comes | self.take)):
            m.d.sync += slots[0].eq(new)
        with m.If(self.push & self.comes & ~self.take):
            m.d.sync += slots[1].eq(new)
        places = (self.comes, self.full)
        for k, (there, register) in enumerate(zip(places, (first, second), strict=True)):
            self.claim(f"vector {k}", implies(there, register == self._rotated(slots[k])))
            count = slots[k].count
            self.claim(f"bytes of vector {k}", implies(there, (count != 0) & (count <= dut.config.n)))
        self._claim_residue(m)
        order = slots[0].last | (slots[1].pointer == (slots[0].pointer + slots[0].count)[: len(new.pointer)])
        self.claim("they follow each other", implies(self.full, order))
        newest = layout(Mux(self.full, slots[1].as_value(), slots[0].as_value()))
        next_pointer = (newest.pointer + newest.count)[: len(new.pointer)]
        begins = Mux(self.comes, newest.last, self.first_left)
        self.claim("whether a run begins", self.first == begins)
        following = Mux(self.comes, next_pointer, self.next_left)
        self.claim("where it goes on", self.first | (self.following == following))
        beats = (Mux(there, self._beats_of(slot), 0) for there, slot in zip(places, slots, strict=True))
        self.claim("beats that are due", self.due == sum(beats, start=Value.cast(self.flush)))
        self._claim_place(m, byte)

    def _end(self, vector: Any) -> Value:
        """Return the end of a vector, relative to the beat in which it begins."""
        return vector.pointer % self.bus + vector.count

    def _beats_of(self, vector: Any) -> Value:
        end = self._end(vector)
        return end // self.bus + (vector.last & (end % self.bus != 0))

    def _rotated(self, vector: Any) -> Value:
        """Return a vector as the first stage stores it."""
        bus, n, offset = self.bus, self.dut.config.n, vector.pointer % self.bus
        end, block = self._end(vector), block_beats(self.dut.config)
        bytes_, lanes = [], []
        for lane in range(bus):
            number = (lane - offset) % bus
            bytes_.append(Mux(number < n, vector.data.word_select(number, 8), 0))
            lanes.append(number < vector.count)
        here = [offset <= lane for lane in range(bus)]
        ends = (vector.pointer // bus + 1) % block == 0
        return Cat(*bytes_, *lanes, *here, end >= bus, end > bus, vector.last, ends)

    def _claim_residue(self, m: Module) -> None:
        """Claim the rest of a beat.

        It is empty if a run begins next, or has the lanes from the run's start, or is the end of a run, which leaves
        alone.
        """
        bus, vector, beat = self.bus, self.slots[0], self.dut.beat
        self.first_left = first = Signal(init=1, name="first_left")
        self.next_left = Signal(len(vector.pointer), name="next_left")
        start = Signal(range(bus), name="start_left")
        self.flush = Signal()
        end_left = Signal(range(bus))
        end = self._end(vector)
        with m.If(self.take):
            m.d.sync += [first.eq(vector.last), self.next_left.eq(vector.pointer + vector.count)]
            m.d.sync += start.eq(Mux(end >= bus, 0, Mux(first, vector.pointer, start)))
            m.d.sync += [self.flush.eq(vector.last & (end > bus)), end_left.eq(end)]
        with m.Elif(self.flush & beat.ready):
            m.d.sync += self.flush.eq(0)
        self.start_left, self.end_left = start, end_left
        residue, strobe = self.peek("residue"), self.peek("strobe")
        self.residue = residue
        self.claim("the end of a run", self.peek("flush") == self.flush)
        place = self.next_left % bus
        going = Cat(*((start <= lane) & (place > lane) for lane in range(bus)))
        ended = Cat(*(end_left > lane for lane in range(bus)))
        self.claim("lanes that are left", strobe == Mux(self.flush, ended, Mux(first, 0, going)))
        self.claim("a run has ended", implies(self.flush, first & (end_left != 0)))
        self.claim("it began before", implies(~first, Mux(place == 0, start == 0, start < place)))
        follows = vector.pointer == self.next_left
        self.claim("the oldest one follows", implies(self.comes & ~first, follows))

    def _claim_place(self, m: Module, byte: Watched) -> None:
        """Claim the place of the watched byte: a vector that waits, 2 for the oldest, or the rest of a beat, 3."""
        where, lane = Signal(2, name="where"), Signal(len(byte.lane), name="lane_of_it")
        bus, slots = self.bus, self.slots
        oldest = ~self.comes | self.take
        ends = self._end(slots[0])
        second = (slots[0].pointer % bus + lane) // bus != 0
        stays = second | ~((ends >= bus) | slots[0].last)
        with m.If(byte.marked):
            m.d.sync += [where.eq(Mux(oldest, 2, 1)), lane.eq(byte.lane)]
        with m.Elif((where == 1) & self.take):
            m.d.sync += where.eq(2)
        with m.Elif((where == 2) & self.take):
            m.d.sync += where.eq(Mux(stays, 3, 0))
        with m.Elif((where == 3) & self.pop):
            m.d.sync += where.eq(0)
        self.claim("it is somewhere", byte.on == (where != 0))
        self._claim_waiting(byte, where, lane)
        self._claim_left(byte, where)

    def _claim_waiting(self, byte: Watched, where: Value, lane: Value) -> None:
        """Claim the watched byte in a vector that waits."""
        bus, slots = self.bus, self.slots
        for k, (number, there) in enumerate(((2, self.comes), (1, self.full))):
            vector, here = slots[k], where == number
            place = vector.pointer % bus + lane
            second = place // bus != 0
            self.claim(f"vector {k} is there", implies(here, there & (lane < vector.count)))
            self.claim(
                f"it is the byte of vector {k}", implies(here, byte.byte == vector.data.word_select(lane, 8))
            )
            ahead = self.flush + second + (self._beats_of(slots[0]) if k else 0)
            self.claim(f"beats ahead of it in vector {k}", implies(here, byte.ahead == ahead))
            self.claim(f"its lane in vector {k}", implies(here, byte.at == place % bus))
            word = (vector.pointer + lane) % PAGE // bus
            self.claim(f"its beat in vector {k}", implies(here, byte.word == word))
            begins = (slots[0].last if k else self.first_left) & ~second
            self.claim(f"its run begins in vector {k}", implies(here, byte.begins == begins))
            self.claim(f"where, in vector {k}", implies(here & begins, byte.start == vector.pointer % bus))
            stop = self._end(vector) - Mux(second, bus, 0)
            known = (vector.last & (stop <= bus), stop, ~vector.last & (stop < bus))
            later = [] if k else [(self.full, slots[1])]
            self._claim_end(byte, here, known, later, f"in vector {k}")

    def _claim_left(self, byte: Watched, where: Value) -> None:
        """Claim the watched byte in the rest of a beat."""
        bus, left = self.bus, where == 3
        place = self.next_left % bus
        going = left & ~self.flush
        self.claim(
            "it is the byte that is left", implies(left, self.residue.word_select(byte.at, 8) == byte.byte)
        )
        self.claim("its beat is the next one", implies(left, byte.ahead == 0))
        inside = Mux(self.flush, byte.at < self.end_left, (byte.at < place) & (byte.at >= self.start_left))
        self.claim("it is among the lanes", implies(left, inside))
        self.claim("its run goes on", implies(going, ~self.first_left & (place != 0)))
        self.claim("its run began before", implies(left & self.flush, ~byte.begins))
        self.claim("its run began there", implies(left & byte.begins, byte.start == self.start_left))
        self.claim("its beat goes on", implies(going, byte.word == self.next_left % PAGE // bus))
        over = byte.ends & (byte.end == self.end_left) & ~byte.run_on
        self.claim("its run has ended", implies(left & self.flush, over))
        later = [(self.comes, self.slots[0]), (self.full, self.slots[1])]
        self._claim_end(byte, going, (Const(0), byte.end, Const(1)), later, "of what is left")

    def _claim_end(
        self,
        byte: Watched,
        here: Value,
        known: tuple[Value, Value, Value],
        later: list[tuple[Value, Any]],
        name: str,
    ) -> None:
        """Claim what is known of the run's end in the beat, from the vectors that follow."""
        ends, end, run_on = known
        for there, vector in later:
            stop = self._end(vector)
            over = there & run_on & vector.last & (stop <= self.bus)
            ends, end = ends | over, Mux(over, stop, end)
            run_on = run_on & (~there | ~vector.last & (stop < self.bus))
        self.claim(f"whether its run ends there {name}", implies(here, byte.ends == ends))
        self.claim(f"where its run ends {name}", implies(here & ends, byte.end == end))
        self.claim(f"whether its run goes on {name}", implies(here, byte.run_on == run_on))
