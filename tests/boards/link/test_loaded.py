"""Loaded data is checked before programs start, and later changes are reported."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from support.board_model import BoardModel
from support.board_terminal import CONFIG, Terminal
from support.simulated_line import SimulatedLine

from weft.boards.bus.memory import BoardMemory
from weft.boards.link.frames import CHECK_BLOCK
from weft.boards.link.host import BoardDevice, Contents
from weft.boards.link.session import Session
from weft.hdl.isa.memmap import Reg, Status, base_register
from weft.sim.device import DeviceError

MODEL = 1 << 18
WEIGHTS, CODE = 0x1000 + 64, 0x20000


@pytest.fixture
def model() -> BoardModel:
    made = BoardModel(CONFIG, MODEL)
    made.memory[:] = random.randbytes(MODEL)
    return made


def contents_of(
    model: BoardModel, *, share: float = 0.1, rate: float = 0.0
) -> tuple[Contents, SimulatedLine]:
    line = SimulatedLine(model.feed, random.Random(1))
    line.rate = rate
    session = Session(line, "line", timeout=0.23, adaptive=True, clock=line.clock)
    session.buffer = model.identity.buffer
    return Contents(BoardMemory(session, MODEL), share=share, clock=line.clock), line


def loaded(model: BoardModel, **options: float) -> tuple[Contents, SimulatedLine, dict[int, bytes]]:
    contents, line = contents_of(model, **options)
    parts = {WEIGHTS: random.randbytes(20_001), CODE: random.randbytes(3000)}
    contents.load(WEIGHTS, parts[WEIGHTS], "the weights")
    contents.load(CODE, parts[CODE], "the code")
    return contents, line, parts


@pytest.mark.parametrize("rate", [0.0, 0.003])
@pytest.mark.parametrize("seed", range(4))
def test_a_bit_that_flips_between_loading_and_the_start(model: BoardModel, seed: int, rate: float) -> None:
    rng = random.Random(seed)
    contents, _, parts = loaded(model, rate=rate)
    contents.before_start()
    contents, _, parts = loaded(model, rate=rate)
    start = rng.choice(list(parts))
    at = start + rng.randrange(len(parts[start]))
    model.memory[at] ^= 1 << rng.randrange(8)
    page = max(start, at // CHECK_BLOCK * CHECK_BLOCK)
    last = min(start + len(parts[start]), (at // CHECK_BLOCK + 1) * CHECK_BLOCK) - 1
    name = "the weights" if start == WEIGHTS else "the code"
    with pytest.raises(DeviceError) as refused:
        contents.before_start()
    assert str(refused.value) == (
        f"{name} on the board at line changed before the program was started: {last + 1 - page:,} bytes of it, from "
        f"{page:#x} to {last:#x}, differ from what was sent; run again to send them again, and if the error returns, "
        "test the memory with weft probe --memory-test all"
    )
    # Run again, what differs is sent again, and that alone.
    before = contents.transfer.written
    for address, payload in parts.items():
        contents.load(address, payload, name)
    assert contents.transfer.written - before == last + 1 - page
    contents.before_start()
    assert model.memory[start : start + len(parts[start])] == parts[start]


def test_changes_beside_a_region_do_not_matter(model: BoardModel) -> None:
    contents, _, parts = loaded(model)
    for start, payload in parts.items():
        model.memory[start - 1] ^= 0xFF
        model.memory[start + len(payload)] ^= 0xFF
    contents.before_start()
    contents.check()
    assert contents.checked == 2 * sum(map(len, parts.values()))


def test_starts_that_follow_each_other_are_not_all_checked(model: BoardModel) -> None:
    """But no result is confirmed that may be wrong, and after a while what flipped is found without that."""
    contents, line, parts = loaded(model)
    contents.before_start()
    checks = model.checks
    for _ in range(5):
        contents.before_start()
    assert model.checks == checks
    contents.confirm()
    assert model.checks > checks
    checks = model.checks
    contents.confirm()  # nothing ran since
    assert model.checks == checks
    began = line.now
    contents.check()
    took = line.now - began
    contents.before_start()
    model.memory[CODE] ^= 1
    line.now += 8 * took
    contents.before_start()
    line.now += 2 * took
    with pytest.raises(
        DeviceError, match=r"the code .* changed during the last 2 runs, whose results may be wrong"
    ):
        contents.before_start()
    contents.load(CODE, parts[CODE], "the code")
    contents.before_start()
    model.memory[CODE] ^= 1
    with pytest.raises(
        DeviceError, match=r"the code .* before the last run ended, whose result may be wrong"
    ):
        contents.confirm()


def test_every_start_is_checked_if_that_is_wanted(model: BoardModel) -> None:
    contents, _, parts = loaded(model, share=1)
    for number in range(1, 4):
        contents.before_start()
        assert contents.checked == number * sum(map(len, parts.values()))


def test_a_change_makes_a_check_due(model: BoardModel) -> None:
    contents, _, _ = loaded(model)
    contents.before_start()
    checked = contents.checked
    contents.load(0x30000, b"more", "more")
    contents.before_start()
    assert contents.checked > checked
    checked = contents.checked
    contents.distrust()
    contents.before_start()
    assert contents.checked > checked
    contents.forget(WEIGHTS, 1)
    model.memory[WEIGHTS] ^= 1
    contents.check()
    contents.clear()
    model.memory[CODE] ^= 1
    contents.check()


def test_data_from_flash_is_adopted_if_present(model: BoardModel) -> None:
    contents, _ = contents_of(model)
    payload = bytes(model.memory[0x8000:0x9800])
    assert not contents.adopt(0x8000, payload[:-1] + b"?" + b"x", "the program in the flash")
    contents.before_start()
    checks = model.checks
    assert contents.adopt(0x8000, payload, "the program in the flash")
    assert model.checks == checks + 2
    assert contents.adopt(0x8000, payload, "the program in the flash")
    assert model.checks == checks + 2
    model.memory[0x9000] ^= 4
    with pytest.raises(DeviceError, match=r"^the program in the flash on the board at line changed before"):
        contents.before_start()


@pytest.fixture
def device(model: BoardModel) -> Iterator[BoardDevice]:
    terminal = Terminal(model.feed)
    with BoardDevice.open(terminal.path, CONFIG, timeout=1.0) as opened:
        yield opened
    terminal.unplug()


def test_a_device_starts_nothing_that_changed(device: BoardDevice, model: BoardModel) -> None:
    payload = random.randbytes(5000)
    device.load(64, payload, "the weights")
    device.start(0)
    device.wait()
    device.confirm()
    device.contents.share = 1
    model.memory[4500] ^= 0x80
    with pytest.raises(
        DeviceError, match=r"^the weights on the board at /dev/\S+ changed before the program was"
    ):
        device.start(0)
    assert model.runs == 1
    device.load(64, payload, "the weights")
    device.start(0)
    device.wait()
    assert (model.runs, model.memory[64:5064]) == (2, payload)
    model.memory[64] ^= 1
    with pytest.raises(DeviceError, match="before the last run ended, whose result may be wrong"):
        device.confirm()


@pytest.mark.parametrize("lost", ["a base register", "all registers"])
def test_a_board_that_lost_its_registers_starts_nothing(
    device: BoardDevice, model: BoardModel, lost: str
) -> None:
    """As after a short power failure, on a board that was not started before: it has counted as many starts as the
    host."""
    device.set_base(0, 0x100)
    device.set_base(3, 0x400)
    if lost == "all registers":
        model.registers[Reg.CONTROL :] = bytes(len(model.registers) - Reg.CONTROL)
    else:
        model.set(base_register(3), 0x404)
    with pytest.raises(DeviceError, match="was configured again meanwhile: open it again"):
        device.start(0)
    assert model.runs == 0
    device.start(0)  # begins with a reset, and sets them again
    device.wait()
    assert (model.runs, model.get(base_register(3))) == (1, 0x400)


def test_writes_of_a_failed_run_are_found(device: BoardDevice, model: BoardModel) -> None:
    """The next start finds it, even if nothing is loaded before."""
    device.load(64, random.randbytes(100), "the code")
    device.contents.share = 1e-6  # no check is made for the time that has passed
    model.result = Status.BUSY | Status.BUS_ERROR
    device.start(0)
    with pytest.raises(DeviceError, match="memory answered"):
        device.wait()
    model.memory[70] ^= 1
    with pytest.raises(DeviceError, match=re.escape("the code on the board")):
        device.start(0)
