"""Prediction of the clock that a configuration reaches on a board, without place and route.

The logarithm of the clock is a linear function, fitted to past builds. Each series of chips has its own offset. The
slopes for the array's side and for the share of LUTs are common to all. Differences between placements, and so between
seeds, are not modelled. The coefficients are in ``families/clocks.json``, which ``benchmarks/clocks.py`` fits to the
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

from weft.boards.board import Board
from weft.boards.build.estimate import estimate
from weft.boards.errors import BoardError
from weft.hdl import schema
from weft.hdl.errors import SchemaError
from weft.hdl.isa.config import Config

FORMAT = "weft clocks 1"
FILE = Path(__file__).parents[1] / "families" / "clocks.json"
# These limits keep clocks from a damaged file positive and finite, and slopes from being positive.
Positive = Annotated[float, msgspec.Meta(gt=0)]
Offset = Annotated[float, msgspec.Meta(ge=0, le=25)]
Slope = Annotated[float, msgspec.Meta(ge=-5, le=0)]


@dataclass(frozen=True)
class Clock:
    """Predicted clock in Hz, and the largest relative error of predictions for known builds.

    `routed` is true for a board's own configuration, which was placed and routed at that clock; its error is 0.
    """

    hz: float
    error: float
    routed: bool


@dataclass(frozen=True)
class Sample:
    """Build of a configuration on a board, and the clock in Hz that it reached."""

    board: Board
    config: Config
    hz: float


class Fit(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Fitted coefficients of the logarithm of the clock in Hz.

    Attributes
    ----------
    series : dict of str to float
        Offset of each series.
    side, share : float
        Slopes for the logarithm of the array's side and for the share of LUTs.
    highest : dict of str to float
        Highest clock in Hz of each series, the upper limit of predictions.
    error : float
        Largest relative error on a build that the fit leaves out. A series with a single build adds nothing to it.
    samples : int
        Number of builds.
    """

    series: dict[str, Offset]
    side: Slope
    share: Slope
    highest: dict[str, Positive]
    error: Annotated[float, msgspec.Meta(ge=0)]
    samples: int

    def hz(self, board: Board, config: Config) -> float:
        """Return the clock in Hz for a configuration on a board of a known series."""
        name, share = series(board), lut_share(board, config)
        prediction = math.exp(self.series[name] + self.side * math.log2(config.n) + self.share * share)
        return min(prediction, self.highest[name])


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    fit: Fit


def predict_clock(board: Board, config: Config) -> Clock:
    """Predict the clock that `config` reaches on `board`.

    For the board's own configuration this is the board's clock. It also is for a series without known builds, with an
    error of 1. Raises `BoardError` if the file of coefficients is damaged.
    """
    if config == board.config:
        return Clock(board.clock, 0.0, routed=True)
    fit = _fit(FILE)
    if series(board) not in fit.series:
        return Clock(board.clock, 1.0, routed=False)
    return Clock(fit.hz(board, config), fit.error, routed=False)


def series(board: Board) -> str:
    """Return the name of the speed class of a board's chip.

    That is its family, or the device name given to nextpnr for families with slow and fast series.
    """
    place = dict(zip(board.place, board.place[1:], strict=False))
    return place.get("--device", board.family.name).partition("-")[0]


def lut_share(board: Board, config: Config) -> float:
    """Return the estimated share of the board's LUTs that a configuration takes, at most 1; 0.5 without an estimate."""
    need = estimate(board, config)
    return 0.5 if need is None else min(1.0, need.lut / board.available.lut)


@cache
def _fit(path: Path) -> Fit:
    try:
        fit = schema.decode(schema.read_bytes(path), _File, format=FORMAT).fit
    except (OSError, SchemaError) as error:
        raise BoardError(f"{path}, which is part of weft, is damaged: {error}; install weft again") from None
    if fit.series.keys() != fit.highest.keys():
        raise BoardError(
            f"{path}, which is part of weft, lacks the highest clock of some series; install weft again"
        )
    return fit


def text(fit: Fit) -> str:
    """Return the contents of the file of coefficients."""
    return schema.encode(_File(FORMAT, fit))


def fit_clocks(samples: Sequence[Sample]) -> tuple[Fit, list[float]]:
    """Fit the coefficients to builds.

    Returns the fit and, for each build, the clock in Hz that a fit to all others predicts; for the only build of a
    series, its own clock. Slopes are never positive: larger and fuller designs are not faster.
    """
    predictions = []
    for left_out, sample in enumerate(samples):
        others = [item for index, item in enumerate(samples) if index != left_out]
        alone = all(series(item.board) != series(sample.board) for item in others)
        predictions.append(
            sample.hz if alone else _least_squares(others, 0.0).hz(sample.board, sample.config)
        )
    errors = [abs(hz / sample.hz - 1) for hz, sample in zip(predictions, samples, strict=True)]
    return _least_squares(samples, round(max(errors), 3)), predictions


def _least_squares(samples: Sequence[Sample], error: float) -> Fit:
    """Fit by least squares, with no positive slope."""
    from scipy.optimize import lsq_linear

    highest: dict[str, float] = {}
    for sample in samples:
        name = series(sample.board)
        highest[name] = max(sample.hz, highest.get(name, 0.0))
    # One indicator column per series, then the two features.
    names = sorted(highest)
    rows = [
        [float(series(item.board) == name) for name in names]
        + [math.log2(item.config.n), lut_share(item.board, item.config)]
        for item in samples
    ]
    upper = np.array([np.inf] * len(names) + [0.0, 0.0])
    solution = lsq_linear(np.array(rows), np.log([item.hz for item in samples]), (-np.inf, upper))
    numbers = [round(float(value), 4) for value in solution.x]
    offsets = dict(zip(names, numbers, strict=False))
    return Fit(offsets, numbers[-2], numbers[-1], highest, error, len(samples))
