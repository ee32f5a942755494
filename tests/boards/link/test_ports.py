"""Finding the serial port that a board is at, among those that others are at."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from serial.tools import list_ports
from support.board_model import BoardModel
from support.board_terminal import CONFIG, Terminal

from weft.boards.link import serial_ports
from weft.boards.link.serial_ports import BRIDGES, ConnectedBoard, find_board
from weft.sim.device import DeviceError

RATES = [3_000_000, 115_200]
FT2232 = (0x0403, 0x6010)
Connect = Callable[..., Terminal]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Add a serial port with a device at its end."""
    listed: list[SimpleNamespace] = []
    terminals: list[Terminal] = []

    def add(board: Callable[[bytes], bytes], ids: tuple[int, int] | None = FT2232) -> Terminal:
        terminals.append(Terminal(board))
        vid, pid = ids or (None, None)
        listed.append(SimpleNamespace(device=terminals[-1].path, vid=vid, pid=pid))
        return terminals[-1]

    monkeypatch.setattr(list_ports, "comports", lambda: listed)
    monkeypatch.setattr(serial_ports, "PROBE_SECONDS", 0.05)
    yield add
    for terminal in terminals:
        terminal.unplug()


def forbidden(data: bytes) -> bytes:
    raise AssertionError(f"{data!r} was sent to what is no bridge of a board")


@pytest.mark.parametrize("ids", BRIDGES)
def test_the_second_port_of_a_bridge(connect: Connect, ids: tuple[int, int]) -> None:
    """The first is silent, another's echoes, and what is no bridge of a board is not asked."""
    model = BoardModel(CONFIG)
    heard: list[bytes] = []
    connect(lambda data: b"", ids)
    connect(lambda data: data, ids)
    connect(lambda data: heard.append(data) or b"", (0x2341, 0x0043))
    connect(lambda data: heard.append(data) or b"", None)
    board = connect(model.feed, ids)
    assert find_board(RATES) == ConnectedBoard(board.path, RATES[0], model.identity)
    assert heard == []
    assert model.resets == model.runs == model.writes == 0


def test_no_port(connect: Connect) -> None:
    connect(forbidden, None)
    with pytest.raises(DeviceError, match=r"^no serial port of this machine belongs to a board's USB bridge"):
        find_board(RATES)


def test_no_board(connect: Connect) -> None:
    """The message gives the reason for every port."""
    silent = connect(lambda data: b"")
    noisy = connect(lambda data: random.randbytes(len(data)))
    other = BoardModel(CONFIG)
    other.identity = replace(other.identity, protocol=1)
    old = connect(other.feed)
    with pytest.raises(DeviceError, match=r"^no weft board was found: [^\n]*$") as caught:
        find_board(RATES)
    told = str(caught.value)
    assert f"nothing answers at {silent.path}" in told
    assert f"what answers at {noisy.path} is no weft board" in told
    assert f"the board at {old.path} speaks version 1 of the link" in told


def test_several_boards(connect: Connect) -> None:
    first, second = connect(BoardModel(CONFIG).feed), connect(BoardModel(CONFIG).feed)
    with pytest.raises(DeviceError, match=r"2 boards are connected .* name the port with --port") as caught:
        find_board(RATES)
    assert f"model at {first.path}" in str(caught.value)
    assert f"model at {second.path}" in str(caught.value)
