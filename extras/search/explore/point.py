"""Points of a search, with their measures and Pareto dominance: a configuration, and a board or memory as its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from weft.arguments import number
from weft.boards.board import CoreKind
from weft.boards.build.clock import predict_clock
from weft.boards.build.estimate import estimate, weights
from weft.boards.errors import BoardError
from weft.boards.families.family import Resources
from weft.boards.registry import BOARDS, find
from weft.hdl.isa.config import Config
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


PICOJOULES = {"mac": 0.3, "on_chip": 1.25, "memory": 160.0}
"""Of a multiplication of bytes that is added to 32 bits, of a byte to or from a memory on the chip, and of a byte to or
from DRAM, in 45 nm: M. Horowitz, "Computing's energy problem", ISSCC 2014: 0.2 + 0.1 pJ, 10 pJ for 8 bytes of 8 KB, and
1.3 nJ for 8 bytes. An FPGA takes more of each; the figure compares points, and is no forecast of watts."""


class Timing(msgspec.Struct, frozen=True):
    """Cost of running each model once at a place, by the cycle model.

    Attributes
    ----------
    cycles : list of int
        For each model.
    moved, macs, active : int
        For all models: bytes between core and memory, useful multiplications, and cycles in which the array takes a
        vector.
    refused : str
        Why the point is not a solution; the numbers are 0 then. Empty for a solution.
    """

    cycles: list[int] = msgspec.field(default_factory=list)
    moved: int = 0
    macs: int = 0
    active: int = 0
    refused: str = ""


@dataclass(frozen=True)
class Point:
    """Configuration at a place.

    Attributes
    ----------
    clock : float
        Hz: the board's for its own configuration, otherwise predicted, in whole MHz.
    """

    config: Config
    place: Place
    clock: float
    routed: bool

    @classmethod
    def of(cls, config: Config, place: Place) -> Point:
        board = place.board
        if board is None:
            return cls(config, place, place.clock, routed=False)
        prediction = predict_clock(board, config)
        return cls(
            config,
            place,
            prediction.hz if prediction.routed else prediction.hz // 1e6 * 1e6,
            prediction.routed,
        )

    @property
    def key(self) -> tuple[Config, str]:
        return self.config, self.place.name

    def resources(self) -> Resources:
        """Return the estimated resources; raise `BoardError` if the place has no estimate."""
        need = estimate(self.place.estimate_board, self.config)
        if need is None:
            raise BoardError(f"there is no estimate of what a configuration needs on {self.place.name}")
        return need


@dataclass(frozen=True)
class Measured:
    """Point with all measures.

    Attributes
    ----------
    point : Point
    need : Resources
    timing : Timing
    origin : str
        ``search``, ``preset small``, or ``board icebreaker`` for a board's own configuration.
    """

    point: Point
    need: Resources
    timing: Timing
    origin: str = "search"

    @property
    def cycles(self) -> int:
        return sum(self.timing.cycles)

    @property
    def utilisation(self) -> float:
        """Useful multiplications relative to the array's capacity in these cycles."""
        return self.timing.macs / (self.point.config.n**2 * self.cycles)

    @property
    def energy(self) -> float:
        """Energy of a run of each model in microjoules, by `PICOJOULES`.

        A scratchpad vector that enters the array has n bytes, and reads and writes a row of n sums. Bytes from and to
        memory are counted once on the chip as well.
        """
        n, timing = self.point.config.n, self.timing
        # Of n sums, 4 bytes each are read and written: with the vector's n bytes, that is 9 * n.
        on_chip = timing.active * 9 * n + timing.moved
        operations = (timing.macs, on_chip, timing.moved)
        return (
            sum(
                count * energy_per_operation
                for count, energy_per_operation in zip(operations, PICOJOULES.values(), strict=True)
            )
            / 1e6
        )

    @property
    def values(self) -> dict[str, float]:
        """All objectives by name."""
        return {
            "cycles": self.cycles,
            "ms": self.cycles / self.point.clock * 1e3,
            **dict(self.need.items()),
            "bytes": self.timing.moved,
            "energy": self.energy,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a file."""
        board = self.point.place.board
        return {
            "origin": self.origin,
            "place": self.point.place.name,
            "clock_hz": self.point.clock,
            "clock_routed": self.point.routed,
            **self.values,
            "model_cycles": list(self.timing.cycles),
            "utilisation": self.utilisation,
            "resource_errors": {
                name: fit.error for name, fit in weights(self.point.place.estimate_board).items()
            },
            "available": None if board is None else dataclasses.asdict(board.available),
            "config": self.point.config.to_dict(),
        }


OBJECTIVES = {
    "cycles": "cycles", "ms": "milliseconds", "lut": "LUTs", "ff": "flip-flops", "dsp": "DSP blocks",
    "ram": "block RAMs", "bytes": "bytes moved", "energy": "energy in uJ (proxy)",
}  # fmt: skip
"""Objectives by name, with their units."""


def values(item: Measured, objectives: Sequence[str]) -> tuple[float, ...]:
    """Return the values to minimise."""
    objective_values = item.values
    return tuple(objective_values[name] for name in objectives)


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether `one` is nowhere larger than `other`, and smaller somewhere."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def pareto_front(points: Iterable[Measured], objectives: Sequence[str]) -> list[Measured]:
    """Return the Pareto front, in the order of the first objective; of points with equal values only the first."""
    distinct: dict[tuple[float, ...], Measured] = {}
    for item in points:
        distinct.setdefault(values(item, objectives), item)
    optimal: list[tuple[float, ...]] = []
    # A dominating tuple sorts before the dominated one.
    for candidate in sorted(distinct):
        if not any(dominates(item, candidate) for item in optimal):
            optimal.append(candidate)
    return [distinct[candidate] for candidate in optimal]
