"""Programs whose fields are at their limits, as far as the program checker allows."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
from collections.abc import Iterator

from closure import fields
from support.core_cases import Bench, Core, Scenario, Step, compare_memory
from support.random_instructions import OUTPUT
from support.random_programs import Generator

from weft.hdl.checker.program import check
from weft.hdl.errors import IsaError, ProgramError
from weft.hdl.isa import (
    BASES,
    INSTRUCTIONS,
    End,
    Instruction,
    Kernel,
    Load,
    LoopNext,
    LoopStart,
    Microcode,
    Queue,
    ReadRegisters,
    SetRegisters,
    Source,
    Store,
    Vec,
    places,
)
from weft.hdl.isa.encoding import PROGRAM_REGISTERS
from weft.hdl.isa.loops import READ_BYTES, SLOTS
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import EXECUTE

LIMITS = ("0", "1", "negative", "maximum")
KEPT = {"Store": ("base", "offset"), "Load": ("base",)}
"""Fields that decide where in memory an instruction writes, or which data a host may change."""
STRIDES = ("ob", "oy", "ox", "nt", "ky", "kx", "kc", "ry", "rx", "row", "pixel", "vector")
"""Suffixes of the names of strides."""
SHORT = {"length": 1, "run": 1, "pixels": 1, "skip": 0, "before": 0}
"""Fields of a LOAD of one byte."""
EACH = 40
"""Instructions of a program at most."""
MOST = 1 << 15
"""Accesses of an operand; more would take too long."""
ALIKE = 4
"""Instructions of a kind, in queues that have one or two kinds."""
OTHERS = 12
"""Drawn instructions to try if the first does not allow a value."""
TRIES = 100
WORDS = 0x6000
"""Memory address of `_addresses`' numbers for READ."""
SPACE = 0x7000
"""Bytes after `OUTPUT` that programs may write."""


def extremes(core: Core, bench: Bench) -> Scenario:
    """Yield, for each instruction and limit, one with as many valid fields at that limit as possible, and one with each
    value of small fields."""
    bench.fresh = False
    steps, made, seed = [], _generator(core, 0), 0
    for instruction in _instructions(core):
        if not made.append(instruction) or len(made.program) < EACH:
            continue
        steps.append(_step(made, bench))
        seed += 1
        made = _generator(core, seed)
    steps.append(_step(made, bench))
    steps += [_all_semaphores(core, bench, half, queue) for half in range(2) for queue in Queue]
    if core.config.loops:
        steps += [_registers(core, bench), *(_addresses(core, bench, other) for other in (15, 3))]
        steps.append(_counts(core, bench))
    return Scenario("extremes", bench, steps)


def _generator(core: Core, seed: int) -> Generator:
    made = Generator(core.config, 9000 + seed, serial=True)
    made.prologue()
    return made


def _step(made: Generator, bench: Bench) -> Step:
    assert made.append(made.dump())
    return compare_memory("extremes", made, made.program, bench)


def _instructions(core: Core) -> Iterator[Instruction]:
    trial = _generator(core, 99)
    for kind in INSTRUCTIONS.values():
        if kind.QUEUE is None or kind is Microcode or kind().unsupported(core.config):
            continue
        drawn = (item for item in iter(lambda kind=kind: trial.draw(kind), None) if _valid(item, trial))
        one, *others = (
            dataclasses.replace(item, **_single(item)) for item in itertools.islice(drawn, 1 + OTHERS)
        )
        found = [_at(one, value, trial) for value in LIMITS]
        for name, place in places(kind.OPCODE).items():
            if 1 < place.width <= fields.FEW and name not in KEPT.get(kind.__name__, ()):
                found += [_with(one, name, number) for number in range(place.low, place.high + 1)]
        yield from found
        yield from _single_values([one, *others], found, trial)


def _single_values(
    ones: list[Instruction], found: list[Instruction], trial: Generator
) -> Iterator[Instruction]:
    """Return instructions for each value of a field that none of `found` has. Other fields are minimal."""
    kind, config = type(ones[0]), trial.config
    own = {
        name: place for name, place in places(kind.OPCODE).items() if name not in ("wait", "signal", "start")
    }
    strides = {name: 0 for name in own if "_" in name and name.rpartition("_")[2] in STRIDES}
    strides |= dict.fromkeys(("transpose", "paged", "int4", "blocks"), 0) | SHORT if kind is Load else {}
    still = [dataclasses.replace(one, **strides) for one in ones]
    seen = {(name, value) for item in found for name in own for value in fields.bins_of(item, name, config)}
    for name in own:
        if name in KEPT.get(kind.__name__, ()):
            continue
        for value in fields.bins(kind, name, config):
            if (name, value) in seen:
                continue
            number = fields.number_of(value, kind, name, config)
            yield from itertools.islice(
                (new for one in still if _valid(new := _with(one, name, number), trial)), 1
            )


def _single(instruction: Instruction) -> dict[str, int]:
    """Return the instruction with counts of one."""
    counts = {loop.count for operand in instruction.OPERANDS for loop in operand.loops}
    own = places(instruction.OPCODE)
    names = ("ob", "oy", "ox") if isinstance(instruction, Kernel) else (*counts, "rows", "line")
    return {str(name): 1 for name in names if str(name) in own}


def _at(base: Instruction, value: str, trial: Generator) -> Instruction:
    """Return `base` with as many valid fields at a limit as possible."""
    config, kept = trial.config, KEPT.get(type(base).__name__, ())
    for name in places(base.OPCODE):
        if name in ("wait", "signal", "start", *kept) or value not in fields.bins(type(base), name, config):
            continue
        new = _with(base, name, fields.number_of(value, type(base), name, config))
        if _valid(new, trial):
            base = new
    return base


def _with(base: Instruction, name: str, number: int) -> Instruction:
    return dataclasses.replace(base, **{name: number})


def _valid(instruction: Instruction, trial: Generator) -> bool:
    for operand in instruction.OPERANDS:
        if math.prod(count for count, _ in operand.nest(instruction, trial.config)) > MOST:
            return False
    try:
        check([*trial.before(instruction), instruction, End()], trial.config)
        if isinstance(instruction, Load | Store):
            EXECUTE[type(instruction)](trial.memories, instruction)
    except (ProgramError, DeviceError, IsaError, IndexError):
        return False
    if isinstance(instruction, Store):
        last = (instruction.rows - 1) * instruction.row_pitch + (instruction.pixels - 1) * instruction.pitch
        start = trial.bases[instruction.base] + instruction.offset
        ends = [start, start + (instruction.rows - 1) * instruction.row_pitch, start + last]
        return all(end >= OUTPUT and end + instruction.length <= OUTPUT + SPACE for end in ends)
    return True


def _semaphores(core: Core, made: Generator, half: int, queue: Queue) -> list[Instruction]:
    """Return instructions of a queue in sequence. Each takes half of the semaphores, which one queue gives, and gives
    the others, which another queue takes."""
    given, program, last = 0xFF << 8 * half, [], made.scratchpad - 1
    others: dict[Queue, Instruction] = {
        Queue.LOAD: Load(base=7, run=1, dst=last),
        Queue.VEC: Vec(source=Source.SCRATCHPAD, src=last - 3, dst=last - 2, params=made.block()),
        Queue.STORE: Store(base=4, offset=0x1000, src=last - 1),
    }
    first, second = [item for other, item in others.items() if other != queue][:2]
    # A change of a kernel must follow the kernel.
    for kind in sorted(INSTRUCTIONS.values(), key=lambda kind: kind is Microcode):
        if kind.QUEUE is not queue or kind().unsupported(core.config):
            continue
        for _ in range(1 if queue is Queue.VEC else ALIKE):
            drawn = next(item for item in iter(lambda kind=kind: made.draw(kind), None) if _valid(item, made))
            for item in (*made.before(drawn), drawn):
                program += [
                    dataclasses.replace(first, signal=given),
                    dataclasses.replace(item, wait=given, signal=0xFFFF ^ given),
                    dataclasses.replace(second, wait=0xFFFF ^ given),
                ]
    return program


def _all_semaphores(core: Core, bench: Bench, half: int, queue: Queue) -> Step:
    """Return a program of `_semaphores` that the checker accepts."""
    for seed in range(TRIES):
        made = _generator(core, 100 + seed)
        program = _semaphores(core, made, half, queue)
        with contextlib.suppress(ProgramError):
            check([*program, End()], core.config)
            return compare_memory("semaphores", made, program, bench)
    raise ProgramError(f"none of {TRIES} programs with all semaphores is valid")


def _registers(core: Core, bench: Bench) -> Step:
    """Change registers by all modes and limits in all slots, in a skipped loop and in one that runs."""
    made = _generator(core, 77)
    program: list[Instruction] = []
    values = (0, 1, 2, 15, -1, -(1 << 31), (1 << 31) - 1, 5)
    for turn in range(16):
        slots = {}
        for slot in range(SLOTS):
            number = (turn + slot) % 16
            slots |= {f"register{slot}": number, f"mode{slot}": (turn + slot) % 4 if number != 7 else 0}
            slots[f"value{slot}"] = values[(turn + 3 * slot) % len(values)]
        program.append(SetRegisters(**slots))
    for turn in range(16):
        register, reset = (0, 1, 2, 15)[turn % 4], turn % SLOTS
        program.append(SetRegisters(register0=register, mode0=1, value0=turn // 4 % 2))
        slots = {}
        for slot in range(SLOTS):
            number = (turn + slot) % 16
            slots |= {
                f"register{slot}": number,
                f"mode{slot}": (turn // 4 + slot) % 4 if number != register else 0,
            }
            slots[f"value{slot}"] = values[(turn + 3 * slot) % len(values)]
        slots |= {f"register{reset}": register, f"mode{reset}": 1, f"value{reset}": 0}
        body = [SetRegisters(register0=3, mode0=2, value0=1)] * (turn % 3)
        program += [
            LoopStart(register=register, skip=len(body) + 1),
            *body,
            LoopNext(back=len(body) + 1, **slots),
        ]
    program.append(ReadRegisters(base=8, offset=0, first=15, count=1))
    program += [ReadRegisters(base=8, offset=0x100, first=first, count=count) for first, count in (
        (0, 1), (15, 1), (2, 2), (1, 7), (8, 8))]  # fmt: skip
    program.insert(-6, SetRegisters(register0=8, mode0=1, value0=0))
    check([*program, End()], core.config)
    return compare_memory("registers of programs", made, program, bench)


def _addresses(core: Core, bench: Bench, other: int) -> Step:
    """Set registers in every way, and show each of their bits by the address of a store. READ uses register `other`, so
    no store may use that register, nor registers of loads."""
    made, pick = _generator(core, 78), random.Random(78)
    numbers = [0x55555555, 0xAAAAAAAA, 0xFFFFFFFF, 0, *(pick.getrandbits(32) for _ in range(60))]
    for step in (-1, 1):  # offsets of 1 and of all bits
        numbers.append(OUTPUT + 64 * len(numbers) + step)
    own = [register for register in (*range(1, 6), *range(8, 16)) if register != other]
    image = bytearray(made.image)
    assert made.append(made.dump())  # which waits for all that loads; stores behind it need not
    for turn, number in enumerate(numbers):
        register, part = own[turn % len(own)], pick.getrandbits(32)
        rest, words = _signed(number - part), WORDS + 32 * turn
        image[words : words + 4] = number.to_bytes(4, "little")
        ways: list[Instruction] = [
            SetRegisters(register0=register, mode0=1, value0=_signed(number)),
            SetRegisters(register3=register, mode3=1, value3=rest, register5=register, mode5=2, value5=_signed(part)),
            SetRegisters(
                register0=other, mode0=1, value0=_signed(part), register1=register, mode1=1, value1=rest,
                register7=register, mode7=3, value7=other,
            ),
            ReadRegisters(base=other, offset=words, first=register),
        ]  # fmt: skip
        if turn % 4 == 3:
            made.program.append(SetRegisters(register0=other, mode0=1, value0=0))
        place = (OUTPUT + 64 * turn - number) % (1 << 32)
        made.program += [ways[turn % 4], Store(base=register, offset=place, src=turn % made.scratchpad)]
    made.image = bytes(image)
    check([*made.program, End()], core.config)
    return compare_memory("registers that are addresses", made, made.program, bench)


def _counts(core: Core, bench: Bench) -> Step:
    """READ sets its count of registers, and the next one keeps its number: stores show each."""
    made, pick, turn = _generator(core, 79), random.Random(79), 0
    image = bytearray(made.image)
    assert made.append(made.dump())
    made.program.append(SetRegisters(register0=3, mode0=1, value0=0))
    for count in range(1, READ_BYTES // 4 + 1):
        words, last = WORDS + READ_BYTES * count, PROGRAM_REGISTERS - count
        first = pick.randrange(BASES, last) if last > BASES else BASES
        numbers = [pick.getrandbits(32) for _ in range(min(count + 1, PROGRAM_REGISTERS - first))]
        image[words : words + 4 * count] = b"".join(
            number.to_bytes(4, "little") for number in numbers[:count]
        )
        for number in numbers[count:]:
            made.program.append(SetRegisters(register0=first + count, mode0=1, value0=_signed(number)))
        made.program.append(ReadRegisters(base=3, offset=words, first=first, count=count))
        for index, number in enumerate(numbers):
            place = (OUTPUT + 64 * turn - number) % (1 << 32)
            made.program.append(Store(base=first + index, offset=place, src=turn % made.scratchpad))
            turn += 1
    made.image = bytes(image)
    check([*made.program, End()], core.config)
    return compare_memory("counts of registers that are read", made, made.program, bench)


def _signed(number: int) -> int:
    """Return a 32-bit word as an int32."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
