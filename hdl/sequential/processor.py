"""The processor that runs the microprogram: see `weft.hdl.sequential.micro`."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.sequential.micro import (
    CONDITION_BITS,
    FUNCTION_BITS,
    OPERAND_LOW,
    OUT_BITS,
    SOURCE_BITS,
    Condition,
    Function,
    Port,
    Source,
)
from weft.hdl.sequential.micro import Out as Target

POSITION_BITS = 5


class Processor(wiring.Component):
    """A word a cycle, but for those that wait for a unit.

    Parameters
    ----------
    program : sequence of int
        Words of the microprogram, from where it starts.
    operand_bits : int
    memory : sequence of int
        What data memory starts with.
    depth : int
        Words of data memory, a power of two.

    Members
    -------
    port : In(32).array(len(Port))
        What can be read; those of the processor itself are ignored.
    round : In(1)
        What `Function.ROUND` adds.
    ready : In(1)
        `Port.PRODUCT` and `Port.RAW` hold.
    word_valid : In(1), word_taken : Out(1)
        `Port.WORD` holds; it is taken in this cycle.
    flag : In(len(Condition))
        Conditions; those of the processor itself are ignored.
    out : Out(5), operand : Out(operand_bits), result : Out(32)
        In this cycle, `result` goes to the unit `out`.
    write_valid, write_ready, write_address, write_data, write_strobe
        Another one writes data memory, when the program does not.
    read_valid, read_ready, read_address, read_data
        Another one reads it: the data are there in the cycle after `read_ready`.
    """

    def __init__(
        self, program: Sequence[int], operand_bits: int, memory: Sequence[int], depth: int
    ) -> None:
        self.program, self.operand_bits, self.memory, self.depth = program, operand_bits, memory, depth
        address = range(depth)
        super().__init__(
            {
                "port": In(32).array(len(Port)),
                "round": In(1),
                "ready": In(1),
                "word_valid": In(1),
                "word_taken": Out(1),
                "flag": In(len(Condition)),
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
        m.submodules.program = store = Memory(shape=width, depth=len(self.program), init=self.program)
        m.submodules.memory = memory = Memory(shape=32, depth=self.depth, init=self.memory)
        fetch, read, write = store.read_port(), memory.read_port(), memory.write_port(granularity=8)
        layout = data.StructLayout(
            {
                "jump": 1, "function": FUNCTION_BITS, "source": SOURCE_BITS, "write": 1, "out": OUT_BITS,
                "operand": self.operand_bits,
            }
        )  # fmt: skip
        decoded, executed = layout(fetch.data), Signal(layout)
        started, advance, index = Signal(), Signal(), Signal(range(self.depth))
        accumulator = Signal(signed(32), reset_less=True)
        self._sequence(m, fetch, decoded, started, advance, accumulator)

        # Decoding: data memory is read, or left to others.
        idle, at = Signal(), Signal(range(self.depth))
        m.d.comb += [
            idle.eq(~started | decoded.jump),
            at.eq(decoded.operand),
            read.en.eq(advance),
            read.addr.eq(Mux(decoded.source == Source.INDEXED, index | at[0], at)),
            self.read_ready.eq(self.read_valid & idle & advance),
            self.read_data.eq(read.data),
        ]
        with m.If(idle):
            m.d.comb += read.addr.eq(self.read_address)
        with m.If(advance):
            m.d.sync += executed.eq(Mux(idle, Const(0, width), decoded))
            m.d.sync += executed.operand[: len(at)].eq(
                Mux(~idle & (decoded.source == Source.INDEXED), index | at[0], at)
            )

        # Execution.
        b = Signal(signed(32))
        with m.Switch(executed.source):
            with m.Case(Source.CONSTANT):
                m.d.comb += b.eq(executed.operand.as_signed())
            with m.Case(Source.PORT):
                m.d.comb += b.eq(self._port(executed.operand, accumulator))
            with m.Default():
                m.d.comb += b.eq(read.data)
        field, field_ready = self._fields(m, executed, advance)
        result = self._calculate(m, executed, accumulator, b, field)
        is_port = executed.source == Source.PORT
        is_field = executed.function == Function.FIELD
        waits = Signal()
        takes_word = ~is_field & is_port & (executed.operand[:4] == Port.WORD)
        product = (executed.operand[:4] == Port.PRODUCT) | (executed.operand[:4] == Port.RAW)
        m.d.comb += [
            waits.eq(
                Mux(is_field, ~field_ready, is_port & (takes_word & ~self.word_valid | product & ~self.ready))
            ),
            advance.eq(~waits),
            self.result.eq(result),
            self.out.eq(Mux(is_field | waits, 0, executed.out)),
            self.operand.eq(executed.operand),
            self.word_taken.eq(advance & (takes_word | self._field_takes)),
        ]
        with m.If(advance):
            m.d.sync += accumulator.eq(result)
            with m.If(self.out == Target.INDEX):
                m.d.sync += index.eq(result)
        mine = executed.write & advance
        m.d.comb += [
            write.en.eq(Mux(mine, 0b1111, Mux(self.write_valid, self.write_strobe, 0))),
            write.addr.eq(Mux(executed.write, executed.operand, self.write_address)),
            write.data.eq(Mux(executed.write, result, self.write_data)),
            self.write_ready.eq(~executed.write),
        ]
        with m.If(executed.write & ~advance):
            m.d.comb += write.en.eq(0)
        return m

    def _port(self, number: Signal, accumulator: Signal) -> Signal:
        values = [self.port[index] for index in range(len(Port))]
        values[Port.ACCUMULATOR] = accumulator.as_unsigned()
        values[Port.HALF] = (accumulator >> 1)[:32]
        values[Port.APPEND] = Cat(self.port[Port.BYTE][:8], accumulator)[:32]
        return Array(values)[number[: (len(Port) - 1).bit_length()]]

    def _sequence(
        self, m: Module, fetch: object, decoded: data.View, started: Signal, advance: Signal, accumulator: Signal
    ) -> None:
        """What word comes next."""
        bits = max((len(self.program) - 1).bit_length(), 1)
        pc, following = Signal(bits), Signal(bits)
        returns = [Signal(bits, name=f"return{level}") for level in range(2)]
        raw = data.StructLayout(
            {"jump": 1, "condition": CONDITION_BITS, "negate": 1, "call": 1, "back": 1}
        )
        jump = raw(decoded.as_value()[: raw.size])
        flags = Signal(len(Condition))
        m.d.comb += [
            flags.eq(self.flag),
            flags[Condition.ALWAYS].eq(1),
            flags[Condition.ZERO].eq(accumulator == 0),
            flags[Condition.NEGATIVE].eq(accumulator[-1]),
        ]
        taken, after = Signal(), Signal(bits)
        m.d.comb += [
            taken.eq(jump.jump & (flags.bit_select(jump.condition, 1) ^ jump.negate)),
            after.eq(pc + 1),
            following.eq(Mux(taken, Mux(jump.back, returns[0], decoded.operand), after)),
            fetch.addr.eq(Mux(started, following, 0)),  # type: ignore[attr-defined]
            fetch.en.eq(advance),  # type: ignore[attr-defined]
        ]
        with m.If(advance):
            m.d.sync += [started.eq(1), pc.eq(fetch.addr)]  # type: ignore[attr-defined]
            with m.If(started & taken & jump.call):
                m.d.sync += [returns[0].eq(after), returns[1].eq(returns[0])]
            with m.If(started & taken & jump.back):
                m.d.sync += returns[0].eq(returns[1])

    def _fields(self, m: Module, executed: data.View, advance: Signal) -> tuple[Signal, Signal]:
        """The next field of the instruction, and whether it is there."""
        current, position = Signal(32, reset_less=True), Signal(POSITION_BITS)
        window, bits, field = Signal(64), Signal(32), Signal(32)
        end = Signal(POSITION_BITS + 1)
        crosses, ready, is_field = Signal(), Signal(), Signal()
        m.d.comb += [
            is_field.eq(executed.function == Function.FIELD),
            window.eq(Cat(current, self.port[Port.WORD])),
            bits.eq(window >> position),
            end.eq(position + executed.out + 1),
            crosses.eq(end[-1]),
            ready.eq(~crosses | self.word_valid),
        ]
        sign = bits.bit_select(executed.out, 1) & executed.source[1]
        m.d.comb += field.eq(Cat(Mux(bit > executed.out, sign, bits[bit]) for bit in range(32)))
        self._field_takes = Signal(name="field_takes")
        m.d.comb += self._field_takes.eq(is_field & crosses)
        with m.If(advance & is_field):
            m.d.sync += position.eq(end)
            with m.If(crosses):
                m.d.sync += current.eq(self.port[Port.WORD])
        with m.If(self.out == Target.BITS):
            m.d.sync += [current.eq(self.result), position.eq(0)]
        return field, ready

    def _calculate(self, m: Module, executed: data.View, a: Signal, b: Signal, field: Signal) -> Signal:
        """The result of the word."""
        total, result, less = Signal(signed(33)), Signal(32), Signal()
        function = executed.function
        subtract, alone = Signal(), Signal()
        m.d.comb += [
            subtract.eq((function == Function.SUB) | (function == Function.MIN) | (function == Function.MAX)),
            alone.eq(function == Function.ROUND),
        ]
        left, right = Signal(signed(33)), Signal(signed(33))
        carry = Mux(alone, self.round, subtract)
        m.d.comb += [
            left.eq(Mux(alone, 0, a)),
            right.eq(Mux(subtract, ~b, b)),
            total.eq((Cat(Const(1, 1), left) + Cat(carry, right))[1:]),
            less.eq(total[-1]),
        ]
        with m.Switch(function):
            with m.Case(Function.KEEP):
                m.d.comb += result.eq(a)
            with m.Case(Function.LOAD):
                m.d.comb += result.eq(b)
            with m.Case(Function.AND):
                m.d.comb += result.eq(a & b)
            with m.Case(Function.MIN):
                m.d.comb += result.eq(Mux(less, a, b))
            with m.Case(Function.MAX):
                m.d.comb += result.eq(Mux(less, b, a))
            with m.Case(Function.FIELD):
                m.d.comb += result.eq(field)
            with m.Default():
                m.d.comb += result.eq(total)
        return result
