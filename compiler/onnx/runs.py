"""Elements along an axis as runs with equal steps, and reordering of channels.

Channels are contiguous bytes. Selections that are no contiguous range become a product with weights of 0 and 1.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp, Rescale, View

MAX_COPIES = 64
"""Most copies per node."""
MAX_WEIGHTS = 1 << 20
"""Most weights of a product that reorders channels."""
MAX_RANGES = 4
"""Most ranges of channels that are copied one by one."""


class Run(NamedTuple):
    """Elements from `source` on with distance `step`, and their places from `target` on with distance `target_step`."""

    source: int
    target: int
    length: int
    step: int
    target_step: int


def find_runs(indices: np.ndarray, most: int = MAX_COPIES, unit: int = 1) -> list[Run] | None:
    """Return as few runs as possible for elements along rows or columns; None for more than `most`.

    With `unit`, indices are in 1 / `unit` elements, and steps are whole elements.
    """
    # Results whose places are `target_step` apart form separate sequences, as in an upsampling by that factor.
    best: list[Run] | None = None
    target_step = 1
    while target_step <= min(len(indices), most):
        candidate = [
            run
            for first in range(target_step)
            for run in itertools.islice(rising_runs(indices, first, target_step, unit), most + 1)
        ]
        if len(candidate) <= most:
            best, most = candidate, len(candidate) - 1
        target_step += 1
    return best


def rising_runs(indices: np.ndarray, first: int = 0, target_step: int = 1, unit: int = 1) -> Iterator[Run]:
    """Yield runs of constant, non-negative step for every `target_step`-th place from `first` on.

    With `unit`, steps are multiples of it, and no place between two elements is repeated.
    """
    selected, at = indices[first::target_step], 0
    steps = np.diff(selected)
    while at < len(selected):
        step, count = 1, 1
        if (
            at < len(steps)
            and steps[at] >= 0
            and not steps[at] % unit
            and (steps[at] or not selected[at] % unit)
        ):
            step = int(steps[at])
            other = np.flatnonzero(steps[at:] != step)
            count += int(other[0]) if other.size else len(steps) - at
        yield Run(int(selected[at]), first + at * target_step, count, step, target_step)
        at += count


def order_channels(
    name: str, source: View, target: View, channels: np.ndarray, fill: int = 0
) -> list[DeviceOp] | None:
    """Return operators that copy some channels of `source` to `target`; None if that needs too large a product."""
    ranges = list(itertools.islice(rising_runs(channels), MAX_RANGES + 1))
    if channels.min() >= 0 and len(ranges) <= MAX_RANGES and all(run.step == 1 for run in ranges):
        return [
            Rescale(
                name,
                channel_slice(source, run.source, run.length),
                channel_slice(target, run.target, run.length),
            )
            for run in ranges
        ]
    if source.shape[3] * len(channels) > MAX_WEIGHTS:
        return None
    # Channel -1 has only zero weights, so the zero point `fill` is its result.
    weight = (channels[:, None] == np.arange(source.shape[3])).astype(np.int16)[:, None, None, :]
    bias, scale = np.zeros(len(channels), np.int32), np.ones(len(channels))
    return [Conv(name, source, target, weight, bias, scale, x_zero=fill, y_zero=fill)]


def channel_slice(view: View, first: int, count: int) -> View:
    """Return `count` channels of a view, from `first` on."""
    return dataclasses.replace(view, shape=(*view.shape[:3], count), c=view.c + first)
