"""All boards by name, one or more a file in `weft.boards.targets`, and the FPGA families that they have."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterable

from weft.boards import targets
from weft.boards.board import RATES, Board, BoardError
from weft.hdl.isa.config import Config


def boards_of_files() -> dict[str, Board]:
    """The boards in `weft.boards.targets`, by name, in the order of their files."""
    return {
        board.name: board
        for found in pkgutil.iter_modules(targets.__path__)
        for board in importlib.import_module(f"{targets.__name__}.{found.name}").BOARDS
    }


BOARDS = boards_of_files()
FAMILIES = {board.family.name: board.family for board in BOARDS.values()}


def find(name: str) -> Board:
    """The board called `name`. Raises `BoardError`."""
    if name not in BOARDS:
        raise BoardError(f"unknown board {name!r}; choose {', '.join(BOARDS)}")
    return BOARDS[name]


def line_rates(config: Config | None = None) -> list[int]:
    """Baud rates at which a board may answer, the likeliest first: those of boards that have `config` of their own, of
    all boards, and of boards that are built for another clock; of each the highest first."""
    boards = sorted(BOARDS.values(), key=lambda board: -board.baud)
    own = [board.baud for board in boards if config is not None and board.config.digest == config.digest]
    return list(dict.fromkeys([*own, *(board.baud for board in boards), *RATES]))


def alike(boards: Iterable[Board]) -> list[list[Board]]:
    """Boards in groups of the same chip, by whatever name, on the same board, with the same memory and default."""
    groups: dict[object, list[Board]] = {}
    for board in boards:
        same = (board.programmer, board.available, board.memory, board.config, board.clock)
        groups.setdefault(same, []).append(board)
    return list(groups.values())


def titles(boards: Iterable[Board]) -> str:
    """``ULX3S 12F, 25F``: of names that differ from the one before in their last word, only that."""
    words = [board.title.split() for board in boards]
    shown = [
        after[-1] if before[:-1] == after[:-1] != [] else " ".join(after)
        for before, after in itertools.pairwise([[], *words])
    ]
    return ", ".join(shown)
