"""Memory that answers with errors or not at all, stops by the host, and the watchdog, on both cores."""

from __future__ import annotations

import pytest
from support.faulty_runs import CONFIG, errors, status, stops
from support.random_programs import MEMORY, PROGRAM

from weft.hdl.isa import End, Instruction, Load, Mm, Store, Vec
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import DECERR, EXOKAY, WATCHDOG_CYCLES, Counter, Status
from weft.sim.device import DeviceError
from weft.sim.rtl.device import RtlDevice

N = CONFIG.n
PAGED = PRESETS["tiny"]
CORES = pytest.mark.parametrize("sequential", [False, True], ids=["pipelined", "sequential"])
VECTORS = {"run": N, "row_pitch": N, "length": N, "pitch": N, "dst_row": 1}


@CORES
def test_errors_of_memory(sequential: bool) -> None:
    assert errors(range(4), sequential)["told"] >= 12


@pytest.mark.long
@CORES
def test_many_errors_of_memory(sequential: bool) -> None:
    assert errors(range(100, 250), sequential)["told"] >= 450


def assemble(*instructions: Instruction) -> bytes:
    return b"".join(instruction.encode() for instruction in (*instructions, End()))


def start(device: RtlDevice, *instructions: Instruction) -> None:
    device.write(PROGRAM, assemble(*instructions))
    device.start(PROGRAM)


@pytest.mark.drawn(2)
@CORES
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_nothing_begins_after_an_error(rows: int, sequential: bool) -> None:
    """Instructions that wait for a failed LOAD, or are read by a failed fetch, do nothing."""
    waiting = Store(wait=1, offset=0x4000, pixels=50, pitch=N, length=N, src_pixel=1)
    with RtlDevice(CONFIG, MEMORY, sequential=sequential) as device:
        device.break_memory(0x1000 + N * (rows - 1), 1)
        start(device, Load(rows=rows, offset=0x1000, signal=1, **VECTORS), waiting)
        with pytest.raises(DeviceError, match=r"memory answered LOAD's read at 0x1[0-9a-f]{3} with SLVERR"):
            device.wait()
        assert device.counters()[Counter.WRITE_BEATS] == 0
        device.mend_memory()
        device.break_memory(PROGRAM + 64, 64, response=DECERR)
        start(device, Load(rows=rows, offset=0x1000, signal=1, **VECTORS), waiting)
        with pytest.raises(
            DeviceError, match=r"memory answered the fetch of instructions at 0x.* with DECERR"
        ):
            device.wait()
        assert device.counters()[Counter.WRITE_BEATS] == 0
        # A STORE that failed: the LOAD behind it does not read.
        device.mend_memory()
        device.break_memory(0x4000, 1, response=EXOKAY, reads=False)
        start(
            device,
            Store(offset=0x4000, pixels=rows, pitch=N, length=N, src_pixel=1, signal=1),
            Load(rows=100, offset=0x1000, wait=1, **VECTORS),
        )
        with pytest.raises(DeviceError, match="memory answered STORE's write at 0x4000 with EXOKAY"):
            device.wait()
        assert device.counters()[Counter.LOAD_BUSY] == 0


def test_errors_of_page_tables() -> None:
    with RtlDevice(PAGED, MEMORY) as device:
        device.set_base(5, 0x7000)
        device.write(0x7000, bytes(64))
        device.break_memory(0x7000, 64)
        start(device, Load(paged=1, table=5, page=0))
        with pytest.raises(DeviceError, match="LOAD's read of a page table at 0x7000 with SLVERR"):
            device.wait()
        assert status(device) == Status.DONE | Status.BUS_ERROR
    with RtlDevice(PAGED, MEMORY, sequential=True) as device:
        device.set_base(5, 0x7000)
        device.break_memory(0x7000, 64)
        start(device, Load(paged=1, table=5, page=0))
        with pytest.raises(DeviceError, match="LOAD's read at 0x7000 with SLVERR"):
            device.wait()


@CORES
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(100, 200), marks=pytest.mark.long)], ids=str)
def test_stops(seeds: range, sequential: bool) -> None:
    """At any cycle a run can be stopped, comes to its end, and nothing is left of it: the next ones do as always."""
    assert stops(seeds, sequential)["told"] >= 2 * len(seeds)


@CORES
def test_stops_without_a_run(sequential: bool) -> None:
    with RtlDevice(CONFIG, MEMORY, sequential=sequential) as device:
        device.stop()
        start(device, Vec(ox=5))
        device.wait()
        device.stop()
        assert status(device) == Status.DONE


SILENT: dict[str, tuple[Instruction, ...]] = {
    "load": (Load(rows=3, **VECTORS),),
    "store": (Store(offset=0x40, pixels=3, pitch=N, length=N),),
    "beside others": (Load(rows=3, signal=1, **VECTORS), Mm(ox=5, c_ox=1), Vec(wait=1, ox=20)),
}


@pytest.mark.drawn(2)
@CORES
@pytest.mark.parametrize("name", [*SILENT, "fetch"])
def test_silent_memory(name: str, sequential: bool) -> None:
    """The watchdog reports it; because units wait for memory, only a reset helps."""
    instructions = SILENT.get(name, (Vec(ox=5),))
    with RtlDevice(CONFIG, MEMORY, sequential=sequential) as device:
        device.set_watchdog(1)
        if name == "fetch":
            device.break_memory(PROGRAM, 64, response=None)
        else:
            device.break_memory(0, 0x100, response=None)
        before = device.cycles
        start(device, *instructions)
        with pytest.raises(DeviceError, match=r"hangs: nothing moved .* watchdog .*: LOAD"):
            device.wait()
        assert WATCHDOG_CYCLES <= device.cycles - before < 2 * WATCHDOG_CYCLES + 5000
        assert status(device) == Status.BUSY | Status.WATCHDOG
        device.mend_memory()
        start(device, *instructions)
        device.wait()
        assert status(device) == Status.DONE


def test_the_watchdog_ends_a_deadlock() -> None:
    """No memory is silent then: the run is stopped, and no reset is needed."""
    with RtlDevice(CONFIG, MEMORY) as device:
        device.set_watchdog(2)
        start(device, Load(wait=1), Mm(wait=2), Vec(wait=4), Store(wait=8))
        with pytest.raises(DeviceError, match="nothing moved for as many cycles as the watchdog allows"):
            device.wait()
        assert status(device) == Status.DONE | Status.WATCHDOG
        cycles = device.counters()[Counter.CYCLES]
        assert 2 * WATCHDOG_CYCLES <= cycles <= 3 * WATCHDOG_CYCLES + 100
        start(device, Load(signal=1), Mm(wait=1))
        device.wait()


@CORES
def test_a_long_instruction_is_no_hang(sequential: bool) -> None:
    """The array alone moves, for longer than the watchdog waits."""
    with RtlDevice(CONFIG, MEMORY, sequential=sequential) as device:
        device.set_watchdog(1)
        start(device, Mm(nt=4000, ox=50, b=256, c_ox=1))
        device.wait()
        assert device.counters()[Counter.CYCLES] > 2 * WATCHDOG_CYCLES


def test_wrong_faults() -> None:
    with RtlDevice(CONFIG, MEMORY) as device:
        with pytest.raises(ValueError, match=r"2 \(SLVERR\), 3 \(DECERR\) or None, not 4"):
            device.break_memory(0, 4, response=4)
        with pytest.raises(DeviceError, match="do not lie in a memory"):
            device.break_memory(MEMORY, 4)
        with pytest.raises(DeviceError, match="0 to 255 units, not 256"):
            device.set_watchdog(256)
