"""The microprogram: fetching, and the loops around what each instruction does.

Constants of the configuration are part of its words; fields of instructions are variables ``f.<field>``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from weft.hdl.isa import (
    WORD_BYTES,
    Instruction,
    Load,
    Mm,
    Normalise,
    Opcode,
    Queue,
    Softmax,
    Store,
    Table,
    Vec,
    VectorInstruction,
)
from weft.hdl.isa.config import Config
from weft.hdl.sequential import micro_matrix, micro_memory, micro_softmax, micro_vector
from weft.hdl.sequential.control import BASE, PROGRAM
from weft.hdl.sequential.micro import Assembler, Condition, Function, Index, MemoryOut, Out, Port

_LEAST_OPERAND = 11


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


_VECTOR_NAMES = {
    "alignment": "b", "alignment_ob": "b_ob", "alignment_oy": "b_oy", "alignment_ox": "b_ox",
    "state": "s", "state_ob": "s_ob", "state_oy": "s_oy", "state_ox": "s_ox",
}  # fmt: skip
"""Names under which fields of the VEC queue share variables: a second address, and a third."""

_COMMON = len(dataclasses.fields(VectorInstruction))


class Microprogram:
    """Words of the microprogram and of data memory.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    words : list of int
    operand_bits : int
    constants : list of int
        What data memory starts with.
    depth : int
        Words of data memory.
    """

    def __init__(self, config: Config) -> None:
        # The first passes find out how many variables there are, and how many bits operands need.
        known = _write(Micro(config, 24)).known
        first = _write(Micro(config, 24, known))
        blocks, depth = _blocks(config, first.used)
        words = len(first.assemble())
        self.operand_bits = max(_LEAST_OPERAND, (depth - 1).bit_length(), (words - 1).bit_length())
        micro = Micro(config, self.operand_bits, known)
        micro.blocks = blocks
        _write(micro)
        self.words = micro.assemble()
        self.depth = depth
        self.constants = [micro.constants.get(address, 0) for address in range(micro.known)]


def _blocks(config: Config, start: int) -> tuple[dict[str, int], int]:
    """First words of the blocks, from `start` on, and the depth of data memory."""
    sizes = {"parameters": 2 * config.n}
    if config.softmax:
        sizes |= {"logits": config.n, "states": 2 * config.row_states, "alignments": config.alignments}
    blocks, end = {}, start + start % 2
    for name, size in sizes.items():
        blocks[name] = end
        end += size
    return blocks, 1 << (end - 1).bit_length()


def _write(m: Micro) -> Micro:
    """The whole program, the fetch loop first."""
    _boot(m)
    units: list[tuple[Opcode, Queue, str]] = [
        (Opcode.LOAD, Queue.LOAD, "load"), (Opcode.MM, Queue.MM, "mm"), (Opcode.VEC, Queue.VEC, "vec"),
        (Opcode.STORE, Queue.STORE, "store"),
    ]  # fmt: skip
    if m.config.softmax:
        units += [
            (Opcode.SOFTMAX, Queue.VEC, "softmax"), (Opcode.NORMALISE, Queue.VEC, "normalise"),
            (Opcode.TABLE, Queue.VEC, "table"),
        ]  # fmt: skip
    for name in ("error", "trash", "places", "whole"):
        m.variable(name)
    _fetch(m, units)
    groups: dict[Queue, dict[str, int]] = {queue: {} for _, queue, _ in units}
    kinds: dict[str, tuple[type[Instruction], dict[str, str]]] = {
        "load": (Load, {}), "mm": (Mm, {}), "vec": (Vec, {}), "store": (Store, {}),
        "softmax": (Softmax, _VECTOR_NAMES), "normalise": (Normalise, _VECTOR_NAMES), "table": (Table, {}),
    }  # fmt: skip
    bodies: dict[str, Callable[[Micro], None]] = {
        "load": micro_memory.load, "mm": micro_matrix.mm, "vec": micro_vector.vec, "store": micro_memory.store,
        "softmax": micro_softmax.softmax, "normalise": micro_softmax.normalise, "table": micro_vector.table,
    }  # fmt: skip
    for _, queue, name in units:
        m.group(groups[queue])
        kind, names = kinds[name]
        m.label(name)
        if issubclass(kind, VectorInstruction):
            m.call("common")
            m.fields(kind, names, _COMMON)
        else:
            m.fields(kind, names)
        m.call("rest")
        # Only now is the unit busy: what comes before waits for the fetch.
        m.ld(1 << queue)
        m.memory(MemoryOut.EVENTS)
        bodies[name](m)
        m.jump("next")
    m.group(groups[Queue.VEC])
    m.label("common")
    m.fields(Vec, {}, 0, _COMMON)
    m.back()
    m.label("rest")
    m.ld(0)
    m.memory(MemoryOut.REMAIN)
    m.wait(Condition.MEMORY_IDLE)
    m.back()
    micro_vector.shared(m)
    if m.config.softmax:
        micro_softmax.shared(m)
    return m


def _boot(m: Micro) -> None:
    """Make the row of zeros, and wait for a program."""
    m.ld(0b100, Out.MODE)
    m.ld(0, Out.COLUMN)
    clear = m.label()
    m.out(Out.ACCUMULATOR_WRITE)
    m.jump(clear, Condition.COLUMN_ZERO, unless=True)
    m.label("ready")
    m.out(Out.MODE)
    m.wait(Condition.STARTED)


def _fetch(m: Micro, units: Sequence[tuple[Opcode, Queue, str]]) -> None:
    m.variables["program"] = PROGRAM
    m.copy("pc", "program")
    m.jump("fetch")
    m.label("next")
    m.ld(0)
    m.memory(MemoryOut.EVENTS)
    m.label("fetch")
    m.ld("pc")
    m.memory(MemoryOut.ADDRESS)
    m.ld(WORD_BYTES)
    m.memory(MemoryOut.REMAIN)
    m.op(Function.ADD, "pc", write=True)
    m.ld(Port.WORD, Out.BITS)
    m.take(8, "code")
    m.jump("end", Condition.ZERO)
    for opcode, _, name in units:
        m.sub(opcode if opcode is Opcode.LOAD else 1)
        m.jump(name, Condition.ZERO)
    m.ld(1)
    m.jump("finish")
    m.label("end")
    m.ld(0)
    m.label("finish")
    m.st("error")
    m.call("rest")
    m.ld(0)
    m.memory(MemoryOut.EVENTS)
    m.ld("error")
    m.memory(MemoryOut.FINISH)
    m.ld(0)
    m.jump("ready")
    assert [opcode for opcode, _, _ in units] == list(range(1, len(units) + 1))
