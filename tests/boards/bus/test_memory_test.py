"""Memory tests: the signature of each fault, no fault in sound memory, and the report."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.board_model import BoardModel
from support.board_terminal import CONFIG, Terminal, check_refused
from support.connected_board import connect, stop_answering_after

from weft.boards.bus.memory import MemoryTest, fill_memory, guess_cause, sample_addresses, sample_memory
from weft.boards.link.frames import CHECK_BLOCK, Feature, Operation, Parser, Request, frame
from weft.boards.link.host import BoardDevice
from weft.sim.device import DeviceError

SIZE = 1 << 16


class Wires(bytearray):
    """Memory of two-byte words with faulty wires: see `weft.boards.sdram.chip.ArrayFaults`. Address lines count bytes,
    and banks of 1 KB alternate."""

    zeros = ones = together = 0
    low = high = joined = lost = 0

    def _place(self, at: int) -> int:
        at = at & ~self.low | self.high
        return at if at & self.joined == self.joined else at & ~self.joined

    def _wires(self, at: int, byte: int) -> int:
        shift = 8 * (at % 2)
        byte = byte & ~(self.zeros >> shift) & 0xFF | self.ones >> shift & 0xFF
        joined = self.together >> shift & 0xFF
        return byte if byte & joined == joined else byte & ~joined

    def _dead(self, at: int) -> bool:
        return bool(self.lost >> (at >> 10 & 3) & 1)

    def __getitem__(self, key: slice) -> bytes:
        return bytes(
            self._wires(at, 0x5A if self._dead(at) else bytearray.__getitem__(self, self._place(at)))
            for at in range(key.start, key.stop)
        )

    def __setitem__(self, key: slice, value: bytes) -> None:
        for at, byte in zip(range(key.start, key.stop), value, strict=True):
            if not self._dead(at):
                bytearray.__setitem__(self, self._place(at), byte)


FAULTS = {
    "a data line that is always 0": {"zeros": 1 << 11},
    "a data line that is always 1": {"ones": 1 << 2},
    "two data lines that are shorted": {"together": 0b101000},
    "an address line that is always 0": {"low": 1 << 13},
    "an address line that is always 1": {"high": 1 << 3},
    "two address lines that are shorted": {"joined": 1 << 5 | 1 << 12},
    "a bank that is lost": {"lost": 1 << 2},
    "the last bank is lost": {"lost": 1 << 3},
}
LINES = {
    "low": "line 13",
    "high": "line 3",
    "joined": "line 12",
    "zeros": "",
    "ones": "",
    "together": "",
    "lost": "",
}


def board(**faults: int) -> BoardModel:
    model = BoardModel(CONFIG, SIZE)
    model.memory = Wires(random.randbytes(SIZE))
    for name, mask in faults.items():
        setattr(model.memory, name, mask)
    return model


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_sample_of_memory_tells_of_every_line(fault: str, seed: int) -> None:
    random.seed(seed)
    model = board(**FAULTS[fault])
    memory, line = connect(model)
    test = sample_memory(memory, line.clock)
    assert test.wrong is not None
    address, meant, found = test.wrong
    assert 0 <= address < SIZE
    assert meant != found
    assert f"at {address:#x} {found:#04x} is read instead of {meant:#04x} (bit" in str(test)
    (kind,) = FAULTS[fault]
    assert LINES[kind] in test.cause
    assert bool(test.cause) >= bool(LINES[kind])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_test_of_all_memory_tells_of_every_line(fault: str) -> None:
    model = board(**FAULTS[fault])
    memory, line = connect(model)
    test = fill_memory(memory, clock=line.clock)
    assert test.tested == test.size == SIZE
    assert test.wrong is not None
    (kind,) = FAULTS[fault]
    assert LINES[kind] in test.cause


@pytest.mark.parametrize("value", [0, 1])
def test_one_bit_that_is_stuck_is_found_wherever_it_is(value: int) -> None:
    """In a test of all memory; the other of the two patterns has the opposite `value` there."""

    class Stuck(bytearray):
        def __setitem__(self, key: slice, data: bytes) -> None:
            super().__setitem__(key, data)
            super().__setitem__(at, bytearray.__getitem__(self, at) & ~mask | mask * value)

    for _ in range(4):
        at, bit = random.randrange(SIZE), random.randrange(8)
        mask = 1 << bit
        model = BoardModel(CONFIG, SIZE)
        model.memory = Stuck(SIZE)
        memory, line = connect(model)
        test = fill_memory(memory, clock=line.clock)
        assert test.wrong is not None
        address, meant, found = test.wrong
        assert (address, meant ^ found, found >> bit & 1) == (at, mask, value)
        assert str(test).endswith(f"(bit {bit}): a data bit may be stuck at {value}")


@pytest.mark.parametrize("rate", [0.0, 0.003])
def test_sound_memory_is_sound(rate: float) -> None:
    model = board()
    before = bytes(model.memory)
    memory, line = connect(model, rate)
    sample = sample_memory(memory, line.clock)
    assert (sample.wrong, sample.cause, str(sample)) == (None, "", "no error")
    assert model.memory == before
    assert sample.seconds < (0.1 if not rate else 2)
    whole = fill_memory(memory, clock=line.clock)
    assert (whole.wrong, whole.tested, whole.restored) == (None, SIZE, None)
    assert model.memory != before


def test_a_sample_has_a_word_for_every_line_and_bank() -> None:
    for size in (1024, 1 << 14, 1 << 17, 32 << 20):
        places = sample_addresses(size)
        assert {1 << bit for bit in range(3, size.bit_length() - 1)} <= set(places)
        assert {0, size - 8} <= set(places)
        assert all(at % 8 == 0 and at + 8 <= size for at in places)
        assert len(places) <= 26
    assert {at >> 10 & 3 for at in sample_addresses(32 << 20)} == {0, 1, 2, 3}


def test_a_board_fills_memory_much_faster_than_the_line() -> None:
    model = board()
    memory, line = connect(model)
    fill_memory(memory, clock=line.clock)
    assert line.now < 4 * SIZE / 300_000 / 20


def test_report_of_bytes() -> None:
    assert "(bits 0, 7)" in str(MemoryTest(8, 8, (16, 0x81, 0), None, 1.0))
    assert str(MemoryTest(8, 8, (16, 5, 5), None, 1.0)) == "the byte at 0x10 changes by itself"
    assert guess_cause(0x100, bytes(8), b"\1\1" + bytes(6), None) == ""
    assert guess_cause(0, bytes(8), b"\4" * 8, 0x30) == (
        "this value was written to 0x30, so address lines 4, 5 may be stuck or shorted"
    )


def test_a_board_whose_memory_fails_is_refused() -> None:
    model = board(ones=1 << 2)
    terminal = Terminal(model.feed)
    check_refused(terminal, "does not keep what is written to it: at 0x", timeout=0.5)
    check_refused(terminal, "test all of its memory with weft probe --memory-test all", timeout=0.5)
    terminal.unplug()


def test_a_board_whose_memory_does_not_answer_is_refused() -> None:
    """It stays silent afterwards."""
    model = board()
    memory, line = connect(model)
    parser, dead = Parser(), False

    def held_up(data: bytes) -> bytes:
        nonlocal dead
        requests = [Request.decode(body) for body in parser.feed(data)]
        dead = dead or any(request.operation is Operation.WRITE_MEMORY for request in requests)
        return b"" if dead else b"".join(frame(model.answer(request).encode()) for request in requests)

    line.board = held_up
    memory.session.patience = 1.0
    with pytest.raises(DeviceError) as check_refused:
        BoardDevice(memory.session, CONFIG)
    assert str(check_refused.value) == (
        "the board at line no longer answers since its memory was tested: its memory may not respond; "
        "switch the board off and on again"
    )
    assert line.now < 30


def test_pages_of_a_memory_that_is_smaller_than_one() -> None:
    model = BoardModel(CONFIG, CHECK_BLOCK // 4)
    model.identity = replace(model.identity, features=Feature.FILLS)
    memory, line = connect(model)
    assert fill_memory(memory, clock=line.clock).tested == CHECK_BLOCK // 4


def test_a_board_that_is_lost_in_a_test() -> None:
    model = board()
    memory, line = connect(model)
    line.board = stop_answering_after(model, 200)
    with pytest.raises(DeviceError, match="no longer answers"):
        fill_memory(memory, clock=line.clock)
