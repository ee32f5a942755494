"""Properties of SET, LOOP, NEXT and READ: their effect on registers, and on the next instruction."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import flag, was
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import transfer
from weft.hdl.control.sequencer import (
    BACK_WORD,
    CONTROL_INSTRUCTIONS,
    FIRST_VALUE_WORD,
    HEAD_BITS,
    SLOT_BITS,
    WORD,
    Sequencer,
)
from weft.hdl.isa import (
    BASES,
    WORD_BITS,
    WORD_BYTES,
    LoopNext,
    LoopStart,
    Mode,
    Queue,
    ReadRegisters,
    SetRegisters,
)
from weft.hdl.isa.loops import READ_WORDS, SLOTS
from weft.hdl.lib.pipeline import FIRST_FIELD

_BITS = 4
"""Width of the number of a register."""


@proves(
    "control/sequencer",
    "SET, LOOP, NEXT and READ",
    Induction(4),
    SMALLEST.replace(loops=1, bus_bytes=WORD_BYTES),
    cover=32,
)
class RegistersBench(Bench, unit=Sequencer, drives=("bases", "parts")):
    """Each slot of SET and NEXT changes its register as its mode says, in order and once; READ sets the registers that
    it names to its words. LOOP and NEXT jump where and when they must. All other instructions go to their queue once,
    with the content of the first register that they name. Fields and contents of registers are unconstrained.

    The sequencer has a bus of a whole instruction, between memory and queues that work at any time. Assumed: an
    instruction stays until it is taken or there is a jump, and its route follows from its opcode; slots have valid
    modes; READ has 1 to 8 words, from a multiple of 32 bytes; a start comes when nothing is under way, and the host's
    base registers do not change.

    Two registers, which may be any, are watched. Where a watched register gets the content of another register, the
    model takes that content from the unit: it is right because the other register may be watched, too.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        bases = self.constant(m, 32 * BASES, "bases")
        m.d.comb += dut.bases.as_value().eq(bases)
        self.part = self.free(WORD_BITS, "part")
        self.route = self.free(len(Queue) + len(CONTROL_INSTRUCTIONS), "route")
        payload = dut.parts.payload
        m.d.comb += [payload.part.data.eq(self.part), payload.part.index.eq(0), payload.queue.eq(self.route)]
        m.d.comb += dut.parts.valid.eq(self.free(1, "part_valid"))
        self.named = [self.constant(m, _BITS, f"named{k}") for k in range(2)]
        self.values = [Signal(WORD, name=f"value{k}") for k in range(2)]
        self.assume(self.named[0] != self.named[1])
        self._assume_parts(m)
        self._claim_counts(m)
        self._claim_registers(m, bases)
        self._claim_progress()
        self._claim_queued()
        self._claim_next(m)

    def _assume_parts(self, m: Module) -> None:
        dut, valid = self.dut, self.dut.parts.valid
        word = Cat(self.part, self.route)
        waits = was(m, valid & ~dut.parts.ready & ~dut.jump & ~dut.start)
        self.assume(~waits | (valid & (word == was(m, word, "word_before"))))
        self.assume((self.route & (self.route - 1)) == 0)
        self.at, self.left, self.loading = (self.peek(name) for name in ("at", "left", "loading"))
        self.head, self.place = self.peek("head"), self.peek("place")
        started = flag(m, dut.start, 0)
        self.assume(~dut.start | (~valid & ~dut.jump & ~dut.reads & (self.loading == 0)))
        self.assume(started | dut.start | ~valid)
        self.go = valid & (self.loading == 0) & ~dut.jump
        self.started, self.waits = started, waits
        self.kinds = {
            kind: self.route[len(Queue) + number] & ~dut.reads
            for number, kind in enumerate(CONTROL_INSTRUCTIONS)
        }
        read = ReadRegisters.layout()(self.part)
        is_read = valid & self.kinds[ReadRegisters]
        self.assume(~is_read | ((read.count != 0) & (read.count <= READ_WORDS) & (read.offset % 32 == 0)))
        slots = SetRegisters.layout()(self.part)
        self.slotted = self.kinds[SetRegisters] | self.kinds[LoopNext]
        for slot in range(SLOTS):
            self.assume(~(valid & self.slotted) | (slots[f"mode{slot}"] <= max(Mode)))

    def _claim_registers(self, m: Module, bases: Value) -> None:
        """Claim the contents of the two watched registers."""
        changes = self._changes()
        for number, (name, value) in enumerate(zip(self.named, self.values, strict=True)):
            base = Mux(name[3], 0, bases.word_select(name[:3], WORD))
            with m.If(self.loading == name + 1):
                m.d.sync += value.eq(base)
            for happens, register, new in changes:
                with m.If(happens & (register == name)):
                    m.d.sync += value.eq(new)
            there = self.started & (self.loading <= name)
            content = self.peek_word("registers", name, 1 << _BITS)
            self.claim(f"content of register {number}", ~there | (content == value))
        self.claim("loading", self.loading <= 16)
        self.claim("loaded before anything else", self.started | (self.loading == 0))

    def value_of(self, number: Value, otherwise: Value) -> Value:
        """Return the content of the register `number`, or `otherwise` if it is not watched."""
        first, second = (number == name for name in self.named)
        return Mux(first, self.values[0], Mux(second, self.values[1], otherwise))

    def _changes(self) -> list[Any]:
        """Return the changes of registers: when, which register, and its new content."""
        slots = SetRegisters.layout()(self.part)
        slot = (self.word - FIRST_VALUE_WORD)[:3]
        register, mode, value = (
            Array(Value.cast(slots[f"{name}{k}"]).as_unsigned() for k in range(SLOTS))[slot]
            for name in ("register", "mode", "value")
        )
        in_slot = (self.word >= FIRST_VALUE_WORD) & (self.word < FIRST_VALUE_WORD + SLOTS)
        self.in_slot = self.go & self.slotted & in_slot
        # The sum is cut at the unit's operands, whose values are claimed.
        taken_up, named = self.peek("word"), self.peek("named__data")
        word = self.part.word_select(self.half * READ_WORDS + self.number, WORD)
        reads = self.go & self.dut.reads
        self.claim("the word that is read", ~reads | (taken_up == word))
        with self.during(self.in_slot):
            self.claim("the slot's value", taken_up == value)
            self.claim("what the slot names", named == self.value_of(value[:_BITS], named))
            content = self.value_of(register, self.looked)
            self.claim("what the slot's register holds", self.looked == content)
        added = Mux(mode == Mode.ADD_REGISTER, named, taken_up)
        changed = (added + Mux(mode == Mode.SET, 0, self.looked))[:WORD]
        return [(self.in_slot & (mode != Mode.NONE), register, changed), (reads, self.read_to, taken_up)]

    def _claim_counts(self, m: Module) -> None:
        """Count the words of SET, NEXT and READ that were processed."""
        dut, read = self.dut, ReadRegisters.layout()(self.part)
        self.word, self.number = Signal(4, name="word"), Signal(4, name="number")
        self.half = Signal()
        self.read_to = Signal(_BITS)
        count = Signal(4, name="words")
        self.taken = transfer(dut.parts)
        with m.If(self.taken | dut.jump | dut.start):
            m.d.sync += self.word.eq(0)
        with m.Elif(self.go & self.slotted):
            m.d.sync += self.word.eq(self.word + 1)
        self.looked = self.peek("looked_up__data")
        self.following = Signal(32, name="following")
        self.reads = self.taken & self.kinds[ReadRegisters]
        with m.If(self.reads):
            m.d.sync += [count.eq(read.count), self.read_to.eq(read.first), self.number.eq(0)]
            m.d.sync += self.half.eq(self.following[5])
        with m.Elif(self.go & dut.reads):
            m.d.sync += [self.read_to.eq(self.read_to + 1), self.number.eq(self.number + 1)]
        self.done = self.go & dut.reads & (self.number == count - 1)
        with self.during(dut.reads):
            self.claim("words that are left", (self.left == count - self.number) & (self.left != 0))
            self.claim("words at most", (count <= READ_WORDS) & (self.number < count))
            self.claim("the register of the next word", self.head[:_BITS] == self.read_to)
            self.claim("the next word", dut.jump | (self.at == self.half * READ_WORDS + self.number))
            self.claim("no word before the jump", ~dut.jump | (self.number == 0))

    def _claim_progress(self) -> None:
        """Claim the registers of the unit that describe the instruction in progress."""
        dut, first, waits = self.dut, self.part[FIRST_FIELD : FIRST_FIELD + HEAD_BITS], self.waits
        begun = dut.reads | dut.jump | (waits & self.slotted)
        self.claim("begins with the first word", (self.at == 0) | begun)
        self.claim("word after word", dut.reads | dut.jump | (self.at == self.word))
        inside = waits & self.slotted & (self.word != 0)
        self.claim("a word of SET or NEXT", (self.word == 0) | (inside & ~dut.reads))
        for word in range(1, FIRST_VALUE_WORD + SLOTS):
            rest = first >> (max(word - FIRST_VALUE_WORD, 0) * SLOT_BITS)
            self.claim(f"its slots {word}", ~(inside & (self.word == word)) | (self.head == rest))
        settled = waits & ~self.slotted & ~dut.reads & (self.head == first) & ~dut.jump
        whole = self.word == WORD_BITS // WORD - 1
        self.claim("settled", ~self.peek("settled") | settled)
        self.claim("a whole SET is taken up", ~(self.taken & self.slotted) | whole)
        self.claim("taken but when there is one", ~dut.parts.ready | self.go)
        last = self.word == FIRST_VALUE_WORD + SLOTS - 1
        self.cover("the last slot", self.in_slot & last & (self.values[0] != 0))

    def _claim_queued(self) -> None:
        """Claim that an instruction with a queue goes there once, whole, and with the content of its register."""
        dut, queued = self.dut, self.dut.queued
        looks = self.kinds[LoopStart] | self.kinds[ReadRegisters]
        number = self.part[FIRST_FIELD : FIRST_FIELD + _BITS]
        content = self.value_of(number, self.looked)
        self.claim("to a queue once", transfer(queued) == (self.taken & ~(dut.reads | self.slotted | looks)))
        with self.during(queued.valid):
            self.claim("whole", queued.payload.data == self.part)
            self.claim("to its queue", dut.queue == self.route[: len(Queue)])
            self.claim("what its register holds", queued.payload.values[0] == content)
        self.claim("what LOOP and READ look at", ~(self.taken & looks) | (self.looked == content))
        self.cover(
            "an instruction with a register", queued.valid & (content == 3) & (number == self.named[0])
        )

    def _claim_next(self, m: Module) -> None:
        """Claim the address of the next instruction."""
        dut, kinds = self.dut, self.kinds
        loop, back = LoopStart.layout()(self.part), LoopNext.layout()(self.part)
        read = ReadRegisters.layout()(self.part)
        place = Signal(32, name="program_counter")
        skips = self.taken & kinds[LoopStart] & (self.looked.as_signed() <= 0)
        backs = self.go & kinds[LoopNext] & (self.word == BACK_WORD)
        self.claim("slots ahead of the jump", ~backs | (self.word >= FIRST_VALUE_WORD + SLOTS))
        step, following = Signal(32, name="step"), self.following
        m.d.comb += [step.eq(WORD_BYTES), following.eq(Mux(self.reads, self.looked, place) + step)]
        with m.If(skips):
            m.d.comb += step.eq((loop.skip + 1) * WORD_BYTES)
        with m.Elif(self.reads):
            m.d.comb += step.eq(read.offset)
        with m.Elif(backs):
            m.d.comb += step.eq(-(back.back * WORD_BYTES))
        plain = self.taken & ~dut.reads & ~self.reads
        with m.If(dut.start):
            m.d.sync += place.eq(dut.program & -WORD_BYTES)
        with m.Elif(plain | backs | self.done):
            m.d.sync += place.eq(following)
        due, target = was(m, skips | backs | self.done | self.reads, "due"), was(m, following, "target")
        reads = flag(m, self.reads, dut.start | self.done)
        self.claim("the instruction's address", ~self.started | (self.place == place))
        self.claim("jumps", dut.jump == due)
        self.claim("where to", ~dut.jump | (dut.target == target))
        self.claim("the words of READ come", dut.reads == reads)
        self.claim("which half of its words", ~(dut.jump & dut.reads) | (target[5] == self.half))
        self.cover("a loop that is skipped", dut.jump & (target == 3 * WORD_BYTES))
        self.cover("the end of READ", self.done & (self.number == 1))
        self.cover("NEXT", backs)
