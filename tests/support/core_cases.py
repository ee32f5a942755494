"""Scenarios that drive a core to detect any fault and to cover all of it: programs, registers, faults.

A `Scenario` is a memory and steps. Each step is a host's action on a device with the expected observation. Steps run in
order on one device, because programs find what earlier ones left on the chip.
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
"""Cycles for a program; the sequential core takes 30 million for kernels with large loops."""
SLACK = 3000
"""Cycles beyond twice a step's expected time after which a device is given up."""


@dataclass(frozen=True)
class Core:
    """A configuration, and the core that runs its programs."""

    config: Config
    sequential: bool = False


@dataclass
class Step:
    """Action of a host on a device.

    Attributes
    ----------
    name : str
    run : callable
        Takes a `HostedRtl` and a limit in cycles, returns the observation.
    expected : object
        The observation that is right.
    program : list of Instruction
        Instructions that run, if any.
    intervals : list of Interval
        Times of its instructions, by the cycle model.
    cycles : int
        Duration on the unmodified core, 0 if unknown.
    """

    name: str
    run: Callable[[HostedRtl, int | None], object]
    expected: object
    program: list[Instruction] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    cycles: int = 0

    def fault(self, device: HostedRtl) -> str | None:
        """Return the fault that `device` shows, if any. Raises `DeviceError` where it does not end."""
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
    """A memory, and a golden interpreter whose on-chip state persists between programs.

    Attributes
    ----------
    memory : dict
        Keyword arguments of the device.
    golden : GoldenDevice
    fresh : bool
        Nothing ran yet, as the sequential core's cycle model requires.
    """

    memory: dict[str, Any]
    golden: GoldenDevice
    fresh: bool = True

    @property
    def size(self) -> int:
        return self.golden.memory_bytes


@dataclass
class Scenario:
    """Sequence of steps on one device.

    Attributes
    ----------
    name : str
    bench : Bench
        Bench of the device on which all steps run.
    steps : list of Step
    """

    name: str
    bench: Bench
    steps: list[Step]


PLAIN: tuple[dict[str, Any], ...] = (
    {"latency": 1}, {"latency": 5}, {"latency": 40}, {"latency": 5, "bandwidth": 1.5}
)  # fmt: skip
"""Memories whose timing the cycle model predicts."""
STALLS: tuple[dict[str, Any], ...] = (
    {"latency": 1, "stall_probability": 0.3, "stall_seed": 1, "reordered": True},
    {"latency": 40, "stall_probability": 0.7, "stall_seed": 2, "reordered": True},
    {"latency": 5, "bandwidth": 1.5, "reordered": True},
)
"""Memories of unpredictable timing."""


class Benches:
    """Benches by memory: a new one for each scenario, or `kept` ones shared by all scenarios of a memory."""

    def __init__(self, core: Core, *, kept: bool = False) -> None:
        self._core, self._kept = core, kept
        self._benches: dict[str, Bench] = {}

    def __contains__(self, bench: Bench) -> bool:
        """Return whether a bench is one of the shared ones."""
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
    """Yield random programs of the `seeds`, each with about `count` instructions."""
    benches = benches or Benches(core)
    for seed in seeds:
        yield timed_scenario(core, seed, count, benches.of(PLAIN[seed % len(PLAIN)]))
        yield divided_scenario(core, seed, count, benches.of(PLAIN[seed % len(PLAIN)]))
        yield stalled_scenario(core, seed, count, benches.of(STALLS[seed % len(STALLS)]))
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
    """Contents of memory and base registers before a program, in the form of a `Generator`."""

    image: bytes
    bases: list[int]


def run_words(device: Device, made: Given, words: bytes, limit: int | None) -> bytes:
    """Run a program and return all of memory after it."""
    start(device, made.image, made.bases, words)
    device.wait(limit or LIMIT)
    return device.read(0, device.memory_bytes)


def compare_memory(name: str, made: Given, program: list[Instruction], bench: Bench) -> Step:
    """Step that compares all of memory after a program of `made` with the golden interpreter."""
    words = words_of(program)
    expected = run_words(bench.golden, made, words, None)
    return Step(name, lambda device, limit: run_words(device, made, words, limit), expected, program)


def counters_of(device: Device, first: int = 0) -> dict[str, int]:
    """Read all counters by name; the last counter before other registers must be right at the end."""
    early = Counter(first % len(Counter))
    found = {}
    if isinstance(device, HostedRtl):
        found[early.name] = device.peek(counter_register(early))
    found |= {
        counter.name: value for counter, value in device.counters().items() if counter.name not in found
    }
    return found


def compare_counters(core: Core, name: str, made: Given, program: list[Instruction], bench: Bench) -> Step:
    """Step like `compare_memory`, on a new device, that also compares all counters with the cycle model."""
    words, model = words_of(program), model_of(core, bench)
    run_words(model, made, words, None)
    expected: dict[str, object] = {"memory": run_words(bench.golden, made, words, None)}
    expected |= counters_of(model)

    def run(device: HostedRtl, limit: int | None) -> object:
        seen: dict[str, object] = {"memory": run_words(device, made, words, limit)}
        return seen | counters_of(device)

    bench.fresh = False
    return Step(name, run, expected, program, model.intervals)


def timed_scenario(core: Core, seed: int, count: int, bench: Bench) -> Scenario:
    """Scenario of a program whose time is independent of data: bytes and counters must match the cycle model. It runs
    twice, because the second run finds what the first left on the chip."""
    made = WithoutDivision(core.config, seed, serial=seed % 4 == 0)
    made.build(count)
    words, steps = words_of(made.program), []
    model = model_of(core, bench)
    for turn in range(2):
        with_counters = bench.fresh or not core.sequential
        bench.fresh = False
        run_words(model, made, words, None)  # memory saves up bandwidth from one run to the next
        counters = counters_of(model)

        def run(
            device: HostedRtl, limit: int | None, with_counters: bool = with_counters, turn: int = turn
        ) -> object:
            if turn == 0:
                device.spend()  # others may have run before
            start(device, made.image, made.bases, words)
            if turn:
                device.poke(Reg.CONTROL, START)  # which is for a core that does nothing
            device.wait(limit or LIMIT)
            seen: dict[str, object] = {"memory": device.read(0, MEMORY)}
            return seen | (counters_of(device, seed + turn) if with_counters else {})

        expected: dict[str, object] = {"memory": run_words(bench.golden, made, words, None)}
        expected |= counters if with_counters else {}
        steps.append(Step(f"timed {seed}, {turn}", run, expected, made.program, model.intervals))
    return Scenario(f"timed {seed}", bench, steps)


def model_of(core: Core, bench: Bench) -> TimingDevice:
    """Return the cycle model of the bench's device; it keeps intervals of the pipelined core."""
    if core.sequential:
        return SequentialTimingDevice(core.config, bench.size, **bench.memory)
    return TimingDevice(core.config, bench.size, **bench.memory, trace=True)


def divided_scenario(core: Core, seed: int, count: int, bench: Bench) -> Scenario:
    """Scenario of a program with all instructions; the cycle model does not know divisions to the cycle."""
    bench.fresh = False
    made = Generator(core.config, seed + 500, serial=False)
    made.build(count)
    model = model_of(core, bench)
    run_words(model, made, words_of(made.program), None)
    step = compare_memory(f"divided {seed}", made, made.program, bench)
    step.intervals = model.intervals
    return Scenario(step.name, bench, [step])


def stalled_scenario(core: Core, seed: int, count: int, bench: Bench) -> Scenario:
    """Scenario of two programs in turn on a memory that stalls and reorders, with any semaphores. The host reads and
    writes registers meanwhile."""
    pick, steps = random.Random(seed), []
    bench.fresh = False
    for part in range(2):
        made = Generator(core.config, seed + 1000 * part, serial=False)
        made.build(count)
        program = rename_semaphores(made.program, pick, core.config)
        steps.append(_disturb(made, program, bench.golden, seed))
    return Scenario(f"stalled {seed}", bench, steps)


def _disturb(made: Generator, program: list[Instruction], golden: GoldenDevice, seed: int) -> Step:
    words = words_of(program)

    def run(device: HostedRtl, limit: int | None) -> object:
        start(device, made.image, made.bases, words)
        wrong = traffic(device, made, random.Random(seed))
        device.wait(limit or LIMIT)
        return wrong or device.read(0, MEMORY)

    return Step(f"stalled {seed}", run, run_words(golden, made, words, None), program)


def traffic(device: HostedRtl, made: Generator, pick: random.Random) -> str:
    """Read and write registers while a program runs, which must not be affected. Returns wrong reads."""
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
        # Only at the beginning, so that no program has finished by then.
        writes += [(Reg.CONTROL, 1), (Reg.CONTROL, 0)] if turn < 3 else []
        device.poke(*pick.choice(writes))
    return ""


def rename_semaphores(program: list[Instruction], pick: random.Random, config: Config) -> list[Instruction]:
    """Return the program with random distinct semaphores of all 16."""
    numbers = pick.sample(range(SEMAPHORES), SEMAPHORES)

    def mask(old: int) -> int:
        return sum(1 << numbers[bit] for bit in range(SEMAPHORES) if old >> bit & 1)

    found = [dataclasses.replace(item, wait=mask(item.wait), signal=mask(item.signal)) for item in program]
    check([*found, End()], config)
    return found


def loops(core: Core, seed: int, count: int, bench: Bench) -> Scenario:
    """Scenario of a program with loops and registers."""
    made = LoopProgram(core.config, seed, count, divides=False)
    with_counters = bench.memory in PLAIN
    expected: dict[str, object] = {"memory": made.run(bench.golden)}
    if with_counters:
        model = TimingDevice(core.config, MEMORY, **bench.memory)
        made.run(model)
        expected |= counters_of(model)

    def run(device: HostedRtl, limit: int | None) -> object:
        device.spend()
        found: dict[str, object] = {"memory": made.run(device, limit=limit or LIMIT)}
        return found | (counters_of(device) if with_counters else {})

    return Scenario(f"loops {seed}", bench, [Step(f"loops {seed}", run, expected, made.program[:-1])])
