"""Coordinates of windows: MM and VEC compare them with bounds, and read padding where they are outside."""

from __future__ import annotations

from typing import NamedTuple

from weft.compiler.ir.graph import Window
from weft.compiler.machine.limits import STEP_MAX


class Coordinates(NamedTuple):
    """The coordinate of the first element along one axis, its bound, and its steps per output and per element."""

    first: int
    bound: int
    output: int
    element: int


_INSIDE = Coordinates(0, 1, 0, 0)
"""Coordinates of a single element: nothing is outside."""


def is_far(window: Window, axis: int) -> bool:
    """Whether a stride or a dilation along an axis is above `STEP_MAX`."""
    return max(window.stride[axis], window.dilation[axis]) > STEP_MAX


def has_coordinates(window: Window, axis: int) -> bool:
    """Whether coordinates along an axis fit their fields, or need not be compared as there is no padding."""
    return not is_far(window, axis) or max(window.pad[axis], window.pad[axis + 2]) <= 0


def coordinates(window: Window, axis: int, first: int, bound: int) -> Coordinates:
    """Coordinates of the windows along an axis, from `first` on. Constant if the steps do not fit their fields."""
    if is_far(window, axis):
        return _INSIDE
    return Coordinates(first, bound, window.stride[axis], window.dilation[axis])
