"""Memory tests that find what is wrong with memory, and leave it as it was; the quality of lines."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable

import pytest
from support import connected_board
from support.board_model import BoardModel
from support.board_terminal import CONFIG
from support.connected_board import stop_answering_after
from support.simulated_line import SimulatedLine

from weft.boards.bus.memory import BoardMemory, MemoryTest, fill_memory
from weft.boards.link.frames import CHECK_BLOCK
from weft.boards.link.probe import check_memory, choose_blocks, measure_link, read_registers
from weft.hdl.isa.memmap import MAGIC, VERSION, Reg, Status
from weft.sim.device import DeviceError

SIZE = 1 << 14
Fault = Callable[[bytearray], None]


class Faulty(bytearray):
    """Memory in which something is wrong after every write."""

    fault: Fault = staticmethod(lambda memory: None)

    def __setitem__(self, key: slice, value: bytes) -> None:
        super().__setitem__(key, value)
        self.fault(self)


def connected(model: BoardModel, rate: float = 0.0) -> tuple[BoardMemory, SimulatedLine]:
    """Connect, with reproducible random draws from here on."""
    random.seed(1)
    return connected_board.connect(model, rate)


def board(size: int = SIZE) -> BoardModel:
    model = BoardModel(CONFIG, size)
    model.memory = Faulty(random.randbytes(size))
    return model


@pytest.mark.parametrize("rate", [0.0, 0.003])
@pytest.mark.parametrize("most", [SIZE, SIZE // 4])
def test_sound_memory(most: int, rate: float) -> None:
    random.seed(1)  # contents decide which bytes the line breaks, and so how often requests are sent again
    model = board()
    before = bytes(model.memory)
    memory, line = connected(model, rate)
    test = check_memory(memory, most, clock=line.clock)
    assert (test.tested, test.size, test.wrong, test.restored) == (most, SIZE, None, True)
    assert model.memory == before
    assert 0.9 < test.seconds * 300_000 / (4 * most) < (50 if rate else 1.3 if most == SIZE else 5)
    assert model.writes > 0


def stuck(at: int, mask: int, value: int) -> Fault:
    def fault(memory: bytearray) -> None:
        bytearray.__setitem__(memory, at, memory[at] & ~mask | value)

    return fault


@pytest.mark.parametrize("value", [0, 0x10])
def test_a_stuck_bit(value: int) -> None:
    model = board()
    at = random.randrange(SIZE)
    was = model.memory[at]
    model.memory.fault = stuck(at, 0x10, value)
    memory, line = connected(model)
    test = check_memory(memory, SIZE, clock=line.clock)
    assert test.wrong is not None
    address, meant, found = test.wrong
    assert (address, meant ^ found, found & 0x10) == (at, 0x10, value)
    assert test.restored == (was & 0x10 == value)


class Folded(bytearray):
    """Memory one of whose address lines is not connected."""

    line = 0

    def __getitem__(self, key: slice) -> bytes:
        return bytes(super().__getitem__(slice(key.start & ~self.line, (key.stop - 1 & ~self.line) + 1)))

    def __setitem__(self, key: slice, value: bytes) -> None:
        super().__setitem__(slice(key.start & ~self.line, (key.stop - 1 & ~self.line) + 1), value)


@pytest.mark.parametrize("bit", [12, 14])
@pytest.mark.parametrize("most", [1 << 15, 4 * CHECK_BLOCK, 3000])
def test_an_address_line_that_is_not_connected(bit: int, most: int) -> None:
    """It is found in a part of memory, too."""
    model = BoardModel(CONFIG, 1 << 15)
    model.memory = Folded(1 << 15)
    model.memory.line = 1 << bit
    memory, line = connected(model)
    test = check_memory(memory, most, clock=line.clock)
    assert test.wrong is not None


def test_a_part_of_memory() -> None:
    for size in (1024, CHECK_BLOCK, 1 << 14, 1 << 17, 32 << 20):
        for most in (1, CHECK_BLOCK, 14_000, 100_000, 1 << 20):
            block, places = choose_blocks(size, most)
            assert places == sorted(set(places))
            assert places[0] == 0
            assert all(at % block == 0 and at + block <= size for at in places)
            assert len(places) <= max(1, most // block)
            if most >= 14_000:
                assert places[-1] == size - block
                assert {block << bit for bit in range(25) if block << bit < size} <= set(places)
            if most >= size:
                assert len(places) * block == size


def test_memory_that_is_smaller_than_a_page() -> None:
    model = board(1024)
    memory, line = connected(model)
    assert check_memory(memory, 1 << 20, clock=line.clock).tested == 1024


def test_a_board_that_is_lost_under_test() -> None:
    model = board()
    memory, line = connected(model)
    line.board = stop_answering_after(model, 20_000)
    with pytest.raises(
        DeviceError, match="no longer answers; parts of its memory may still hold test patterns"
    ):
        check_memory(memory, SIZE, clock=line.clock)


def test_the_link() -> None:
    model = board()
    before = bytes(model.memory)
    memory, line = connected(model)
    good = measure_link(memory, SIZE, line.clock)
    assert model.memory == before
    assert 0.001 < good.round_trip[0] <= good.round_trip[1] <= good.round_trip[2] < 0.003
    assert 270_000 < good.write_rate < 300_000
    assert 270_000 < good.read_rate < 300_000
    assert (good.repeated, good.damaged, good.error_rate) == (0, 0, 0.0)
    read = sum(256 << turn for turn in range(7))  # up to all of memory
    assert good.requests == 50 + (read + SIZE) // 256
    line.rate = 0.003
    bad = measure_link(memory, SIZE, line.clock)
    assert model.memory == before
    assert 0.0015 < bad.error_rate < 0.006
    assert bad.repeated > 0
    assert bad.damaged > 0
    assert bad.write_rate < good.write_rate / 1.2


@pytest.mark.parametrize("baud", [30_000, 300_000, 3_000_000])
def test_a_slow_link_is_not_tried_for_longer(baud: int) -> None:
    """A simulated board is a hundred times slower than the rate of its line says."""
    memory, line = connected(board(1 << 17))
    line.baudrate = baud
    link = measure_link(memory, 1 << 17, line.clock, seconds=0.5)
    assert line.now < 3
    assert link.read_rate == pytest.approx(baud / 10, rel=0.2)


@pytest.mark.parametrize("test", [check_memory, fill_memory])
def test_long_tests_report_how_far_they_are(test: Callable[..., MemoryTest]) -> None:
    memory, line = connected(board())
    line.baudrate = 30_000
    words: list[tuple[float, str]] = []
    sizes = [] if test is fill_memory else [SIZE]
    assert test(memory, *sizes, lambda text: words.append((line.now, text)), line.clock).wrong is None
    times = [0.0, *(at for at, _ in words), line.now]
    assert max(after - before for before, after in itertools.pairwise(times)) < max(line.now / 6, 0.1)
    assert len({text for _, text in words}) > 8
    assert all(re.search(r" bytes of memory.*: \d+%$", text) for _, text in words)


def test_registers() -> None:
    model = board()
    memory, _ = connected(model)
    found = read_registers(memory.session)
    assert (found.magic, found.version, found.digest, found.status) == (
        MAGIC,
        VERSION,
        CONFIG.digest,
        Status(0),
    )
    assert found.sound
    model.set(Reg.VERSION, 99)
    model.set(Reg.STATUS, 4)
    found = read_registers(memory.session)
    assert not found.sound
    assert found.status == Status.BUS_ERROR
