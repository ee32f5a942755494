"""Where a configuration is tried: on a board, or behind a memory of which some numbers are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.arguments import memory, number
from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS, find

if TYPE_CHECKING:
    from weft.boards.board import Board

MEMORY = "memory"
"""The name of a place that is no board."""
SIMILAR = "ulx3s-85f"
"""The board whose estimates tell what a configuration needs that is on no board: without its limits."""
CLOCK = 75e6
"""Hz of a core that is on no board, unless another clock is given."""


@dataclass(frozen=True)
class Place:
    """A board, or a memory.

    Parameters
    ----------
    name : str
        The board's, or `MEMORY`.
    latency, bandwidth : int, float
        Of a memory that is no board's: cycles, and bytes a cycle (as many as the bus is wide if None).
    clock : float
        Hz of a core that is on no board.
    """

    name: str
    latency: int = 30
    bandwidth: float | None = None
    clock: float = CLOCK

    @property
    def board(self) -> Board | None:
        return BOARDS.get(self.name)

    @property
    def sequential(self) -> bool:
        """Whether programs run on the sequential core there."""
        return self.board is not None and self.board.core is CoreKind.SEQUENTIAL

    @property
    def memory(self) -> tuple[int, float | None]:
        """Latency in cycles, and bytes a cycle, of the plain memory that programs are planned for."""
        return (self.latency, self.bandwidth) if self.board is None else self.board.memory.planning_model

    @property
    def similar(self) -> Board:
        """The board whose estimates are those of the place."""
        return self.board or BOARDS[SIMILAR]

    def timing(self, clock: float) -> dict[str, Any]:
        """All of a place on which cycles depend, for a core with a clock in Hz."""
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


def places(
    boards: list[str] | None, latency: int, bandwidth: float | None, clock: float | None
) -> tuple[Place, ...]:
    """The boards of these names, or one memory if there are none.

    Raises
    ------
    BoardError
        If there is no board of a name.
    InputError
        If a number is outside its limits.
    """
    latency, bandwidth = memory(latency, bandwidth)
    hertz = CLOCK if clock is None else number("clock", clock, 1e5, 1e9)
    if not boards:
        return (Place(MEMORY, latency, bandwidth, hertz),)
    return tuple(Place(find(name).name) for name in dict.fromkeys(boards))
