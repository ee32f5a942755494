"""Programs that hang, on both cores: they end with what hangs, and why; and programs that only take long do not."""

from __future__ import annotations

from functools import cache

import pytest
from support.deaf_memory import DeafCore

from weft.hdl.checker.program import check
from weft.hdl.control.counters import MAX_FILL_BEFORE, HangDetector
from weft.hdl.core import Core
from weft.hdl.isa import FILL_MAX, End, Instruction, Load, Mm, Store, Vec
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.hdl.sequential.core import SequentialCore
from weft.hdl.verilog import generate
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.rtl.library import TOP

CONFIG = PRESETS["tiny"]
N = CONFIG.n
MEMORY = 1 << 16
DEAF, CLOSED = 0x8000, 0xC000
PROGRAM = 0x1000
CORES = pytest.mark.parametrize("sequential", [False, True], ids=["pipelined", "sequential"])
VECTORS = {"run": N, "row_pitch": N, "length": N, "pitch": N, "dst_row": 1}
GOOD = (
    Load(rows=100, **VECTORS, signal=1),
    Store(wait=1, offset=0x4000, pixels=100, pitch=N, length=N, src_pixel=1),
)


@cache
def deaf_verilog(sequential: bool) -> str:
    core = SequentialCore(CONFIG) if sequential else Core(CONFIG)
    return generate(DeafCore(core, DEAF, CLOSED), name=TOP)


def deaf(sequential: bool) -> RtlDevice:
    return RtlDevice(CONFIG, MEMORY, verilog=deaf_verilog(sequential))


def assemble(*instructions: Instruction) -> bytes:
    return b"".join(instruction.encode() for instruction in (*instructions, End()))


def result(device: RtlDevice | GoldenDevice) -> bytes:
    """Return memory after a good program."""
    device.write(0, bytes(index * 7 % 251 for index in range(0x1000)))
    device.write(PROGRAM, assemble(*GOOD))
    device.start(PROGRAM)
    device.wait()
    return device.read(0, DEAF // 2 + 0x1000)


def failure(device: RtlDevice, program: bytes, at: int = PROGRAM) -> tuple[str, int]:
    """The message of `program`, and the cycles that passed until it came. The device can be used afterwards."""
    device.write(at, program)
    device.start(at)
    begun = device.cycles
    with pytest.raises(DeviceError) as error:
        device.wait()
    taken = device.cycles - begun
    assert result(device) == result(GoldenDevice(CONFIG, MEMORY))
    return str(error.value), taken


HANGS: dict[str, tuple[tuple[Instruction, ...], str]] = {
    "load": ((Load(offset=DEAF, rows=3, **VECTORS),), "LOAD waits for memory"),
    "load-halfway": ((*GOOD, Load(offset=DEAF - 8 * N, rows=16, **VECTORS)), "LOAD waits for memory"),
    "page": ((Load(paged=1, table=1, page=0),), "LOAD waits for memory"),
    "store": ((*GOOD, Store(offset=DEAF, pixels=3, pitch=N, length=N)), "STORE waits for memory"),
    "store-halfway": ((Store(offset=DEAF - 8 * N, pixels=16, pitch=N, length=N, src_pixel=1),),
                      "STORE waits for memory"),
    "closed": ((Load(offset=CLOSED, rows=3, **VECTORS),), "LOAD waits for memory"),
    "behind-vec": ((Vec(ox=20), Load(offset=DEAF)), "LOAD waits for memory"),
}  # fmt: skip


@CORES
@pytest.mark.parametrize("name", HANGS)
def test_memory_that_does_not_answer(name: str, sequential: bool) -> None:
    instructions, cause = HANGS[name]
    with deaf(sequential) as device:
        device.set_base(1, DEAF)
        message, taken = failure(device, assemble(*instructions))
        assert message.startswith("the program hangs: ")
        assert [part for part in message[19:].split(", ") if "is idle" not in part] == [cause]
        assert taken < 2_000_000
        if sequential and "LOAD" in cause:
            assert "MM is idle, VEC is idle, STORE is idle" in message


@CORES
@pytest.mark.parametrize("before", [0, 1, 3])
def test_instructions_that_do_not_come(before: int, sequential: bool) -> None:
    """The fetch hangs at the first word or later; units with an incomplete instruction are not busy."""
    program = assemble(*(Vec(ox=5) for _ in range(before)), Vec(ox=5), Vec(ox=5))
    with deaf(sequential) as device:
        message, taken = failure(device, program, DEAF - before * 64)
        assert message == (
            "the program hangs: LOAD is idle, MM is idle, VEC is idle, STORE is idle, "
            "the next instruction waits for memory"
        )
        assert taken < 2_000_000


def test_half_an_instruction_on_the_sequential_core() -> None:
    """Its fields come as they are needed: what is missing is no wait of the unit that it is for."""
    with deaf(True) as device:
        for instruction in (Load(), Mm(), Vec(), Store()):
            message, _ = failure(device, assemble(instruction), DEAF - 32)
            assert message.endswith("STORE is idle, the next instruction waits for memory")


@CORES
def test_a_deadlock_of_semaphores(sequential: bool) -> None:
    """The sequential core does not look at semaphores: there, nothing can wait for one."""
    program = assemble(Load(wait=1), Mm(wait=2), Vec(wait=4), Store(wait=8))
    with RtlDevice(CONFIG, MEMORY, sequential=sequential) as device:
        device.write(PROGRAM, program)
        device.start(PROGRAM)
        if sequential:
            device.wait()
        else:
            with pytest.raises(DeviceError) as error:
                device.wait()
            assert str(error.value) == "the program hangs: " + ", ".join(
                f"{unit} waits for semaphore" for unit in ("LOAD", "MM", "VEC", "STORE")
            )


@pytest.mark.parametrize("name", ["vec", "fill", "transpose", "slow", "narrow", "stalls"])
def test_a_long_program_does_not_hang(name: str) -> None:
    """One instruction of VEC takes several times the watchdog's limit, and so do slow memories; LOAD writes fill bytes
    to the whole scratchpad."""
    options: dict[str, float] = {
        "slow": {"latency": 300_000}, "narrow": {"bandwidth": 1e-5}, "stalls": {"stall_probability": 0.99}
    }.get(name, {})  # fmt: skip
    pixels = CONFIG.scratchpad_size // N * N
    program: Instruction = {
        "vec": Vec(source=1, ry=4, rx=1000, reduce=2, h=1 << 15, w=1 << 15),
        "fill": Load(pixels=pixels, length=N, pitch=N, dst_pixel=1),
        "transpose": Load(pixels=pixels, length=N, pitch=N, transpose=1, dst_row=N, dst_vector=1),
    }.get(name, Load())
    quiet = HangDetector(CONFIG, 0).quiet
    with RtlDevice(CONFIG, MEMORY, sequential=True, **options) as device:
        device.write(PROGRAM, assemble(program))
        device.start(PROGRAM)
        device.wait()
        counters = device.counters()
    if name in ("fill", "transpose"):
        gaps = (MAX_FILL_BEFORE + FILL_MAX) // CONFIG.bus_bytes
        assert (quiet - gaps) / 8 < counters[Counter.LOAD_BUSY] <= quiet - gaps
        assert counters[Counter.LOAD_MEMORY] < 100
    elif name != "stalls":
        assert counters[Counter.CYCLES] > 4 * quiet
        assert counters[Counter.VEC_BUSY] > 4 * quiet or name != "vec"


@CORES
def test_the_longest_gap_between_pixels_is_no_hang(sequential: bool) -> None:
    """The largest number of fill bytes that the program checker allows passes without a beat on the bus."""
    gap = Load(pixels=3, pitch=65535, length=3, run=1, dst_pixel=1)
    check([gap, End()], CONFIG)
    golden = GoldenDevice(CONFIG, MEMORY)
    with RtlDevice(CONFIG, MEMORY, sequential=sequential) as device:
        for either in (device, golden):
            either.write(PROGRAM, assemble(gap, *GOOD))
            either.start(PROGRAM)
            either.wait()
        assert device.read(0, MEMORY) == golden.read(0, MEMORY)
        cycles = device.counters()[Counter.LOAD_BUSY]
    watch = HangDetector(CONFIG, 0, sequential=sequential)
    assert cycles < watch.quiet
    assert sequential or cycles >= FILL_MAX // CONFIG.bus_bytes


@pytest.mark.parametrize(
    ("program", "loaded", "stored"),
    [
        ((Load(rows=100, **VECTORS),), 100 * N // CONFIG.bus_bytes, 0),
        ((Load(rows=9, pixels=3, length=3, pitch=3, run=9, row_pitch=16, dst_row=3, dst_pixel=1),), 9 * 3, 0),
        ((Load(rows=5, paged=1, table=1, **VECTORS),), 1 + 5 * N // CONFIG.bus_bytes, 0),
        ((Store(offset=0x4000, pixels=50, pitch=N, length=N, src_pixel=1),), 0, 50 * N // CONFIG.bus_bytes),
        ((Vec(ox=9), Mm(ox=9)), 0, 0),
    ],
    ids=["load", "load-short", "load-paged", "store", "other"],
)
def test_waits_for_memory_are_counted(program: tuple[Instruction, ...], loaded: int, stored: int) -> None:
    """A word of the bus takes as much longer as memory does, and all of that counts as the unit's wait for memory."""
    slower = 100
    found = []
    for latency in (20, 20 + slower, 1):
        with RtlDevice(CONFIG, MEMORY, sequential=True, latency=latency) as device:
            device.write(PROGRAM, assemble(*program))
            device.start(PROGRAM)
            device.wait()
            found.append(device.counters())
    fast, slow, _ = found
    more = {counter: slow[counter] - fast[counter] for counter in Counter}
    assert more[Counter.LOAD_MEMORY] == more[Counter.LOAD_BUSY] == slower * loaded
    assert more[Counter.STORE_MEMORY] == more[Counter.STORE_BUSY] == slower * stored
    assert more[Counter.MM_BUSY] == more[Counter.VEC_BUSY] == 0
    fetched = fast[Counter.READ_BEATS] - loaded
    # A cycle of the fetch can go on beside the unit.
    assert 0 <= slower * (fetched + loaded + stored) - more[Counter.CYCLES] <= len(program)
    for unit in ("LOAD", "STORE"):
        # What is no wait is the unit's own work, however slow memory is. After a wait the microprogram takes up to two
        # cycles to go on.
        work = [counters[Counter[f"{unit}_BUSY"]] - counters[Counter[f"{unit}_MEMORY"]] for counters in found]
        assert work[0] == work[1]
        assert 0 <= work[0] - work[2] <= 2 * (loaded + stored)
    rest = [counter for counter in Counter if counter.name.endswith(("_PORT", "_SEMAPHORE", "_WEIGHTS"))]
    assert not any(counters[counter] for counter in rest for counters in found)
