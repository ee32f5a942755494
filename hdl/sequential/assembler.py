"""The assembler of the microprogram, and the loops that instructions share."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.hdl.isa import Instruction
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.sequential.control import BASE, REGISTERS


class Function(enum.IntEnum):
    """Functions of the accumulator ``a`` and the source ``b``."""

    KEEP = 0  # a
    LOAD = 1  # b
    ADD = 2
    SUB = 3  # a - b
    AND = 4
    MIN = 5
    MAX = 6
    ROUND = 7  # a + b, plus 1 if the bits that `Port.PRODUCT` or `Port.RAW` lost round up
    FIELD = 8  # the next bits of the instruction; `out` encodes the width


class Source(enum.IntEnum):
    MEMORY = 0
    # Data memory at the index register, whose lowest bit is ORed with the operand's lowest bit; or see `Lane`.
    INDEXED = 1
    CONSTANT = 2
    PORT = 3


class Port(enum.IntEnum):
    """Ports of the units, from which a word can read."""

    ACCUMULATOR = 0  # the processor's accumulator
    WORD = 1  # the next 32 bits from memory
    PRODUCT = 2  # result of `Multiplier`, saturated; waits until it is ready
    RAW = 3  # result of `Multiplier` modulo 2**32; `Function.ROUND` rounds it half up
    ELEMENT = 4  # the current column of the accumulator row or scratchpad vector read last
    BYTE = 5  # the current column of the scratchpad vector
    SUM = 6  # the current column of the array's last row of sums
    APPEND = 7  # the processor's accumulator shifted left by 8, and `BYTE` below it
    TABLE = 8  # the table entry
    EXPONENT = 9  # bits 18 to 23 of the processor's accumulator; only with kernels


class Out(enum.IntEnum):
    """Inputs of the units, to which a word can send its result."""

    NONE = 0
    INDEX = 1
    MULTIPLICAND = 2
    SHIFT = 3  # shift of the next start
    MULTIPLY = 5  # start with this multiplier; the shift is bits 24 and up if none was set
    MULTIPLY_ADD = 6  # as MULTIPLY, and add the last product
    COLUMN = 7
    PUSH = 8  # append a byte to the vector being assembled
    SCRATCHPAD_WRITE = 9  # write the vector to this address
    BYTE_WRITE = 10  # write the vector's first byte to the current column of this address, then rotate it
    SCRATCHPAD_READ = 11
    ACCUMULATOR_READ = 12
    ACCUMULATOR_WRITE = 13  # write the current column of the row at `C`, and go to the next column
    SOURCE = 14  # source of `ELEMENT`: 0 accumulator, 1 scratchpad
    A = 15
    A_STEP = 16
    READ_A = 17  # read the vector at `A`, and step
    WEIGHT = 18  # the vector read last is the current column of weights; go to the next column
    C = 19
    C_STEP = 20
    X = 21
    X_STEP = 22
    BOUND = 23
    ROW_VALID = 24  # store the range check of `X` as that of the row
    ROWS = 25  # start this number of rows
    MODE = 26  # mode of rows, see `Rows.set_mode`
    TABLE_ADDRESS = 27
    TABLE_WRITE = 28  # write a table entry, and go to the next entry
    MEMORY = 29  # see `MemoryOut`, which the operand selects
    COLUMN_NEXT = 30
    BITS = 31  # set the word from which `FIELD` takes bits


class MemoryOut(enum.IntEnum):
    """Inputs of the memory unit, for `Out.MEMORY`: the operand of a KEEP with the source CONSTANT."""

    ADDRESS = 0
    REMAIN = 1
    SKIP = 2
    LENGTH = 3
    FILL = 4
    GATHER = 5  # append bytes of memory to the vector
    SCATTER = 6  # write bytes of the vector read last to memory
    FLUSH = 7
    FINISH = 8
    EVENTS = 9
    OPERATION = 10  # set the first word of a micro-operation, which `Lane` refers to; only with kernels
    MULTIPLY_SIGNED = 11  # as `Out.MULTIPLY`, by the low 18 bits, signed; only with kernels
    NARROW = 12  # gathered bytes hold two values of 4 bits; only if LOAD has these


class Condition(enum.IntEnum):
    ALWAYS = 0
    ZERO = 1
    NEGATIVE = 2
    STARTED = 3
    COLUMN_ZERO = 4
    IN_RANGE = 5
    ROWS_DONE = 6
    MEMORY_IDLE = 7  # no transfer is outstanding
    MOVED = 8  # gather or scatter is done
    LENGTH_ZERO = 9
    LANES_ZERO = 10  # the `next` of the word before wrapped to lane 0; only with kernels


@dataclass(frozen=True)
class Index:
    """Operand in data memory at the index register; `odd` selects the upper word of a pair."""

    odd: int = 0


class Part(enum.IntEnum):
    """Operands of kernels in data memory; the index register selects row and lane. Only with kernels."""

    FIRST = 1  # register `a` of the micro-operation, or with `a_memory` the staged vector
    SECOND = 2  # register `b`, with the lane that `swap` exchanges, or the immediate
    RESULT = 3  # register `d`, or with `d_memory` the staged vector
    PREDICATE = 4
    STAGED = 5  # one vector, shared by all rows


PART_BITS = 3


@dataclass(frozen=True)
class Lane:
    """Operand in a lane of a `Part`; with `next` the index register advances to the next lane, modulo their number."""

    part: Part
    next: bool = False

    @property
    def number(self) -> int:
        """Return the encoding as an operand: the part above the lowest bit, then `next`."""
        return self.part << 1 | self.next << 1 + PART_BITS


PORTS, CONDITIONS = len(Port) - 1, len(Condition) - 1
"""Numbers of ports and conditions without kernels."""
Operand = str | int | Port | Index | Lane

WIDTHS = (1, 2, 3, 7, 8, 12, 16, 24, 32, 4)
"""Widths of instruction fields; a word of the microprogram holds the index."""
FUNCTION_BITS, SOURCE_BITS, OUT_BITS, CONDITION_BITS = 4, 2, 5, 4
OPERAND_LOW = 1 + FUNCTION_BITS + SOURCE_BITS + 1 + OUT_BITS
"""Lowest bit of operand or target. Below it, from bit 0: 1 for a jump; then function, source, write, out, or for a
jump condition, negation, call, return."""


@dataclass
class _Word:
    bits: int
    target: str | None = None


@dataclass
class Assembler:
    """Assembler of words of the microprogram. Variables get addresses in the order of their first use.

    Attributes
    ----------
    operand_bits : int
    variables : dict of str to int
        Addresses of the variables that all instructions share.
    groups_start : int
        Address of the first variable of a group.
    """

    operand_bits: int
    variables: dict[str, int] = field(default_factory=dict)
    groups_start: int = 0
    _words: list[_Word] = field(default_factory=list)
    _labels: dict[str, int] = field(default_factory=dict)
    _next: int = REGISTERS
    _group: dict[str, int] | None = None
    _end: int = 0
    _unique: int = 0

    def group(self, variables: dict[str, int] | None) -> None:
        """Set the group of new variables; None for variables that all instructions share.

        Groups share their addresses, so only one group is in use at a time.
        """
        self._group = variables

    def variable(self, name: str) -> int:
        if name in self.variables:
            return self.variables[name]
        # Constants and addresses of blocks are initial content of data memory, so no group may overwrite them.
        if self._group is None or name[0] in "=@":
            self.variables[name] = self._next
            self._next += 1
            return self._next - 1
        if name not in self._group:
            self._group[name] = self.groups_start + len(self._group)
            self._end = max(self._end, self._group[name] + 1)
        return self._group[name]

    @property
    def shared_words(self) -> int:
        """Words of data memory up to the last variable that all instructions share."""
        return self._next

    @property
    def used_words(self) -> int:
        """Words of data memory up to the last variable."""
        return max(self._next, self._end)

    def label(self, name: str | None = None) -> str:
        """Place a label at the next word and return its name, which is new if none is given."""
        if name is None:
            self._unique += 1
            name = f".{self._unique}"
        if name in self._labels:
            raise ValueError(f"label {name!r} is defined twice")
        self._labels[name] = len(self._words)
        return name

    def new_label(self) -> str:
        """Return a new name, for a label to be placed later."""
        self._unique += 1
        return f".{self._unique}"

    def op(
        self, function: Function, operand: Operand = 0, *, out: Out = Out.NONE, write: bool = False
    ) -> None:
        """Append a word that calculates."""
        source, value = self._operand(operand)
        mask = (1 << self.operand_bits) - 1
        bits = (
            int(function) << 1
            | int(source) << 1 + FUNCTION_BITS
            | int(write) << 1 + FUNCTION_BITS + SOURCE_BITS
            | int(out) << OPERAND_LOW - OUT_BITS
            | (value & mask) << OPERAND_LOW
        )
        self._words.append(_Word(bits))

    def _operand(self, operand: Operand) -> tuple[Source, int]:
        if isinstance(operand, Port):
            return Source.PORT, int(operand)
        if isinstance(operand, Index):
            return Source.INDEXED, operand.odd
        if isinstance(operand, Lane):
            return Source.INDEXED, operand.number
        if isinstance(operand, str):
            return Source.MEMORY, self.variable(operand)
        if not -(1 << self.operand_bits - 1) <= operand < 1 << self.operand_bits - 1:
            raise ValueError(f"constant {operand} does not fit {self.operand_bits} bits")
        return Source.CONSTANT, operand

    def ld(self, operand: Operand, out: Out = Out.NONE) -> None:
        self.op(Function.LOAD, operand, out=out)

    def add(self, operand: Operand, out: Out = Out.NONE) -> None:
        self.op(Function.ADD, operand, out=out)

    def sub(self, operand: Operand, out: Out = Out.NONE) -> None:
        self.op(Function.SUB, operand, out=out)

    def minimum(self, operand: Operand, out: Out = Out.NONE) -> None:
        self.op(Function.MIN, operand, out=out)

    def maximum(self, operand: Operand, out: Out = Out.NONE) -> None:
        self.op(Function.MAX, operand, out=out)

    def st(self, operand: str | Index | Lane, out: Out = Out.NONE) -> None:
        self.op(Function.KEEP, operand, out=out, write=True)

    def out(self, out: Out) -> None:
        self.op(Function.KEEP, out=out)

    def memory(self, out: MemoryOut) -> None:
        """Send the accumulator to the memory unit."""
        self.op(Function.KEEP, int(out), out=Out.MEMORY)

    def advance(self, name: str, step: Operand) -> None:
        """Add `step` to a variable."""
        self.ld(step)
        self.op(Function.ADD, name, write=True)

    def copy(self, target: str, source: Operand) -> None:
        self.ld(source)
        self.st(target)

    def take(self, width: int, target: str, *, signed: bool = False) -> None:
        """Store the next field of the instruction in a variable."""
        # FIELD has no source and no output: their bits hold signedness and width.
        bits = (
            int(Function.FIELD) << 1
            | int(signed) << 2 + FUNCTION_BITS
            | 1 << 1 + FUNCTION_BITS + SOURCE_BITS
            | WIDTHS.index(width) << OPERAND_LOW - OUT_BITS
            | self.variable(target) << OPERAND_LOW
        )
        self._words.append(_Word(bits))

    def fields(
        self, kind: type[Instruction], names: dict[str, str], first: int = 0, last: int | None = None
    ) -> None:
        """Store the fields after the opcode in variables ``f.<field>``; `names` renames some fields.

        `first` and `last` select a range of fields, like the indices of a slice.
        """
        members = [item for item in kind.layout().members.items() if item[0] not in ("opcode", "reserved")]
        for name, shape in members[first:last]:
            target = "trash" if name in ("wait", "signal") else f"f.{names.get(name, name)}"
            self.take(shape.width, target, signed=shape.signed)

    def jump(
        self,
        target: str,
        condition: Condition = Condition.ALWAYS,
        *,
        unless: bool = False,
        call: bool = False,
        back: bool = False,
    ) -> None:
        """Append a jump to `target`, or with `back` to the word after the last call.

        A call must be unconditional, because the processor stores the return address before it knows the condition.
        """
        if call and condition is not Condition.ALWAYS:
            raise ValueError(f"a call of {target!r} cannot depend on {condition.name}")
        at = 1 + CONDITION_BITS
        bits = 1 | int(condition) << 1 | int(unless) << at | int(call) << at + 1 | int(back) << at + 2
        self._words.append(_Word(bits, target=target))

    def call(self, target: str) -> None:
        self.jump(target, call=True)

    def back(self) -> None:
        """Append a return to the word after the last call."""
        self.jump("", back=True)

    def wait(self, condition: Condition, *, unless: bool = False) -> None:
        """Append a jump to itself until `condition` holds."""
        self.jump(self.label(), condition, unless=not unless)

    def assemble(self) -> list[int]:
        """Return all words, with their targets resolved."""
        words = []
        for word in self._words:
            target = self._labels[word.target] if word.target else 0
            words.append(word.bits | target << OPERAND_LOW)
        return words


class Micro(Assembler):
    """Assembler with the constants, blocks and loops that the parts of the microprogram share."""

    def __init__(self, config: Config, operand_bits: int, groups_start: int = 1 << 12) -> None:
        super().__init__(operand_bits, groups_start=groups_start)
        self.config = config
        self.constants: dict[int, int] = {}
        self.blocks: dict[str, int] = {}

    def constant(self, value: int) -> str:
        """Return a read-only variable that holds a constant too wide for a word's operand."""
        name = f"={value}"
        self.constants[self.variable(name)] = value & 0xFFFFFFFF
        return name

    def index(self, name: str, words: int = 1) -> None:
        """Point the index register to the entry of a block whose number is in the accumulator.

        An entry has `words` words, 1 or 2.
        """
        entries = {"states": self.config.row_states, "alignments": self.config.alignments}[name]
        self.op(Function.AND, self.constant(entries - 1))
        if words == 2:
            self.add(Port.ACCUMULATOR)
        self.add(self.constant_block(name), Out.INDEX)

    def constant_block(self, name: str) -> str:
        """Return a read-only variable that holds the address of a block of data memory."""
        variable = f"@{name}"
        self.constants[self.variable(variable)] = self.blocks.get(name, 0)
        return variable

    def base(self, field: str) -> None:
        """Load the base register that a field names."""
        self.ld(field)
        self.add(BASE, Out.INDEX)
        self.ld(Index())

    def loop(self, count: str, body: Callable[[], None], moves: Sequence[tuple[str, str, str]] = ()) -> None:
        """Append a loop that repeats `body` as often as variable `count` says.

        Each of `moves` names a variable, its initial value, and the stride that is added after each iteration.
        """
        remaining = f"{count}.left"
        for name, start, _ in moves:
            if name != start:
                self.copy(name, start)
        self.copy(remaining, count)
        again = self.label()
        body()
        for name, _, stride in moves:
            self.advance(name, stride)
        self.advance(remaining, -1)
        self.jump(again, Condition.ZERO, unless=True)

    def walk(self, loop: str, body: Callable[[], None], values: Mapping[str, tuple[str, ...]]) -> None:
        """Append a loop that repeats `body` as often as field `loop` of the instruction says.

        It moves addresses and coordinates, given with the loops that move them: ``value.loop`` starts from the value in
        the next outer loop, and moves by ``value_loop``.
        """
        moves = []
        for value, loops in values.items():
            if loop in loops:
                outer = loops[: loops.index(loop)]
                start = f"{value}.{outer[-1]}" if outer else f"f.{value}"
                moves.append((f"{value}.{loop}", start, f"f.{value}_{loop}"))
        self.loop(f"f.{loop}", body, moves)


def loops_of(kind: type[Instruction], *names: str) -> dict[str, tuple[str, ...]]:
    """Return the loops, outermost first, that move the named operands of an instruction and their coordinates."""
    operands = [next(operand for operand in kind.OPERANDS if operand.name == name) for name in names]
    loops = {operand.name: tuple(loop.name for loop in operand.loops) for operand in operands}
    return loops | {bound.name: bound.loops for operand in operands for bound in operand.bounds}


BODIES: dict[type[Instruction], Callable[[Micro], None]] = {}
"""For each kind of instruction the function that writes its words. The fields are already in variables."""


def implements(kind: type[Instruction]) -> Callable[[Callable[[Micro], None]], Callable[[Micro], None]]:
    """Return a decorator for the function that writes the words of an instruction."""

    def register(body: Callable[[Micro], None]) -> Callable[[Micro], None]:
        BODIES[kind] = body
        return body

    return register


_DISTANCES = 2048
"""Softmax has table entries for distances from the exponent below this."""


def first_lookup(config: Config) -> int:
    """Return the index of the first entry of the look-up tables."""
    return config.table_depth if config.softmax else 0


def entries(config: Config) -> int:
    """Return the number of entries of all tables."""
    return first_lookup(config) + LOOKUP_ENTRIES * config.lookup_tables


def address_step(config: Config) -> int:
    """Return the distance between the addresses of consecutive entries."""
    return _DISTANCES // config.table_depth if config.softmax else 1
