"""Finding the baud rate of a board."""

from __future__ import annotations

import random
import termios
from collections.abc import Callable, Iterator

import pytest
from support.board_model import BoardModel
from support.board_terminal import CONFIG, Terminal, check_refused

from weft.boards.board import RATES
from weft.boards.link.host import BoardDevice
from weft.boards.registry import find, line_rates
from weft.hdl.isa.config import PRESETS, Config


class Picky:
    """A board that understands one baud rate, and at others hears and sends noise."""

    def __init__(self, model: BoardModel, baud: int) -> None:
        self.model, self.baud = model, baud
        self.heard: list[int] = []
        self.terminal = Terminal(self)

    def __call__(self, data: bytes) -> bytes:
        speed = termios.tcgetattr(self.terminal._slave)[5]
        self.heard.append(next(rate for rate in RATES if getattr(termios, f"B{rate}", None) == speed))
        return self.model.feed(data) if self.heard[-1] == self.baud else random.randbytes(len(data))


@pytest.fixture
def picky() -> Iterator[Callable[[Config, int], Picky]]:
    made: list[Picky] = []

    def make(config: Config, baud: int) -> Picky:
        made.append(Picky(BoardModel(config), baud))
        return made[-1]

    yield make
    for board in made:
        board.terminal.unplug()


@pytest.mark.parametrize(
    ("name", "baud"),
    [("tiny", 3_000_000), ("tiny", 500_000), ("icebreaker", 3_000_000), ("icebreaker", 1_500_000),
     ("ulx3s-45f", 2_000_000), ("tang-primer-20k", 1_000_000), ("icesugar-pro", 115_200)],
)  # fmt: skip
def test_the_baud_rate_is_found(picky: Callable[[Config, int], Picky], name: str, baud: int) -> None:
    config = PRESETS["tiny"] if name == "tiny" else find(name).config
    board = picky(config, baud)
    with BoardDevice.open(board.terminal.path, config) as device:
        device.write(0, b"weft")
        assert device.read(0, 4) == b"weft"
        assert device._session.timeout == 0.2 + 8192 * 10 / baud
    rates = line_rates(config)
    assert list(dict.fromkeys(board.heard)) == rates[: rates.index(baud) + 1]


def test_a_baud_rate_that_is_given_is_the_only_one(picky: Callable[[Config, int], Picky]) -> None:
    board = picky(CONFIG, 1_500_000)
    check_refused(board.terminal, "is no weft board, or runs at another baud rate: of", baud=1_000_000)
    assert set(board.heard) == {1_000_000}
    BoardDevice.open(board.terminal.path, CONFIG, baud=1_500_000).close()


def test_refusal_of_a_silent_port_lists_all_rates() -> None:
    terminal = Terminal(lambda data: b"")
    check_refused(
        terminal, "(tried at 3,000,000, 1,500,000, 115,200, 2,000,000, 1,000,000, 500,000, 250,000 baud)"
    )
    terminal.unplug()


def test_a_board_for_something_else_ends_the_search(picky: Callable[[Config, int], Picky]) -> None:
    board = picky(PRESETS["small"], 1_500_000)
    check_refused(board.terminal, "is built for configuration small")
    assert list(dict.fromkeys(board.heard)) == [3_000_000, 1_500_000]
