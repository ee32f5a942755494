"""The clock that a configuration will reach on a board, before it is placed and routed.

A line through the logarithms of what builds have reached: one offset for each series of chips, and slopes for the
array's side and for the share of LUTs, which all have in common. It knows nothing of placements, of which another seed
gives another clock. The coefficients are in ``families/clocks.json``, which ``benchmarks/clocks.py`` fits to the
table of builds in ``docs/boards.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from weft.boards.board import Board, BoardError
from weft.boards.build.estimate import estimate
from weft.hdl import schema
from weft.hdl.isa.config import Config

FORMAT = "weft clocks 1"
FILE = Path(__file__).parents[1] / "families" / "clocks.json"
# Within these, no damaged file gives a clock that is 0, negative or not finite, or larger arrays that are faster.
Positive = Annotated[float, msgspec.Meta(gt=0)]
Offset = Annotated[float, msgspec.Meta(ge=0, le=25)]
Slope = Annotated[float, msgspec.Meta(ge=-5, le=0)]


@dataclass(frozen=True)
class Clock:
    """A clock in Hz, and by which part of it builds have differed from what was predicted for them at most.

    `routed` is whether it is the board's own configuration's, which has been placed and routed at that clock: its error
    is 0.
    """

    hz: float
    error: float
    routed: bool


@dataclass(frozen=True)
class Sample:
    """A build: what was built, and the clock in Hz that it reached."""

    board: Board
    config: Config
    hz: float


class Fit(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Coefficients of the logarithm of a clock in Hz, by `series` and for the two features; the highest clock of each
    series, above which nothing is predicted; the greatest relative error, on a build by a fit to all others, to which a
    series with a single build adds nothing; and how many builds there are."""

    series: dict[str, Offset]
    side: Slope
    share: Slope
    highest: dict[str, Positive]
    error: Annotated[float, msgspec.Meta(ge=0)]
    samples: int

    def hz(self, board: Board, config: Config) -> float:
        """In Hz, for a configuration on a board of a known series."""
        name, share = series(board), lut_share(board, config)
        found = math.exp(self.series[name] + self.side * math.log2(config.n) + self.share * share)
        return min(found, self.highest[name])


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    fit: Fit


def predicted(board: Board, config: Config) -> Clock:
    """The clock that `config` reaches on `board`: the board's, for its own configuration. For a series of which no
    build is known it is the board's as well, with an error of 1.

    Raises `BoardError` if the file with the coefficients is damaged.
    """
    if config == board.config:
        return Clock(board.clock, 0.0, routed=True)
    fit = _fit(FILE)
    if series(board) not in fit.series:
        return Clock(board.clock, 1.0, routed=False)
    return Clock(fit.hz(board, config), fit.error, routed=False)


def series(board: Board) -> str:
    """The chips that are as fast as a board's: those of its family, or of a part of it where families have slow and
    fast ones, which nextpnr is told by the name of the device."""
    place = dict(zip(board.place, board.place[1:], strict=False))
    return place.get("--device", board.family.name).partition("-")[0]


def lut_share(board: Board, config: Config) -> float:
    """The part of a board's LUTs that a configuration is estimated to take, 1 at most."""
    need = estimate(board, config)
    return 0.5 if need is None else min(1.0, need.lut / board.available.lut)


@cache
def _fit(path: Path) -> Fit:
    try:
        found = schema.decode(schema.read_bytes(path), _File, format=FORMAT).fit
    except (OSError, schema.SchemaError) as error:
        raise BoardError(f"{path}, which is part of weft, is damaged: {error}; install weft again") from None
    if found.series.keys() != found.highest.keys():
        raise BoardError(
            f"{path}, which is part of weft, has not the highest clock of all series; install weft again"
        )
    return found


def text(fit: Fit) -> str:
    """What is in the file."""
    return schema.encode(_File(FORMAT, fit))


def fitted(samples: Sequence[Sample]) -> tuple[Fit, list[float]]:
    """The fit to some builds, and for each of them what a fit to all others predicts, in Hz; where a series has no
    other build, that is what it reached itself. Slopes are never positive: larger and fuller designs are not faster."""
    predictions = []
    for left_out, sample in enumerate(samples):
        others = [item for index, item in enumerate(samples) if index != left_out]
        alone = all(series(item.board) != series(sample.board) for item in others)
        predictions.append(sample.hz if alone else _least(others, 0.0).hz(sample.board, sample.config))
    wrong = [abs(found / sample.hz - 1) for found, sample in zip(predictions, samples, strict=True)]
    return _least(samples, round(max(wrong), 3)), predictions


def _least(samples: Sequence[Sample], error: float) -> Fit:
    """Least squares."""
    from scipy.optimize import lsq_linear

    highest: dict[str, float] = {}
    for sample in samples:
        name = series(sample.board)
        highest[name] = max(sample.hz, highest.get(name, 0.0))
    names = sorted(highest)
    rows = [
        [float(series(item.board) == name) for name in names]
        + [math.log2(item.config.n), lut_share(item.board, item.config)]
        for item in samples
    ]
    upper = np.array([np.inf] * len(names) + [0.0, 0.0])
    found = lsq_linear(np.array(rows), np.log([item.hz for item in samples]), (-np.inf, upper))
    numbers = [round(float(value), 4) for value in found.x]
    offsets = dict(zip(names, numbers, strict=False))
    return Fit(offsets, numbers[-2], numbers[-1], highest, error, len(samples))
