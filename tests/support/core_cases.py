"""What a core is driven with to see whether any fault shows, and to cover all of it: programs, registers, faults.

A `Scenario` is a memory and steps. Each step is something that a host does with a device, and what it must see; a
scenario's steps are done in their order on one device, as programs find what others left on the chip.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from support.loop_programs import LoopProgram
from support.random_programs import MEMORY, PROGRAM, Generator, WithoutDivision
from weft.hdl.checker.program import check
from weft.hdl.isa import BASES, SEMAPHORES, End, Instruction
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import MAGIC, START, VERSION, Counter, Reg, base_register, counter_register
from weft.sim.device import Device
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.coverage import HostedRtl
from weft.sim.timing import SequentialTimingDevice, TimingDevice
from weft.sim.timing.device import Interval

LIMIT = 60_000_000
"""Cycles in which a program is done; the sequential core takes 30 million for kernels with large loops."""
SLACK = 3000
"""Cycles beyond twice of what a step should take after which a device is given up."""


@dataclass(frozen=True)
class Core:
    """A configuration, and which core runs its programs."""

    config: Config
    sequential: bool = False


@dataclass
class Step:
    """Something a host does.

    Attributes
    ----------
    name : str
    run : callable
        Takes a `HostedRtl` and the cycles that it may take, returns what it saw.
    expected : object
        What that must be.
    program : list of Instruction
        What runs, if anything.
    intervals : list of Interval
        When its instructions run, by the cycle model.
    cycles : int
        That it took on the core as it was designed, 0 if that is not known.
    """

    name: str
    run: Callable[[HostedRtl, int | None], object]
    expected: object
    program: list[Instruction] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    cycles: int = 0

    def fault(self, device: HostedRtl) -> str | None:
        """What is wrong on `device`, if anything. Raises `DeviceError` where it does not end."""
        limit = 2 * self.cycles + SLACK if self.cycles else None
        before = device.cycles
        found = self.run(device, limit)
        if not self.cycles:
            self.cycles = device.cycles - before
        if found == self.expected:
            return None
        if isinstance(found, dict) and isinstance(self.expected, dict):
            names = [str(key) for key in found if found[key] != self.expected[key]]
            return f"{self.name}: {', '.join(names[:3])}"
        return f"{self.name}: {found if isinstance(found, str) else 'bytes differ'}"


@dataclass
class Bench:
    """A memory, and the golden interpreter with what programs left on the chip so far.

    Attributes
    ----------
    memory : dict
        Keyword arguments of the device.
    golden : GoldenDevice
    fresh : bool
        Nothing ran yet, which the cycle model of the sequential core wants.
    """

    memory: dict[str, Any]
    golden: GoldenDevice
    fresh: bool = True

    @property
    def size(self) -> int:
        """Bytes of the memory."""
        return self.golden.memory_bytes


@dataclass
class Scenario:
    """Steps on one device.

    Attributes
    ----------
    name : str
    bench : Bench
        Whose device all steps are done on, in their order.
    steps : list of Step
    """

    name: str
    bench: Bench
    steps: list[Step]


PLAIN: tuple[dict[str, Any], ...] = (
    {"latency": 1}, {"latency": 5}, {"latency": 40}, {"latency": 5, "bandwidth": 1.5}
)  # fmt: skip
"""Memories whose time the cycle model tells."""
STALLS: tuple[dict[str, Any], ...] = (
    {"latency": 1, "stall_probability": 0.3, "stall_seed": 1, "reordered": True},
    {"latency": 40, "stall_probability": 0.7, "stall_seed": 2, "reordered": True},
    {"latency": 5, "bandwidth": 1.5, "reordered": True},
)
"""Memories that do as they like."""


class Benches:
    """Benches by memory: for each scenario a new one, or `kept` for all that have the same memory."""

    def __init__(self, core: Core, *, kept: bool = False) -> None:
        self._core, self._kept = core, kept
        self._benches: dict[str, Bench] = {}

    def __contains__(self, bench: Bench) -> bool:
        """Whether it is one that is kept."""
        return self._kept and any(item is bench for item in self._benches.values())

    def of(self, memory: dict[str, Any]) -> Bench:
        key = str(memory)
        if not self._kept or key not in self._benches:
            self._benches[key] = Bench(memory, GoldenDevice(self._core.config, MEMORY))
        return self._benches[key]


def words_of(program: list[Instruction]) -> bytes:
    return b"".join(item.encode() for item in (*program, End()))


def scenarios(
    core: Core, seeds: range, count: int = 25, benches: Benches | None = None
) -> Iterator[Scenario]:
    """Random programs of the `seeds`, each with about `count` instructions."""
    benches = benches or Benches(core)
    for seed in seeds:
        yield timed(core, seed, count, benches.of(PLAIN[seed % len(PLAIN)]))
        yield divided(core, seed, count, benches.of(PLAIN[seed % len(PLAIN)]))
        yield stalled(core, seed, count, benches.of(STALLS[seed % len(STALLS)]))
        if core.config.loops:
            memory = (*PLAIN, *STALLS)[seed % (len(PLAIN) + len(STALLS))]
            yield loops(core, seed, max(6, count // 2), benches.of(memory))


def start(device: Device, image: bytes, bases: list[int], words: bytes) -> None:
    device.write(0, image)
    device.write(PROGRAM, words)
    for index, address in enumerate(bases):
        device.set_base(index, address)
    device.start(PROGRAM)


class Given(Protocol):
    """What memory and base registers hold before a program, as a `Generator` has it."""

    image: bytes
    bases: list[int]


def carried_out(device: Device, made: Given, words: bytes, limit: int | None) -> bytes:
    """All of memory behind a program."""
    start(device, made.image, made.bases, words)
    device.wait(limit or LIMIT)
    return device.read(0, device.memory_bytes)


def compared(name: str, made: Given, program: list[Instruction], bench: Bench) -> Step:
    """A program in the memory of `made`, all of which must be that of the golden interpreter behind it."""
    words = words_of(program)
    expected = carried_out(bench.golden, made, words, None)
    return Step(name, lambda device, limit: carried_out(device, made, words, limit), expected, program)


def counters_of(device: Device, first: int = 0) -> dict[str, int]:
    """All counters by name, after one of which the registers are read before others: it must be right at the end."""
    early = Counter(first % len(Counter))
    found = {}
    if isinstance(device, HostedRtl):
        found[early.name] = device.peek(counter_register(early))
    found |= {
        counter.name: value for counter, value in device.counters().items() if counter.name not in found
    }
    return found


def counted(core: Core, name: str, made: Given, program: list[Instruction], bench: Bench) -> Step:
    """As `compared`, on a new device, and all counters must be those of the cycle model."""
    words, model = words_of(program), modelled(core, bench)
    carried_out(model, made, words, None)
    expected: dict[str, object] = {"memory": carried_out(bench.golden, made, words, None)}
    expected |= counters_of(model)

    def run(device: HostedRtl, limit: int | None) -> object:
        seen: dict[str, object] = {"memory": carried_out(device, made, words, limit)}
        return seen | counters_of(device)

    bench.fresh = False
    return Step(name, run, expected, program, model.intervals)


def timed(core: Core, seed: int, count: int, bench: Bench) -> Scenario:
    """A program whose time no data tells: bytes, and all counters as the cycle model says. Twice, as the second run
    finds what the first left on the chip."""
    made = WithoutDivision(core.config, seed, serial=seed % 4 == 0)
    made.build(count)
    words, steps = words_of(made.program), []
    model = modelled(core, bench)
    for turn in range(2):
        counted = bench.fresh or not core.sequential
        bench.fresh = False
        carried_out(model, made, words, None)  # memory saves up bandwidth from one run to the next
        counters = counters_of(model)

        def run(device: HostedRtl, limit: int | None, counted: bool = counted, turn: int = turn) -> object:
            if turn == 0:
                device.spend()  # others may have run before
            start(device, made.image, made.bases, words)
            if turn:
                device.poke(Reg.CONTROL, START)  # which is for a core that does nothing
            device.wait(limit or LIMIT)
            seen: dict[str, object] = {"memory": device.read(0, MEMORY)}
            return seen | (counters_of(device, seed + turn) if counted else {})

        expected: dict[str, object] = {"memory": carried_out(bench.golden, made, words, None)}
        expected |= counters if counted else {}
        steps.append(Step(f"timed {seed}, {turn}", run, expected, made.program, model.intervals))
    return Scenario(f"timed {seed}", bench, steps)


def modelled(core: Core, bench: Bench) -> TimingDevice:
    """The cycle model of the bench's device; it keeps intervals of the pipelined core."""
    if core.sequential:
        return SequentialTimingDevice(core.config, bench.size, **bench.memory)
    return TimingDevice(core.config, bench.size, **bench.memory, trace=True)


def divided(core: Core, seed: int, count: int, bench: Bench) -> Scenario:
    """A program with everything in it; how long divisions take the cycle model knows not to the cycle."""
    bench.fresh = False
    made = Generator(core.config, seed + 500, serial=False)
    made.build(count)
    model = modelled(core, bench)
    carried_out(model, made, words_of(made.program), None)
    step = compared(f"divided {seed}", made, made.program, bench)
    step.intervals = model.intervals
    return Scenario(step.name, bench, [step])


def stalled(core: Core, seed: int, count: int, bench: Bench) -> Scenario:
    """Two programs in turn on a memory that stalls and reorders, while the host reads and writes registers, with
    semaphores of any number."""
    pick, steps = random.Random(seed), []
    bench.fresh = False
    for part in range(2):
        made = Generator(core.config, seed + 1000 * part, serial=False)
        made.build(count)
        program = renamed(made.program, pick, core.config)
        steps.append(_disturbed(made, program, bench.golden, seed))
    return Scenario(f"stalled {seed}", bench, steps)


def _disturbed(made: Generator, program: list[Instruction], golden: GoldenDevice, seed: int) -> Step:
    words = words_of(program)

    def run(device: HostedRtl, limit: int | None) -> object:
        start(device, made.image, made.bases, words)
        wrong = traffic(device, made, random.Random(seed))
        device.wait(limit or LIMIT)
        return wrong or device.read(0, MEMORY)

    return Step(f"stalled {seed}", run, carried_out(golden, made, words, None), program)


def traffic(device: HostedRtl, made: Generator, pick: random.Random) -> str:
    """Read and write registers while a program runs, which must not notice. Returns what was read wrong."""
    known: dict[int, int] = {
        Reg.MAGIC: MAGIC,
        Reg.VERSION: VERSION,
        Reg.CONFIG: device.config.digest,
        Reg.PROGRAM: PROGRAM,
    }
    known |= {base_register(index): made.bases[index] for index in range(BASES)}
    for turn in range(pick.choice([3, 20])):
        if pick.random() < 0.5:
            register = pick.choice([*known, *(counter_register(counter) for counter in Counter)])
            found = device.peek(register)
            if found != known.get(register, found):
                return f"register {register:#x} is {found:#x} during a run"
            continue
        base = pick.randrange(BASES)
        writes = [(base_register(base), made.bases[base]), (Reg.PROGRAM, PROGRAM), (Reg.STATUS, 0)]
        # Only at the beginning, so that no program is over by then.
        writes += [(Reg.CONTROL, 1), (Reg.CONTROL, 0)] if turn < 3 else []
        device.poke(*pick.choice(writes))
    return ""


def renamed(program: list[Instruction], pick: random.Random, config: Config) -> list[Instruction]:
    """Other semaphores, any of the 16."""
    numbers = pick.sample(range(SEMAPHORES), SEMAPHORES)

    def mask(old: int) -> int:
        return sum(1 << numbers[bit] for bit in range(SEMAPHORES) if old >> bit & 1)

    found = [dataclasses.replace(item, wait=mask(item.wait), signal=mask(item.signal)) for item in program]
    check([*found, End()], config)
    return found


def loops(core: Core, seed: int, count: int, bench: Bench) -> Scenario:
    """A program with loops and registers."""
    made = LoopProgram(core.config, seed, count, divides=False)
    counted = bench.memory in PLAIN
    expected: dict[str, object] = {"memory": made.run(bench.golden)}
    if counted:
        model = TimingDevice(core.config, MEMORY, **bench.memory)
        made.run(model)
        expected |= counters_of(model)

    def run(device: HostedRtl, limit: int | None) -> object:
        device.spend()
        found: dict[str, object] = {"memory": made.run(device, limit=limit or LIMIT)}
        return found | (counters_of(device) if counted else {})

    return Scenario(f"loops {seed}", bench, [Step(f"loops {seed}", run, expected, made.program[:-1])])
