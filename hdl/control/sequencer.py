"""Loops and registers: executes SET, LOOP, NEXT and READ, and looks up registers for instructions that go to queues."""

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

CONTROL: tuple[type[Instruction], ...] = (SetRegisters, LoopStart, LoopNext, ReadRegisters)
"""The instructions that are executed here, in the order of their bits in `routed_layout`, behind those of queues."""
WORD = 32
"""Bits of a register, and of what is taken up of SET and NEXT in a cycle."""
FIRST_VALUE = places(Opcode.SET)["value0"].position // WORD
BACK = places(Opcode.NEXT)["back"].position // WORD
HEAD = FIRST_VALUE * WORD - FIRST_FIELD
"""Bits of an instruction from its first field on that are kept until they are used."""
SLOT_BITS = HEAD // SLOTS


def routed_layout(config: Config) -> data.StructLayout:
    """A part of an instruction and, one-hot, where it goes: a queue or one of `CONTROL`; 0 for END and unknown ones."""
    return data.StructLayout({"part": part_layout(config), "queue": len(Queue) + len(CONTROL)})


def head_of(word: Value, opcode: Opcode, name: str) -> Value:
    """A field out of the bits from the first field on."""
    place = places(opcode)[name]
    first = place.position - FIRST_FIELD
    assert first + place.width <= HEAD
    return word[first : first + place.width]


class Sequencer(wiring.Component):
    """Stands between the parts that come from memory and the queues.

    The last part of an instruction stands for a cycle longer than it would, in which registers are looked up that the
    instruction names: those numbers have then gone by. SET and NEXT are taken up word by word of 32 bits, one a cycle,
    a slot each. A jump is told in the cycle after its instruction; what comes until then is not looked at.

    READ is a jump to its words, which come as parts of instructions would, and a jump back.

    Parameters
    ----------
    config : Config
        With loops.

    Members
    -------
    start : In(1)
        The next part is that of the instruction at `program`; registers become `bases` and 0, which takes 16 cycles.
    program : In(32), bases : In(32).array(8)
    parts : In(stream of routed_layout(config))
    queued : Out(stream of queued_layout(config)), queue : Out(4)
        To the queue with this bit, or to none: then it is END or an unknown instruction, which is not accepted.
    jump : Out(1)
        For one cycle: no part that was asked for is wanted, the next one is that at `target`.
    target : Out(32)
        A multiple of the word's size behind the program's start, or with `reads` one of 32 bytes.
    reads : Out(1)
        Parts are words for registers, of which there are 32 bytes. From `jump` on to the next.
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
            route[len(Queue) + number] & ~self.reads for number in range(len(CONTROL))
        )
        m.submodules.registers = registers = Memory(shape=WORD, depth=PROGRAM_REGISTERS, init=[])
        looked_up = registers.read_port(domain="comb")
        loading = Signal(range(PROGRAM_REGISTERS + 1))  # registers that still have to get their first value
        head = Signal(HEAD)  # of the instruction; of SET and NEXT what is left of their slots
        at = Signal(range(WORD_BITS // WORD))  # the word that is taken up
        left = Signal(range(READ_BYTES // 4 + 1))  # words that registers still have to get
        word, last, settled = Signal(WORD), Signal(), Signal()
        go, slots, serial = Signal(), Signal(), Signal()
        taken, ends, passes, queued = Signal(), Signal(), Signal(), Signal()
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
        with m.If(self.jump):  # words of 32 bytes may be the upper half of a part
            m.d.sync += at.eq(self._first_word())
        with m.Elif(go & serial):
            m.d.sync += at.eq(at + 1)
        self._keep(m, head, go & ~self.reads & (at < FIRST_VALUE))
        in_slot = go & slots & (at >= FIRST_VALUE) & (at < FIRST_VALUE + SLOTS)
        self._write(m, registers, loading, in_slot, go & self.reads, head, looked_up.data, word)
        with m.If(in_slot):
            m.d.sync += head.eq(head >> SLOT_BITS)
        with m.If(go & self.reads):
            m.d.sync += [head[: len(looked_up.addr)].eq(looked_up.addr + 1), left.eq(left - 1)]

        ending = taken & last & ~self.reads
        loops = is_loop & ending & (looked_up.data.as_signed() <= 0)
        reads = is_read & ending
        back = is_next & go & (at == BACK)
        done = self.reads & go & (left == 1)
        with m.If(reads):
            m.d.sync += [
                head[: len(looked_up.addr)].eq(head_of(head, Opcode.READ, "first")),
                left.eq(head_of(head, Opcode.READ, "count")),
            ]
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
        """Find where to go on, from the instruction's address or, for READ's words, from what a register holds."""
        place = Signal(32)  # address of the instruction
        following = Signal(32)
        align = (self._config.bus_bytes - 1).bit_length()
        m.d.comb += following.eq(Mux(reads, base, place) + step)
        m.d.sync += self.target.eq(following)
        with m.If(moves):
            m.d.sync += place.eq(following)
        with m.If(self.start):
            m.d.sync += place.eq(self.program[align:] << align)

    def _first_word(self) -> Value:
        """Which word of a part the first one for registers is."""
        words = READ_BYTES * 8 // WORD
        if self._width // WORD <= words:
            return Const(0)
        return Mux(self.reads, self.target[(READ_BYTES - 1).bit_length()] * words, 0)

    def _keep(self, m: Module, head: Signal, enable: Value) -> None:
        """Take up the bits from the first field on, which are in the first parts."""
        part, width = self.parts.payload.part, self._width
        for index in range(FIRST_FIELD // width, (FIRST_FIELD + HEAD - 1) // width + 1):
            low, high = max(FIRST_FIELD, index * width), min(FIRST_FIELD + HEAD, (index + 1) * width)
            with m.If(enable & (part.index == index)):
                m.d.sync += head[low - FIRST_FIELD : high - FIRST_FIELD].eq(
                    part.data[low - index * width : high - index * width]
                )

    def _other(self, m: Module, registers: Memory, go: Signal) -> Value:
        """What the register holds that an instruction names elsewhere than in its first field."""
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
        """Change a register: at the start, by a slot, or by a word that was read."""
        port, named = registers.write_port(), registers.read_port(domain="comb")
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
