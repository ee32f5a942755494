"""Numbers that callers give: of the right type and within limits, or one sentence, before anything starts."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

from weft.errors import InputError

LATENCY = (1, 1_000_000)
"""Cycles of simulated memory."""
BANDWIDTH = (0.001, 1_000_000)
"""Bytes a cycle of simulated memory."""
SEED = (0, (1 << 32) - 1)
EPOCHS, BATCH, LAYERS = (1, 10_000), (1, 4096), (1, 10_000)
RATE, MOMENTUM = (1e-9, 1000), (0, 0.9999)
ADAPTER = (0, 1024)
"""What training takes."""


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """`value` if it is a whole number from `low` to `high`, of any integer type but bool. Raises `InputError`."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or (low is not None and found < low) or (high is not None and found > high):
        raise InputError(f"{name!r} must be an integer{_limits(low, high)}, not {_shown(value)}")
    return found


def number(name: str, value: Any, low: float, high: float) -> float:
    """`value` if it is a number from `low` to `high`, of any real type but bool. Raises `InputError`."""
    found = _real(value)
    if found is None or not low <= found <= high:
        raise InputError(f"{name!r} must be a finite number{_limits(low, high)}, not {_shown(value)}")
    return found


def positive(name: str, value: Any) -> float:
    """`value` if it is a finite number above 0, of any real type but bool. Raises `InputError`."""
    found = _real(value)
    if found is None or not 0 < found < math.inf:
        raise InputError(f"{name!r} must be a positive finite number, not {_shown(value)}")
    return found


def _real(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def memory(latency: Any, bandwidth: Any) -> tuple[int, float | None]:
    """Latency and bandwidth of a simulated memory, checked; a bandwidth of None is that of the bus."""
    checked = integer("latency", latency, *LATENCY)
    return checked, None if bandwidth is None else number("bandwidth", bandwidth, *BANDWIDTH)


def flag(name: str, value: Any) -> bool:
    """`value` if it is a bool. Raises `InputError`."""
    if not isinstance(value, bool):
        raise InputError(f"{name!r} must be True or False, not {_shown(value)}")
    return value


def _limits(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f" of at least {low:,}" if high is None else f" from {low:,} to {high:,}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        text = "an integer of many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
