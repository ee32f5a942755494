"""The sequential core's microprogram in Python: semantics of its words, units to run it with, and random programs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from weft.hdl.isa.kernel import MicroOp
from weft.hdl.sequential.assembler import (
    FUNCTION_BITS,
    OPERAND_LOW,
    OUT_BITS,
    WIDTHS,
    Assembler,
    Condition,
    Function,
    Index,
    Lane,
    MemoryOut,
    Operand,
    Out,
    Part,
    Port,
    Source,
)

MASK = 0xFFFFFFFF
EXTREMES = (0, 1, -1, 1 << 31, (1 << 31) - 1, -(1 << 31) + 1)
RATE = 12
"""Words at the start of a run that wait for nothing, each with a result for a unit, before two jumps."""
SETTINGS = range(8)
"""Data memory that others write before a run, and the program reads."""
OTHERS = range(8, 16)
"""Data memory that only others use."""
BLOCK = 32
"""First word of the index register's block of 8 words."""
CONSTANTS = 48
"""First word of data memory that nobody writes, except kernels' lanes: see `lanes_start`."""
ROWS = 8
"""Rows of kernels."""


def lanes_start(lanes: int, depth: int) -> int:
    """Return the start of kernels' lanes: the last 10 blocks of 16 words of data memory."""
    return depth - 10 * ROWS * lanes


def lane_address(op: MicroOp, part: int, index: int, lanes: int, depth: int) -> int:
    """Return the address of a lane of a part: the last eight blocks are registers."""
    start = depth - 16 * ROWS * lanes
    lane, row = index % lanes, index // lanes % ROWS
    staged = start + 7 * ROWS * lanes + lane

    def register(number: int, at: int) -> int:
        return start + (8 + number) * ROWS * lanes + row * lanes + at

    if part == Part.SECOND:
        distance = 1 << op.swap >> 1
        other = lane ^ (distance if distance < lanes else 0)
        return start + (7 * ROWS + 1) * lanes if op.b_immediate else register(op.b, other)
    if part == Part.PREDICATE:
        return start + 6 * ROWS * lanes + row * lanes + lane
    if part == Part.FIRST and not op.a_memory:
        return register(op.a, lane)
    if part == Part.RESULT and not op.d_memory:
        return register(op.d, lane)
    return staged


def signed(value: int) -> int:
    value &= MASK
    return value - (value >> 31 << 32)


def mix(*values: int) -> int:
    """Return 32 bits that depend on all numbers."""
    state = 0x2545F491
    for value in values:
        state = (state ^ value & MASK) * 0x9E3779B1 & MASK
        state ^= state >> 15
    return state


class Units:
    """Units whose answers depend on everything that the program gave them, so that a wrong word shows."""

    def __init__(self, seed: int) -> None:
        self.state, self.taken = seed, 0

    def give(self, out: int, operand: int, result: int) -> None:
        self.state = mix(self.state, out, operand if out == Out.MEMORY else 0, result)

    def port(self, number: int) -> int:
        value = mix(self.state, number)
        if number == Port.WORD:
            return mix(value, self.taken)
        return (value, (value >> 8 & 255) - 128 & MASK, EXTREMES[value >> 8 & 3] & MASK, value)[value & 3]

    def round(self) -> int:
        return mix(self.state, 100) & 1

    def flag(self, condition: int) -> int:
        return mix(self.state, 200 + condition) & 1


@dataclass
class Interpreter:
    """Interpreter of words one after the other, as `weft.hdl.sequential.assembler` specifies.

    Attributes
    ----------
    program : list of int
    operand_bits : int
    memory : list of int
        Data memory.
    units : Units
    lanes : int
        Lanes of kernels, or 0.
    """

    program: list[int]
    operand_bits: int
    memory: list[int]
    units: Units
    accumulator: int = 0
    index: int = 0
    pc: int = 0
    back: int = 0
    current: int = 0
    position: int = 0
    outs: list[tuple[int, int | None, int]] = field(default_factory=list)
    lanes: int = 0
    operation: MicroOp = field(default_factory=MicroOp)

    def run(self) -> list[tuple[int, int | None, int]]:
        """Run until `MemoryOut.FINISH`; return all outputs to units: unit, operand and result. The operand is None if
        it has no meaning."""
        self.outs.clear()
        for _ in range(50_000):
            word = self.program[self.pc]
            self.pc += 1
            (self._jump if word & 1 else self._calculate)(word)
            if self.outs and self.outs[-1][:2] == (Out.MEMORY, MemoryOut.FINISH):
                return list(self.outs)
        raise AssertionError("the program does not end")

    def _jump(self, word: int) -> None:
        condition = word >> 1 & 15
        negate, call, back = (word >> bit & 1 for bit in (5, 6, 7))
        own: dict[int, int] = {
            Condition.ALWAYS: 1,
            Condition.ZERO: self.accumulator == 0,
            Condition.NEGATIVE: self.accumulator >> 31,
            Condition.STARTED: 1,  # programs wait for these
            Condition.ROWS_DONE: 1,
            **({Condition.LANES_ZERO: self.index % self.lanes == 0} if self.lanes else {}),
        }
        holds = own[condition] if condition in own else self.units.flag(condition)
        if bool(holds) == bool(negate):
            return
        after = self.pc
        self.pc = self.back if back else word >> OPERAND_LOW
        if call:
            self.back = after

    def _calculate(self, word: int) -> None:
        function, source = word >> 1 & (1 << FUNCTION_BITS) - 1, word >> 1 + FUNCTION_BITS & 3
        write, out = word >> 3 + FUNCTION_BITS & 1, word >> OPERAND_LOW - OUT_BITS & (1 << OUT_BITS) - 1
        operand = word >> OPERAND_LOW
        address = operand % len(self.memory)
        if function == Function.FIELD:
            result, out = self._field(WIDTHS[out], bool(source & 2)), 0
        else:
            if source == Source.INDEXED:
                address = self._index_address(operand)
            result = self._function(function, self._source(source, operand, address))
        self.accumulator = result & MASK
        if write:
            self.memory[address] = self.accumulator
        if out:
            self._give(out, None if source == Source.INDEXED else operand)

    def _index_address(self, operand: int) -> int:
        part = operand >> 1 & 7
        if not (self.lanes and part):
            return self.index | operand & 1
        address = lane_address(self.operation, part, self.index, self.lanes, len(self.memory))
        if operand >> 4 & 1:
            lane = self.index % self.lanes
            self.index += (lane + 1) % self.lanes - lane
        return address

    def _give(self, out: int, operand: int | None) -> None:
        if out == Out.INDEX:
            self.index = self.accumulator % len(self.memory)
        if out == Out.BITS:
            self.current, self.position = self.accumulator, 0
        if self.lanes and out == Out.MEMORY and operand is not None and operand & 15 == MemoryOut.OPERATION:
            self.operation = MicroOp.decode(self.accumulator & (1 << 31) - 1)
        self.outs.append((out, operand, self.accumulator))
        self.units.give(out, operand or 0, self.accumulator)

    def _source(self, source: int, operand: int, address: int) -> int:
        if source == Source.CONSTANT:
            return operand - (operand >> self.operand_bits - 1 << self.operand_bits)
        if source != Source.PORT:
            return self.memory[address]
        if operand == Port.ACCUMULATOR:
            return self.accumulator
        if operand == Port.APPEND:
            return self.accumulator << 8 | self.units.port(Port.BYTE) & 255
        if operand == Port.EXPONENT:
            return self.accumulator >> 18 & 63
        value = self.units.port(operand)
        self.units.taken += operand == Port.WORD
        return value

    def _function(self, function: int, value: int) -> int:
        a, b = signed(self.accumulator), signed(value)
        cases: dict[int, Callable[[], int]] = {
            Function.KEEP: lambda: a,
            Function.LOAD: lambda: b,
            Function.ADD: lambda: a + b,
            Function.SUB: lambda: a - b,
            Function.AND: lambda: a & b,
            Function.MIN: lambda: min(a, b),
            Function.MAX: lambda: max(a, b),
            Function.ROUND: lambda: a + b + self.units.round(),
        }
        return cases[function]()

    def _field(self, width: int, is_signed: bool) -> int:
        """Return the next bits; the next word is fetched as soon as one is used up."""
        word = self.units.port(Port.WORD)
        value = (self.current | word << 32) >> self.position & (1 << width) - 1
        self.position += width
        if self.position >= 32:
            self.position -= 32
            self.current = word
            self.units.taken += 1
        return value - (1 << width) if is_signed and value >> width - 1 else value


_FLAGS = (Condition.COLUMN_ZERO, Condition.IN_RANGE, Condition.LENGTH_ZERO, Condition.MEMORY_IDLE)
_PLAIN_OUTS = tuple(set(Out) - {Out.NONE, Out.INDEX, Out.BITS, Out.MEMORY, Out.ROWS})
_OWN = (Port.ACCUMULATOR, Port.APPEND)
_PORTS = (
    Port.ACCUMULATOR,
    Port.WORD,
    Port.ELEMENT,
    Port.BYTE,
    Port.APPEND,
    Port.TABLE,
    Port.PRODUCT,
    Port.RAW,
)


class RandomProgram:
    """Program that waits for `Condition.STARTED`, uses all that words can do, finishes, and begins again.

    It has few variables, and dependent words are close to each other.

    Attributes
    ----------
    words : list of int
    """

    def __init__(self, seed: int, operand_bits: int, lanes: int = 0, depth: int = 0) -> None:
        self.random, self.bits, self.lanes = random.Random(seed), operand_bits, lanes
        self.m = m = Assembler(operand_bits)
        self.written = [f"v{k}" for k in range(4)] + [f"b{k}" for k in range(3)]
        self.read = [*self.written, *(f"a{k}" for k in SETTINGS)]
        m.variables = {f"v{k}": 16 + k for k in range(4)} | {"left": 20}
        m.variables |= {f"b{k}": BLOCK + k for k in range(8)} | {f"a{k}": k for k in SETTINGS}
        if lanes:
            m.variables["immediate"] = depth - (9 * ROWS - 1) * lanes
            self.written.append("immediate")
        m.ld(0)
        m.label("main")
        m.wait(Condition.STARTED)
        for k in range(RATE):
            m.ld(3 * k - 10, Out.COLUMN)
        m.jump("begin")
        m.label("begin")
        m.ld(1, Out.COLUMN)
        m.ld(Port.WORD, Out.BITS)
        m.ld(BLOCK, Out.INDEX)
        for _ in range(100):
            kinds = [self._items, self._items, self._skip, self._loop, self._call]
            self.random.choice(kinds + [self._over_lanes] * bool(self.lanes))()
        # Fields that need no word, when there is none.
        m.ld(-100, Out.BITS)
        for width in (7, 24):
            m.take(width, "v0")
            m.st("v0", Out.C)
        m.memory(MemoryOut.FINISH)
        m.jump("main")
        for name in ("sub0", "sub1"):
            m.label(name)
            self._items()
            m.jump("", self._condition(), unless=self._coin(), back=True)
            self._items()
            m.back()
        self.words = m.assemble()

    def _coin(self) -> bool:
        return self.random.random() < 0.5

    def _condition(self) -> Condition:
        return self.random.choice((Condition.ZERO, Condition.NEGATIVE, *_FLAGS))

    def _items(self) -> None:
        """Return a few words without jumps, some of which depend on each other."""
        for _ in range(self.random.randint(1, 5)):
            self.random.choices(
                (
                    self._word, self._store, self._again, self._own, self._index, self._take, self._bits, self._rows,
                    self._memory, self._operation,
                ),
                (8, 2, 3, 2, 3, 3, 1, 1, 2, 2 * bool(self.lanes)),
            )[0]()  # fmt: skip

    def _word(self) -> None:
        draw, half = self.random, 1 << self.bits - 1
        function = draw.choice([each for each in Function if each is not Function.FIELD])
        constant = draw.choice((draw.randrange(-20, 20), draw.randrange(-half, half), -half, half - 1))
        sources: list[Operand] = [
            draw.choice(self.read), draw.choice(self.read), Index(draw.randrange(2)), constant, draw.choice(_PORTS)
        ]  # fmt: skip
        source = draw.choice(sources)
        if self.lanes:
            sources += [self._lane(), self._lane(), Port.EXPONENT]
            source = draw.choice(sources)
        if function is Function.ROUND:
            source = draw.choice((Port.PRODUCT, Port.RAW))
        out = draw.choice(_PLAIN_OUTS) if self._coin() else Out.NONE
        write = isinstance(source, (Index, Lane)) or (source in self.written)
        self.m.op(function, source, out=out, write=write and draw.random() < 0.3)

    def _store(self) -> None:
        targets: list[str | Index | Lane] = [
            Index(self.random.randrange(2)),
            self.random.choice(self.written),
        ]
        target = self.random.choice(targets + [self._lane()] * bool(self.lanes))
        self.m.st(target, self.random.choice((Out.NONE, Out.MULTIPLY)))

    def _lane(self) -> Lane:
        return Lane(self.random.choice(list(Part)), next=self._coin())

    def _operation(self) -> None:
        """Select a meaning of lanes, and often use one at once."""
        self.m.ld(self.random.choice(self.read))
        self.m.memory(MemoryOut.OPERATION)
        if self._coin():
            self.m.ld(self._lane(), Out.A)

    def _over_lanes(self) -> None:
        """Loop over the lanes of a row, which may read another lane's result."""
        m = self.m
        m.op(Function.AND, ROWS * self.lanes - self.lanes, out=Out.INDEX)
        again = m.label()
        m.ld(replace(self._lane(), next=False), self.random.choice((Out.NONE, Out.A)))
        if self._coin():
            m.add(replace(self._lane(), next=False))
        m.st(replace(self._lane(), next=True))
        m.jump(again, Condition.LANES_ZERO, unless=True)
        m.ld(BLOCK, Out.INDEX)

    def _again(self) -> None:
        """Read a written word, at once or a word later."""
        m, target = self.m, self.random.choice(self.written)
        m.add(self.random.randint(1, 1000))
        m.st(target)
        if self._coin():
            m.add(1)
        m.op(self.random.choice((Function.LOAD, Function.SUB)), target, out=Out.MULTIPLICAND)

    def _own(self) -> None:
        """Read the accumulator as a port."""
        m = self.m
        m.add(self.random.randint(1, 1000))
        if self._coin():
            m.op(Function.KEEP)
        m.op(self.random.choice((Function.LOAD, Function.ADD)), self.random.choice(_OWN), out=Out.SHIFT)

    def _index(self) -> None:
        """Point the index register into its block, and often use it at once."""
        m, draw = self.m, self.random
        if self._coin():
            m.op(Function.AND, 7)
            m.add(BLOCK, Out.INDEX)
        else:
            m.ld(BLOCK + draw.randrange(8))
            m.st(draw.choice(self.written), Out.INDEX)
        if self._coin():
            m.op(
                draw.choice((Function.LOAD, Function.ADD)),
                Index(draw.randrange(2)),
                out=Out.A,
                write=self._coin(),
            )

    def _take(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.m.take(self.random.choice(WIDTHS), self.random.choice(self.written), signed=self._coin())

    def _bits(self) -> None:
        sources: list[Operand] = [Port.WORD, *self.read]
        self.m.ld(self.random.choice(sources), Out.BITS)
        self._take()

    def _rows(self) -> None:
        """Start an operation that takes time, go on, and wait for it."""
        m = self.m
        m.ld(1, Out.ROWS)
        for _ in range(self.random.randrange(4)):
            self._word()
        m.wait(Condition.ROWS_DONE)
        m.ld(Port.SUM)

    def _memory(self) -> None:
        self.m.memory(self.random.choice([each for each in MemoryOut if each is not MemoryOut.FINISH]))

    def _skip(self) -> None:
        label = self.m.new_label()
        always = self.random.random() < 0.2
        if always:
            self.m.jump(label)
        else:
            self.m.jump(label, self._condition(), unless=self._coin())
        self._items()
        self.m.label(label)

    def _loop(self) -> None:
        m = self.m
        m.copy("left", self.random.randint(1, 3))
        again = m.label()
        self._items()
        m.advance("left", -1)
        m.jump(again, Condition.ZERO, unless=True)

    def _call(self) -> None:
        """Call a subroutine; the call itself is unconditional."""
        label = self.m.new_label()
        if self._coin():
            self.m.jump(label, self._condition(), unless=self._coin())
        self.m.call(self.random.choice(("sub0", "sub1")))
        self.m.label(label)
