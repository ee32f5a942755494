"""Simulated boards with faulty memory or garbage in it, or whose host vanishes: never a wrong result."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.qdq_models import feeds
from support.small_models import small

import weft
from weft.boards.bus.memory import BoardMemory, fill_memory
from weft.boards.flash.image import DIRECTORY
from weft.boards.link.host import BoardDevice
from weft.boards.link.serial_ports import open_session
from weft.boards.link.session import Session
from weft.boards.registry import find
from weft.boards.sdram.chip import ArrayFaults
from weft.cli import main
from weft.cli.board_commands import flash_image
from weft.hdl.isa import Load
from weft.run import virtual
from weft.run.runtime import Image
from weft.run.virtual import ANSWER, VirtualBoard, board_at
from weft.sim.device import DeviceError

BOARD = find("icepi-zero")
FAULTS = {
    "a data line that is always 0": ArrayFaults(zeros=1 << 5),
    "two data lines that are shorted": ArrayFaults(together=0b11),
    "a column line that is always 0": ArrayFaults(low=1 << 4),
    "a row line that is always 1": ArrayFaults(high=1 << 15),
    "two row lines that are shorted": ArrayFaults(joined=1 << 12 | 1 << 20),
    "a column line and a row line that are shorted": ArrayFaults(joined=1 << 7 | 1 << 10),
    "a bank line that is always 1": ArrayFaults(high=1 << 23),
    "a bank that is lost": ArrayFaults(lost=1 << 3),
}
"""The lowest 9 lines of the chip's address are columns, then 13 of rows and 2 of banks."""
QUICK = ("two row lines that are shorted",)


@dataclass(frozen=True)
class Case:
    """Program with an input and its outputs."""

    program: Any
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]

    @property
    def image(self) -> Image:
        return Image(self.program.device_programs[0])

    def run(self, device: BoardDevice) -> bool:
        """Run the program and compare its outputs with the golden interpreter's."""
        outputs = self.program.run(self.inputs, on=device, memory=False).outputs
        return all(np.array_equal(outputs[name], value) for name, value in self.outputs.items())


@pytest.fixture(scope="module")
def case() -> Case:
    model = small()
    program = weft.compile(model, BOARD.config, memory=BOARD.name)
    inputs = feeds(model, np.random.default_rng(1))
    return Case(program, inputs, program.run(inputs).outputs)


def open_device(board: VirtualBoard) -> BoardDevice:
    return BoardDevice.open(board.port, BOARD.config, baud=BOARD.baud, timeout=ANSWER)


def flip(device: BoardDevice, at: int, bit: int) -> None:
    """Flip a bit of memory without the device's knowledge."""
    memory = BoardMemory(device._session, device.memory_bytes)
    memory.write(at, bytes([memory.read(at, 1)[0] ^ 1 << bit]))


def test_flipped_bits_are_reported_before_the_run(case: Case) -> None:
    """The error comes before the program starts; another run is right. The board fills a page."""
    image, draw = case.image, random.Random(2)
    weights, code = len(case.program.device_programs[0].constants), len(case.program.device_programs[0].code)
    with VirtualBoard(BOARD, BOARD.config, faults=ArrayFaults(garbage=7)) as board:
        with open_device(board) as device:
            assert device.read(0x100, 64) != bytes(64)
            assert case.run(device)
            assert device.transfer.written == weights + code
            for name, start, size in (("the weights", 0, weights), ("the code", weights, code)):
                image.load(device)
                flip(device, start + draw.randrange(size), draw.randrange(8))
                device.contents.distrust()
                image.load(device)  # knows what was loaded, and looks at nothing
                image.write(device, {})
                with pytest.raises(
                    DeviceError, match=rf"^{name} on the board at \S+ changed .* differ from what was sent"
                ):
                    image.start(device)
            assert case.run(device)
            test = fill_memory(BoardMemory(device._session, 1 << 13))
            assert (test.wrong, test.tested) == (None, 1 << 13)
        assert board.violations == []


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in FAULTS]
)
def test_faulty_memory_is_refused(
    fault: str,
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`weft run` refuses the board before it runs, by the FPGA's test at power-up or by the host's."""
    monkeypatch.chdir(tmp_path)
    case.program.save("program")
    np.savez("in.npz", **case.inputs)
    monkeypatch.setattr(virtual, "VirtualBoard", functools.partial(VirtualBoard, faults=FAULTS[fault]))
    with pytest.raises(SystemExit) as ended:
        main.main(["run", "program", "--input", "in.npz", "--on", "board", "--port", f"virtual:{BOARD.name}"])
    assert ended.value.code == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (message,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert any(
        words in message
        for words in ("does not keep what is written to it: at 0x", "does not work at 80 MHz")
    )


class Vanished(Exception):
    """The host is gone."""


class Cut:
    """Serial port whose host vanishes after `most` bytes."""

    def __init__(self, port: Any, most: int) -> None:
        self._port, self._left, self.sent = port, most, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def write(self, data: bytes) -> int | None:
        part = data[: self._left]
        self._left -= len(part)
        self.sent += len(part)
        self._port.write(part)
        if len(part) < len(data) or not self._left:
            raise Vanished
        return len(part)


@pytest.fixture
def garbage(request: pytest.FixtureRequest) -> Iterator[VirtualBoard]:
    with VirtualBoard(
        BOARD, BOARD.config, faults=ArrayFaults(garbage=1 + request.node.callspec.params["seed"])
    ) as board:
        yield board
        assert board.violations == []


def vanish(board: VirtualBoard, most: int, work: Callable[[BoardDevice], None]) -> bool:
    """Open a session whose host is gone `most` bytes after opening; return whether it vanished before the end."""
    device = open_device(board)
    session: Session = device._session
    port, session._port = session._port, Cut(session._port, most)
    try:
        work(device)
    except Vanished:
        return True
    finally:
        port.close()
    return False


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(12))
def test_vanished_host_leaves_the_board_usable(seed: int, garbage: VirtualBoard, case: Case) -> None:
    """The host vanishes within a frame, within a transfer, or during an endless program. The next host gets an
    answer and right results."""
    draw = random.Random(seed)
    vanished = vanish(garbage, draw.randrange(1, 6000), lambda device: case.run(device) and None)
    forever = Load(base=0, rows=4000, row_pitch=0, pixels=64, pitch=16, length=16, run=1024)

    def endless(device: BoardDevice) -> None:
        device.write(0x8000, forever.encode() * 8 + Load(wait=1).encode())
        device.set_base(0, 0)
        device.start(0x8000)
        device.wait()

    assert vanish(garbage, draw.randrange(1100, 1400), endless)
    with open_device(garbage) as device:
        assert case.run(device)
        if vanished:
            # Pages with missing bytes were sent again.
            assert device.transfer.written + device.transfer.kept == len(case.image.read_only)


@pytest.mark.long
def test_host_that_vanishes_during_a_memory_test(case: Case) -> None:
    """The pattern of the memory test is not taken for a program."""
    with VirtualBoard(BOARD, BOARD.config) as board:
        with open_device(board) as device:
            assert case.run(device)
        session = device_session(board, 900)
        with pytest.raises(Vanished):
            BoardDevice(session, BOARD.config)
        session.close()
        with open_device(board) as device:
            assert case.run(device)
            assert device.transfer.written > 0


def device_session(board: VirtualBoard, most: int) -> Session:
    """Open a session whose host is gone after `most` bytes."""
    session, _ = open_session(board.port, [BOARD.baud], timeout=ANSWER)
    session._port = Cut(session._port, most)
    return session


def test_damaged_program_in_flash_is_not_used(tmp_path: Path) -> None:
    """The host sends it to memory, or reports the flash contents where memory has no room."""
    board, model = find("icebreaker"), small()
    program, inputs = (
        weft.compile(model, board.config, memory=board.name),
        feeds(model, np.random.default_rng(1)),
    )
    case = Case(program, inputs, program.run(inputs).outputs)
    content = bytearray(flash_image(program, board))
    content[DIRECTORY + random.Random(3).randrange(len(case.image.read_only))] ^= 0x10
    (tmp_path / "flash.bin").write_bytes(content)
    with board_at(f"virtual:{board.name}:{tmp_path}/flash.bin", board.config) as device:
        assert case.run(device)
        assert device.transfer.written == len(case.image.read_only)
        assert device.advice.startswith(
            ": the board's flash holds this program, but damaged; write this program's code"
        )
