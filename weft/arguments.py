"""Check the types and limits of arguments; errors are one sentence."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, fields
from numbers import Real as RealNumber
from typing import Any, ClassVar

from weft.errors import InputError

BANDWIDTH = (0.001, 1_000_000)
"""Limits of a simulated memory's bandwidth, in bytes a cycle."""
SEED = (0, (1 << 32) - 1)


def integer(name: str, value: Any, low: float | None = None, high: float | None = None) -> int:
    """Return `value`, of any integer type except bool, as an int. Raises `InputError` unless it is in [low, high]."""
    try:
        # operator.index accepts numpy integers, but also bool.
        result = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        result = None
    if result is None or (low is not None and result < low) or (high is not None and result > high):
        raise InputError(f"{name!r} must be an integer{_limits(low, high)}, not {_abbreviate(value)}")
    return result


def number(name: str, value: Any, low: float, high: float | None = None) -> float:
    """Return `value`, of any real type except bool, as a float. Raises `InputError` unless it is in [low, high]."""
    result = _real(value)
    if result is None or not math.isfinite(result) or result < low or (high is not None and result > high):
        raise InputError(f"{name!r} must be a finite number{_limits(low, high)}, not {_abbreviate(value)}")
    return result


def positive(name: str, value: Any) -> float:
    """Return `value`, of any real type except bool, as a float. Raises `InputError` unless positive and finite."""
    result = _real(value)
    if result is None or not 0 < result < math.inf:
        raise InputError(f"{name!r} must be a positive finite number, not {_abbreviate(value)}")
    return result


def _real(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, RealNumber) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def flag(name: str, value: Any) -> bool:
    """Return `value`. Raises `InputError` unless it is a bool."""
    if not isinstance(value, bool):
        raise InputError(f"{name!r} must be True or False, not {_abbreviate(value)}")
    return value


@dataclass(frozen=True)
class Number:
    """Declaration of an option that is a number: its help text and its limits."""

    help: str
    low: float
    high: float | None = None
    kind: ClassVar[type[int | float]]

    def check(self, name: str, value: Any) -> Any:
        """Return `value` as an int or float. Raises `InputError` unless it is within the limits."""
        return (integer if self.kind is int else number)(name, value, self.low, self.high)


class Whole(Number):
    """Declaration of an option that is an integer."""

    kind = int


class Real(Number):
    """Declaration of an option that is a finite number."""

    kind = float


def option(default: Any, declaration: Number | str, *devices: str) -> Any:
    """Return a dataclass field for an option.

    `declaration` is its help text, for a number with limits. Only `devices` use the option; empty: all do.
    """
    return field(default=default, metadata={"option": declaration, "devices": devices})


def check_fields(record: Any) -> None:
    """Check the numbers among the fields of a dataclass, and convert them to int or float.

    A field may be None if that is its default. Raises `InputError` for the first value that is no number within limits.
    """
    for item in fields(record):
        declaration, value = item.metadata.get("option"), getattr(record, item.name)
        if isinstance(declaration, Number) and (value is not None or item.default is not None):
            object.__setattr__(record, item.name, declaration.check(item.name, value))


def _limits(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f" of at least {low:,}" if high is None else f" from {low:,} to {high:,}"


def _abbreviate(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python limits the digits of integers in text
        text = "an integer of many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
