"""Copying from flash to memory when the FPGA starts: link, loader, flash and memory, with a host on the line."""

from __future__ import annotations

import random
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.board import Board
from weft.boards.bus.block_memory import BlockMemory
from weft.boards.bus.memory import BoardMemory
from weft.boards.flash.model import Rule as FlashRule
from weft.boards.flash.model import SpiFlashModel
from weft.boards.link import serial_ports
from weft.boards.link.frames import CHECK_BLOCK, FlashState
from weft.boards.link.link import Link
from weft.boards.link.loader import MAGIC, PAGE_MARKER, Loader, build_copy_image
from weft.boards.link.session import Session
from weft.boards.registry import find
from weft.boards.sdram.calibration import Calibration, CalibrationState
from weft.boards.sdram.model import Rule
from weft.hdl.isa.config import Config
from weft.hdl.verilog import generate
from weft.run import virtual
from weft.run.virtual import ANSWER, VirtualBoard
from weft.sim.device import DeviceError

BOARD = find("icepi-zero")
SIZE = 1 << 15
LATE = 1
"""Cycles by which the chip's bits are later than registers in the pads make them."""
PAGES = random.Random(3).randbytes(CHECK_BLOCK + 904)
IMAGE = build_copy_image(PAGES, 1 << 20, "the flash")
RECORD = len(MAGIC)
"""Position of the first page's marker."""


class Bench(wiring.Component):
    """A board as in `weft.boards.virtual_top.VirtualTop`, with block RAM as SDRAM, and without a core."""

    def __init__(self, board: Board, config: Config, divisor: int) -> None:
        self.board, self.config, self.divisor = board, config, divisor
        rules = {"violation": Out(len(Rule)), "flash_violation": Out(len(FlashRule))}
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1), **rules})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        chip, clock = self.board.flash, self.board.clock
        assert chip is not None
        m.submodules.link = link = Link(
            self.config,
            self.divisor,
            board=self.board.name,
            memory_bytes=SIZE,
            clock=round(clock),
            inner=True,
        )
        m.submodules.loader = loader = Loader(chip, clock)
        m.submodules.memory = memory = BlockMemory(self.config.bus_bytes, SIZE)
        m.submodules.chip = model = SpiFlashModel(chip, clock, levels=True)
        late = model.pads.dq_i
        for stage in range(LATE):
            late, before = Signal(2, name=f"late{stage}"), late
            m.d.sync += late.eq(before)
        m.d.comb += [
            link.rx.eq(self.rx),
            self.tx.eq(link.tx),
            self.flash_violation.eq(model.violation),
            loader.flash.dq_i.eq(late),
            *(getattr(model.pads, name).eq(getattr(loader.flash, name)) for name in ("cs", "clk", "dq_o", "dq_oe")),
        ]  # fmt: skip
        wiring.connect(m, loader.link, link.inner)
        wiring.connect(m, link.memory, memory.bus)
        return m


@pytest.fixture(scope="module")
def library() -> Path:
    """The simulation of the bench."""
    with pytest.MonkeyPatch.context() as patched:
        verilog = generate(Bench(BOARD, BOARD.config, virtual.DIVISOR), name="board")
        patched.setattr(virtual, "board_verilog", lambda board, config: verilog)
        return virtual.build_board(BOARD, BOARD.config)


@pytest.fixture(autouse=True)
def bench(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual boards are benches."""
    monkeypatch.setattr(virtual, "build_board", lambda board, config: library)


@contextmanager
def start_board(folder: Path, image: bytes) -> Iterator[tuple[VirtualBoard, Session]]:
    """Start a board with an image in its flash; return it with a session."""
    path = folder / "image.bin"
    path.write_bytes(image)
    with VirtualBoard(BOARD, BOARD.config, path) as board:
        session, _ = serial_ports.open_session(board.port, [BOARD.baud], timeout=ANSWER)
        try:
            yield board, session
        finally:
            session.close()
            assert board.violations == []


def flip_bit(at: int, bit: int = 0) -> bytes:
    """Return the image with one bit of byte `at` inverted."""
    changed = bytearray(IMAGE)
    changed[at] ^= 1 << bit
    return bytes(changed)


def test_memory_holds_what_the_flash_does(tmp_path: Path) -> None:
    """Whole pages, the last one filled up with zeros; and a host that asks meanwhile is answered."""
    with start_board(tmp_path, IMAGE) as (board, session):
        assert serial_ports.identify(session).flash is FlashState.COPYING
        memory = BoardMemory(session, SIZE)
        memory.write(SIZE - 300, PAGES[:300])  # as nothing is copied there
        identity = serial_ports.identify_ready(session)
        assert identity.flash is FlashState.COPIED
        assert serial_ports.flash_fault(identity) == ""
        # Generous, as the board goes on while a busy host does not ask.
        assert board.cycles < 40 * 2 * CHECK_BLOCK * 16
        assert memory.read(0, 2 * CHECK_BLOCK) == PAGES + bytes(2 * CHECK_BLOCK - len(PAGES))
        assert memory.read(SIZE - 300, 300) == PAGES[:300]
        transfer = memory.update(0, PAGES)
        assert (transfer.written, transfer.kept) == (0, len(PAGES))


DRAW = random.Random(7)
DAMAGED = {
    "content": RECORD + 1 + DRAW.randrange(CHECK_BLOCK),
    "crc": RECORD + 1 + CHECK_BLOCK + DRAW.randrange(7),
    "last byte of the crc": RECORD + 1 + CHECK_BLOCK + 7,
    "marker": RECORD,
    "second page": RECORD + (1 + CHECK_BLOCK + 8) + 1 + DRAW.randrange(CHECK_BLOCK),
    "end": len(IMAGE) - 1,
}


@pytest.mark.parametrize("where", DAMAGED)
def test_a_bit_that_flipped_is_found(where: str, tmp_path: Path) -> None:
    at = DAMAGED[where]
    with start_board(tmp_path, flip_bit(at, random.Random(where).randrange(8))) as (_, session):
        identity = serial_ports.identify_ready(session)
        assert identity.flash is FlashState.DAMAGED, at
        assert serial_ports.flash_fault(identity) == (
            "the program in the flash of icepi-zero is damaged, and was not fully copied to memory: write it again "
            "with weft flash --board icepi-zero --program FOLDER"
        )
        # The host goes on, and sends what is not there.
        memory = BoardMemory(session, SIZE)
        first = PAGES[:CHECK_BLOCK]
        copied = where in ("crc", "last byte of the crc", "second page", "end")
        assert memory.update(0, first).kept == CHECK_BLOCK * copied
        assert memory.read(0, CHECK_BLOCK) == first


def test_flashes_without_an_image(tmp_path: Path) -> None:
    """Empty, and with something else in it; one that ends early is damaged."""
    page = RECORD + 1 + CHECK_BLOCK + 8
    for image, state in (
        (b"", FlashState.EMPTY),
        (flip_bit(RECORD - 1), FlashState.EMPTY),
        (bytes(100) + IMAGE, FlashState.EMPTY),
        (IMAGE[:page], FlashState.DAMAGED),
        (IMAGE[:page] + bytes([PAGE_MARKER]), FlashState.DAMAGED),
    ):
        with start_board(tmp_path, image) as (_, session):
            assert serial_ports.identify_ready(session).flash is state


def test_a_copy_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    copying = replace(serial_ports.Identity(BOARD.name, 0, 0, 0, 0), flash=FlashState.COPYING)
    monkeypatch.setattr(serial_ports, "identify", lambda session: copying)
    monkeypatch.setattr(serial_ports, "START_SECONDS", 0.1)
    with pytest.raises(
        DeviceError, match=r"^the board icepi-zero at port has copied its flash to memory for 0\.1 s"
    ):
        serial_ports.identify_ready(types.SimpleNamespace(name="port"))  # type: ignore[arg-type]
    failed = replace(copying, calibration=Calibration(CalibrationState.FAILED))
    monkeypatch.setattr(serial_ports, "identify", lambda session: failed)
    assert serial_ports.identify_ready(types.SimpleNamespace(name="port")) is failed  # type: ignore[arg-type]
    looking = replace(copying, calibration=Calibration(CalibrationState.BUSY))
    monkeypatch.setattr(serial_ports, "identify", lambda session: looking)
    with pytest.raises(DeviceError, match=r" has calibrated its SDRAM's clock for 0\.1 s"):
        serial_ports.identify_ready(types.SimpleNamespace(name="port"))  # type: ignore[arg-type]
