"""Random programs on the Verilog, the golden interpreter and the cycle model, which must agree.  Programs with a few
changed fields must be refused by the checker, or agree as well."""

from __future__ import annotations

import dataclasses
import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
from fuzz.features import features
from fuzz.files import Edit
from fuzz.outcome import Failure, Outcome, check_sentence
from support.random_programs import MEMORY, PROGRAM, Generator, WithoutDivision

from weft.boards.registry import BOARDS
from weft.hdl.checker.order import check_sequence
from weft.hdl.checker.program import check
from weft.hdl.errors import ProgramError
from weft.hdl.isa import BASES, SEMAPHORE_MAX, SEMAPHORES, End, Instruction, Load, Queue, Store, places
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import DECERR, SLVERR, Counter, FaultUnit, Reg, Status, base_register
from weft.sim.device import Device, DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import SequentialTimingDevice, TimingDevice


@dataclasses.dataclass(frozen=True)
class Core:
    """A configuration, and the core that runs its programs."""

    config: Config
    sequential: bool = False

    def rtl(self, **memory: Any) -> RtlDevice:
        return RtlDevice(self.config, MEMORY, sequential=self.sequential, **memory)

    def timing(self, **memory: Any) -> TimingDevice:
        kind = SequentialTimingDevice if self.sequential else TimingDevice
        return kind(self.config, MEMORY, **memory)


CORES = {
    "tiny": Core(PRESETS["tiny"].replace(kernel=64, int4=2)),
    "icebreaker": Core(BOARDS["icebreaker"].config.replace(kernel=32), sequential=True),
}
"""Cores whose models other tests build as well, so that they are in the cache."""
LIMIT = 20_000_000
"""Cycle limit of a program: no drawn program needs half of it."""
FREE = 0x7800
"""Offset from the base register of outputs from which no `Generator` instruction reads or writes."""


class Program(Generator):
    """A random program with rare features: large loops, all semaphores, and nearly maximal counts."""

    large = False
    slow = False
    """Limits loops to what the sequential core has time for."""

    def mm(self) -> dict[str, Any]:
        fields = super().mm()
        return fields | (self.large_counts("nt", "oy", "ox") if self.large and not fields["align"] else {})

    def vec(self) -> dict[str, Any]:
        return super().vec() | (self.large_counts("ob", "oy", "ox") if self.large else {})

    def large_counts(self, *names: str) -> dict[str, int]:
        """Return large counts of some loops."""
        most = 3 if self.slow else 100
        counts = [count for count in (2, 3, 7, 16, 33, 100) if count <= most]
        return {name: self.random.choice(counts) for name in names if self.random.random() < 0.4}


class Quick(Program, WithoutDivision):
    """A program whose time does not depend on data."""


def draw(rng: np.random.Generator) -> list[Edit]:
    """Draw the core, the generator's settings, the memory, and the steps: the numbers of random instructions."""
    core = str(rng.choice(list(CORES)))
    count = int(rng.choice([5, 15, 25, 40]))
    settings = {
        "core": core, "seed": int(rng.integers(1 << 30)), "count": count, "serial": bool(rng.random() < 0.2),
        "large": bool(rng.random() < 0.3), "timed": bool(rng.random() < 0.4), "renamed": bool(rng.random() < 0.7),
        "full": bool(rng.random() < 0.1), "traffic": bool(rng.random() < 0.3), "turns": int(rng.choice([1, 2])),
        "latency": int(rng.choice([1, 5, 40])), "rate": float(rng.choice([0, 0, 1.5, 0.7])),
        "stalls": float(rng.choice([0, 0.3, 0.7])), "reordered": bool(rng.random() < 0.5),
        "fails": int(rng.integers(1 << 30)) if rng.random() < 0.3 else 0,
    }  # fmt: skip
    return [["program", settings], *(["step", step] for step in range(count))]


def draw_mutant(rng: np.random.Generator) -> list[Edit]:
    """Draw as `draw` does, all steps, and one to three fields with other values."""
    (_, settings), *_ = draw(rng)
    settings |= {"count": int(rng.choice([3, 8])), "large": False, "full": False, "timed": False}
    changes = [["put", [int(number) for number in rng.integers(1 << 30, size=4)]]
               for _ in range(int(rng.choice([1, 1, 2, 3])))]  # fmt: skip
    return [["mutant", settings], *changes]


def run(edits: list[Edit], folder: Path) -> Outcome:
    (_, settings), *steps = edits
    core = CORES[settings["core"]]
    generator = build(core, settings, [step for _, step in steps])
    compare(core, generator, generator.program, settings)
    return Outcome("done", "\n".join(sorted(features(generator.program, core.config, settings))))


def run_mutant(edits: list[Edit], folder: Path) -> Outcome:
    (_, settings), *changes = edits
    core = CORES[settings["core"]]
    generator = build(core, settings, list(range(settings["count"])))
    program = list(generator.program)
    for _, numbers in changes:
        mutate(program, generator.config, *numbers)
    try:
        check([*program, End()], generator.config)
        if core.sequential:
            check_sequence([*program, End()])
    except ProgramError as error:
        check_sentence(str(error))
        return Outcome("refused", str(error))
    try:
        compare(core, generator, program, settings)
    except Failure as error:
        # The checker does not know a parameter block's contents: the golden interpreter refuses it.
        if "GoldenDevice: " in str(error) and ": mantissa " in str(error):
            return Outcome("refused", str(error))
        raise
    return Outcome("done")


@functools.lru_cache(maxsize=4)
def _draw_instructions(
    core: Core, seed: int, count: int, serial: bool, large: bool, timed: bool
) -> tuple[Instruction, ...]:
    """Return all random instructions of a program."""
    generator = _generator(core, seed, serial, large, timed)
    generator.prologue()
    first = len(generator.program)
    generator.extend(count)
    return tuple(generator.program[first:])


def _generator(core: Core, seed: int, serial: bool, large: bool, timed: bool) -> Program:
    generator = (Quick if timed else Program)(core.config, seed, serial=serial)
    generator.large, generator.slow = large, core.sequential
    return generator


def steps_of(core: Core, settings: dict[str, Any]) -> tuple[Instruction, ...]:
    """Return the random instructions of a program, by step."""
    return _draw_instructions(
        core, *(settings[name] for name in ("seed", "count", "serial", "large", "timed"))
    )


def build(core: Core, settings: dict[str, Any], steps: list[int]) -> Program:
    """Return the program of these steps. Instructions that become invalid because a step is missing are dropped."""
    seed, *about = (settings[name] for name in ("seed", "serial", "large", "timed"))
    drawn = steps_of(core, settings)
    generator = _generator(core, seed, *about)
    generator.prologue()
    for step in steps:
        if not generator.append(dataclasses.replace(drawn[step], wait=0, signal=0)):
            assert len(steps) < len(drawn), "a program that was drawn is refused when it is built again"
    assert generator.append(generator.dump())
    rng = random.Random(seed)
    if settings["full"]:
        fill(generator, rng)
    if settings["renamed"]:
        rename(generator, rng)
    return generator


def rename(generator: Program, rng: random.Random) -> None:
    """Assign other semaphores, any of the 16, and some on which a queue waits for itself."""
    numbers = rng.sample(range(SEMAPHORES), SEMAPHORES)

    def renamed(mask: int) -> int:
        return sum(1 << numbers[bit] for bit in range(SEMAPHORES) if mask >> bit & 1)

    program = [
        dataclasses.replace(item, wait=renamed(item.wait), signal=renamed(item.signal))
        for item in generator.program
    ]
    used = functools.reduce(int.__or__, (item.signal | item.wait for item in program))
    free = [1 << bit for bit in range(SEMAPHORES) if not used >> bit & 1]
    for semaphore, queue in zip(free, Queue, strict=False):
        mine = [index for index, item in enumerate(program) if item.QUEUE is queue]
        if len(mine) > 1:
            first, last = sorted(rng.sample(mine, 2))
            program[first] = dataclasses.replace(program[first], signal=program[first].signal | semaphore)
            program[last] = dataclasses.replace(program[last], wait=program[last].wait | semaphore)
    check([*program, End()], generator.config)
    generator.program = program


def fill(generator: Program, rng: random.Random) -> None:
    """Append STOREs that raise a semaphore nearly to its largest count, and LOADs that wait for it. Semaphore 0 is
    never used by `Generator.order_after_all`."""
    byte = {"rows": 1, "length": 1, "pixels": 1}
    assert generator.append(Store(base=4, offset=FREE, **byte))
    assert generator.append(Load(base=0, run=1, dst=1, **byte))
    *program, store, load = generator.program
    more_stores, more_loads = SEMAPHORE_MAX - 1 - rng.choice([0, 1, 2]), rng.choice([0, 2, 200])
    generator.program = [
        *program,
        dataclasses.replace(store, signal=store.signal | 1),
        *[dataclasses.replace(store, wait=0, signal=1)] * more_stores,
        dataclasses.replace(load, wait=load.wait | 1),
        *[dataclasses.replace(load, wait=1)] * more_loads,
    ]
    check([*generator.program, End()], generator.config)


COUNTS = (0, 1, 2, 3, 5, 9)
"""Values of counts, which stay small, so that a program ends soon."""
KEPT = ("base", "table", "page", "paged", "register", "relative", "offset")
"""Fields that stay, because only `Generator` knows which memory an instruction may use."""


def mutate(program: list[Instruction], config: Config, at: int, field: int, kind: int, value: int) -> None:
    """Change a field of an instruction."""
    index = at % len(program)
    item = program[index]
    names = [name for name in places(item.OPCODE) if not (isinstance(item, Load | Store) and name in KEPT)]
    name = names[field % len(names)]
    place = places(item.OPCODE)[name]
    old = int(getattr(item, name))
    counts = {loop.count for operand in item.OPERANDS for loop in operand.loops} | {"rows", "line", "vectors"}
    if name in ("wait", "signal"):
        new = old ^ 1 << value % SEMAPHORES
    elif name in counts:
        new = COUNTS[value % len(COUNTS)]
    elif isinstance(item, Load | Store):
        new = old + value % 601 - 300
    else:
        new = [old + 1, old - 1, old ^ 1 << value % place.width, place.low + value % (place.high - place.low + 1),
               place.low, place.high][kind % 6]  # fmt: skip
    program[index] = dataclasses.replace(item, **{name: min(max(new, place.low), place.high)})


def compare(core: Core, generator: Program, program: list[Instruction], settings: dict[str, Any]) -> None:
    """Run a program on all devices; raises `Failure` where they differ."""
    words = b"".join(item.encode() for item in (*program, End()))
    timed = settings["timed"] and not settings["traffic"]
    memory: dict[str, Any] = {"latency": settings["latency"], "bandwidth": settings["rate"] or None}
    hostile = {} if timed else {
        "stall_probability": settings["stalls"], "stall_seed": settings["seed"], "reordered": settings["reordered"]
    }  # fmt: skip
    golden = GoldenDevice(core.config, MEMORY)
    model = core.timing(**memory) if timed else None
    with core.rtl(**memory, **hostile) as rtl:
        for turn in range(settings["turns"]):
            rng = random.Random(settings["seed"]) if settings["traffic"] else None
            found, expected = (_carry_out(device, generator, words, rng) for device in (rtl, golden))
            differ = np.flatnonzero(np.frombuffer(found, np.uint8) != np.frombuffer(expected, np.uint8))
            if differ.size:
                raise Failure(
                    "wrong", f"run {turn}: {differ.size} bytes differ, the first at {differ[0]:#x}", "bytes"
                )
            # The sequential core's model starts with an empty chip; contents decide how long divisions take.
            if model is not None and not (core.sequential and turn):
                _carry_out(model, generator, words, None)
                _same_counters(turn, rtl.counters(), model.counters())
        if settings["fails"]:
            fail(rtl, generator, words, random.Random(settings["fails"]))


def fail(device: RtlDevice, generator: Program, words: bytes, rng: random.Random) -> None:
    """Rerun with some of memory broken or a stop at any time. The run must end by itself, and the next one must be
    right."""
    at, size = rng.randrange(MEMORY), rng.choice([1, 64, 4096])
    size = min(size, MEMORY - at)
    device.break_memory(at, size, response=rng.choice([SLVERR, DECERR]))
    device.start(PROGRAM)
    if rng.random() < 0.3:
        device._read_register(Reg.STATUS)
        device.stop()
    message = ""
    try:
        device.wait(LIMIT)
    except DeviceError as error:
        message = str(error)
    status, fault = device._status(), device.fault
    if not status & Status.DONE:
        raise Failure("wrong", f"behind an error at {at:#x} the program does not end: {message}", "no end")
    known = fault.address is None or at >> 12 <= fault.address >> 12 <= at + size >> 12
    if bool(status & Status.BUS_ERROR) != (fault.unit is not FaultUnit.NONE) or not known:
        raise Failure("wrong", f"errors from {at:#x} on, {size} bytes, are told as {fault}", "fault")
    device.mend_memory()
    n = generator.config.n
    vector = {"length": n, "pitch": n}
    copy = [Load(base=0, run=n, row_pitch=n, signal=1, **vector), Store(base=4, wait=1, **vector), End()]
    device.write(PROGRAM, b"".join(item.encode() for item in copy))
    device.write(generator.bases[0], rng.randbytes(n))
    device.start(PROGRAM)
    device.wait(LIMIT)
    if device.read(generator.bases[4], n) != device.read(generator.bases[0], n):
        raise Failure("wrong", f"a copy behind an error at {at:#x} is wrong", "copy")


def _carry_out(device: Device, generator: Program, words: bytes, traffic: random.Random | None) -> bytes:
    """Run a program and return all of memory after it."""
    device.write(0, generator.image)
    device.write(PROGRAM, words)
    for index, address in enumerate(generator.bases):
        device.set_base(index, address)
    device.start(PROGRAM)
    try:
        if traffic is not None and isinstance(device, RtlDevice):
            disturb(device, generator, traffic)
        device.wait(LIMIT)
    except DeviceError as error:
        raise Failure("wrong", f"{type(device).__name__}: {error}") from None
    return device.read(0, MEMORY)


def disturb(device: RtlDevice, generator: Program, rng: random.Random) -> None:
    """Read and write registers while a program runs, which must not notice. Base registers keep their values; an
    ignored start is tried at the beginning only, so that it never comes after the end."""
    for turn in range(rng.choice([3, 30, 100])):
        if rng.random() < 0.5:
            register = rng.choice([*Reg, *(Reg.COUNTER + 4 * word for word in range(2 * len(Counter)))])
            device._read_register(register)
            continue
        base = rng.randrange(BASES)
        writes = [(base_register(base), generator.bases[base]), (Reg.PROGRAM, PROGRAM), (Reg.STATUS, 0)]
        writes += [(Reg.CONTROL, rng.choice([0, 1]))] if turn < 4 else []
        device._write_register(*rng.choice(writes))


def _same_counters(turn: int, rtl: dict[Counter, int], model: dict[Counter, int]) -> None:
    wrong = {
        counter.name: (rtl[counter], model[counter]) for counter in Counter if rtl[counter] != model[counter]
    }
    if wrong:
        raise Failure(
            "wrong", f"run {turn}: counters of RTL and cycle model: {wrong}", f"counters {sorted(wrong)}"
        )
