"""Loading writes only the parts of a board's memory that differ."""

from __future__ import annotations

import random

import pytest
from support.board_model import BoardModel
from support.board_terminal import CONFIG
from support.connected_board import connect

from weft.boards.bus.memory import Transfer
from weft.boards.link.frames import CHECK_BLOCK, PAYLOAD
from weft.sim.device import DeviceError

MODEL = 1 << 18


@pytest.fixture
def model() -> BoardModel:
    made = BoardModel(CONFIG, MODEL)
    made.memory[:] = random.randbytes(MODEL)
    return made


@pytest.mark.parametrize("rate", [0.0, 0.01])
@pytest.mark.parametrize(
    ("address", "size"),
    [
        (0, 0),
        (0, 1),
        (1, CHECK_BLOCK - 1),
        (1, CHECK_BLOCK),
        (0, 5 * CHECK_BLOCK),
        (CHECK_BLOCK - 1, 3),
        (12_345, 50_001),
    ],
)
def test_only_pages_that_differ_are_written(model: BoardModel, address: int, size: int, rate: float) -> None:
    # Every byte is another than the one in the memory, as a page may be a single byte.
    payload = bytes(byte ^ random.randrange(1, 256) for byte in model.memory[address : address + size])
    expected = bytearray(model.memory)
    expected[address : address + size] = payload

    def bring() -> Transfer:
        made = connect(model, rate)[0].update(address, payload)
        assert model.memory == expected
        assert made.written + made.kept == size
        return made

    assert bring() == Transfer(size, 0)
    writes = model.writes
    assert bring() == Transfer(0, size)
    assert model.writes == writes
    # Anything that is changed is found, wherever it is, and its pages alone are written.
    pages = set()
    for at in random.sample(range(address, address + size), min(size, 3)):
        model.memory[at] ^= 1 << random.randrange(8)
        pages.add(at // CHECK_BLOCK)
    spans = [
        (max(address, page * CHECK_BLOCK), min(address + size, (page + 1) * CHECK_BLOCK)) for page in pages
    ]
    # Unless they happen to be all that are looked at first.
    written = bring().written
    assert written in (sum(end - start for start, end in spans), size)
    if not rate:
        assert model.writes - writes <= written / PAYLOAD + 2 * len(spans)


def test_power_loss_and_other_programs(model: BoardModel) -> None:
    """Neither what is left of another program nor memory that has forgotten is taken for what it should be."""
    programs = [random.randbytes(70_000), random.randbytes(50_000), bytes(60_000)]
    for payload in [*programs, *programs]:
        connect(model)[0].update(64, payload)
        assert model.memory[64 : 64 + len(payload)] == payload
        forgotten = random.randrange(60_000)
        model.memory[forgotten:] = bytes([random.choice([0, 255])]) * (MODEL - forgotten)
        connect(model)[0].update(64, payload)
        assert model.memory[64 : 64 + len(payload)] == payload


def test_checks_are_much_faster_than_writing(model: BoardModel) -> None:
    payload = random.randbytes(200_000)
    memory, line = connect(model)
    memory.update(0, payload)
    first = line.now
    memory.update(0, payload)
    assert line.now - first < first / 50


def test_a_check_costs_little_where_nothing_is_there(model: BoardModel) -> None:
    connect(model)[0].update(0, random.randbytes(200_000))
    assert model.checks < 20


def test_addresses_outside_memory_are_refused(model: BoardModel) -> None:
    memory, _ = connect(model)
    with pytest.raises(DeviceError, match="2 bytes at 0x3ffff do not lie in a memory of 262144 bytes"):
        memory.update(MODEL - 1, b"xy")
    assert model.checks == model.writes == 0
