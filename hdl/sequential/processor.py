"""The processor that runs the microprogram, see `weft.hdl.sequential.assembler`."""

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
"""Numbers of blocks; registers are blocks `REGISTERS` and up."""


def last_words(n: int) -> tuple[int, int]:
    """Return the words at the end of data memory that numbers of blocks address, and how many of them are used."""
    return _BLOCKS * STRIP_ROWS * n, (_BLOCKS - _PREDICATES) * STRIP_ROWS * n


def immediate(n: int, depth: int) -> int:
    """Return the address of the immediate operand in data memory."""
    return depth - last_words(n)[0] + (_STAGED * STRIP_ROWS + 1) * n


class Operation:
    """Register of the current micro-operation's fields, from which addresses of lanes are computed.

    Parameters
    ----------
    m : Module
    n : int
        Lanes.
    bits : int
        Bits of an address of data memory.
    load, word : Value
        In a cycle with `load`, store `word`, a micro-operation's bits up to `end`.
    """

    def __init__(self, m: Module, n: int, bits: int, load: Value, word: Value) -> None:
        self.lane_bits, self.bits = (n - 1).bit_length(), bits
        fields = MicroOp.layout()
        names = ("a_memory", "a", "b_immediate", "b", "swap", "d_memory", "d")
        self.kept = Signal(data.StructLayout({name: fields[name].width for name in names}), name="operation")
        for name in names:
            place = fields[name]
            with m.If(load):
                m.d.sync += self.kept[name].eq(word[place.offset : place.offset + place.width])

    def address(self, m: Module, operand: Value, index: Value) -> Value:
        """Return the address of a `Lane` operand for the lane `index`."""
        lanes, op = self.lane_bits, self.kept
        lane = Signal(lanes, name="lane")
        row = Signal(ROW_BITS, name="lane_row")
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
"""Low bits of addresses that the hazard check compares; words whose low bits differ are independent."""


JUMP_LAYOUT = data.StructLayout({"jump": 1, "condition": CONDITION_BITS, "negate": 1, "call": 1, "back": 1})
"""Low bits of a jump; the target is its operand."""


def word_layout(operand_bits: int) -> data.StructLayout:
    """Return the layout of a word of the microprogram that calculates."""
    return data.StructLayout(
        {
            "jump": 1, "function": FUNCTION_BITS, "source": SOURCE_BITS, "write": 1, "out": OUT_BITS,
            "operand": operand_bits,
        }
    )  # fmt: skip


def halves(words: int) -> tuple[int, int]:
    """Return the depths of the two memories of a program of `words` words."""
    low = 1 << max((words - 1).bit_length(), 1) - 1
    return low, max(words - low, 1)


class ProgramMemory(wiring.Component):
    """Read-only memory of the microprogram, in two memories.

    Block RAMs have depths of powers of two: a single memory for a program slightly longer than that would take nearly
    twice its size, or a wide multiplexer.

    Parameters
    ----------
    words : sequence of int
    width : int
        Bits of a word.

    Members
    -------
    en, addr, data : In(1), In, Out(width)
        As in a read port.
    """

    def __init__(self, words: Sequence[int], width: int) -> None:
        self.words, self.width = words, width
        self.bits = max((len(words) - 1).bit_length(), 1)
        super().__init__({"en": In(1), "addr": In(self.bits), "data": Out(width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        low_words, high_words = halves(len(self.words))
        m.submodules.low = low = Memory(shape=self.width, depth=low_words, init=self.words[:low_words])
        m.submodules.high = high = Memory(shape=self.width, depth=high_words, init=self.words[low_words:])
        low_port = low.read_port()
        high_port = high.read_port()
        chooses_high = Signal()
        m.d.comb += self.data.eq(Mux(chooses_high, high_port.data, low_port.data))
        for port in (low_port, high_port):
            m.d.comb += [port.en.eq(self.en), port.addr.eq(self.addr)]
        with m.If(self.en):
            m.d.sync += chooses_high.eq(self.addr[-1])
        return m


class Processor(wiring.Component):
    """Processor that runs the microprogram, one word a cycle, in three stages: decode, select the operand, execute.

    Words may wait for a unit, or for the result of an earlier word.

    Parameters
    ----------
    program : sequence of int
        Words of the microprogram. It starts at the first word.
    operand_bits : int
    memory : sequence of int
        Initial content of data memory.
    depth : int
        Words of data memory, a power of two.
    lanes : int
        Lanes of kernels, or 0 for no kernels.

    Members
    -------
    port : In(32).array
        Values to read, indexed by `Port`; the processor's own ports are ignored.
    round : In(1)
        Addend of `Function.ROUND`.
    odd : Out(1)
        The second port of a pair that shares a value is read: `Port.RAW` (not `Port.PRODUCT`) or `Port.BYTE` (not
        `Port.ELEMENT`).
    ready : In(1)
        `Port.PRODUCT` and `Port.RAW` are valid.
    word_valid : In(1), word_taken : Out(1)
        `Port.WORD` is valid; it is taken in this cycle.
    flag : In
        A bit for each `Condition`; the processor's own conditions are ignored.
    waits : Out(1)
        The processor only waits for the memory unit in this cycle: for a word of memory, or in a jump that polls for
        the end of a transfer.
    out : Out(5), operand : Out(operand_bits), result : Out(32)
        `result` goes to the unit `out` in this cycle, which follows the execution of the word.
    write_valid, write_ready, write_address, write_data, write_strobe
        Write port of data memory for the host, granted when the program does not write.
    read_valid, read_ready, read_address, read_data
        Read port of data memory for the host; data follow one cycle after `read_ready`.
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
        read = memory.read_port()
        write = memory.write_port(granularity=8)
        layout = word_layout(self.operand_bits)
        decoded = layout(fetch.data)
        chosen = Signal(layout)
        executed = Signal(layout)
        started = Signal()
        index = Signal(range(self.depth))
        accumulator = Signal(signed(32), reset_less=True)
        free = Signal()  # the word in the operand stage advances
        stays = Signal()  # the word in the decode stage does not advance
        polls = self._sequence(m, fetch, decoded, started, free & ~stays, accumulator, index)

        # Decode: read data memory, or leave it to the host.
        idle = Signal()
        at = Signal(range(self.depth))
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

        # Operand, inverted if it is to be subtracted or compared.
        result = Signal(32)
        if self.lanes:
            self._lane(m, (decoded, executed), result, index, at, indexed, started & free & ~stays)
        field, field_waits = self._fields(m, chosen, free, executed, result)
        b = Signal(signed(32))
        second = Signal(signed(32), reset_less=True)
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
            self.waits.eq((takes_word | self._field_takes) & ~self.word_valid | polls & free & ~stays),
        ]
        carry = Signal()
        subtracts = Signal()
        m.d.comb += subtracts.eq(
            (chosen.function == Function.SUB)
            | (chosen.function == Function.MIN)
            | (chosen.function == Function.MAX)
        )
        m.d.sync += [
            second.eq(Mux(subtracts, ~b, b)),
            carry.eq(Mux(chosen.function == Function.ROUND, self.round, subtracts)),
            executed.eq(Mux(free, chosen, 0)),
        ]

        # Execute. Units receive the result from a register, one cycle later.
        m.d.comb += [
            result.eq(self._calculate(m, executed, accumulator, second, carry)),
            self.result.eq(accumulator),
        ]
        m.d.sync += [
            accumulator.eq(result),
            # FIELD has its width in the bits of `out`.
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
        """Return the memory of the microprogram, with words of `width` bits."""
        return ProgramMemory(self.program, width)

    def _hazard(self, decoded: data.View, chosen: data.View, executed: data.View, indexed: Value) -> Value:
        """Return a flag: the word in the decode stage must wait for earlier words.

        A jump waits for words that may change its condition. A read of a unit's port, or of a field, waits for outputs
        to units. A read of data memory waits for writes to it, and for changes of the index.
        """

        def outputs(word: data.View) -> Value:
            return word.out.any() & (word.function != Function.FIELD)

        def moves(word: data.View) -> Value:
            """The word changes the address of `Source.INDEXED`, or may."""
            index = word.out == Target.INDEX
            return (index | (word.out == Target.MEMORY) if self.lanes else index) & (
                word.function != Function.FIELD
            )

        def busy(word: data.View) -> Value:
            return word.function.any() | word.out.any() | word.write

        always = decoded.function == Condition.ALWAYS  # `function` overlaps a jump's condition
        if self.lanes:
            # The index register is up to date when a word is decoded.
            always |= decoded.function == Condition.LANES_ZERO
        of_unit = decoded.function > Condition.NEGATIVE
        is_field = decoded.function == Function.FIELD
        reads = (decoded.source[1] == 0) & ~is_field
        pending = outputs(chosen) | outputs(executed)
        jump = decoded.jump & ~always & (busy(chosen) | busy(executed) | of_unit & self.out.any())
        port = (decoded.source == Source.PORT) & ~is_field & (busy(chosen) | outputs(executed))
        memory = indexed & (moves(chosen) | moves(executed) | chosen.write | executed.write)
        for word in (chosen, executed):
            same = word.operand[:COMPARED_BITS] == decoded.operand[:COMPARED_BITS]
            memory |= reads & word.write & same
        return jump | ~decoded.jump & (port | is_field & pending | memory)

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
        """Drive `at` with a kernel lane's address if the word in the decode stage is `indexed`; `goes`: it advances."""
        decoded, executed = words
        out = (executed.function != Function.FIELD) & (executed.out == Target.MEMORY)
        load = out & (executed.operand[:4] == MemoryOut.OPERATION)
        operation = Operation(m, self.lanes, len(at), load, result)
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
        """Select the next word. Returns a flag: the current word is a jump that waits for the memory unit."""
        bits = max((len(self.program) - 1).bit_length(), 1)
        pc = Signal(bits)
        following = Signal(bits)
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
        taken = Signal()
        after = Signal(bits)
        m.d.comb += [
            taken.eq(jump.jump & (flags.bit_select(jump.condition, 1) ^ jump.negate)),
            after.eq(pc + 1),
            following.eq(Mux(taken, Mux(jump.back, back, decoded.operand), after)),
            fetch.addr.eq(Mux(started, following, 0)),
            fetch.en.eq(advance | ~started),
        ]
        with m.If(fetch.en):
            m.d.sync += [started.eq(1), pc.eq(fetch.addr)]
            # Calls are unconditional.
            with m.If(jump.jump & jump.call):
                m.d.sync += back.eq(after)
        of_memory = (jump.condition == Condition.MEMORY_IDLE) | (jump.condition == Condition.MOVED)
        return started & taken & of_memory

    def _fields(
        self, m: Module, chosen: data.View, free: Signal, executed: data.View, result: Signal
    ) -> tuple[Signal, Value]:
        """Return the next field of the instruction, and a flag: it has to wait for a word of memory."""
        current = Signal(32, reset_less=True)
        position = Signal(POSITION_BITS)
        window = Signal(64)
        bits = Signal(32)
        field = Signal(32)
        end = Signal(POSITION_BITS + 1)
        crosses = Signal()
        field_ready = Signal()
        is_field = Signal()
        width = Signal(range(33))
        mask = Signal(32)
        sign = Signal()
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
            field_ready.eq(~is_field | ~crosses | self.word_valid),
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
        return field, ~field_ready

    def _calculate(self, m: Module, executed: data.View, a: Signal, b: Signal, carry: Signal) -> Signal:
        """Return the result of the word; `b` is already inverted for subtractions."""
        total = Signal(signed(33))
        alu_result = Signal(32)
        less = Signal()
        m.d.comb += [
            total.eq((Cat(Const(1, 1), Cat(a, a[-1])) + Cat(carry, Cat(b, b[-1])))[1:]),
            less.eq(total[-1]),
        ]
        with m.Switch(executed.function):
            with m.Case(Function.KEEP):
                m.d.comb += alu_result.eq(a)
            with m.Case(Function.LOAD, Function.FIELD):
                m.d.comb += alu_result.eq(b)
            with m.Case(Function.AND):
                m.d.comb += alu_result.eq(a & b)
            with m.Case(Function.MIN):
                m.d.comb += alu_result.eq(Mux(less, a, ~b))
            with m.Case(Function.MAX):
                m.d.comb += alu_result.eq(Mux(less, ~b, a))
            with m.Default():
                m.d.comb += alu_result.eq(total)
        return alu_result
