"""The processor that runs the microprogram: see `weft.hdl.sequential.assembler`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.kernel import MULTIPLIER_BITS, REGISTERS, STRIP_ROWS, MicroOp
from weft.hdl.sequential.assembler import (
    CONDITION_BITS,
    CONDITIONS,
    FUNCTION_BITS,
    OPERAND_LOW,
    OUT_BITS,
    PART_BITS,
    PORTS,
    SOURCE_BITS,
    WIDTHS,
    Condition,
    Function,
    MemoryOut,
    Part,
    Port,
    Source,
)
from weft.hdl.sequential.assembler import Out as Target

ROW_BITS = (STRIP_ROWS - 1).bit_length()
_BLOCKS = 2 * REGISTERS
_PREDICATES, _STAGED = 6, 7
"""Numbers of blocks; registers have those from `REGISTERS` on."""


def last_words(n: int) -> tuple[int, int]:
    """Words at the end of data memory in which blocks are numbered, and how many of them, the last ones, they take."""
    return _BLOCKS * STRIP_ROWS * n, (_BLOCKS - _PREDICATES) * STRIP_ROWS * n


def immediate(n: int, depth: int) -> int:
    """The word of data memory that holds the immediate number."""
    return depth - last_words(n)[0] + (_STAGED * STRIP_ROWS + 1) * n


class Operation:
    """What the processor knows of the micro-operation under way, and the addresses that it makes of that.

    Parameters
    ----------
    m : Module
    n : int
        Lanes.
    bits : int
        Of an address of data memory.
    given, word : Value
        In this cycle the first word of a micro-operation is given: its bits up to `end`.
    """

    def __init__(self, m: Module, n: int, bits: int, given: Value, word: Value) -> None:
        self.lane_bits, self.bits = (n - 1).bit_length(), bits
        fields = MicroOp.layout()
        names = ("a_memory", "a", "b_immediate", "b", "swap", "d_memory", "d")
        self.kept = Signal(data.StructLayout({name: fields[name].width for name in names}), name="operation")
        for name in names:
            place = fields[name]
            with m.If(given):
                m.d.sync += self.kept[name].eq(word[place.offset : place.offset + place.width])

    def address(self, m: Module, operand: Value, index: Value) -> Value:
        """The address of a `Lane` of this number."""
        lanes, op = self.lane_bits, self.kept
        lane, row = Signal(lanes, name="lane"), Signal(ROW_BITS, name="lane_row")
        block = Signal((_BLOCKS - 1).bit_length(), name="lane_block")
        m.d.comb += [lane.eq(index[:lanes]), row.eq(index[lanes : lanes + ROW_BITS])]
        staged = [block.eq(_STAGED), row.eq(0)]
        with m.Switch(operand[1 : 1 + PART_BITS]):
            for part, memory, register in ((Part.FIRST, op.a_memory, op.a), (Part.RESULT, op.d_memory, op.d)):
                with m.Case(part):
                    m.d.comb += block.eq(Cat(register, 1))
                    with m.If(memory):
                        m.d.comb += staged
            with m.Case(Part.SECOND):
                m.d.comb += [
                    block.eq(Cat(op.b, 1)),
                    lane.eq(index[:lanes] ^ (Const(1) << op.swap)[1 : lanes + 1]),
                ]
                with m.If(op.b_immediate):
                    m.d.comb += [block.eq(_STAGED), row.eq(1), lane.eq(0)]
            with m.Case(Part.PREDICATE):
                m.d.comb += block.eq(_PREDICATES)
            with m.Default():
                m.d.comb += staged
        address = Cat(lane, row, block)
        return Cat(address, Const(-1, self.bits - len(address)) if self.bits > len(address) else Const(0, 0))


POSITION_BITS = 5
COMPARED_BITS = 6
"""Of addresses: words whose lowest bits differ have nothing to do with each other."""


JUMP_LAYOUT = data.StructLayout({"jump": 1, "condition": CONDITION_BITS, "negate": 1, "call": 1, "back": 1})
"""Of a word that decides what comes next, the lowest bits; the target is its operand."""


def word_layout(operand_bits: int) -> data.StructLayout:
    """A word of the microprogram that calculates."""
    return data.StructLayout(
        {
            "jump": 1, "function": FUNCTION_BITS, "source": SOURCE_BITS, "write": 1, "out": OUT_BITS,
            "operand": operand_bits,
        }
    )  # fmt: skip


def halves(words: int) -> tuple[int, int]:
    """Words of the two memories of a program of so many."""
    low = 1 << max((words - 1).bit_length(), 1) - 1
    return low, max(words - low, 1)


class ProgramMemory(wiring.Component):
    """Words that never change.

    There are two memories, as block RAMs have powers of two for depths: a program that is somewhat longer than one
    would take nearly twice its size, or have a multiplexer of many inputs behind it.

    Parameters
    ----------
    words : sequence of int
    width : int
        Bits of a word.

    Members
    -------
    en, addr, data : In(1), In, Out(width)
        As those of a read port.
    """

    def __init__(self, words: Sequence[int], width: int) -> None:
        self.words, self.width = words, width
        self.bits = max((len(words) - 1).bit_length(), 1)
        super().__init__({"en": In(1), "addr": In(self.bits), "data": Out(width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        half, rest = halves(len(self.words))
        m.submodules.low = low = Memory(shape=self.width, depth=half, init=self.words[:half])
        m.submodules.high = high = Memory(shape=self.width, depth=rest, init=self.words[half:])
        ports = [memory.read_port() for memory in (low, high)]
        chooses_high = Signal()
        m.d.comb += self.data.eq(Mux(chooses_high, ports[1].data, ports[0].data))
        for port in ports:
            m.d.comb += [port.en.eq(self.en), port.addr.eq(self.addr)]
        with m.If(self.en):
            m.d.sync += chooses_high.eq(self.addr[-1])
        return m


class Processor(wiring.Component):
    """A word is decoded, chooses its operand, and is executed: a word a cycle, but for those that wait for a unit or
    for a word ahead of them.

    Parameters
    ----------
    program : sequence of int
        Words of the microprogram, from where it starts.
    operand_bits : int
    memory : sequence of int
        What data memory starts with.
    depth : int
        Words of data memory, a power of two.
    lanes : int
        Lanes of what kernels work on, or 0: there are no kernels, and nothing that only they need.

    Members
    -------
    port : In(32).array
        What can be read, by `Port`; those of the processor itself are ignored.
    round : In(1)
        What `Function.ROUND` adds.
    odd : Out(1)
        Of `Port.PRODUCT` and `Port.RAW`, which share a value, the latter is read, or of `Port.ELEMENT` and `Port.BYTE`.
    ready : In(1)
        They hold.
    word_valid : In(1), word_taken : Out(1)
        `Port.WORD` holds; it is taken in this cycle.
    flag : In
        A bit for each `Condition`; those of the processor itself are ignored.
    waits : Out(1)
        In this cycle nothing goes on but what the memory unit does: a word that needs one from memory stands still, or
        a jump asks once more whether bytes have moved.
    out : Out(5), operand : Out(operand_bits), result : Out(32)
        In this cycle, `result` goes to the unit `out`. It is the one after that in which the word was executed.
    write_valid, write_ready, write_address, write_data, write_strobe
        Another one writes data memory, when the program does not.
    read_valid, read_ready, read_address, read_data
        Another one reads it: the data are there in the cycle after `read_ready`.
    """

    def __init__(
        self, program: Sequence[int], operand_bits: int, memory: Sequence[int], depth: int, lanes: int = 0
    ) -> None:
        self.program, self.operand_bits, self.memory, self.depth = program, operand_bits, memory, depth
        self.lanes = lanes
        self.ports, self.conditions = PORTS + bool(lanes), CONDITIONS + bool(lanes)
        address = range(depth)
        super().__init__(
            {
                "port": In(32).array(self.ports),
                "round": In(1),
                "odd": Out(1),
                "ready": In(1),
                "word_valid": In(1),
                "word_taken": Out(1),
                "flag": In(self.conditions),
                "waits": Out(1),
                "out": Out(OUT_BITS),
                "operand": Out(operand_bits),
                "result": Out(32),
                "write_valid": In(1),
                "write_ready": Out(1),
                "write_address": In(address),
                "write_data": In(32),
                "write_strobe": In(4),
                "read_valid": In(1),
                "read_ready": Out(1),
                "read_address": In(address),
                "read_data": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = OPERAND_LOW + self.operand_bits
        m.submodules.program = fetch = self._words(width)
        m.submodules.memory = memory = Memory(shape=32, depth=self.depth, init=self.memory)
        read, write = memory.read_port(), memory.write_port(granularity=8)
        layout = word_layout(self.operand_bits)
        decoded, chosen, executed = layout(fetch.data), Signal(layout), Signal(layout)
        started, index = Signal(), Signal(range(self.depth))
        accumulator = Signal(signed(32), reset_less=True)
        free = Signal()  # the word that chooses its operand goes on
        stays = Signal()  # the one that is decoded does not
        asks_again = self._sequence(m, fetch, decoded, started, free & ~stays, accumulator, index)

        # Decoding: data memory is read, or left to others.
        idle, at = Signal(), Signal(range(self.depth))
        indexed = ~decoded.jump & (decoded.source == Source.INDEXED) & (decoded.function != Function.FIELD)
        m.d.comb += [
            idle.eq(~started | decoded.jump),
            at.eq(decoded.operand),
            self.read_ready.eq(self.read_valid & idle & free),
            self.read_data.eq(read.data),
            read.en.eq(free),
        ]
        with m.If(indexed):
            m.d.comb += at.eq(index | decoded.operand[0])
        m.d.comb += read.addr.eq(Mux(idle, self.read_address, at))
        with m.If(free):
            m.d.sync += chosen.eq(Mux(idle | stays, 0, decoded))
            m.d.sync += chosen.operand[: len(at)].eq(at)
        m.d.comb += stays.eq(started & self._hazard(decoded, chosen, executed, indexed))

        # The operand. What is subtracted, or compared, comes inverted.
        result = Signal(32)
        if self.lanes:
            self._lane(m, (decoded, executed), result, index, at, indexed, started & free & ~stays)
        field, field_waits = self._fields(m, chosen, free, executed, result)
        b, operand = Signal(signed(32)), Signal(signed(32), reset_less=True)
        is_field, is_port = chosen.function == Function.FIELD, chosen.source == Source.PORT
        with m.If(is_field):
            m.d.comb += b.eq(field)
        with m.Elif(chosen.source == Source.CONSTANT):
            m.d.comb += b.eq(chosen.operand.as_signed())
        with m.Elif(is_port):
            m.d.comb += b.eq(self._port(chosen.operand, accumulator))
        with m.Else():
            m.d.comb += b.eq(read.data)
        number = chosen.operand[: self.ports.bit_length()]
        takes_word = ~is_field & is_port & (number == Port.WORD)
        takes_product = ~is_field & is_port & (number[1:] == Port.PRODUCT >> 1)
        m.d.comb += [
            free.eq(~(field_waits | takes_word & ~self.word_valid | takes_product & ~self.ready)),
            self.odd.eq(chosen.operand[0]),
            self.word_taken.eq(free & (takes_word | self._field_takes)),
            self.waits.eq((takes_word | self._field_takes) & ~self.word_valid | asks_again & free & ~stays),
        ]
        carry, subtracts = Signal(), Signal()
        m.d.comb += subtracts.eq(
            (chosen.function == Function.SUB)
            | (chosen.function == Function.MIN)
            | (chosen.function == Function.MAX)
        )
        m.d.sync += [
            operand.eq(Mux(subtracts, ~b, b)),
            carry.eq(Mux(chosen.function == Function.ROUND, self.round, subtracts)),
            executed.eq(Mux(free, chosen, 0)),
        ]

        # Execution. Units get the result from a register.
        m.d.comb += [
            result.eq(self._calculate(m, executed, accumulator, operand, carry)),
            self.result.eq(accumulator),
        ]
        m.d.sync += [
            accumulator.eq(result),
            self.out.eq(Mux(executed.function == Function.FIELD, 0, executed.out)),
            self.operand.eq(executed.operand),
        ]
        with m.If((executed.function != Function.FIELD) & (executed.out == Target.INDEX)):
            m.d.sync += index.eq(result)
        m.d.comb += [
            write.en.eq(Mux(executed.write, 0b1111, Mux(self.write_valid, self.write_strobe, 0))),
            write.addr.eq(Mux(executed.write, executed.operand, self.write_address)),
            write.data.eq(Mux(executed.write, result, self.write_data)),
            self.write_ready.eq(~executed.write),
        ]
        return m

    def _words(self, width: int) -> ProgramMemory:
        """Where words of so many bits come from."""
        return ProgramMemory(self.program, width)

    def _hazard(self, decoded: data.View, chosen: data.View, executed: data.View, indexed: Value) -> Value:
        """Whether the word that is decoded must wait for those ahead of it.

        A jump waits for all that may change its condition; a unit's port, and a field, for what the unit is still to be
        given; data memory for what is still to be written, or to choose the address.
        """

        def outputs(word: data.View) -> Value:
            return word.out.any() & (word.function != Function.FIELD)

        def moves(word: data.View) -> Value:
            """What `Source.INDEXED` means, or may."""
            index = word.out == Target.INDEX
            return (index | (word.out == Target.MEMORY) if self.lanes else index) & (
                word.function != Function.FIELD
            )

        def busy(word: data.View) -> Value:
            return word.function.any() | word.out.any() | word.write

        always = decoded.function == Condition.ALWAYS  # at the place of a jump's condition
        if self.lanes:
            # The index register is what it is to be once a word is decoded.
            always |= decoded.function == Condition.LANES_ZERO
        of_unit = decoded.function > Condition.NEGATIVE
        is_field = decoded.function == Function.FIELD
        reads = (decoded.source[1] == 0) & ~is_field
        given = outputs(chosen) | outputs(executed)
        jump = decoded.jump & ~always & (busy(chosen) | busy(executed) | of_unit & self.out.any())
        port = (decoded.source == Source.PORT) & ~is_field & (busy(chosen) | outputs(executed))
        memory = indexed & (moves(chosen) | moves(executed) | chosen.write | executed.write)
        for word in (chosen, executed):
            same = word.operand[:COMPARED_BITS] == decoded.operand[:COMPARED_BITS]
            memory |= reads & word.write & same
        return jump | ~decoded.jump & (port | is_field & given | memory)

    def _port(self, number: Signal, accumulator: Signal) -> Signal:
        values = [self.port[index] for index in range(self.ports)]
        values[Port.ACCUMULATOR] = accumulator.as_unsigned()
        values[Port.APPEND] = Cat(self.port[Port.BYTE][:8], accumulator)[:32]
        if self.lanes:
            values[Port.EXPONENT] = accumulator[MULTIPLIER_BITS : MULTIPLIER_BITS + 6]
        return Array(values)[number[: (self.ports - 1).bit_length()]]

    def _lane(
        self, m: Module, words: tuple[data.View, data.View], result: Signal, index: Signal, at: Signal,
        indexed: Value, goes: Value,
    ) -> None:  # fmt: skip
        """Addresses of kernels' lanes, for the word that is decoded, if it is `indexed`; `goes` if it goes on."""
        decoded, executed = words
        out = (executed.function != Function.FIELD) & (executed.out == Target.MEMORY)
        given = out & (executed.operand[:4] == MemoryOut.OPERATION)
        operation = Operation(m, self.lanes, len(at), given, result)
        address = operation.address(m, decoded.operand, index)
        with m.If(indexed & decoded.operand[1 : 1 + PART_BITS].any()):
            m.d.comb += at.eq(address)
        lane = index[: operation.lane_bits]
        with m.If(indexed & goes & decoded.operand[1 + PART_BITS]):
            m.d.sync += lane.eq(lane + 1)

    def _sequence(
        self, m: Module, fetch: Any, decoded: data.View, started: Signal, advance: Value, accumulator: Signal,
        index: Signal,
    ) -> Value:  # fmt: skip
        """Choose the next word; returns whether the current one is decoded again, as the memory unit is not done."""
        bits = max((len(self.program) - 1).bit_length(), 1)
        pc, following = Signal(bits), Signal(bits)
        back = Signal(bits)
        jump = JUMP_LAYOUT(decoded.as_value()[: JUMP_LAYOUT.size])
        flags = Signal(self.conditions)
        m.d.comb += [
            flags.eq(self.flag),
            flags[Condition.ALWAYS].eq(1),
            flags[Condition.ZERO].eq(accumulator == 0),
            flags[Condition.NEGATIVE].eq(accumulator[-1]),
        ]
        if self.lanes:
            m.d.comb += flags[Condition.LANES_ZERO].eq(~index[: (self.lanes - 1).bit_length()].any())
        taken, after = Signal(), Signal(bits)
        m.d.comb += [
            taken.eq(jump.jump & (flags.bit_select(jump.condition, 1) ^ jump.negate)),
            after.eq(pc + 1),
            following.eq(Mux(taken, Mux(jump.back, back, decoded.operand), after)),
            fetch.addr.eq(Mux(started, following, 0)),
            fetch.en.eq(advance | ~started),
        ]
        with m.If(fetch.en):
            m.d.sync += [started.eq(1), pc.eq(fetch.addr)]
            # Calls have no condition.
            with m.If(jump.jump & jump.call):
                m.d.sync += back.eq(after)
        of_memory = (jump.condition == Condition.MEMORY_IDLE) | (jump.condition == Condition.MOVED)
        return started & taken & of_memory

    def _fields(
        self, m: Module, chosen: data.View, free: Signal, executed: data.View, result: Signal
    ) -> tuple[Signal, Value]:
        """The next field of the instruction, and whether to wait for it."""
        current, position = Signal(32, reset_less=True), Signal(POSITION_BITS)
        window, bits, field = Signal(64), Signal(32), Signal(32)
        end = Signal(POSITION_BITS + 1)
        crosses, ready, is_field = Signal(), Signal(), Signal()
        width, mask, sign = Signal(range(33)), Signal(32), Signal()
        with m.Switch(chosen.out):
            for number, count in enumerate(WIDTHS):
                with m.Case(number):
                    m.d.comb += [width.eq(count), mask.eq((1 << count) - 1), sign.eq(bits[count - 1])]
        m.d.comb += [
            is_field.eq(chosen.function == Function.FIELD),
            window.eq(Cat(current, self.port[Port.WORD])),
            bits.eq(window >> position),
            end.eq(position + width),
            crosses.eq(end[-1]),
            ready.eq(~is_field | ~crosses | self.word_valid),
            field.eq(Mux(chosen.source[1] & sign, bits | ~mask, bits & mask)),
        ]
        self._field_takes = Signal(name="field_takes")
        m.d.comb += self._field_takes.eq(is_field & crosses)
        with m.If(free & is_field):
            m.d.sync += position.eq(end)
            with m.If(crosses):
                m.d.sync += current.eq(self.port[Port.WORD])
        with m.If((executed.function != Function.FIELD) & (executed.out == Target.BITS)):
            m.d.sync += [current.eq(result), position.eq(0)]
        return field, ~ready

    def _calculate(self, m: Module, executed: data.View, a: Signal, b: Signal, carry: Signal) -> Signal:
        """The result of the word. `b` is inverted for what subtracts."""
        total, result, less = Signal(signed(33)), Signal(32), Signal()
        m.d.comb += [
            total.eq((Cat(Const(1, 1), Cat(a, a[-1])) + Cat(carry, Cat(b, b[-1])))[1:]),
            less.eq(total[-1]),
        ]
        with m.Switch(executed.function):
            with m.Case(Function.KEEP):
                m.d.comb += result.eq(a)
            with m.Case(Function.LOAD, Function.FIELD):
                m.d.comb += result.eq(b)
            with m.Case(Function.AND):
                m.d.comb += result.eq(a & b)
            with m.Case(Function.MIN):
                m.d.comb += result.eq(Mux(less, a, ~b))
            with m.Case(Function.MAX):
                m.d.comb += result.eq(Mux(less, ~b, a))
            with m.Default():
                m.d.comb += result.eq(total)
        return result
