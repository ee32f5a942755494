"""The host's side of LiteX systems, against a model of one on a link that loses writes."""

from __future__ import annotations

import builtins
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.litex_model import CONTROL, HELD, MEMORY, RESET, SIZE_BYTES, LitexModel
from support.small_models import small

import weft
from weft.boards.link.polled import PATIENCE
from weft.boards.litex.host import LitexDevice
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter, ListProgress, Reg, Status, counter_register
from weft.run.stream import stream
from weft.sim.device import Device, DeviceError

CONFIG = PRESETS["tiny"]


def opened(model: LitexModel) -> LitexDevice:
    return LitexDevice(
        model, CONFIG, control=CONTROL, reset=RESET, held=HELD, memory=MEMORY, memory_bytes=SIZE_BYTES
    )


@pytest.fixture
def model() -> LitexModel:
    return LitexModel(CONFIG)


def run(device: LitexDevice, seed: int) -> None:
    program = weft.compile(small(seed), config=CONFIG)
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(size=shape).astype(kind) for name, (kind, shape) in program.inputs.items()}
    expected, found = program.run(values), program.run(values, on=device)
    assert all(np.array_equal(found.outputs[name], expected.outputs[name]) for name in expected.outputs)
    assert found.memory == expected.memory


def test_a_system_is_a_device(model: LitexModel) -> None:
    with opened(model) as device:
        assert isinstance(device, Device)
        run(device, 1)
        run(device, 2)
    assert model.starts == 2


def test_lists_hold_addresses_of_the_system() -> None:
    config = CONFIG.replace(descriptors=1)
    model = LitexModel(config)
    device = LitexDevice(
        model, config, control=CONTROL, reset=RESET, held=HELD, memory=MEMORY, memory_bytes=SIZE_BYTES
    )
    program = weft.compile(small(1), config=config)
    rng = np.random.default_rng(1)
    runs = [
        {name: rng.normal(size=shape).astype(kind) for name, (kind, shape) in program.inputs.items()}
        for _ in range(3)
    ]
    for inputs, result in zip(runs, stream(program, runs, device), strict=True):
        for name, array in program.run(inputs).outputs.items():
            assert np.array_equal(result.outputs[name], array)
    assert model.starts == 1
    assert device.list_progress() == ListProgress(3)


def test_writes_get_lost(model: LitexModel) -> None:
    """One in four, at random: results are right, and no program runs twice."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    device = opened(model)
    lost: list[int] = []

    def loses(number: int) -> bool:
        # The start included; but not three times in a row.
        if lost and lost[-2:] == [number - 2, number - 1]:
            return False
        if rng.random() < 0.25:
            lost.append(number)
            return True
        return False

    model.loses = loses
    for number in range(3):
        run(device, number)
    assert lost
    assert model.starts == 3


def test_memory_that_does_not_keep_what_is_written(model: LitexModel) -> None:
    device = opened(model)
    model.stuck.add(MEMORY + 0x40)
    with pytest.raises(DeviceError, match="data written to the system's address 0x40000000 do not read back"):
        device.write(0, bytes(range(1, 200)))


def test_memory_takes_any_bytes(model: LitexModel) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    device = opened(model)
    expected = bytearray(rng.randbytes(3000))
    device.write(5, bytes(expected))
    for size in (0, 1, 2, 3, 4, 5, 511, 512, 513, 1500, 7, 1, 2, 3):
        at = rng.randrange(3000 - size + 1)
        expected[at : at + size] = payload = rng.randbytes(size)
        device.write(5 + at, payload)
        assert device.read(5 + at, size) == payload
        assert model.golden.read(5, 3000) == bytes(expected)
    assert model.golden.read(0, 5) == bytes(5)


def test_a_lost_start(model: LitexModel) -> None:
    """The previous program's done bit does not count."""
    device = opened(model)
    run(device, 3)
    model.stuck.add(CONTROL + Reg.CONTROL)
    with pytest.raises(DeviceError, match="does not start"):
        device.start(0)


@pytest.mark.parametrize(
    ("held", "message"), [(0, "cannot be reset: memory"), (1, "does not come out of reset")]
)
def test_a_reset_that_does_not_come(model: LitexModel, held: int, message: str) -> None:
    model.held = held
    with pytest.raises(DeviceError, match=message):
        opened(model)


@pytest.mark.parametrize("register", [Reg.MAGIC, Reg.VERSION, Reg.CONFIG])
def test_another_system(model: LitexModel, register: Reg) -> None:
    model.fixed[register] = 0x1234
    with pytest.raises(
        DeviceError, match=rf"register {register.name} of the core at 0x90000000 is 0x1234, not"
    ):
        opened(model)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (Status.DONE | Status.OPCODE_ERROR, "the program holds a word that is no instruction"),
        (Status.BUSY | Status.BUS_ERROR, "memory answered with an error"),
        (Status(0), "was reset while the program ran"),
    ],
)
def test_errors(model: LitexModel, status: Status, message: str) -> None:
    device = opened(model)
    model.ends = False
    device.start(0)
    model.registers[Reg.STATUS] = int(status)
    with pytest.raises(DeviceError, match=message):
        device.wait()
    device.wait()  # nothing is awaited any more


def test_programs_that_do_not_end(model: LitexModel) -> None:
    device = opened(model)
    model.ends = False
    device.start(0)
    with pytest.raises(DeviceError, match="a program is still running"):
        device.start(0)
    with pytest.raises(DeviceError, match="has stopped: its cycle counter does not change"):
        device.wait()
    model.moving = True
    device.start(0)
    with pytest.raises(DeviceError, match="not done after 500000 cycles: "):
        device.wait(500_000)
    device.start(0)
    with pytest.raises(DeviceError, match=r"the program hangs: .*the next instruction waits for memory"):
        device.wait()
    assert model.cycles >= PATIENCE


def test_bad_addresses(model: LitexModel) -> None:
    device = opened(model)
    for call, message in (
        (lambda: device.start(2), "no multiple of 4 bytes"),
        (lambda: device.start(SIZE_BYTES + 4), "do not lie in a memory"),
        (lambda: device.set_base(8, 0), "base register 8 does not exist"),
        (lambda: device.write(-1, b"a"), "do not lie in a memory"),
    ):
        with pytest.raises(DeviceError, match=message):
            call()


def test_counters(model: LitexModel) -> None:
    device = opened(model)
    model.registers[counter_register(Counter.STORE_PORT)] = 5
    model.registers[counter_register(Counter.STORE_PORT) + 4] = 6
    assert device.counters()[Counter.STORE_PORT] == 5 + (6 << 32)


def test_a_lost_connection(model: LitexModel, monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened(model)

    def gone(*_: Any) -> None:
        raise BrokenPipeError("Broken pipe")

    monkeypatch.setattr(model, "write", gone)
    with pytest.raises(DeviceError, match="the connection to the system is lost: Broken pipe"):
        device.write(0, bytes(4))
    monkeypatch.setattr(model, "read", gone)
    with pytest.raises(DeviceError, match="the connection to the system is lost: Broken pipe"):
        device.read(0, 4)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("litex")
    path = tmp_path / "csr.csv"
    with pytest.raises(DeviceError, match=r"cannot read .*csr\.csv: .*--csr-csv"):
        LitexDevice.open(CONFIG, csr_csv=str(path))
    path.write_text("constant,config_csr_data_width,32\n")
    with pytest.raises(DeviceError, match=r"cannot read .*csr\.csv"):
        LitexDevice.open(CONFIG, csr_csv=str(path))


def test_without_litex(monkeypatch: pytest.MonkeyPatch) -> None:
    known = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "litex":
            raise ImportError(name)
        return known(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(DeviceError, match=r"LiteX is not installed: pip install 'weft\[litex\]'"):
        LitexDevice.open(CONFIG)
