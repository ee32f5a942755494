"""All boards by name."""

from __future__ import annotations

from weft.boards import icebreaker, tang_nano_9k, tang_primer_20k, ulx3s
from weft.boards.board import Board, BoardError

BOARDS: dict[str, Board] = {
    board.name: board
    for module in (ulx3s, icebreaker, tang_nano_9k, tang_primer_20k)
    for board in module.BOARDS
}


def find(name: str) -> Board:
    """The board called `name`. Raises `BoardError`."""
    if name not in BOARDS:
        raise BoardError(f"unknown board {name!r}; choose {', '.join(BOARDS)}")
    return BOARDS[name]
