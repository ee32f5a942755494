"""Random programs within the rules of the program checker.

They are ordered by semaphores only as these rules need (or fully, in some programs), so units overlap in many ways.
"""

from __future__ import annotations

import copy
import dataclasses

import numpy as np

from support.kernel_model import microcode, random_kernel
from support.random_instructions import (
    ATTEMPTS,
    BLOCKS,
    DUMP,
    INPUT,
    MEMORY,
    PAGE_COUNT,
    PAGES,
    PROGRAM,
    Drawing,
)
from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import (
    INSTRUCTIONS,
    End,
    Instruction,
    Kernel,
    Load,
    Lookup,
    Microcode,
    MicroOp,
    Mm,
    Normalise,
    Queue,
    Softmax,
    Store,
    Table,
    Vec,
    places,
    required_features,
)
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.kernel import SERIAL, kernel_at
from weft.sim.device import Device, DeviceError
from weft.sim.golden.interpreter import EXECUTE

__all__ = ["FLAGS", "MEMORY", "PROGRAM", "Generator", "WithoutDivision", "memory_of"]

FLAGS = {
    (kind, name)
    for kind in INSTRUCTIONS.values()
    for name, place in places(kind.OPCODE).items()
    if (place.width == 1 or name in required_features(kind.OPCODE)) and (kind, name) != (Vec, "table")
}
"""Fields that enable a feature: every comparison must have met each value. With one look-up table its number is always
0."""
KERNELS = 2
SHARES = {Load: 2, Mm: 3, Softmax: 3, Normalise: 2, Kernel: 12}
"""Relative frequencies of instructions."""


class Generator(Drawing):
    """Builder of one program. `memories` holds the device's memories after it, so that candidates can be tried."""

    def __init__(self, config: Config, seed: int, *, serial: bool) -> None:
        super().__init__(config, seed)
        self.serial = serial
        self.program: list[Instruction] = []
        self.last: dict[Queue, int] = {}
        self.seen: set[tuple[int, Queue]] = set()

    def order_after_all(self, instruction: Instruction) -> list[Instruction]:
        """Return the program with `instruction` after the last of every other queue; -1 for unknown queues."""
        program, wait = list(self.program), 0
        queue = instruction.QUEUE
        assert queue is not None
        for other, index in self.last.items():
            if other == queue or (index, queue) in self.seen:
                continue
            semaphore = 1 << 4 * other + queue
            program[index] = dataclasses.replace(program[index], signal=program[index].signal | semaphore)
            wait |= semaphore
            self.seen.add((index, queue))
        return [*program, dataclasses.replace(instruction, wait=wait)]

    def before(self, instruction: Instruction) -> list[Instruction]:
        """Return the micro-operations that a `Kernel` needs to be valid by itself."""
        if not isinstance(instruction, Kernel):
            return []
        return microcode(kernel_at(self.memories.kernel, instruction.start), instruction.start)

    def append(self, instruction: Instruction) -> bool:
        """Add `instruction` if it is valid here: unordered if that is no race, else after all others."""
        try:
            check([*self.before(instruction), instruction, End()], self.config)
            trial = copy.deepcopy(self.memories)
            EXECUTE[type(instruction)](trial, instruction)
            for start in self.kernels if isinstance(instruction, Microcode) else ():
                if kernel_at(trial.kernel, start)[-1].op in SERIAL:
                    return False
            if trial.table.max() >> self.config.probability_bits:
                return False  # tables of 7-bit probabilities hold no others
        except (ProgramError, DeviceError):
            return False
        self.memories = trial
        program = [*self.program, instruction]
        try:
            check([*program, End()], self.config)
            free = not self.serial
        except ProgramError:
            free = False
        if not free:
            program = self.order_after_all(instruction)
            check([*program, End()], self.config)
        self.program = program
        assert instruction.QUEUE is not None
        self.last[instruction.QUEUE] = len(program) - 1
        return True

    def build(self, count: int) -> None:
        """Build a prologue that fills the scratchpad, `count` random instructions, and a dump of the scratchpad."""
        self.prologue()
        self.extend(count)
        assert self.append(self.dump())

    def prologue(self) -> None:
        """Set contents of memory, and add instructions that fill the scratchpad and the tables."""
        n, size = self.config.n, self.config.scratchpad_size
        self.memories.bases = list(self.bases)
        self.memories.dram[INPUT:PROGRAM] = list(self.random.randbytes(PROGRAM - INPUT))
        blocks = b"".join(self.parameters() for _ in range(BLOCKS))
        self.memories.dram[DUMP - len(blocks) : DUMP] = list(blocks)
        self.memories.dram[PAGES : PAGES + 4 * PAGE_COUNT] = np.array(self.pages, "<u4").view(np.uint8)
        exp2 = self.config.exp2_table if self.config.softmax else b""
        self.memories.dram[DUMP - 0x2000 : DUMP - 0x2000 + len(exp2)] = list(exp2)
        self.image = self.memories.dram.tobytes()
        rows, whole = self.whole()
        filling = Load(run=size * n // rows, row_pitch=997, dst_vector=1, dst_row=size // rows, **whole)
        block = {"run": len(blocks), "length": len(blocks)}
        if exp2:
            whole_table = {"run": len(exp2), "length": len(exp2)}
            assert self.append(Load(base=7, offset=DUMP - 0x2000, dst_vector=1, **whole_table))
            assert self.append(Table(vectors=len(exp2) // n))
        assert self.append(filling)
        assert self.append(
            Load(base=7, offset=DUMP - len(blocks), dst=self.scratchpad, dst_vector=1, **block)
        )
        for table in range(self.config.lookup_tables):
            vectors = LOOKUP_ENTRIES // n
            assert self.append(
                Lookup(src=self.random.randrange(size - vectors), vectors=vectors, table=table)
            )
        room = self.config.kernel // KERNELS
        for start in range(0, self.config.kernel, room or 1):
            ops = random_kernel(self.random, self.config, range(8), range(4))
            while len(ops) > room:
                ops = random_kernel(self.random, self.config, range(8), range(4))
            assert all(self.append(instruction) for instruction in microcode(ops, start))
            self.kernels.append(start)

    def put(self, ops: list[MicroOp], start: int) -> None:
        """Replace a whole kernel; there is none until the new one is complete."""
        kernels, self.kernels = self.kernels, []
        assert all(self.append(instruction) for instruction in microcode(ops, start))
        self.kernels = kernels

    def extend(self, count: int) -> None:
        kinds = [kind for kind in INSTRUCTIONS.values() for _ in range(SHARES.get(kind, 1))]
        kinds = [kind for kind in kinds if kind.QUEUE is not None and not kind().unsupported(self.config)]
        for _ in range(count):
            assert any(self.append(self.draw(self.random.choice(kinds))) for _ in range(ATTEMPTS))

    def whole(self) -> tuple[int, dict[str, int]]:
        """Return rows that load or store all of the scratchpad, and the fields for them."""
        total = self.config.scratchpad_size * self.config.n
        rows = max(1, total >> 13)
        return rows, {"rows": rows, "length": total // rows, "pitch": total // rows}

    def dump(self) -> Store:
        """Store all of the scratchpad to memory."""
        rows, whole = self.whole()
        return Store(
            base=6,
            row_pitch=whole["pitch"],
            src_vector=1,
            src_row=self.config.scratchpad_size // rows,
            **whole,
        )

    def run(self, device: Device) -> bytes:
        device.write(0, self.image)
        device.write(PROGRAM, b"".join(instruction.encode() for instruction in (*self.program, End())))
        for index, address in enumerate(self.bases):
            device.set_base(index, address)
        device.start(PROGRAM)
        device.wait(5_000_000)
        return device.read(0, MEMORY)


class WithoutDivision(Generator):
    """Random programs whose time does not depend on data."""

    def draw(self, kind: type[Instruction]) -> Instruction:
        return super().draw(Softmax if kind is Normalise else kind)


class WithoutNumbers(WithoutDivision):
    """Random programs of `WithoutDivision` that use base registers as addresses only."""

    def draw(self, kind: type[Instruction]) -> Instruction:
        drawn = super().draw(kind)
        return dataclasses.replace(drawn, relative=0) if isinstance(drawn, Softmax) else drawn


def memory_of(config: Config, rng: np.random.Generator) -> dict[str, float | None]:
    """Draw settings of a memory, for both devices."""
    return {
        "latency": int(rng.integers(1, 80)),
        "bandwidth": [None, config.bus_bytes, config.bus_bytes / 3, 1.7][rng.integers(4)],
    }
