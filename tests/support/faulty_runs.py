"""Random programs with memory errors, host stops, and bit flips on chip.

A wrong reaction is an `AssertionError`; otherwise the functions return counts of what happened.
"""

from __future__ import annotations

import random
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from functools import cache, partial

from support.bit_flips import flip_bits
from support.random_programs import MEMORY, PROGRAM, Generator
from weft.hdl.isa import Mm
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import RESPONSES, Counter, Fault, FaultUnit, Reg, Status
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.rtl.library import core_verilog

CONFIG = PRESETS["tiny"].replace(probability_bits=0)
"""Only scratchpad, accumulators and tables, which each program fills: no program depends on earlier ones."""
PARITY = CONFIG.replace(parity=1)
OUTPUT = 0x8000


class Filling(Generator):
    """Programs that first write all rows of the accumulator."""

    def prologue(self) -> None:
        super().prologue()
        assert self.append(Mm(ox=self.config.accumulator_size, c_ox=1))


def program(config: Config, seed: int) -> tuple[Filling, bytes]:
    """Return a random program, and the memory after it."""
    generator = Filling(config, seed, serial=False)
    generator.build(15)
    return generator, generator.run(GoldenDevice(config, MEMORY))


def status(device: RtlDevice) -> Status:
    return device._status()


def outcome(run: Callable[[], object]) -> str | None:
    """Return the message with which it fails, or None."""
    try:
        run()
    except DeviceError as error:
        return str(error)
    return None


def errors(seeds: Iterable[int], sequential: bool) -> Tally[str]:
    """Break a part of memory, ten times for each program. Returns counts of runs that met the error ("told") or did not
    ("right"). The run after each must be right without a reset."""
    found: Tally[str] = Tally()
    for seed in seeds:
        generator, expected = program(CONFIG, seed)
        pick = random.Random(seed)
        with _draw_device(pick, sequential) as device:
            for _ in range(10):
                at, length, unit = _break_somewhere(device, pick, 64 * (len(generator.program) + 1))
                message = outcome(partial(generator.run, device))
                fault = device.fault
                if message is None:
                    assert device.read(0, MEMORY) == expected
                    assert fault == Fault(FaultUnit.NONE, 0, None)
                else:
                    assert message == str(fault)
                    _check_fault(fault, unit, at, length, sequential)
                    assert status(device) == Status.DONE | Status.BUS_ERROR, f"seed {seed}"
                found["right" if message is None else "told"] += 1
                device.mend_memory()
                assert generator.run(device) == expected, f"seed {seed}"
    return found


def _draw_device(pick: random.Random, sequential: bool) -> RtlDevice:
    return RtlDevice(
        CONFIG,
        MEMORY,
        latency=pick.choice([1, 5, 40]),
        bandwidth=pick.choice([None, None, 1.5]),
        stall_probability=pick.choice([0.0, 0.0, 0.3]),
        stall_seed=pick.randrange(1000),
        sequential=sequential,
    )


def _break_somewhere(device: RtlDevice, pick: random.Random, size: int) -> tuple[int, int, FaultUnit]:
    """Break some bytes for one unit; return the first address, their number, and the unit."""
    unit = pick.choice([FaultUnit.FETCH, FaultUnit.LOAD, FaultUnit.STORE])
    first, room = {
        FaultUnit.FETCH: (PROGRAM, size),
        FaultUnit.LOAD: (0, OUTPUT),
        FaultUnit.STORE: (OUTPUT, MEMORY - OUTPUT),
    }[unit]
    length = pick.choice([1, 64, 1024])
    at = first + pick.randrange(max(1, room - length))
    store = unit is FaultUnit.STORE
    device.break_memory(at, length, response=pick.choice(list(RESPONSES)), reads=not store, writes=store)
    return at, length, unit


def _check_fault(fault: Fault, unit: FaultUnit, at: int, length: int, sequential: bool) -> None:
    """Check a fault where `length` bytes from `at` on are broken for `unit`: its burst has some of them."""
    assert fault.unit is unit
    assert fault.response in RESPONSES
    if fault.address is not None:
        assert fault.address < at + length
        assert fault.address >> 12 in (at >> 12, at + length >> 12)
    if sequential:  # whose bursts have one word
        assert fault.address is not None
        assert at < fault.address + CONFIG.bus_bytes


def stops(seeds: Iterable[int], sequential: bool) -> Tally[str]:
    """Stop each program at six random cycles, sometimes together with an error. Returns counts of runs that were
    stopped ("told") or ended before ("right"). The next run must be right and take its usual number of cycles."""
    found: Tally[str] = Tally()
    for seed in seeds:
        generator, expected = program(CONFIG, seed)
        pick = random.Random(seed)
        with RtlDevice(CONFIG, MEMORY, sequential=sequential) as device:
            assert generator.run(device) == expected
            cycles = device.counters()[Counter.CYCLES]
            for _ in range(6):
                device.start(PROGRAM)
                device._library.weft_run(device._handle, pick.randrange(cycles))
                if pick.random() < 0.3:
                    device.break_memory(0, OUTPUT)
                device.stop()
                message = outcome(device.wait)
                ended = status(device)
                assert ended & Status.DONE
                if message is not None:
                    assert message == "the program was stopped" or ended & Status.BUS_ERROR
                found["told" if ended & Status.STOPPED else "right"] += 1
                device.mend_memory()
                assert generator.run(device) == expected, f"seed {seed}"
                assert device.counters()[Counter.CYCLES] == cycles, f"seed {seed}"
    return found


@cache
def _flipping_verilog(config: Config, sequential: bool, one_in: int) -> str:
    return flip_bits(core_verilog(config, sequential=sequential), one_in)


def flips(config: Config, seeds: Iterable[int], sequential: bool, one_in: int) -> tuple[Tally[str], int]:
    """Run programs three times each while one of `one_in` words written to on-chip memories loses a bit. Returns counts
    of runs with a parity error, of right and of "wrong" runs, and all bits that PARITY ever had."""
    verilog = _flipping_verilog(config, sequential, one_in)
    found: Tally[str] = Tally()
    counted = 0
    for seed in seeds:
        generator, expected = program(config, seed)
        with RtlDevice(config, MEMORY, verilog=verilog) as device:
            device.sequential = sequential
            for _ in range(3):
                counts = _run_for_parity(device, generator)
                counted |= counts
                same = device.read(0, MEMORY) == expected
                found["told" if counts else "right" if same else "wrong"] += 1
    return found, counted


def _run_for_parity(device: RtlDevice, generator: Generator) -> int:
    """Run a program; return the register PARITY. The run may fail because an instruction changed, but never for that
    reason without a parity error."""
    message = outcome(partial(generator.run, device)) or ""
    counts = device._read_register(Reg.PARITY)
    assert ("lost a bit: run the program again" in message) == (counts != 0)
    if counts:
        assert status(device) & Status.PARITY_ERROR
        assert status(device) & Status.DONE
    return counts
