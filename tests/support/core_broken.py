"""Scenarios of memory errors, one access at a time, of stops, and of a program that hangs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from functools import partial

from support.core_cases import Benches, Core, Scenario, Step, run_words, words_of
from support.random_programs import MEMORY, PROGRAM, WithoutDivision
from weft.hdl.isa import BASES, WORD_BYTES, Instruction, Load, LoopStart, Mm, Store, Vec
from weft.hdl.isa.memmap import (
    DECERR,
    EXOKAY,
    SLVERR,
    WATCHDOG_CYCLES,
    Counter,
    Fault,
    FaultUnit,
    Reg,
    Status,
)
from weft.sim.device import DeviceError
from weft.sim.rtl.coverage import HostedRtl

ROWS, PITCH = 24, 328
"""Rows of a transfer, each a burst of its own, and bytes from one row to the next."""
BASE = 0x4000
"""Contents of all base registers."""
LIMITS = (0xFF, 0x55, 0xAA, 0xFF, 0x00)
"""Watchdog limits that no good program comes near."""
UNITS = 3
"""Watchdog units, after which (or up to one later) it ends a hanging program: an error of one unit shows in three."""
CHUNK, CHUNKS = 500, 100
"""Cycles between looks for a memory error during a transfer, and looks at most."""
Run = Callable[[HostedRtl, int | None], object]


def broken_scenarios(core: Core, seed: int, latency: int, origin: int = 0) -> Scenario:
    """Yield memory errors in each unit, after few and after many bursts, with their unit, response and address. Further
    scenarios stop programs at random cycles, and hang until the watchdog ends them. A good program runs after each, and
    before all of them with watchdogs that do not end it. Memory begins at `origin` of the bus."""
    pick, bench = random.Random(seed), Benches(core).of({"latency": latency, "origin": origin})
    good = WithoutDivision(core.config, seed, serial=True)
    good.build(0)  # knows nothing of what others leave on the chip
    words = words_of(good.program)
    expected = run_words(bench.golden, good, words, None)

    def right(device: HostedRtl, limit: int | None) -> tuple[object, ...]:
        return run_words(device, good, words, limit), device.fault

    def run_watched(device: HostedRtl, limit: int | None) -> object:
        seen = []
        for most in LIMITS:
            device.set_watchdog(most)
            seen.append((device.peek(Reg.WATCHDOG), *right(device, limit)))
        return seen

    none = Fault(FaultUnit.NONE, 0, None)
    steps = [Step("watched", run_watched, [(most, expected, none) for most in LIMITS], good.program)]
    runs = [*_errors(core, pick), *_far(core), *_stops(core, words, pick)]
    runs.append(("watchdog", partial(_hangs, core)))
    for name, run in runs:
        steps.append(Step(name, run, ""))
        steps.append(Step(f"after {name}", right, (expected, none), good.program))
    return Scenario(f"broken {latency}", bench, steps)


def _errors(core: Core, pick: random.Random) -> list[tuple[str, Run]]:
    responses = itertools.cycle((SLVERR, EXOKAY, DECERR))
    size = core.config.bus_bytes
    vectors = -(-size // core.config.n)
    found = []
    for number, behind in (*((number, 0) for number in (0, 1, 5, 14, 15, 16, 17, 100)), (0, 14), (1, 13)):
        at, response = BASE + min(number, ROWS - 1) * PITCH, next(responses)
        row = {"rows": min(number + 1 + behind, ROWS), "row_pitch": PITCH, "length": size}
        load = Load(base=0, run=size, dst_vector=1, dst_row=vectors, **row)
        store = Store(base=1, src_vector=1, src_row=vectors, **row)
        for unit, item in ((FaultUnit.LOAD, load), (FaultUnit.STORE, store)):
            # The core reports no address where more bursts may be in flight than it keeps.
            told = {Fault(unit, response, at)} | ({Fault(unit, response, None)} if number >= 15 else set())
            found.append((f"{unit.name} {number}, {behind} behind", _fails([item], at, response, told)))
    for number in (0, 1, 9, 44):
        at, response = PROGRAM + 32 * number, next(responses)
        told = {Fault(FaultUnit.FETCH, response, at - back) for back in range(0, 256, size)}
        found.append((f"FETCH {number}", _fails([Load(base=0, run=1)] * 64, at, response, told)))
    paged = Load(base=2, paged=1, table=3, page=5, run=size, length=size, dst_vector=1)
    if not paged.unsupported(core.config):
        at, response = (BASE + 20) // size * size, next(responses)
        unit = FaultUnit.LOAD if core.sequential else FaultUnit.PAGE
        found.append(("PAGE", _fails([paged], BASE + 20, response, {Fault(unit, response, at)})))
    return found


def _far(core: Core) -> list[tuple[str, Run]]:
    """Yield transfers and jumps slightly longer than a power of two, where memory fails in all but the first part. If
    that length bit is stuck at 0 they are short and meet no error."""
    size, slow = core.config.bus_bytes, core.sequential
    found = []
    for bit in range(6, 0 if slow else 24):  # the sequential core reads no more than it needs
        load, at = Load(base=0, run=(1 << bit) + 2 * size), BASE + 4 * size
        found.append(
            (f"LOAD of {load.run} bytes", _begins(FaultUnit.LOAD, load, at, range(BASE, at + 1, size)))
        )
    for bit in range(6, 27 if slow else 31):
        pixels = 1 << max(0, bit - 15)
        length, at = (1 << bit) // pixels + 1, BASE + pixels + 4 * size
        store = Store(base=0, pixels=pixels, pitch=length, length=length)
        found.append(
            (f"STORE {pixels} times {length}", _begins(FaultUnit.STORE, store, at, range(BASE, at + 1, size)))
        )
    for bit in range(4, 16 if core.config.loops else 0):
        jump, at = LoopStart(register=8, skip=1 << bit), PROGRAM + WORD_BYTES * (1 + (1 << bit))  # it holds 0
        found.append((f"LOOP over {jump.skip}", _begins(FaultUnit.FETCH, jump, at, [at])))
    return found


def _begins(unit: FaultUnit, item: Instruction, at: int, bursts: Iterable[int]) -> Run:
    """Step that begins a long program and expects an error `at` one of its first `bursts` bursts."""
    told = {Fault(unit, SLVERR, place) for place in (None, *bursts)}

    def run(device: HostedRtl, limit: int | None) -> object:
        if at < MEMORY:  # behind it, memory answers so anyway
            device.break_memory(at, 1)
        _begin(device, words_of([item]))
        for _ in range(CHUNKS):
            device._library.weft_run(device._handle, CHUNK)
            if (fault := device.fault).unit is not FaultUnit.NONE or device._status() & Status.DONE:
                break
        device.reset()
        device.mend_memory()
        return "" if fault in told else f"told is {fault}"

    return run


def _fails(program: list[Instruction], at: int, response: int, told: set[Fault]) -> Run:
    def run(device: HostedRtl, limit: int | None) -> object:
        device.break_memory(at, 1, response=response)
        message = _outcome(device, words_of(program), limit)
        device.mend_memory()
        if device._status() != Status.DONE | Status.BUS_ERROR:
            return f"the status is {device._status()!r}: {message}"
        return "" if device.fault in told else f"told is {device.fault}"

    return run


def _outcome(device: HostedRtl, words: bytes, limit: int | None) -> str:
    _begin(device, words)
    return _wait_for_end(device, limit)


def _wait_for_end(device: HostedRtl, limit: int | None) -> str:
    """Return why the running program ends."""
    try:
        device.wait(limit or 100_000)
    except DeviceError as error:
        return str(error)
    return "done"


def _begin(device: HostedRtl, words: bytes) -> None:
    device.write(PROGRAM, words)
    for index in range(BASES):
        device.set_base(index, BASE)
    device.start(PROGRAM)


def _stops(core: Core, words: bytes, pick: random.Random) -> list[tuple[str, Run]]:
    waiting = {
        kind: words_of([kind(wait=1)])
        for kind in (Load, Mm, Vec, Store)
        if not kind().unsupported(core.config)
    }
    return [
        *((f"stop {cycles}", _stop_after(words, cycles)) for cycles in (0, *pick.sample(range(20, 600), 4))),
        *(
            (f"stop of a {kind.__name__} that waits", _stop_after(program, 50))
            for kind, program in ({} if core.sequential else waiting).items()
        ),
    ]


def _stop_after(words: bytes, cycles: int) -> Run:
    def run(device: HostedRtl, limit: int | None) -> object:
        _begin(device, words)
        device._library.weft_run(device._handle, cycles)
        device.stop()
        said = _wait_for_end(device, limit)
        ended = Status.DONE | (0 if said == "done" else Status.STOPPED)
        return "" if device._status() == ended else f"the status is {device._status()!r}: {said}"

    return run


def _hangs(core: Core, device: HostedRtl, limit: int | None) -> object:
    """Check that the watchdog ends a hanging program after its units or up to one more. It waits for a semaphore, or on
    the sequential core for memory that does not answer."""
    if core.sequential:
        device.break_memory(BASE, 1, response=None)
    device.set_watchdog(UNITS)
    said = _outcome(device, words_of([Load(base=0, run=1, wait=1)]), (UNITS + 2) * WATCHDOG_CYCLES)
    device.set_watchdog(0)
    device.mend_memory()
    status, cycles = device._status(), device.counters()[Counter.CYCLES]
    if core.sequential:
        device.reset()
    if status != (Status.BUSY if core.sequential else Status.DONE) | Status.WATCHDOG:
        return f"the status is {status!r}: {said}"
    units = cycles / WATCHDOG_CYCLES
    return "" if UNITS <= units <= UNITS + 1.02 else f"ended after {cycles} cycles"
