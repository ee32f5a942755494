"""Random programs with loops, and their unrolled equivalents with registers replaced by offsets.

A program of `random_programs` becomes the body of a loop, after instructions that let its queues wait for each other.
Inside, single instructions repeat or are skipped, and registers change.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from support.random_programs import MEMORY, PROGRAM, Generator, WithoutDivision
from weft.hdl.isa import (
    PROGRAM_REGISTERS,
    End,
    Instruction,
    Load,
    LoopNext,
    LoopStart,
    Mm,
    Mode,
    ReadRegisters,
    SetRegisters,
    SlotInstruction,
    Softmax,
    Store,
    Vec,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.loops import READ_WORDS, slots
from weft.sim.device import Device

WORDS = 0x17000  # where READ finds registers; no program stores there
ROUNDS = 8  # the register that counts rounds of the outermost loop
TIMES = 9  # and that of the loops inside
OWN = 10  # registers from here on hold addresses
ZERO = 7  # the base register that is 0


@dataclass(frozen=True)
class Repeat:
    """A loop: while `register` is above 0 its body, and then changes of registers."""

    register: int
    body: Sequence[Node]
    changes: Sequence[tuple[int, Mode, int]]


Node = Instruction | Repeat


def flat(nodes: Sequence[Node]) -> Iterator[Instruction]:
    """Return the program as a flat list with jumps."""
    for node in nodes:
        if isinstance(node, Repeat):
            body = list(flat(node.body))
            yield LoopStart(register=node.register, skip=len(body) + 1)
            yield from body
            yield LoopNext(back=len(body) + 1, **slots(*node.changes))
        else:
            yield node


class Unrolled:
    """The program unrolled into a list, by the nodes' structure and not by jumps."""

    def __init__(self, nodes: Sequence[Node], bases: Sequence[int], words: Sequence[int]) -> None:
        self.registers = [*bases, *[0] * (PROGRAM_REGISTERS - len(bases))]
        self._words = words
        self.instructions: list[Instruction] = []
        self._go(nodes)

    def _go(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Repeat):
                while signed(self.registers[node.register]) > 0:
                    self._go(node.body)
                    self._change(node.changes)
            elif isinstance(node, SlotInstruction):
                self._change(node.slots)
            elif isinstance(node, ReadRegisters):
                for word in range(node.count):
                    self.registers[node.first + word] = self._words[word]
            else:
                self.instructions.append(resolve(node, self.registers))

    def _change(self, changes: Sequence[tuple[int, int, int]]) -> None:
        for register, mode, value in changes:
            before = {Mode.SET: 0}.get(Mode(mode), self.registers[register])
            added = self.registers[value % PROGRAM_REGISTERS] if mode == Mode.ADD_REGISTER else value
            if mode != Mode.NONE:
                self.registers[register] = (before + added) % (1 << 32)


def signed(word: int) -> int:
    return (word + (1 << 31)) % (1 << 32) - (1 << 31)


def resolve(instruction: Instruction, registers: Sequence[int]) -> Instruction:
    """Return the instruction with numbers in place of registers, of which only `ZERO` remains."""
    if isinstance(instruction, Load | Store):
        offset = (registers[instruction.base] + instruction.offset) % (1 << 32)
        instruction = dataclasses.replace(instruction, base=ZERO, offset=offset)
    if isinstance(instruction, Load) and instruction.paged:
        entry = (registers[instruction.table] + instruction.entry) % (1 << 32)
        return dataclasses.replace(instruction, table=ZERO, page=entry // 4)
    if isinstance(instruction, Softmax):
        start = signed(registers[instruction.register]) if instruction.relative else 0
        length, diagonal = (
            min(max(signed((start + value) % (1 << 32)), -(1 << 15)), (1 << 15) - 1)
            for value in (instruction.length, instruction.diagonal)
        )
        return dataclasses.replace(instruction, relative=0, register=0, length=length, diagonal=diagonal)
    return instruction


class LoopProgram:
    """A random program with loops, `program`, and its unrolled equivalent, `straight`."""

    def __init__(self, config: Config, seed: int, count: int, *, divides: bool = True) -> None:
        self.random = random.Random(seed)
        self.generator = (Generator if divides else WithoutDivision)(
            config.replace(loops=0), seed, serial=self.random.random() < 0.3
        )
        self.generator.build(count)
        self._fence()
        r = self.random
        rounds = r.choice([0, 1, 2, 2, 3])
        self.words = [r.getrandbits(32) for _ in range(READ_WORDS)]
        self.words[0], self.words[1] = rounds, r.choice([0, 1, 2])
        starts = [(OWN + number, Mode.SET, signed(self.generator.bases[number])) for number in range(5)]
        copied = r.randrange(5)  # from the host's register
        starts[copied] = OWN + copied, Mode.SET, 0
        starts.append((OWN + copied, Mode.ADD_REGISTER, copied + PROGRAM_REGISTERS * r.randrange(9)))
        body = [node for instruction in self.generator.program for node in self._around(instruction)]
        nodes: list[Node] = [
            SetRegisters(**slots(*starts, (ROUNDS, Mode.SET, r.randrange(100)))),
            ReadRegisters(base=ZERO, offset=WORDS, first=ROUNDS, count=r.choice([2, 1, 2])),
            Repeat(ROUNDS, body, [(ROUNDS, Mode.ADD, -1), *self._moves()]),
        ]
        if r.random() < 0.5:  # without a loop behind it, what it stores is seen
            nodes.append(Repeat(TIMES, [Store(base=4, offset=0x6F00)], [(TIMES, Mode.SET, 0)]))
        self.program = [*flat(nodes), End()]
        straight = Unrolled(nodes, self.generator.bases, self.words)
        self.straight = [*straight.instructions, End()]

    def _fence(self) -> None:
        """Let each queue wait for all work of the others, so that the body may repeat."""
        generator = self.generator
        # They use memory that no other instruction uses, and their results are ignored.
        behind = generator.scratchpad - 1
        kinds = [
            Load(base=ZERO, dst=behind), Mm(a=behind, b=behind), Vec(dst=behind, params=generator.scratchpad),
            Store(base=4, offset=0x6FF0, src=behind),
        ]  # fmt: skip
        for _ in range(2):
            for kind in kinds:
                generator.program = generator.order_after_all(kind)
                assert kind.QUEUE is not None
                generator.last[kind.QUEUE] = len(generator.program) - 1

    def _moves(self) -> list[tuple[int, Mode, int]]:
        """Return small changes of address registers that keep 4-bit values at valid start addresses."""
        number = self.random.randrange(5)
        step = self.random.choice([0, 1, -1, 4]) * self.generator.config.bus_bytes
        return [(OWN + number, Mode.ADD, step), (OWN + number, Mode.NONE, 77)][: self.random.randrange(3)]

    def _around(self, instruction: Instruction) -> list[Node]:
        """Return an instruction with program registers instead of base registers; some repeat, or follow changes."""
        r = self.random
        if isinstance(instruction, Load | Store) and instruction.base < 5 and r.random() < 0.7:
            instruction = dataclasses.replace(instruction, base=OWN + instruction.base)
        if isinstance(instruction, Softmax) and r.random() < 0.7:
            instruction = dataclasses.replace(instruction, register=r.randrange(PROGRAM_REGISTERS))
        nodes: list[Node] = [instruction]
        if not (instruction.wait or instruction.signal) and r.random() < 0.3:
            nodes = [
                SetRegisters(**slots((TIMES, Mode.SET, r.choice([0, 1, 2, 3, -1])))),
                Repeat(TIMES, nodes, [(TIMES, Mode.ADD, -1)]),
            ]
            nodes = [instruction, *nodes]  # once in any case: what comes behind may need it
        if r.random() < 0.1:
            nodes.insert(0, SetRegisters(**slots(*self._moves())))
        return nodes

    def run(self, device: Device, *, straight: bool = False, limit: int = 20_000_000) -> bytes:
        """Run the program for at most `limit` cycles, and return all of memory after it."""
        generator = self.generator
        device.write(0, generator.image)
        device.write(WORDS, b"".join(word.to_bytes(4, "little") for word in self.words))
        program = self.straight if straight else self.program
        code = b"".join(instruction.encode() for instruction in program)
        at = PROGRAM
        if straight and len(code) > WORDS - PROGRAM:
            at = MEMORY  # the devices that run it have more memory
        assert at == MEMORY or len(code) <= 0x6000
        device.write(at, code)
        for index, address in enumerate(generator.bases):
            device.set_base(index, address)
        device.start(at)
        device.wait(limit)
        memory = bytearray(device.read(0, MEMORY))
        memory[PROGRAM:WORDS] = bytes(WORDS - PROGRAM)
        return bytes(memory)
