"""Elements along one axis as runs with equal steps, and channels put in order.

Channels lie byte by byte: what is no range of them is a product with weights of 0 and 1.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp, Rescale, View

MAX_COPIES = 64
"""Most copies that a node may become."""
MAX_WEIGHTS = 1 << 20
"""Most weights of a product that puts channels in order."""
MAX_RANGES = 4
"""Most ranges of channels that are copied one by one."""


class Run(NamedTuple):
    """`many` elements from `source` on, `by` apart, that go to places from `target` on, `apart` apart."""

    source: int
    target: int
    many: int
    by: int
    apart: int


def find_runs(indices: np.ndarray, most: int = MAX_COPIES, unit: int = 1) -> list[Run] | None:
    """As few runs as there are for elements along rows or columns; None if they are more than `most`.

    Places between elements are multiples of 1 / `unit`: runs of such are by whole elements.
    """
    best: list[Run] | None = None
    apart = 1
    while apart <= min(len(indices), most):
        found = [
            run
            for first in range(apart)
            for run in itertools.islice(rising_runs(indices, first, apart, unit), most + 1)
        ]
        if len(found) <= most:
            best, most = found, len(found) - 1
        apart += 1
    return best


def rising_runs(indices: np.ndarray, first: int = 0, apart: int = 1, unit: int = 1) -> Iterator[Run]:
    """Runs for places from `first` on: elements that are equally far from each other, none of them backwards.

    With `unit` they are by multiples of it, and no place between elements is repeated.
    """
    taken, at = indices[first::apart], 0
    steps = np.diff(taken)
    while at < len(taken):
        by, count = 1, 1
        if (
            at < len(steps)
            and steps[at] >= 0
            and not steps[at] % unit
            and (steps[at] or not taken[at] % unit)
        ):
            by = int(steps[at])
            other = np.flatnonzero(steps[at:] != by)
            count += int(other[0]) if other.size else len(steps) - at
        yield Run(int(taken[at]), first + at * apart, count, by, apart)
        at += count


def order_channels(
    name: str, source: View, target: View, channels: np.ndarray, fill: int = 0
) -> list[DeviceOp] | None:
    """Copies of `source` with its channels in an order; None if that takes too large a product."""
    ranges = list(itertools.islice(rising_runs(channels), MAX_RANGES + 1))
    if channels.min() >= 0 and len(ranges) <= MAX_RANGES and all(run.by == 1 for run in ranges):
        return [Rescale(name, channel_slice(source, run.source, run.many), channel_slice(target, run.target, run.many))
                for run in ranges]  # fmt: skip
    if source.shape[3] * len(channels) > MAX_WEIGHTS:
        return None
    weight = (channels[:, None] == np.arange(source.shape[3])).astype(np.int16)[:, None, None, :]
    bias, scale = np.zeros(len(channels), np.int32), np.ones(len(channels))
    return [Conv(name, source, target, weight, bias, scale, x_zero=fill, y_zero=fill)]


def channel_slice(view: View, first: int, count: int) -> View:
    """Some channels of a view."""
    return dataclasses.replace(view, shape=(*view.shape[:3], count), c=view.c + first)
