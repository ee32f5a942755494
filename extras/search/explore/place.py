"""Places of configurations: a board, or a memory with given latency and bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.arguments import number
from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS, find
from weft.run.options import RunOptions

if TYPE_CHECKING:
    from weft.boards.board import Board

MEMORY = "memory"
"""Name of a place without a board."""
DEFAULT_BOARD = "ulx3s-85f"
"""Board whose resource estimates apply to places without a board, without its limits."""
DEFAULT_CLOCK = 75e6
"""Default clock in Hz of a core without a board."""


@dataclass(frozen=True)
class Place:
    """Board, or memory without a board.

    Parameters
    ----------
    name : str
        Name of the board, or `MEMORY`.
    latency, bandwidth : int, float
        Of a memory without a board: cycles, and bytes per cycle (None: the bus's width).
    clock : float
        Hz of a core without a board.
    """

    name: str
    latency: int = RunOptions.latency
    bandwidth: float | None = None
    clock: float = DEFAULT_CLOCK

    @property
    def board(self) -> Board | None:
        return BOARDS.get(self.name)

    @property
    def sequential(self) -> bool:
        """True if programs run on the sequential core."""
        return self.board is not None and self.board.core is CoreKind.SEQUENTIAL

    @property
    def memory(self) -> tuple[int, float | None]:
        """Latency in cycles, and bytes per cycle, of the plain memory that programs are planned for."""
        return (self.latency, self.bandwidth) if self.board is None else self.board.memory.planning_model

    @property
    def estimate_board(self) -> Board:
        """Board whose resource estimates apply."""
        return self.board or BOARDS[DEFAULT_BOARD]

    def timing(self, clock: float) -> dict[str, Any]:
        """Return all properties of the place on which cycles depend, for a clock in Hz."""
        board = self.board
        if board is None:
            return {"latency": self.latency, "bandwidth": self.bandwidth}
        sdram = board.sdram(clock)
        return {
            "core": board.core.value,
            "memory": board.memory.planning_model,
            "sdram": None if sdram is None else repr(sdram),
            "size": board.memory.size,
            "flash": board.flash_window is not None and board.name,
        }


def make_places(
    boards: list[str] | None, options: RunOptions | None = None, clock: float | None = None
) -> tuple[Place, ...]:
    """Return the places for boards of these names, or one memory with the latency and bandwidth of `options`.

    Raises
    ------
    BoardError
        If a board does not exist.
    InputError
        If a number is outside its limits.
    """
    hertz = DEFAULT_CLOCK if clock is None else number("clock", clock, 1e5, 1e9)
    if not boards:
        return (Place(MEMORY, clock=hertz, **(options or RunOptions()).memory),)
    return tuple(Place(find(name).name) for name in dict.fromkeys(boards))
