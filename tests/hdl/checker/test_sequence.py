"""Orders of programs that the sequential core may have: against counters in plain Python, and on its cycle model."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from support.random_programs import MEMORY, Generator

from weft.hdl.checker.order import check_sequence
from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import SEMAPHORES, End, Instruction, Load, Mm, Queue, Store
from weft.hdl.isa.config import PRESETS
from weft.sim.device import Device
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.timing.device import SequentialTimingDevice

CONFIG = PRESETS["tiny"].replace(depthwise_taps=0)


def first_too_early(program: list[Instruction]) -> int | None:
    """The definition: semaphores are counted along the program."""
    counts: Counter[int] = Counter()
    for index, instruction in enumerate(program):
        for semaphore in range(SEMAPHORES):
            if instruction.wait >> semaphore & 1:
                if not counts[semaphore]:
                    return index
                counts[semaphore] -= 1
        counts.update(semaphore for semaphore in range(SEMAPHORES) if instruction.signal >> semaphore & 1)
    return None


def reorder_queues(program: list[Instruction], rng: random.Random, places: int) -> list[Instruction]:
    """Reorder the queues of a program: instructions move up to some places earlier, after those of their own queue."""
    keys: dict[Queue | None, float] = {}
    order = []
    for index, instruction in enumerate(program):
        keys[instruction.QUEUE] = max(keys.get(instruction.QUEUE, 0.0), index - rng.random() * places)
        order.append((keys[instruction.QUEUE], index))
    return [program[index] for _, index in sorted(order)]


def refusal_of(program: list[Instruction]) -> str:
    try:
        check_sequence(program)
    except ProgramError as error:
        return str(error)
    return ""


@pytest.mark.drawn(4)
@pytest.mark.parametrize("seed", range(12))
def test_orders_are_those_that_counters_allow(seed: int) -> None:
    generator = Generator(CONFIG, seed, serial=seed % 4 == 0)
    generator.build(20)
    rng, verdicts = random.Random(seed), set()
    assert not refusal_of([*generator.program, End()])
    for places in (0, 1, 1, 2, 2, 3, 5, 10, 40):
        program = reorder_queues(generator.program, rng, places)
        early = first_too_early(program)
        said = refusal_of([*program, End()])
        if early is None:
            assert not said
        else:
            assert said.startswith(f"instruction {early} ({type(program[early]).__name__.upper()}) waits for")
        verdicts.add(early is None)
    assert verdicts == {True, False}


def test_an_order_that_the_queues_mend_and_the_sequential_core_does_not() -> None:
    """Both fetch the STORE first; only the one that looks at semaphores stores what the LOAD brings."""
    program = [
        Store(base=1, length=4, rows=1, wait=1),
        Load(base=0, length=4, run=4, signal=1),
        End(),
    ]
    check(program, CONFIG)
    assert refusal_of(program) == (
        "instruction 0 (STORE) waits for semaphore 0, which no earlier instruction has signalled: "
        "the sequential core executes instructions in program order"
    )
    stored = [run(device, program) for device in (
        GoldenDevice(CONFIG, MEMORY), SequentialTimingDevice(CONFIG, MEMORY)
    )]  # fmt: skip
    assert stored == [b"weft", bytes(4)]
    assert not refusal_of([program[1], program[0], program[2]])


def run(device: Device, program: list[Instruction]) -> bytes:
    device.write(0x100, b"weft")
    device.write(0x1000, b"".join(instruction.encode() for instruction in program))
    device.set_base(0, 0x100)
    device.set_base(1, 0x200)
    device.start(0x1000)
    device.wait(100_000)
    memory = (
        device.computed.tobytes() if isinstance(device, SequentialTimingDevice) else device.read(0, MEMORY)
    )
    return bytes(memory[0x200:0x204])


def test_an_instruction_does_not_signal_itself() -> None:
    assert refusal_of([Mm(wait=2, signal=2), End()]).startswith("instruction 0 (MM) waits for semaphore 1")
    assert not refusal_of([Load(signal=2), Mm(wait=2, signal=4), End()])
    assert not refusal_of([End()])
