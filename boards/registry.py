"""All boards by name, as defined in `weft.boards.targets`, and their FPGA families."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterable

from weft.boards import targets
from weft.boards.board import RATES, Board
from weft.boards.errors import BoardError
from weft.hdl.isa.config import Config


def load_boards() -> dict[str, Board]:
    """Return the boards in `weft.boards.targets` by name, in the order of their files."""
    return {
        board.name: board
        for module in pkgutil.iter_modules(targets.__path__)
        for board in importlib.import_module(f"{targets.__name__}.{module.name}").BOARDS
    }


BOARDS = load_boards()
FAMILIES = {board.family.name: board.family for board in BOARDS.values()}


def find(name: str) -> Board:
    """Return the board called `name`. Raises `BoardError` if there is none."""
    if name not in BOARDS:
        raise BoardError(f"unknown board {name!r}; choose {', '.join(BOARDS)}")
    return BOARDS[name]


def line_rates(config: Config | None = None) -> list[int]:
    """Return baud rates at which a board may answer, the likeliest first.

    Boards whose default configuration is `config` come first, then all other boards, then boards built for another
    clock. Within each group the highest rate comes first.
    """
    # Boards built for another clock may use any of `RATES`.
    boards = sorted(BOARDS.values(), key=lambda board: -board.baud)
    own = [board.baud for board in boards if config is not None and board.config.digest == config.digest]
    return list(dict.fromkeys([*own, *(board.baud for board in boards), *RATES]))


def group_equal_boards(boards: Iterable[Board]) -> list[list[Board]]:
    """Group boards that have the same chip, memory, and default configuration and clock, whatever their names."""
    groups: dict[object, list[Board]] = {}
    for board in boards:
        key = (board.programmer, board.available, board.memory, board.config, board.clock)
        groups.setdefault(key, []).append(board)
    return list(groups.values())


def titles(boards: Iterable[Board]) -> str:
    """Join the boards' titles, as in ``ULX3S 12F, 25F``: a title that differs from the previous one only in its last
    word is shortened to that word."""
    words = [board.title.split() for board in boards]
    shortened = [
        title[-1] if previous[:-1] == title[:-1] != [] else " ".join(title)
        for previous, title in itertools.pairwise([[], *words])
    ]
    return ", ".join(shortened)
