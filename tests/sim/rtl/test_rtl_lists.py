"""Lists of random programs: the RTL against the golden interpreter, and the cycle model against the RTL."""

from __future__ import annotations

import random
from collections import Counter as Tally
from collections.abc import Iterable
from typing import Any

import pytest
from support.faulty_runs import CONFIG, Filling, outcome, status
from support.random_lists import ProgramList, set_bases
from support.random_programs import MEMORY, PROGRAM, Generator

from weft.hdl.isa import End, Load, Store
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import RESPONSES, START, START_LIST, Counter, ListProgress, Reg, Status
from weft.hdl.isa.program_lists import MARK, Record, encode_list, pitch
from weft.sim.compiled.device import CompiledDevice
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice

TINY = PRESETS["tiny"].replace(descriptors=1, loops=1)
FAULTY = CONFIG.replace(descriptors=1, loops=1)
"""Nothing but memories that each program of `Filling` fills: no program knows what ran before."""
WIDTHS = {
    f"bus of {width}": PRESETS["tiny"].replace(descriptors=1, parity=1, bus_bytes=width)
    for width in (8, 16, 32, 64, 128)
}
OTHERS = {
    **WIDTHS,
    "tiny": TINY,
    "small": PRESETS["small"].replace(descriptors=1),
    "default": PRESETS["default"].replace(descriptors=1, loops=1, scratchpad_depth=512),
    "short queues": TINY.replace(queue_depth=1, loops=0, kernel=64),
}


def compare(config: Config, seeds: Iterable[int], counts: tuple[int, ...] = (1, 2, 3, 7)) -> None:
    """Compare all of memory after a list, twice, because the second run finds the first's results; then run its
    programs one by one."""
    for seed in seeds:
        pick = random.Random(seed)
        made = ProgramList(config, seed, pick.choice(counts), made=Generator)
        golden, plain = (kind(config, made.memory_bytes) for kind in (CompiledDevice, GoldenDevice))
        memory: dict[str, Any] = {
            "latency": pick.choice([1, 5, 40]),
            "bandwidth": pick.choice([None, None, 1.5]),
            "stall_probability": pick.choice([0.0, 0.3, 0.7]),
            "stall_seed": seed,
            "reordered": pick.random() < 0.5,
        }
        with RtlDevice(config, made.memory_bytes, **memory) as device:
            for _ in range(2):
                expected = made.run(golden)
                assert made.run(plain) == expected
                assert made.run(device) == expected, f"seed {seed}"
                assert all(record.done for record in made.records(device))
                assert sum(item.cycles for item in made.records(device)) < device.counters()[Counter.CYCLES]
            made.place(plain)
            made.place(device)
            made.run_one_by_one(plain)
            made.run_one_by_one(device)
            assert made.timeless(device) == made.timeless(plain)


def test_lists() -> None:
    compare(FAULTY, range(6))


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_lists_of_other_configurations(name: str) -> None:
    compare(OTHERS[name], range(6))


@pytest.mark.long
def test_many_lists() -> None:
    compare(TINY, range(100, 160), (1, 2, 5, 20))


def times(config: Config, seeds: Iterable[int], counts: tuple[int, ...] = (1, 3, 6)) -> None:
    """All counters of lists, and the cycles of each of their programs, are what the cycle model says."""
    memories: list[dict[str, Any]] = [
        {"latency": 1}, {"latency": 5}, {"latency": 40}, {"latency": 5, "bandwidth": 1.5}
    ]  # fmt: skip
    for seed in seeds:
        made = ProgramList(config, seed, random.Random(seed).choice(counts))
        memory = memories[seed % len(memories)]
        model = TimingDevice(config, made.memory_bytes, **memory)
        with RtlDevice(config, made.memory_bytes, **memory) as device:
            device._library.weft_run(device._handle, 200)  # memory saves up what the model's has
            made.run(device)
            made.run(model)
            assert device.counters() == model.counters(), f"seed {seed}"
            assert made.records(device) == made.records(model), f"seed {seed}"
            assert sum(item.memory for item in made.records(device)) == device.counters()[Counter.LOAD_MEMORY]


def test_times() -> None:
    times(FAULTY, range(6))


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_times_of_other_configurations(name: str) -> None:
    times(OTHERS[name], range(200, 206))


def test_a_program_takes_as_long_in_a_list_as_alone() -> None:
    made = ProgramList(FAULTY, 3, 3, made=Filling)
    with RtlDevice(FAULTY, made.memory_bytes, latency=7) as device:
        made.run(device)
        for (program, bases), record in zip(made.runs, made.records(device), strict=True):
            set_bases(device, bases)
            device.start(program)
            device.wait()
            counters = device.counters()
            assert record == Record(True, counters[Counter.CYCLES], counters[Counter.LOAD_MEMORY])


def errors(seeds: Iterable[int]) -> Tally[str]:
    """Break some of memory, ten times for each list. Programs before the failing one must be complete, later ones must
    not run, and the message must name it. The next run is right without a reset."""
    found: Tally[str] = Tally()
    for seed in seeds:
        pick = random.Random(seed)
        made = ProgramList(FAULTY, seed, pick.choice([2, 3, 5]), made=Filling)
        golden = GoldenDevice(FAULTY, made.memory_bytes)
        expected = made.run(golden)
        with RtlDevice(
            FAULTY,
            made.memory_bytes,
            latency=pick.choice([1, 5, 40]),
            stall_probability=pick.choice([0, 0.3]),
        ) as device:
            for _ in range(10):
                made.place(device)
                place, reads = _break_somewhere(device, made, pick)
                device.start_list(made.address)
                message = outcome(device.wait)
                listed = device.list_progress()
                if message is None:
                    assert made.timeless(device) == expected
                    found["right"] += 1
                else:
                    assert message.startswith(f"{listed}: memory answered ")
                    assert status(device) == Status.DONE | Status.BUS_ERROR
                    _check_ended(made, device, golden, listed, broken=place is not None and not reads)
                    if place is not None:
                        assert listed == ListProgress(place, at_descriptor=reads)
                    found["descriptor" if listed.at_descriptor else "program"] += 1
                device.mend_memory()
                assert made.run(device) == expected, f"seed {seed}"
    return found


def _break_somewhere(device: RtlDevice, made: ProgramList, pick: random.Random) -> tuple[int | None, bool]:
    """Break a descriptor, a record or some of a program's memory. Returns at which place of the list that is met if it
    is certain, and whether as a read of the descriptor."""
    response = pick.choice(list(RESPONSES))
    if pick.random() < 0.5:
        place, reads = pick.randrange(len(made.order)), pick.random() < 0.5
        at = made.address + place * pitch(made.config) + (0 if reads else 48)
        device.break_memory(at + pick.randrange(48 if reads else 16), 1, response=response, writes=not reads)
        return place, reads
    at = pick.randrange(len(made.parts)) * MEMORY + pick.choice([0, PROGRAM, 0x8000, PROGRAM])
    device.break_memory(at + pick.randrange(0x400), pick.choice([1, 64, 1024]), response=response)
    return None, False


def _check_ended(
    made: ProgramList, device: RtlDevice, golden: GoldenDevice, listed: ListProgress, *, broken: bool = False
) -> None:
    """The records of those that are done, and what those wrote whose place does not run again. Where the next record is
    `broken`, some of it may be there."""
    done = listed.done
    records = [record.done for record in made.records(device)]
    assert all(records[:done])
    assert not any(records[done + broken :])
    made.place(golden)
    made.run_one_by_one(golden, done)
    for place in range(len(made.parts)):
        if place != made.order[done]:
            at = place * MEMORY
            assert device.read(at, MEMORY) == golden.read(at, MEMORY)


def test_errors_of_memory_end_a_list() -> None:
    found = errors(range(2))
    assert found["descriptor"] >= 2
    assert found["program"] >= 4


@pytest.mark.long
def test_many_errors_of_memory_end_a_list() -> None:
    found = errors(range(100, 130))
    assert found["descriptor"] >= 60
    assert found["program"] >= 100


def test_a_list_is_stopped_anywhere() -> None:
    """Stopped by the host: finished programs are reported, no other begins, and the next list is right."""
    made = ProgramList(FAULTY, 5, 4, made=Filling, length=3)
    golden = GoldenDevice(FAULTY, made.memory_bytes)
    expected = made.run(golden)
    pick, found = random.Random(1), set()
    with RtlDevice(FAULTY, made.memory_bytes, latency=40) as device:
        made.run(device)
        cycles = device.counters()[Counter.CYCLES]
        ends = [0]
        for record in made.records(device):
            ends.append(ends[-1] + record.cycles)
        for turn in range(16):
            made.place(device)
            device.start_list(made.address)
            # Half of them about where one program ends and the next begins, which takes some 130 cycles.
            at = pick.randrange(cycles) if turn % 2 else ends[pick.randrange(4)] + pick.randrange(600)
            device._library.weft_run(device._handle, at)
            device.stop()
            message, listed = outcome(device.wait), device.list_progress()
            if message is None:
                assert made.timeless(device) == expected
            else:
                assert message == f"{listed}: the program was stopped"
                assert status(device) & Status.DONE
                _check_ended(made, device, golden, listed)
                found.add(listed.at_descriptor)
            assert made.run(device) == expected
            assert device.counters()[Counter.CYCLES] == cycles
    assert found == {False, True}


def test_faulty_lists_are_reported() -> None:
    """A program with an unknown opcode, an invalid descriptor, a list without a last descriptor, and one that leaves
    memory."""
    made = ProgramList(FAULTY, 8, 3, made=Filling)
    golden = GoldenDevice(FAULTY, made.memory_bytes)
    step = pitch(FAULTY)
    with RtlDevice(FAULTY, made.memory_bytes) as device:
        for target in (golden, device):
            made.place(target)
            target.write(made.runs[1][0] + 64, b"\xff")
            target.start_list(made.address)
            with pytest.raises(DeviceError, match=r"^program \d of the list: .*(no instruction|opcode 255)"):
                target.wait()
            assert target.list_progress().done == made.order.index(made.order[1])
            made.place(target)
            target.write(made.address + step, (MARK ^ 2).to_bytes(4, "little"))
            target.start_list(made.address)
            with pytest.raises(
                DeviceError, match=r"^descriptor 1 of the list: a descriptor cannot begin with"
            ):
                target.wait()
            made.place(target)
            target.write(made.address + 2 * step, MARK.to_bytes(4, "little"))  # and behind it there are zeros
            target.write(
                made.address + 3 * step, bytes(step)
            ) if made.memory_bytes > made.address + 3 * step else None
            target.start_list(made.address)
            with pytest.raises(DeviceError, match=r"^descriptor 3 of the list: "):
                target.wait()
            assert target.list_progress() == ListProgress(3, at_descriptor=True)
        for target in (golden, device):
            assert made.run(target) == made.run(golden)


@pytest.mark.parametrize("kind", [GoldenDevice, CompiledDevice, TimingDevice, RtlDevice])
def test_each_program_begins_without_semaphores(kind: Any) -> None:
    """Semaphores that one program gives and does not take are gone for the next."""
    device = kind(FAULTY, 1 << 16)
    device.write(0x1000, Load(run=4, length=4, signal=1).encode() + End().encode())
    device.write(0x2000, Store(length=4, wait=1).encode() + End().encode())
    device.write(0x3000, encode_list([(0x1000, [0] * 8), (0x2000, [0] * 8)], FAULTY))
    if kind is RtlDevice:
        device.set_watchdog(1)
    device.start_list(0x3000)
    with pytest.raises(DeviceError, match=r"deadlock: instruction 0 \(STORE\)|the program hangs"):
        device.wait()
    if kind is not TimingDevice:
        assert device.list_progress() == ListProgress(1)
    device.close()


def test_the_watchdog_ends_a_list_whose_descriptor_does_not_come() -> None:
    made = ProgramList(FAULTY, 8, 3, made=Filling)
    with RtlDevice(FAULTY, made.memory_bytes) as device:
        made.place(device)
        device.break_memory(made.address + pitch(FAULTY), 64, response=None)
        device.set_watchdog(1)
        device.start_list(made.address)
        with pytest.raises(DeviceError, match=r"^descriptor 1 of the list: the program hangs: nothing moved"):
            device.wait()
        device.mend_memory()
        assert made.run(device) == made.run(GoldenDevice(FAULTY, made.memory_bytes))


def test_starts_during_a_list_are_ignored() -> None:
    made = ProgramList(FAULTY, 9, 2, made=Filling)
    with RtlDevice(FAULTY, made.memory_bytes, latency=40) as device:
        made.place(device)
        device.start_list(made.address)
        with pytest.raises(DeviceError, match="still running"):
            device.start_list(made.address)
        for command in (START, START_LIST, START | START_LIST):
            device._write_register(Reg.CONTROL, command)
        device.wait()
        assert made.timeless(device) == made.run(GoldenDevice(FAULTY, made.memory_bytes))


def test_a_single_program_after_a_list() -> None:
    """Registers hold the last descriptor's values; a program that the host starts leaves the list's state unchanged."""
    made = ProgramList(FAULTY, 10, 2, made=Filling)
    with RtlDevice(FAULTY, made.memory_bytes) as device:
        made.run(device)
        program, bases = made.runs[-1]
        assert device._read_register(Reg.LIST) == made.address
        assert device._read_register(Reg.PROGRAM) == program
        assert [device._read_register(Reg.BASE + 4 * index) for index in range(8)] == bases
        device.write(0x100, End().encode())
        device.start(0x100)
        device.wait()
        assert device.list_progress() == ListProgress(2)
        device.write(0x100, Load(wait=1).encode())
        device.start(0x100)
        device.stop()
        with pytest.raises(DeviceError, match=r"^the program was stopped$"):
            device.wait()


@pytest.mark.parametrize("kind", [GoldenDevice, CompiledDevice, TimingDevice, RtlDevice])
def test_invalid_list_addresses_are_refused(kind: Any) -> None:
    device = kind(FAULTY, 1 << 16)
    with pytest.raises(DeviceError, match=r"^the list's address 0x20 is no multiple of 64 bytes$"):
        device.start_list(0x20)
    with pytest.raises(
        DeviceError, match=r"at 0x10000 takes 64 bytes, which do not lie in a memory of 65536"
    ):
        device.start_list(1 << 16)
    device.close()
    if kind is not RtlDevice:
        plain = kind(PRESETS["tiny"], 1 << 16)
        with pytest.raises(
            DeviceError, match=r"^the configuration runs no lists of programs \('descriptors' is 0\)$"
        ):
            plain.start_list(0)
