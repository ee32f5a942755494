"""Properties of `weft.hdl.sequential.processor`: execution of the words of the microprogram."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.extras.proof.hardware.pipelines import ago, implies, latch, was
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.hdl.sequential.assembler import CONDITIONS, PORTS, WIDTHS, Condition, Function, Port, Source
from weft.hdl.sequential.assembler import Out as Target
from weft.hdl.sequential.processor import JUMP_LAYOUT, Processor, word_layout

_WORDS, _DEPTH, _OPERAND_BITS = 8, 16, 8


class _AnyWords(wiring.Component):
    """Replacement of `weft.hdl.sequential.processor.ProgramMemory`: each read returns any `word`, which stays until the
    next read.
    """

    def __init__(self, width: int) -> None:
        self.word = Signal(width)
        super().__init__({"en": In(1), "addr": In((_WORDS - 1).bit_length()), "data": Out(width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        register = Signal(len(self.word), reset_less=True)
        fresh = was(m, self.en)
        m.d.sync += [register.eq(self.data)]
        m.d.comb += self.data.eq(Mux(fresh, self.word, register))
        return m


class _OpenProcessor(Processor):
    """Processor with words of any value."""

    def __init__(self) -> None:
        super().__init__([0] * _WORDS, _OPERAND_BITS, [0] * _DEPTH, _DEPTH)
        self.words = _AnyWords(word_layout(_OPERAND_BITS).size)

    def _words(self, width: int) -> Any:
        return self.words


@proves("sequential/processor", "words of the microprogram", Induction(6), cover=16, proven=("program",))
class WordsBench(Bench, unit=_OpenProcessor):
    """Words that calculate are executed once and in order, with the accumulator, the index register, data memory and
    the units as all earlier words leave them, by their definition. Results go to the accumulator, to data memory and to
    one unit. Jumps use the state after all earlier words. Other users access data memory in between.

    Units and words are unconstrained. Assumed, as the assembler guarantees: functions, ports, conditions and widths of
    fields exist, addresses are in data memory, and there is no return before a call.

    A word is followed from its decoding to its execution, at least two cycles later. The results of earlier words that
    it needs are available when it takes them, as if words were executed one after the other. One word of data memory,
    which may be any, is watched, with the value that was written to it since the reset.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.layout = word_layout(_OPERAND_BITS)
        m.d.comb += dut.words.word.eq(self.free(self.layout.size, "word"))
        self.word = self.layout(dut.words.data)
        self._assume()
        self.started, self.free_, self.stays = (self.peek(name) for name in ("started", "free", "stays"))
        self.goes = self.started & self.free_ & ~self.stays
        self.accumulator, self.index = self.peek("accumulator"), self.peek("index")
        self.place = self.constant(m, range(_DEPTH), "place")
        # The address that a word reads; the index register is what all words ahead leave, as is claimed.
        self.at = Mux(self.indexed, self.index | self.word.operand[0], self.word.operand[:4])
        self._claim_pipeline(m)
        self._claim_waits()
        self._claim_operand(m)
        self._claim_results(m)
        self._claim_memory(m)
        self._claim_sequence(m)

    def _assume(self) -> None:
        word, jump = self.word, JUMP_LAYOUT(self.word.as_value()[: JUMP_LAYOUT.size])
        self.jump = jump
        self.is_field = word.function == Function.FIELD
        self.reads = (
            ~word.jump & ~self.is_field & ((word.source == Source.MEMORY) | (word.source == Source.INDEXED))
        )
        self.indexed = self.reads & (word.source == Source.INDEXED)
        addresses = self.reads & ~self.indexed | ~word.jump & word.write
        self.assume(word.jump | (word.function <= Function.FIELD))
        self.assume(~word.jump | (jump.condition < CONDITIONS))
        self.assume(~addresses | (word.operand < _DEPTH))
        self.assume(word.jump | (word.source != Source.PORT) | self.is_field | (word.operand < PORTS))
        self.assume(word.jump | ~self.is_field | (word.out < len(WIDTHS)))

    def _claim_pipeline(self, m: Module) -> None:
        """Claim the word that selects its operand, and the word that is executed, with resolved addresses."""
        word, layout = self.word, self.layout
        self.chosen, self.executed = Signal(layout, name="word_chosen"), Signal(layout, name="word_executed")
        there, runs = Signal(name="is_chosen"), Signal(name="is_executed")
        coming = Signal(layout, name="coming")
        m.d.comb += coming.eq(word)
        m.d.comb += coming.operand.eq(Cat(self.at, word.operand[4:]))
        takes = self.goes & ~word.jump
        with m.If(self.free_):
            m.d.sync += [there.eq(takes), self.chosen.eq(Mux(takes, coming.as_value(), 0))]
        m.d.sync += [
            runs.eq(there & self.free_),
            self.executed.eq(Mux(self.free_, self.chosen.as_value(), 0)),
        ]
        self.there, self.runs = there, runs
        for name, path, own, valid in (
            ("chosen", "chosen", self.chosen, there),
            ("executed", "executed", self.executed, runs),
        ):
            register = layout(self.peek(path))
            for field in ("function", "source", "write", "out"):
                self.claim(f"{field} of the word that is {name}", register[field] == own[field])
            self.claim(f"operand of the word that is {name}", implies(valid, register.operand == own.operand))
            self.claim(f"jumps are not {name}", ~register.jump)
            self.claim(f"written where memory is {name}", implies(own.write, own.operand < _DEPTH))
            self.claim(f"functions that there are, {name}", own.function <= Function.FIELD)
            port = (own.source == Source.PORT) & (own.function != Function.FIELD)
            self.claim(f"ports that there are, {name}", implies(port, own.operand < PORTS))
            width = own.function == Function.FIELD
            self.claim(f"widths that there are, {name}", implies(width, own.out < len(WIDTHS)))
            self.claim(f"no word is none that is {name}", valid | (own.as_value() == 0))

    @staticmethod
    def _has_target(word: Any) -> Value:
        return (word.out != 0) & (word.function != Function.FIELD)

    def _changes_nothing(self, word: Any) -> Value:
        return (word.function == Function.KEEP) & (word.out == 0) & ~word.write

    def _claim_waits(self) -> None:
        """Claim that the results that a word needs are available when it moves on."""
        word, ahead, dut = self.word, (self.chosen, self.executed), self.dut
        idle = self._changes_nothing(ahead[0]) & self._changes_nothing(ahead[1])
        gives = self._has_target(ahead[0]) | self._has_target(ahead[1])
        calculates = self.goes & ~word.jump
        for number, other in enumerate(ahead):
            index = (other.out == Target.INDEX) & (other.function != Function.FIELD)
            self.claim(f"the index register is there {number}", implies(calculates & self.indexed, ~index))
            written = other.write & (other.operand[:4] == self.at)
            self.claim(f"what it reads is written {number}", implies(calculates & self.reads, ~written))
        own = self.jump.condition == Condition.ALWAYS
        decides = self.goes & word.jump & ~own
        self.claim("what a jump looks at is there", implies(decides, idle))
        of_unit = decides & (self.jump.condition > Condition.NEGATIVE)
        self.claim("the unit that a jump asks has all", implies(of_unit, dut.out == 0))
        self.claim("a field comes when bits are given", implies(calculates & self.is_field, ~gives))
        port = self.there & (self.chosen.source == Source.PORT) & (self.chosen.function != Function.FIELD)
        self.claim(
            "a port is read when all is executed",
            implies(port, self._changes_nothing(self.executed) & (dut.out == 0)),
        )

    def _claim_operand(self, m: Module) -> None:
        """Claim the word's operand, with the accumulator of the previous word; a subtrahend comes inverted."""
        dut, word = self.dut, self.chosen
        is_field, is_port = word.function == Function.FIELD, word.source == Source.PORT
        ports = [dut.port[number] for number in range(PORTS)]
        ports[Port.ACCUMULATOR] = self.accumulator.as_unsigned()
        ports[Port.APPEND] = Cat(dut.port[Port.BYTE][:8], self.accumulator)[:32]
        read = self.peek("read__data")
        b, field = Signal(32, name="b"), self._model_field(m)
        m.d.comb += b.eq(read)
        with m.If(is_field):
            m.d.comb += b.eq(field)
        with m.Elif(word.source == Source.CONSTANT):
            m.d.comb += b.eq(word.operand.as_signed())
        with m.Elif(is_port):
            m.d.comb += b.eq(Array(ports)[word.operand[:4]])
        self.read, self.b = read, Signal(32, name="b_of_executed", reset_less=True)
        self.round = Signal(name="round_of_executed")
        m.d.sync += [self.b.eq(b), self.round.eq(dut.round)]
        subtracts = Cat(
            *(self.executed.function == of for of in (Function.SUB, Function.MIN, Function.MAX))
        ).any()
        operand, carry = self.peek("second").as_unsigned(), self.peek("carry")
        self.claim("operand", implies(self.runs, operand == Mux(subtracts, ~self.b, self.b)))
        rounds = self.executed.function == Function.ROUND
        self.claim("carry", implies(self.runs, carry == Mux(rounds, self.round, subtracts)))
        takes = ~is_field & is_port & (word.operand == Port.WORD) | is_field & self.crosses
        product = ~is_field & is_port & ((word.operand == Port.PRODUCT) | (word.operand == Port.RAW))
        waits = self.there & (takes & ~dut.word_valid | product & ~dut.ready)
        self.claim("a word waits for its unit alone", self.free_ == ~waits)
        self.claim("words from memory are taken once", dut.word_taken == (self.there & takes & self.free_))
        self.claim("which product", implies(self.there & product, dut.odd == (word.operand == Port.RAW)))
        self.takes = self.there & takes
        self.cover("a word waits", waits)

    def _model_field(self, m: Module) -> Value:
        """Return the next bits of the stream, which begins with the last word for it and continues with words from
        memory.
        """
        dut, word = self.dut, self.chosen
        current, position = Signal(32, name="stream", reset_less=True), Signal(5, name="position")
        counts, signs = Array([Const(w, 6) for w in WIDTHS]), word.source[1]
        width = Signal(6, name="width")
        m.d.comb += width.eq(counts[word.out])
        end = Signal(7, name="end")
        m.d.comb += end.eq(position + width)
        self.crosses = end >= 32
        rest = Signal(32, name="rest")
        m.d.comb += rest.eq(Cat(current, dut.port[Port.WORD]) >> position)
        values = [Mux(signs, rest[:count].as_signed(), rest[:count]) for count in WIDTHS]
        field = Signal(32, name="field_value")
        m.d.comb += field.eq(Array(values)[word.out])
        is_field = self.there & (word.function == Function.FIELD)
        with m.If(self.free_ & is_field):
            m.d.sync += position.eq(end)
            with m.If(self.crosses):
                m.d.sync += current.eq(dut.port[Port.WORD])
        has_bits = self.runs & (self.executed.out == Target.BITS) & (self.executed.function != Function.FIELD)
        self.result = Signal(32, name="result_by_definition")
        with m.If(has_bits):
            m.d.sync += [current.eq(self.result), position.eq(0)]
        self.claim("where the next field begins", self.peek("position") == position)
        self.claim("the bits of it", self.peek("current") == current)
        self.cover("a field of two words", is_field & self.crosses & (position == 30) & self.free_)
        return field

    def _claim_results(self, m: Module) -> None:
        dut, word, a, b = self.dut, self.executed, self.accumulator, self.b.as_signed()
        result = self.result
        cases: dict[Function, Any] = {
            Function.LOAD: b,
            Function.FIELD: b,
            Function.ADD: a + b,
            Function.SUB: a - b,
            Function.AND: a & b,
            Function.MIN: Mux(a < b, a, b),
            Function.MAX: Mux(a < b, b, a),
            Function.ROUND: a + b + self.round,
        }
        m.d.comb += result.eq(a)
        with m.Switch(word.function):
            for function, value in cases.items():
                with m.Case(function):
                    m.d.comb += result.eq(value)
        due = ago(m, result, 1, "due")
        self.claim("accumulator", self.accumulator.as_unsigned() == due)
        gives = ago(m, Mux(self._has_target(word), word.out, 0), 1, "given", reset=True)
        self.claim("given to its unit", dut.out == gives)
        self.claim("what is given", implies(gives != 0, dut.result == due))
        operand = ago(m, word.operand, 1, "operand_given")
        self.claim("with its operand", implies(gives != 0, dut.operand == operand))
        index = latch(
            m, (word.out == Target.INDEX) & self._has_target(word), result, 4, "index_by_definition"
        )
        self.claim("index register", self.index == index)
        for function in (Function.SUB, Function.MIN, Function.ROUND):
            self.cover(f"{function.name}", self.runs & (word.function == function) & (result == 0xFFFF0001))

    def _claim_memory(self, m: Module) -> None:
        """Claim data memory, which other users access in cycles in which words do not."""
        dut, word = self.dut, self.executed
        content, known = Signal(32, name="content", reset_less=True), Signal(name="known")
        others = dut.write_valid & dut.write_ready & (dut.write_address == self.place)
        with m.If(word.write & (word.operand[:4] == self.place)):
            m.d.sync += [content.eq(self.result), known.eq(1)]
        with m.Elif(others):
            for byte in range(4):
                with m.If(dut.write_strobe[byte]):
                    m.d.sync += content.word_select(byte, 8).eq(dut.write_data.word_select(byte, 8))
        self.claim("others write when words do not", dut.write_ready == ~word.write)
        self.claim("data memory", implies(known, self.peek_word("memory", self.place, _DEPTH) == content))
        was, due = Signal(name="reads_it"), Signal(32, name="read_of_it", reset_less=True)
        with m.If(self.free_):
            m.d.sync += [was.eq(self.goes & self.reads & known & (self.at == self.place)), due.eq(content)]
        self.claim("a word reads what was written last", implies(was, self.read == due))
        idle = ~self.started | self.word.jump
        self.claim("others read when words do not", dut.read_ready == (dut.read_valid & idle & self.free_))
        others = ago(
            m, dut.read_ready & known & (dut.read_address == self.place), 1, "others_read", reset=True
        )
        before = ago(m, content, 1, "others_due")
        self.claim("others read what was written last", implies(others, dut.read_data == before))
        self.cover("a word reads what one before has written", was & (due == 0x5A5A5A5A))
        self.cover("others read", others & (before == 0x12345678))

    def _claim_sequence(self, m: Module) -> None:
        dut, jump = self.dut, self.jump
        fetch = dut.words
        pc, back = Signal(3, name="pc_by_definition"), Signal(3, name="back_by_definition")
        called = Signal(name="called")
        holds = Array(
            [
                Const(1),
                self.accumulator == 0,
                self.accumulator < 0,
                *(dut.flag[k] for k in range(Condition.NEGATIVE + 1, CONDITIONS)),
            ]
        )[jump.condition]
        taken = jump.jump & (holds ^ jump.negate)
        target = Mux(taken, Mux(jump.back, back, self.word.operand[:3]), pc + 1)
        following = Mux(self.started, target[:3], 0)
        moves = ~self.started | self.goes
        started = was(m, 1, "started_by_definition")
        with m.If(moves):
            m.d.sync += pc.eq(following)
            with m.If(self.started & jump.jump & jump.call):
                m.d.sync += [back.eq(pc + 1), called.eq(1)]
        self.claim("started", self.started == started)
        self.claim("a word is fetched when one moves on", fetch.en == moves)
        self.assume(~(self.started & jump.jump & jump.back) | called)
        self.claim("the next word", implies(moves, fetch.addr == following))
        self.claim("where words are", implies(self.started, self.peek("pc") == pc))
        self.claim("where calls return to", implies(called, self.peek("back") == back))
        again = taken & ((jump.condition == Condition.MEMORY_IDLE) | (jump.condition == Condition.MOVED))
        waits = self.takes & ~dut.word_valid | again & self.goes
        self.claim("waiting for memory", dut.waits == waits)
        self.cover("a call returns", self.goes & taken & jump.back & called & (back == 3))
        self.cover("a jump after a subtraction", self.goes & taken & (jump.condition == Condition.NEGATIVE))
