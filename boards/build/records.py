"""Records of builds of the boards' own configurations: the clock that each seed reached, and the build time.

``benchmarks/boards.py`` builds and writes ``builds.json``. `weft build` reads from it how long a build takes, and which
seed or clock to try after a missed clock.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from weft.boards.board import Board
from weft.boards.build.estimate import estimate
from weft.boards.errors import BoardError
from weft.hdl import schema
from weft.hdl.errors import SchemaError
from weft.hdl.isa.config import Config

FORMAT = "weft builds 1"
FILE = Path(__file__).with_name("builds.json")
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Run(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One build: the seed, the clock in Hz that it reached (None if a tool failed), and the build time in seconds."""

    seed: int
    fmax_hz: Positive | None
    seconds: Positive


class Record(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Builds of the own configuration of `boards`, which share a chip.

    Attributes
    ----------
    boards : list of str
    hardware : str
        `weft.boards.build.build.Design.hardware` of the last board.
    clock_hz : float
        Requested clock.
    resources : dict of str to int
        Placed resources, by `weft.boards.families.family.Resources.NAMES`.
    runs : list of Run
    """

    boards: list[str]
    hardware: str
    clock_hz: Positive
    resources: dict[str, int]
    runs: list[Run]

    def seeds(self, clock: float) -> list[int]:
        """Return the seeds that reached `clock` in Hz, the fastest first."""
        fast = [run for run in self.runs if run.fmax_hz is not None and run.fmax_hz >= clock]
        return [run.seed for run in sorted(fast, key=lambda run: -(run.fmax_hz or 0))]

    @property
    def fastest_hz(self) -> float | None:
        """Highest clock of all runs; None if every run failed."""
        return max((run.fmax_hz for run in self.runs if run.fmax_hz is not None), default=None)

    @property
    def seconds(self) -> float:
        """Mean build time."""
        return sum(run.seconds for run in self.runs) / len(self.runs)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    builds: list[Record]


def read(path: Path = FILE) -> list[Record]:
    """Return all records. Raises `BoardError` if the file is damaged."""
    try:
        return schema.decode(schema.read_bytes(path), _File, format=FORMAT).builds
    except (OSError, SchemaError) as error:
        raise BoardError(f"{path}, which is part of weft, is damaged: {error}; install weft again") from None


def write(records: list[Record], path: Path = FILE) -> None:
    path.write_text(schema.encode(_File(FORMAT, records)), encoding="utf-8")


@cache
def _all() -> list[Record]:
    return read()


def record_of(board: Board) -> Record | None:
    """Return the record of a board's own configuration; None if there is none."""
    return next((record for record in _all() if board.name in record.boards), None)


def expected_seconds(board: Board, config: Config) -> float | None:
    """Return the expected build time in seconds, on a machine like that of the records; None without records.

    For other configurations than the board's own, the time of the family's build of the most similar size is scaled by
    the number of LUTs.
    """
    own = record_of(board)
    if own is not None and config == board.config:
        return own.seconds
    from weft.boards.registry import find

    need = estimate(board, config)
    known = [record for record in _all() if find(record.boards[-1]).family is board.family]
    if need is None or not known:
        return None
    nearest = min(known, key=lambda record: abs(record.resources["lut"] - need.lut))
    return nearest.seconds * need.lut / nearest.resources["lut"]


def remedy(board: Board, config: Config, clock: float, seed: int, reached: float) -> str:
    """Return advice after a build with `seed` reached only `reached` Hz: a seed that met `clock`, or else a lower
    clock."""
    own = record_of(board) if config == board.config else None
    others = [str(other) for other in own.seeds(clock) if other != seed] if own else []
    if others:
        return f"try --seed {' or '.join(others[:3])}, which reached it before, or --clock {reached // 1e6:g}"
    return f"try --clock {reached // 1e6:g}, which this placement reached, or another --seed"
