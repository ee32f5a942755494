"""Sequencer of loops and registers: executes SET, LOOP, NEXT and READ, and reads registers for other instructions."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import (
    BASES,
    PROGRAM_REGISTERS,
    WORD_BITS,
    WORD_BYTES,
    Instruction,
    LoopNext,
    LoopStart,
    Mode,
    Opcode,
    Queue,
    ReadRegisters,
    SetRegisters,
    places,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.loops import READ_BYTES, SLOTS
from weft.hdl.lib.pipeline import FIRST_FIELD, queued_layout
from weft.hdl.lib.ports import part_layout

CONTROL_INSTRUCTIONS: tuple[type[Instruction], ...] = (SetRegisters, LoopStart, LoopNext, ReadRegisters)
"""Instructions that the sequencer executes, in the order of their bits in `routed_layout`, after the queues' bits."""
WORD = 32
"""Bits of a register, and of the words in which SET and NEXT are processed."""
FIRST_VALUE_WORD = places(Opcode.SET)["value0"].position // WORD
BACK_WORD = places(Opcode.NEXT)["back"].position // WORD
HEAD_BITS = FIRST_VALUE_WORD * WORD - FIRST_FIELD
"""Bits of an instruction from its first field on that are stored until they are used."""
SLOT_BITS = HEAD_BITS // SLOTS


def routed_layout(config: Config) -> data.StructLayout:
    """Return the layout of a part of an instruction with its one-hot destination.

    The destination is a queue or one of `CONTROL_INSTRUCTIONS`, and 0 for END and unknown opcodes.
    """
    return data.StructLayout({"part": part_layout(config), "queue": len(Queue) + len(CONTROL_INSTRUCTIONS)})


def head_of(word: Value, opcode: Opcode, name: str) -> Value:
    """Return a field of an instruction, given its bits from the first field on."""
    place = places(opcode)[name]
    first = place.position - FIRST_FIELD
    assert first + place.width <= HEAD_BITS
    return word[first : first + place.width]


class Sequencer(wiring.Component):
    """Stage between fetch and the queues, which holds the program's registers.

    The last part of an instruction is delayed by a cycle to read the registers whose numbers came in earlier parts. SET
    and NEXT are processed in words of 32 bits, one word and so one slot per cycle. `jump` is 1 in the cycle after the
    jump's instruction; parts that arrive before are ignored.

    READ is a jump to its words, which arrive like parts of instructions, and a jump back.

    Parameters
    ----------
    config : Config
        A configuration with loops.

    Members
    -------
    start : In(1)
        The next part is the first of the instruction at `program`. Registers are set to `bases` and 0, which takes 16
        cycles.
    program : In(32), bases : In(32).array(8)
    parts : In(stream of routed_layout(config))
    queued : Out(stream of queued_layout(config)), queue : Out(4)
        A part for the queue with the bit in `queue`. If no bit is set, the part is of END or of an unknown instruction,
        and is not accepted.
    jump : Out(1)
        For one cycle: outstanding parts must be discarded, and the next part must come from `target`.
    target : Out(32)
        Address of an instruction or, with `reads`, a multiple of 32 bytes.
    reads : Out(1)
        Parts are 32 bytes of words for registers, from this `jump` to the next.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._width = min(config.widths.bus, WORD_BITS)
        super().__init__(
            {
                "start": In(1),
                "program": In(32),
                "bases": In(data.ArrayLayout(32, BASES)),
                "parts": In(stream.Signature(routed_layout(config))),
                "queued": Out(stream.Signature(queued_layout(config))),
                "queue": Out(len(Queue)),
                "jump": Out(1),
                "target": Out(32),
                "reads": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        part, route = self.parts.payload.part, self.parts.payload.queue
        is_set, is_loop, is_next, is_read = (
            route[len(Queue) + number] & ~self.reads for number in range(len(CONTROL_INSTRUCTIONS))
        )
        m.submodules.registers = registers = Memory(shape=WORD, depth=PROGRAM_REGISTERS, init=[])
        looked_up = registers.read_port(domain="comb")
        loading = Signal(range(PROGRAM_REGISTERS + 1))  # registers still to be initialised
        # First fields of the instruction; SET and NEXT shift them by a slot per word.
        head = Signal(HEAD_BITS)
        at = Signal(range(WORD_BITS // WORD))  # number of the current word
        left = Signal(range(READ_BYTES // 4 + 1))  # words that READ still has to write
        word = Signal(WORD)  # the current word of the part
        last = Signal()  # the part is the last of its instruction
        settled = Signal()  # `looked_up` has been read with the numbers in `head`
        go = Signal()
        slots = Signal()
        serial = Signal()  # the part is processed word by word
        taken = Signal()
        ends = Signal()  # the current word is the last of its part
        passes = Signal()
        queued = Signal()
        per = self._width // WORD
        inside = at[: (per - 1).bit_length()]
        m.d.comb += [
            go.eq(self.parts.valid & (loading == 0) & ~self.jump),
            slots.eq(is_set | is_next),
            serial.eq(slots | self.reads),
            queued.eq(~serial & ~is_loop & ~is_read),
            last.eq(part.index == WORD_BITS // self._width - 1),
            word.eq(part.data.word_select(inside, WORD) if per > 1 else part.data),
            ends.eq(inside == per - 1 if per > 1 else 1),
            passes.eq(go & Mux(serial, ends, ~last | settled)),
            self.parts.ready.eq(passes & (~queued | self.queued.ready)),
            taken.eq(self.parts.ready),
            looked_up.addr.eq(head[: len(looked_up.addr)]),
            self.queue.eq(route),
            self.queued.valid.eq(passes & queued),
            self.queued.payload.data.eq(part.data),
            self.queued.payload.index.eq(part.index),
            self.queued.payload.values[0].eq(looked_up.data),
            self.queued.payload.values[1].eq(self._other(m, registers, go)),
        ]
        with m.If(taken | self.jump):
            m.d.sync += settled.eq(0)
        with m.Elif(go & last & ~serial):
            m.d.sync += settled.eq(1)
        with m.If(self.jump):  # READ's words may be in the upper half of a part
            m.d.sync += at.eq(self._first_word())
        with m.Elif(go & serial):
            m.d.sync += at.eq(at + 1)
        self._keep(m, head, go & ~self.reads & (at < FIRST_VALUE_WORD))
        in_slot = go & slots & (at >= FIRST_VALUE_WORD) & (at < FIRST_VALUE_WORD + SLOTS)
        self._write(m, registers, loading, in_slot, go & self.reads, head, looked_up.data, word)
        with m.If(in_slot):
            m.d.sync += head.eq(head >> SLOT_BITS)
        with m.If(go & self.reads):
            m.d.sync += [head[: len(looked_up.addr)].eq(looked_up.addr + 1), left.eq(left - 1)]

        ending = taken & last & ~self.reads
        loops = is_loop & ending & (looked_up.data.as_signed() <= 0)
        reads = is_read & ending
        back = is_next & go & (at == BACK_WORD)
        done = self.reads & go & (left == 1)
        with m.If(reads):
            m.d.sync += [
                head[: len(looked_up.addr)].eq(head_of(head, Opcode.READ, "first")),
                left.eq(head_of(head, Opcode.READ, "count")),
            ]
        # LOOP skips its body, READ goes to its words and back, and NEXT goes to the LOOP, which tests the count.
        jumps = loops | reads | back | done
        m.d.sync += self.jump.eq(jumps)
        with m.If(jumps):
            m.d.sync += self.reads.eq(reads)
        step = Signal(32)
        m.d.comb += step.eq(WORD_BYTES)
        with m.If(loops):
            m.d.comb += step.eq((head_of(head, Opcode.LOOP, "skip") + 1) * WORD_BYTES)
        with m.If(reads):
            m.d.comb += step.eq(head_of(head, Opcode.READ, "offset"))
        with m.If(back):
            m.d.comb += step.eq(-(word[: places(Opcode.NEXT)["back"].width] * WORD_BYTES))
        self._move(m, (ending | jumps) & ~reads, Mux(reads, looked_up.data, 0), reads, step)
        with m.If(self.start):
            m.d.sync += [loading.eq(PROGRAM_REGISTERS), at.eq(0), settled.eq(0), self.reads.eq(0)]
        return m

    def _move(self, m: Module, moves: Value, base: Value, reads: Value, step: Signal) -> None:
        """Compute `target` from the instruction's address or, for READ's words, from a register's value."""
        place = Signal(32)  # address of the instruction
        following = Signal(32)
        align = (self._config.bus_bytes - 1).bit_length()
        m.d.comb += following.eq(Mux(reads, base, place) + step)
        m.d.sync += self.target.eq(following)
        # `place` stays at READ while its words arrive: the jump back continues after READ.
        with m.If(moves):
            m.d.sync += place.eq(following)
        with m.If(self.start):
            m.d.sync += place.eq(self.program[align:] << align)

    def _first_word(self) -> Value:
        """Return the number of the first word after a jump in its part; not 0 for READ's words in an upper half."""
        words = READ_BYTES * 8 // WORD
        if self._width // WORD <= words:
            return Const(0)
        return Mux(self.reads, self.target[(READ_BYTES - 1).bit_length()] * words, 0)

    def _keep(self, m: Module, head: Signal, enable: Value) -> None:
        # Store the first fields, which are in the first parts.
        part, width = self.parts.payload.part, self._width
        for index in range(FIRST_FIELD // width, (FIRST_FIELD + HEAD_BITS - 1) // width + 1):
            low, high = max(FIRST_FIELD, index * width), min(FIRST_FIELD + HEAD_BITS, (index + 1) * width)
            with m.If(enable & (part.index == index)):
                m.d.sync += head[low - FIRST_FIELD : high - FIRST_FIELD].eq(
                    part.data[low - index * width : high - index * width]
                )

    def _other(self, m: Module, registers: Memory, go: Signal) -> Value:
        """Return the value of an instruction's second register, whose number is not in the first field."""
        if not self._config.softmax:
            return Const(0, WORD)
        part, route = self.parts.payload.part, self.parts.payload.queue
        port = registers.read_port(domain="comb")
        number = Signal.like(port.addr)
        for queue, place in (
            (Queue.LOAD, places(Opcode.LOAD)["table"]),
            (Queue.VEC, places(Opcode.SOFTMAX)["register"]),
        ):
            index, first = divmod(place.position, self._width)
            assert first + place.width <= self._width
            with m.If(go & route[queue] & (part.index == index)):
                m.d.sync += number.eq(part.data[first : first + place.width])
        m.d.comb += port.addr.eq(number)
        return port.data

    def _write(
        self,
        m: Module,
        registers: Memory,
        loading: Signal,
        in_slot: Value,
        reads: Value,
        head: Signal,
        before: Value,
        word: Signal,
    ) -> None:
        """Write a register: its initial value, the result of a slot, or a word of READ."""
        port = registers.write_port()
        named = registers.read_port(domain="comb")
        initial = (loading - 1)[: len(port.addr)]
        mode = head_of(head, Opcode.SET, "mode0")
        m.d.comb += [
            port.addr.eq(head[: len(port.addr)]),
            port.data.eq(word),
            port.en.eq(reads),
            named.addr.eq(word[: len(named.addr)]),
        ]
        with m.If(in_slot):
            m.d.comb += [
                port.en.eq(mode != Mode.NONE),
                port.data.eq(
                    Mux(mode == Mode.ADD_REGISTER, named.data, word) + Mux(mode == Mode.SET, 0, before)
                ),
            ]
        with m.If(loading != 0):
            m.d.sync += loading.eq(loading - 1)
            m.d.comb += [
                port.en.eq(1),
                port.addr.eq(initial),
                port.data.eq(Mux(initial < BASES, self.bases[initial[: (BASES - 1).bit_length()]], 0)),
            ]
