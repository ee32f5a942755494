"""The RTL device: a program on all its memory models, and every error it can report."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from weft.hdl.isa import INSTRUCTIONS, End, Instruction, Load, Mm, Store, Vec
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.sim.device import Device, DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.rtl.library import build_model

CONFIG = PRESETS["tiny"]
N = CONFIG.n
MEMORY = 1 << 15
PROGRAM = 0x6000


def assemble(*instructions: Instruction) -> bytes:
    return b"".join(instruction.encode() for instruction in (*instructions, End()))


def product(rows: int) -> bytes:
    """Loads `rows` vectors, N weights and parameters, multiplies, requantises and stores."""
    depth = CONFIG.scratchpad_depth
    vectors = {"run": N, "row_pitch": N, "length": N, "pitch": N, "dst_row": 1}
    return assemble(
        Load(base=0, rows=rows, dst=0, signal=1, **vectors),
        Load(base=1, rows=N, dst=depth, signal=2, **vectors),
        Load(base=2, rows=8, dst=2 * depth, signal=4, **vectors),
        Mm(wait=1 | 2, ox=rows, a_ox=1, b=depth, b_row=1, c_ox=1, signal=8),
        Vec(wait=4 | 8, ox=rows, src_ox=1, dst=3 * depth, dst_ox=1, params=2 * depth, signal=16),
        Store(wait=16, base=3, pixels=rows, pitch=N, length=N, src=3 * depth, src_pixel=1),
    )


def prepare(device: Device, rows: int) -> None:
    generator = np.random.default_rng(1)
    device.write(0, generator.integers(-127, 128, 0x4000, np.int8).tobytes())
    words = [1000 * column & 0xFFFFFFFF | (5 << 20) + column << 32 | 31 << 56 for column in range(-2, N - 2)]
    device.write(0x2000, bytes(word >> 8 * byte & 0xFF for byte in range(8) for word in words))
    device.write(PROGRAM, product(rows))
    for index, address in enumerate((0, 0x1000, 0x2000, 0x3000)):
        device.set_base(index, address)


def run(device: Device, rows: int = 50) -> bytes:
    prepare(device, rows)
    device.start(PROGRAM)
    device.wait(100_000)
    return device.read(0, MEMORY)


@pytest.fixture(scope="module")
def expected() -> bytes:
    return run(GoldenDevice(CONFIG, MEMORY))


@pytest.mark.parametrize(
    "memory",
    [
        {},
        {"latency": 1},
        {"latency": 200},
        {"bandwidth": 0.5},
        {"stall_probability": 0.3, "stall_seed": 1},
        {"stall_probability": 0.9, "stall_seed": 2, "bandwidth": 3.0},
    ],
    ids=str,
)
def test_program(memory: dict[str, float], expected: bytes) -> None:
    with RtlDevice(CONFIG, MEMORY, **memory) as device:
        assert isinstance(device, Device)
        assert run(device) == expected
        assert run(device) == expected, "a second time"


def test_slow_memory_takes_longer() -> None:
    cycles = []
    for memory in ({"latency": 1}, {"latency": 100}, {"latency": 100, "bandwidth": 0.5}):
        with RtlDevice(CONFIG, MEMORY, **memory) as device:
            run(device)
            cycles.append(device.counters()[Counter.CYCLES])
    assert cycles[0] < cycles[1] < cycles[2]


def test_a_seed_stalls_the_memory() -> None:
    """Each seed in its own way; a probability of 0 keeps it from that."""
    cycles = []
    for memory in ({}, {"stall_seed": 3, "stall_probability": 0.0}, {"stall_seed": 3}, {"stall_seed": 4}):
        with RtlDevice(CONFIG, MEMORY, **memory) as device:
            run(device)
            cycles.append(device.counters()[Counter.CYCLES])
    assert cycles[0] == cycles[1] < min(cycles[2:])
    assert cycles[2] != cycles[3]


def test_counters() -> None:
    with RtlDevice(CONFIG, MEMORY) as device:
        run(device, rows=50)
        counters = device.counters()
        assert counters[Counter.ARRAY_ACTIVE] == 50
        assert counters[Counter.WRITE_BEATS] == 50
        # 7 words of program, 62 vectors of data, and what fetch reads ahead.
        assert 7 * 16 + 62 <= counters[Counter.READ_BEATS] <= 7 * 16 + 62 + 128
        run(device, rows=50)
        assert device.counters() == counters, "nothing may depend on the run before"


def test_trace(tmp_path: Path, expected: bytes) -> None:
    with RtlDevice(CONFIG, MEMORY, waves=tmp_path / "trace.vcd") as device:
        assert run(device) == expected
    assert "m_axi_araddr" in (tmp_path / "trace.vcd").read_text()
    with pytest.raises(DeviceError, match=r"^cannot write the trace .*missing"):
        RtlDevice(CONFIG, MEMORY, waves=tmp_path / "missing" / "trace.vcd")


def failure_of(program: bytes, timeout: int | None = 5000) -> str:
    """Return the message of `program`'s failure; the same device must then run a good program."""
    with RtlDevice(CONFIG, MEMORY) as device:
        device.write(PROGRAM, program)
        device.start(PROGRAM)
        with pytest.raises(DeviceError) as error:
            device.wait(timeout)
        prepare(device, 3)
        device.start(PROGRAM)
        device.wait(5000)
        golden = GoldenDevice(CONFIG, MEMORY)
        prepare(golden, 3)
        golden.start(PROGRAM)
        golden.wait()
        assert device.read(0x3000, 0x1000) == golden.read(0x3000, 0x1000)
    return str(error.value)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (assemble(Load(offset=MEMORY)), "a read at 0x8000 is outside memory"),
        (assemble(Store(offset=0x123450)), "a write at 0x123450 is outside memory"),
        (bytes([max(INSTRUCTIONS) + 1]) + bytes(63), "the program holds a word that is no instruction"),
        (
            assemble(Load(wait=1), Store(wait=2), Vec(wait=4), Mm(wait=8)),
            "the program is not done after 5000 cycles: LOAD waits for semaphore, MM waits for semaphore, "
            "VEC waits for semaphore, STORE waits for semaphore",
        ),
    ],
)
def test_failing_programs(program: bytes, message: str) -> None:
    assert failure_of(program) == message


def test_hanging_program_without_timeout() -> None:
    """Not caught too early: the second MM comes long after the last beat."""
    slow = Mm(nt=4000, ox=50, b=256, c_ox=1)
    message = failure_of(assemble(slow, slow, Vec(wait=4)), timeout=None)
    assert message == "the program hangs: LOAD is idle, MM is idle, VEC waits for semaphore, STORE is idle"


def test_slow_program_times_out() -> None:
    message = failure_of(assemble(Mm(nt=100, ox=50, b=256, c_ox=1)), timeout=2000)
    assert (
        message
        == "the program is not done after 2000 cycles: LOAD is idle, MM is busy, VEC is idle, STORE is idle"
    )


def test_host_errors() -> None:
    with RtlDevice(CONFIG, 5000) as device:
        assert device.memory_bytes == 8192, "whole pages"
        device.write(8190, b"ab")
        assert device.read(8190, 2) == b"ab"
        for address, size in ((8192, 1), (-1, 2), (0, 8193), (1 << 40, 0)):
            with pytest.raises(
                DeviceError, match=rf"^{size} bytes at {address:#x} do not lie in a memory of 8192"
            ):
                device.read(address, size)
        with pytest.raises(DeviceError, match=r"do not lie in a memory"):
            device.write(8191, b"ab")
        with pytest.raises(DeviceError, match=r"^base register 8 does not exist; there are 8$"):
            device.set_base(8, 0)
        with pytest.raises(DeviceError, match=r"^base register 1 cannot hold 4294967296: it is 32 bits$"):
            device.set_base(1, 1 << 32)
        with pytest.raises(DeviceError, match=r"^program address 0x2 is no multiple of 4 bytes$"):
            device.start(2)
        device.wait()  # nothing was started
        device.start(0)  # zeros are END
        device.wait(1000)
    with pytest.raises(DeviceError, match=r"^the device is closed$"):
        device.start(0)


def test_start_while_running() -> None:
    with RtlDevice(CONFIG, MEMORY) as device:
        device.write(PROGRAM, assemble(Mm(nt=100, ox=50, b=256, c_ox=1)))
        device.start(PROGRAM)
        with pytest.raises(DeviceError, match=r"^a program is still running$"):
            device.start(PROGRAM)
        device.wait(100_000)


@pytest.mark.parametrize("options", [{"latency": 0}, {"bandwidth": 0.0}, {"stall_probability": 1.0}], ids=str)
def test_memory_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^the (memory|stall) .* not (0|0\.0|1\.0)$"):
        RtlDevice(CONFIG, MEMORY, **options)


def test_identification(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of another configuration, version or kind is refused."""
    model = build_model(CONFIG)
    monkeypatch.setattr("weft.sim.rtl.device.build_model", lambda *args, **options: model)
    other = CONFIG.replace(accumulator_depth=32)
    with pytest.raises(
        DeviceError, match=rf"^register CONFIG of the model is {CONFIG.digest:#x}, not {other.digest:#x}$"
    ):
        RtlDevice(other, MEMORY)
    monkeypatch.setattr("weft.sim.rtl.device.MAGIC", 1)
    with pytest.raises(DeviceError, match=r"^register MAGIC of the model is 0x54464557, not 0x1$"):
        RtlDevice(CONFIG, MEMORY)


def test_too_much_memory_is_refused() -> None:
    """A C++ exception does not end Python."""
    with pytest.raises(MemoryError, match=rf"^no room for a simulation with {1 << 62} bytes of memory$"):
        RtlDevice(CONFIG, 1 << 62)


def test_a_simulation_that_runs_out_of_memory() -> None:
    with RtlDevice(CONFIG, MEMORY) as device:
        one = (ctypes.c_uint64 * 1)()
        device._library.weft_mark(device._handle, one, 1 << 58)  # as many as no memory holds
        with pytest.raises(MemoryError, match=r"^the simulation needs more memory than there is$"):
            device.mark_writes([1])
        with pytest.raises(DeviceError, match=r"^the device is closed$"):
            device.counters()
