"""Values that are invalid for numbers of the Python API."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from weft import arguments

NO_NUMBERS: list[Any] = ["30", None, [30], 1j, True, np.True_, b"1", {}, np.zeros(2)]
NO_INTEGERS: list[Any] = [*NO_NUMBERS, 1.5, 30.0, math.nan, math.inf, np.float32(1), Fraction(1, 2)]
NOT_FINITE: list[Any] = [*NO_NUMBERS, math.nan, -math.inf, math.inf, np.float32("nan"), 10**400]


def outside(low: float, high: float) -> list[Any]:
    return [low - 1, high + 1, -(10**30), 10**30, -(10**5000)]


INTEGERS = {
    "latency": (1, 1_000_000),
    "stall_seed": arguments.SEED,
    "seed": arguments.SEED,
    "trials": (1, 100_000),
}


def wrong(name: str) -> list[Any]:
    if name == "bandwidth":
        return [value for value in NOT_FINITE if value is not None] + [0, -1, 1e-9, 1e300]
    values = NO_INTEGERS + outside(*INTEGERS[name])
    return [value for value in values if value is not None or name != "stall_seed"]  # None is none
