"""The assembler of the microprogram, and the loops that instructions have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.hdl.isa import Instruction
from weft.hdl.isa.config import Config
from weft.hdl.sequential.control import BASE
from weft.hdl.sequential.micro import (
    CONDITION_BITS,
    FUNCTION_BITS,
    OPERAND_LOW,
    OUT_BITS,
    SOURCE_BITS,
    WIDTHS,
    Condition,
    Function,
    Index,
    Lane,
    MemoryOut,
    Operand,
    Out,
    Port,
    Source,
)


@dataclass
class _Word:
    bits: int
    target: str | None = None


@dataclass
class Assembler:
    """Collects words. Names of variables get addresses in the order of `variables`, labels when they are met.

    Attributes
    ----------
    operand_bits : int
    variables : dict of str to int
        Those that all instructions share.
    groups_start : int
        Address of the first variable of a group.
    """

    operand_bits: int
    variables: dict[str, int] = field(default_factory=dict)
    groups_start: int = 0
    _words: list[_Word] = field(default_factory=list)
    _labels: dict[str, int] = field(default_factory=dict)
    _next: int = 16
    _group: dict[str, int] | None = None
    _end: int = 0
    _unique: int = 0

    def group(self, variables: dict[str, int] | None) -> None:
        """From here on, variables that are new belong to this group: groups share their addresses, so only one of them
        is in use at a time. None for those that all instructions share."""
        self._group = variables

    def variable(self, name: str) -> int:
        if name in self.variables:
            return self.variables[name]
        if self._group is None or name[0] in "=@":
            self.variables[name] = self._next
            self._next += 1
            return self._next - 1
        if name not in self._group:
            self._group[name] = self.groups_start + len(self._group)
            self._end = max(self._end, self._group[name] + 1)
        return self._group[name]

    @property
    def known(self) -> int:
        """Words that variables take which all instructions share."""
        return self._next

    @property
    def used(self) -> int:
        """Words of data memory that variables take."""
        return max(self._next, self._end)

    def label(self, name: str | None = None) -> str:
        """Mark the next word; a name is made up if none is given."""
        if name is None:
            self._unique += 1
            name = f".{self._unique}"
        if name in self._labels:
            raise ValueError(f"label {name!r} is defined twice")
        self._labels[name] = len(self._words)
        return name

    def fresh(self) -> str:
        """A name for a label to come."""
        self._unique += 1
        return f".{self._unique}"

    def op(
        self, function: Function, operand: Operand = 0, *, out: Out = Out.NONE, write: bool = False
    ) -> None:
        """A word that calculates."""
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

    def low(self, operand: Operand, out: Out = Out.NONE) -> None:
        self.op(Function.MIN, operand, out=out)

    def high(self, operand: Operand, out: Out = Out.NONE) -> None:
        self.op(Function.MAX, operand, out=out)

    def st(self, operand: str | Index | Lane, out: Out = Out.NONE) -> None:
        self.op(Function.KEEP, operand, out=out, write=True)

    def out(self, out: Out) -> None:
        self.op(Function.KEEP, out=out)

    def memory(self, out: MemoryOut) -> None:
        """Give the accumulator to the memory unit."""
        self.op(Function.KEEP, int(out), out=Out.MEMORY)

    def advance(self, name: str, step: Operand) -> None:
        """Add `step` to a variable."""
        self.ld(step)
        self.op(Function.ADD, name, write=True)

    def copy(self, target: str, source: Operand) -> None:
        self.ld(source)
        self.st(target)

    def take(self, width: int, target: str, *, signed: bool = False) -> None:
        """Take the next field of the instruction to a variable."""
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
        """Take fields behind the opcode apart, to variables of the names ``f.<field>``; `names` renames some.

        `first` and `last` choose some of them, as indices of a slice do.
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
        """Go to `target` on a condition, or behind the last call. A call has no condition: the processor keeps where
        it returns to before it knows one."""
        if call and condition is not Condition.ALWAYS:
            raise ValueError(f"a call of {target!r} cannot depend on {condition.name}")
        at = 1 + CONDITION_BITS
        bits = 1 | int(condition) << 1 | int(unless) << at | int(call) << at + 1 | int(back) << at + 2
        self._words.append(_Word(bits, target=target))

    def call(self, target: str) -> None:
        self.jump(target, call=True)

    def back(self) -> None:
        """Return to behind the last call."""
        self.jump("", back=True)

    def wait(self, condition: Condition, *, unless: bool = False) -> None:
        """Stay here until `condition` holds."""
        self.jump(self.label(), condition, unless=not unless)

    def assemble(self) -> list[int]:
        """All words."""
        words = []
        for word in self._words:
            target = self._labels[word.target] if word.target else 0
            words.append(word.bits | target << OPERAND_LOW)
        return words


class Micro(Assembler):
    """An assembler with what the parts of the microprogram share."""

    def __init__(self, config: Config, operand_bits: int, groups_start: int = 1 << 12) -> None:
        super().__init__(operand_bits, groups_start=groups_start)
        self.config = config
        self.constants: dict[int, int] = {}
        self.blocks: dict[str, int] = {}

    def constant(self, value: int) -> str:
        """A variable that nobody writes, for a constant that no word holds."""
        name = f"={value}"
        self.constants[self.variable(name)] = value & 0xFFFFFFFF
        return name

    def index(self, name: str, words: int = 1) -> None:
        """Point the index register to an entry of a block, `words` (1 or 2) each, by its number in the accumulator."""
        entries = {"states": self.config.row_states, "alignments": self.config.alignments}[name]
        self.op(Function.AND, self.constant(entries - 1))
        if words == 2:
            self.add(Port.ACCUMULATOR)
        self.add(self.constant_block(name), Out.INDEX)

    def constant_block(self, name: str) -> str:
        """A variable that nobody writes, for the first word of a block of data memory."""
        variable = f"@{name}"
        self.constants[self.variable(variable)] = self.blocks.get(name, 0)
        return variable

    def base(self, field: str) -> None:
        """Load the base register that a field names."""
        self.ld(field)
        self.add(BASE, Out.INDEX)
        self.ld(Index())

    def loop(self, count: str, body: Callable[[], None], moves: Sequence[tuple[str, str, str]] = ()) -> None:
        """`body`, as often as variable `count` says; before, variables are set, and moved after each turn.

        `moves` holds variable, what it is set to, and its stride.
        """
        left = f"{count}.left"
        for name, start, _ in moves:
            if name != start:
                self.copy(name, start)
        self.copy(left, count)
        again = self.label()
        body()
        for name, _, stride in moves:
            self.advance(name, stride)
        self.advance(left, -1)
        self.jump(again, Condition.ZERO, unless=True)

    def walk(self, loop: str, body: Callable[[], None], moved: Mapping[str, tuple[str, ...]]) -> None:
        """`body` as often as field `loop` of the instruction says, with the addresses and coordinates that the loop
        moves: ``value.loop`` starts from the value in the next loop further out, and moves by ``value_loop``."""
        moves = []
        for value, loops in moved.items():
            if loop in loops:
                outer = loops[: loops.index(loop)]
                start = f"{value}.{outer[-1]}" if outer else f"f.{value}"
                moves.append((f"{value}.{loop}", start, f"f.{value}_{loop}"))
        self.loop(f"f.{loop}", body, moves)


def moved(kind: type[Instruction], *names: str) -> dict[str, tuple[str, ...]]:
    """The loops that move each of some operands of an instruction, outermost first, and then their coordinates."""
    operands = [next(operand for operand in kind.OPERANDS if operand.name == name) for name in names]
    found = {operand.name: tuple(loop.name for loop in operand.loops) for operand in operands}
    return found | {bound.name: bound.loops for operand in operands for bound in operand.bounds}


BODIES: dict[type[Instruction], Callable[[Micro], None]] = {}
"""By instruction, the function that writes its words. Its fields are variables by then."""


def carries_out(kind: type[Instruction]) -> Callable[[Callable[[Micro], None]], Callable[[Micro], None]]:
    """Decorate the function that writes the words for instructions of a kind."""

    def register(body: Callable[[Micro], None]) -> Callable[[Micro], None]:
        BODIES[kind] = body
        return body

    return register
