"""Scenarios that random programs lack: registers byte by byte, semaphores that nobody gives, and faults."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from itertools import product

from support.core_broken import broken_scenarios
from support.core_cases import Benches, Core, Scenario, Step, compare_memory, run_words, start, words_of
from support.random_programs import MEMORY, PROGRAM, WithoutDivision, WithoutNumbers
from weft.hdl.isa import (
    BASES,
    INSTRUCTIONS,
    SEMAPHORE_MAX,
    SEMAPHORES,
    End,
    Instruction,
    Load,
    Mm,
    Queue,
    ReadRegisters,
    Softmax,
    Store,
    Table,
    Vec,
    places,
    required_features,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import register_fields as registers_of
from weft.hdl.isa.memmap import MAGIC, VERSION, Reg, Status, base_register
from weft.sim.device import DeviceError
from weft.sim.rtl.coverage import HostedRtl

WILD = 3
"""Programs of each instruction with arbitrary fields."""
ORIGINS = (0xA5A5_4000, 0x5A5A_B000, 0x7FFE_0000, (1 << 32) - MEMORY)
"""Base addresses of memory on the bus: mixed bits, across the middle, and up to the end."""
LONG = 150_000
"""Longest wait, in cycles."""


def directed_scenarios(core: Core, seed: int = 1) -> Iterator[Scenario]:
    """Yield scenarios of registers, semaphores, faults and base addresses, each on a new device."""
    yield registers(core)
    yield waiting(core)
    yield faults(core, seed)
    yield broken_scenarios(core, seed, latency=2)
    yield broken_scenarios(core, seed, latency=40)
    for origin in ORIGINS[:2]:
        yield broken_scenarios(core, seed, latency=8, origin=origin)
    yield from distant(core, seed)


def distant(core: Core, seed: int) -> Iterator[Scenario]:
    """Yield programs in memory that lies elsewhere on the bus: every address bit and every carry matters."""
    for number, origin in enumerate(ORIGINS):
        stalls = {"stall_probability": 0.5, "stall_seed": seed, "reordered": True} if number % 2 else {}
        bench = Benches(core).of({"latency": 1 + 5 * number, "origin": origin, **stalls})
        made = WithoutNumbers(core.config, 3000 + seed + number, serial=number % 2 == 0)
        made.build(6 if core.sequential else 20)
        name = f"memory at {origin:#x}"
        yield Scenario(name, bench, [compare_memory(name, made, made.program, bench)])


def registers(core: Core) -> Scenario:
    """Check every register with several values, byte by byte, reserved addresses, and counters of an empty program."""
    kept: list[int] = [Reg.PROGRAM, *(base_register(index) for index in range(BASES))]
    constants: dict[int, int] = {
        Reg.MAGIC: MAGIC,
        Reg.VERSION: VERSION,
        Reg.CONFIG: core.config.digest,
        Reg.CONTROL: 0,
        Reg.STATUS: 0,
    }

    def run(device: HostedRtl, limit: int | None) -> object:
        pick, model, wrong = random.Random(1), dict.fromkeys(kept, 0), []
        for value in (0xFFFFFFFF, 0, 0x55555555, 0xAAAAAAAA, *(pick.getrandbits(32) for _ in range(12))):
            for register in pick.sample(kept, len(kept)):
                strobe, number = (
                    (15, value) if value in (0, 0xFFFFFFFF) else (pick.randrange(16), pick.getrandbits(32))
                )
                lead, protection = pick.randrange(-3, 4), pick.randrange(8)
                at = register | pick.randrange(4)  # the low bits of addresses are ignored
                device.write_bytes(at, number, strobe, protection=protection, lead=lead)
                bits = sum(255 << 8 * byte for byte in range(4) if strobe >> byte & 1)
                model[register] = model[register] & ~bits | number & bits
                for other in pick.sample(kept, 3):
                    if device.peek(other | pick.randrange(4)) != model[other]:
                        wrong.append(f"register {other:#x}")
        for address in range(0, 0x400, 4):
            expected = model.get(address, constants.get(address, 0))
            if device.peek(address) != expected:
                wrong.append(f"register {address:#x}")
            if address not in kept and address != Reg.CONTROL:
                device.poke(address, pick.getrandbits(32))
            if address == Reg.CONTROL:
                for number, strobe in ((1, 14), (0xFFFFFFFE, 15)):  # neither of them starts
                    device.write_bytes(address, number, strobe)
                    if device.peek(Reg.STATUS):
                        wrong.append("a start that is none")
        device.poke(Reg.STATUS, 0)
        if any(device.peek(register) != model[register] for register in kept):
            wrong.append("reserved registers are written")
        return ", ".join(wrong)

    return Scenario("registers", Benches(core).of({"latency": 3}), [Step("registers", run, "")])


def waiting(core: Core) -> Scenario:
    """Check that each unit waits for each semaphore: until another unit gives it, and for ever otherwise."""
    config = core.config
    quick: dict[Queue, Instruction] = {
        Queue.LOAD: Load(base=0, run=1), Queue.MM: Mm(), Queue.VEC: Vec(), Queue.STORE: Store(base=4, offset=0x100)
    }  # fmt: skip
    quick = {queue: item for queue, item in quick.items() if not item.unsupported(config)}
    steps = []
    for semaphore in range(SEMAPHORES):
        bit = 1 << semaphore
        for giver in quick:
            takers = [queue for queue in quick if queue != giver]
            taker = takers[semaphore % len(takers)]
            give = dataclasses.replace(quick[giver], signal=bit)
            take = dataclasses.replace(quick[taker], wait=bit)
            steps.append(ends([take, give, give, give, take, take], f"semaphore {semaphore} of {giver.name}"))
            if not core.sequential:
                other = dataclasses.replace(quick[giver], signal=0xFFFF ^ bit)
                steps.append(ends([take, other], f"{taker.name} without semaphore {semaphore}", never=True))
                if giver is Queue.LOAD:
                    steps.append(ends([give, take, take], f"{taker.name} with one {semaphore}", never=True))
    # Give as many of each semaphore as it can count, and take them back.
    every = (1 << SEMAPHORES) - 1
    give = dataclasses.replace(quick[Queue.LOAD], signal=every)
    take = dataclasses.replace(quick[Queue.VEC], wait=every)
    steps.append(ends([*[give] * SEMAPHORE_MAX, *[take] * SEMAPHORE_MAX], "all semaphores", most=4 * LONG))
    return Scenario("waiting", Benches(core).of({"latency": 2}), steps)


def ends(program: list[Instruction], name: str, *, never: bool = False, most: int = 4000) -> Step:
    """Step that checks whether a program ends within `most` cycles; if it does not, the core is reset."""
    words = words_of(program)

    def run(device: HostedRtl, limit: int | None) -> object:
        start(device, b"", [0, 0, 0, 0, 0x8000, 0, 0, 0], words)
        try:
            device.wait(400 if never else most)
        except DeviceError as error:
            device.reset()
            return "not done" if "is not done" in str(error) else str(error)
        return f"done, {device.peek(Reg.STATUS)}"

    return Step(name, run, "not done" if never else f"done, {int(Status.DONE)}", program)


def faults(core: Core, seed: int) -> Scenario:
    """Run programs with invalid words, and with accesses that memory refuses; after each a good program."""
    pick, config = random.Random(seed), core.config
    bench, steps = Benches(core).of({"latency": 4}), []
    good = WithoutDivision(config, seed, serial=True)
    good.build(8)
    words = words_of(good.program)
    bad: list[tuple[bytes, str]] = []
    known = {kind.OPCODE for kind in _kinds(config)} | {0}
    for opcode in range(256):
        if opcode not in known and (opcode < 18 or opcode & opcode - 1 == 0 or opcode == 255):
            changed = bytearray(Load().encode())
            changed[0] = opcode
            bad.append((bytes(changed), "no instruction"))
    for address in (
        1 << 18,
        *(1 << bit for bit in range(19, 32)),
        *(pick.getrandbits(32) | 1 << 30 for _ in range(6)),
    ):
        at = address // config.bus_bytes * config.bus_bytes
        bad.append((words_of([Load(base=3, offset=at % (1 << 32), run=64, length=1)]), "outside memory"))
        bad.append((words_of([Store(base=3, offset=at % (1 << 32), pixels=9)]), "outside memory"))
    for number, (word, what) in enumerate(bad):
        steps.append(Step(f"fault {number}", _refusing_program(word + End().encode(), what), what))
        if number % 12 == 0:
            steps.append(Step(f"after fault {number}", lambda device, limit: run_words(
                device, good, words, limit), run_words(bench.golden, good, words, None), good.program))  # fmt: skip
    return Scenario("faults", bench, steps)


def _kinds(config: Config) -> list[type[Instruction]]:
    return [kind for kind in INSTRUCTIONS.values() if not kind().unsupported(config)]


def _refusing_program(words: bytes, what: str) -> Callable[[HostedRtl, int | None], object]:
    def run(device: HostedRtl, limit: int | None) -> object:
        start(device, b"", [0] * BASES, words)
        try:
            device.wait(5000)
        except DeviceError as error:
            return what if what in str(error) else str(error)
        return "done"

    return run


def wild(core: Core, seed: int) -> Scenario:
    """Run instructions with arbitrary fields, and programs at arbitrary addresses, each ended by a reset or a memory
    error. After some of them a good program must give the right results."""
    pick, config, steps = random.Random(seed), core.config, []
    bench = Benches(core).of({"latency": 3})
    good = WithoutDivision(config, seed, serial=True)
    good.build(0)
    words = words_of(good.program)
    expected = run_words(bench.golden, good, words, None)
    # A READ whose address is no multiple of its size may leave its 4 KiB.
    kinds = [kind for kind in _kinds(config) if kind not in (End, ReadRegisters)]
    for turn in range(WILD):
        for kind in kinds:
            program = [_anything(kind, config, pick) for _ in range(3)]
            steps.append(Step(f"wild {kind.OPCODE.name}", _cut_short(words_of(program), PROGRAM, pick), ""))
        for kind, bits in product(kinds, (0x55555555, 0xAAAAAAAA)):
            program = [_every_second(kind, config, bits, turn)]
            steps.append(
                Step(f"every second {kind.OPCODE.name}", _cut_short(words_of(program), PROGRAM, pick), "")
            )
        for _ in range(4):
            at = pick.getrandbits(32) // config.bus_bytes * config.bus_bytes
            steps.append(Step("wild program", _cut_short(words, at, pick), ""))
        if turn % 2:
            steps.append(Step("after wild ones", lambda device, limit: run_words(
                device, good, words, limit), expected, good.program))  # fmt: skip
    # The maximum number of vectors a pixel, contiguous or overlapping.
    for length, apart in product((0xFFFF, 0xAAAA, 0x5555), (0, 1, 3)):
        most = Load(length=length, pixels=2, pitch=length - apart, run=0xFFFFFF, line=1, rows=2)
        cut = _cut_short(words_of([most]), PROGRAM, random.Random(length))
        steps.append(Step(f"wild pixels of {length}", cut, ""))
    if config.softmax:  # a table of numbers that no probability of 7 bits is, and one of none
        vectors, n = config.table_depth // config.n, config.n
        pixels = {"pixels": vectors, "pitch": n, "length": n, "dst_pixel": 1, "before": vectors * n}
        for fill in (-1, 0):
            table = [
                Load(fill=fill, signal=1, **pixels),
                Table(vectors=vectors, wait=1),
                Softmax(length=4 * n, ob=4),
            ]
            steps.append(
                Step("wild table", _cut_short(words_of(table), PROGRAM, random.Random(1), cycles=4000), "")
            )
    steps.append(Step("a long wait", _cut_short(words_of([Load(wait=1)]), PROGRAM, pick, LONG), ""))
    return Scenario("wild", bench, steps)


def _anything(kind: type[Instruction], config: Config, pick: random.Random) -> Instruction:
    """Draw an instruction with fields of any value, some of them small so that it advances far."""
    values = {}
    for name, place in places(kind.OPCODE).items():
        high = place.high if pick.random() < 0.8 else max(place.low, 1)
        values[name] = pick.choice([pick.randint(place.low, high), place.low, place.high])
    return _limit_to_config(kind, config, values)


def _every_second(kind: type[Instruction], config: Config, bits: int, turn: int) -> Instruction:
    """Return an instruction with every second bit of all fields set; some are inverted in turns two and three."""
    values = {}
    for index, (name, place) in enumerate(places(kind.OPCODE).items()):
        turned = bits ^ 0xFFFFFFFF if index % 3 < turn else bits
        values[name] = max(place.high & turned, place.low)
    return _limit_to_config(kind, config, values)


def _limit_to_config(kind: type[Instruction], config: Config, values: dict[str, int]) -> Instruction:
    """Return an instruction with these values, limited to what the configuration has, and without a wait."""
    needed = required_features(kind.OPCODE)
    values |= {name: 0 for name in values if name in needed and needed[name].missing(config)}
    found = kind(**values | {"wait": 0})
    if found.unsupported(config):
        changes = {name: values[name] % BASES for name in registers_of(kind.OPCODE)}
        found = dataclasses.replace(found, **changes)
    return found


def _cut_short(
    words: bytes, at: int, pick: random.Random, cycles: int = 0
) -> Callable[[HostedRtl, int | None], object]:
    """Step that runs a program for `cycles`, or for a random time, and resets the core; it returns any violation."""
    cycles = cycles or pick.randrange(50, 700)
    turned = pick.choice((0, 0xFFFF_FFFF))

    def run(device: HostedRtl, limit: int | None) -> object:
        start_at = at % (1 << 32)
        device.write(PROGRAM, words)
        for index in range(BASES):
            device.set_base(index, 0x1111_1111 * index ^ turned)
        device.begin(start_at)
        try:
            device.wait(cycles)
        except DeviceError as error:
            allowed = ("outside memory", "is not done", "no instruction", "memory answered")
            if not any(text in str(error) for text in allowed):
                return str(error)
        device.reset()
        return ""

    return run
