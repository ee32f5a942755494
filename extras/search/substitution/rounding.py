"""Rewrites that are equal for real numbers, but round otherwise: they are made only within a budget, which is measured.

All of them leave out a rounding, or move it to the other side of a mean. What saturation does is kept: where a bound of
bytes may cut values off, as that of a ReLU does, it is carried along or there is no rewrite.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import (
    ONE,
    Add,
    Buffer,
    Conv,
    DeviceOp,
    DeviceSegment,
    IrError,
    Multiply,
    Pool,
    Rescale,
    View,
)
from weft.compiler.ir.views import whole
from weft.compiler.verify import verify_op
from weft.extras.search.substitution.places import Places, namer, placed, without_dead

BEHIND = "requantisation taken into the operator that makes its input"
AHEAD = "requantisation taken into the operator that reads it"
MEAN = "mean taken before the convolution of one element"
CONVOLVED = "convolution of one element taken before the mean, in steps of {}"
_LINEAR = 16
"""Steps that a zero point is away from the ends of its range where saturation is no ReLU."""
COARSER = (2, 4)
"""Steps of the output that one of a convolution ahead of its mean is: values reach farther than their means do."""


class Rewrite(NamedTuple):
    """What is done, the operator that it is about, and the segment behind it."""

    what: str
    operator: str
    segment: DeviceSegment


def rewrites(segment: DeviceSegment) -> Iterator[Rewrite]:
    """All rewrites of a segment, one at a time."""
    places = Places(segment)
    for op in segment.ops:
        for view in op.sources:
            maker = places.writer(view)
            if maker is None or not places.free(view.buffer.name):
                continue
            alone = len(places.readers[view.buffer.name]) == 1
            if isinstance(op, Rescale) and alone:
                yield from _made(BEHIND, segment, op, [_behind(maker, op)], gone=maker)
            if isinstance(maker, Rescale):
                yield from _made(AHEAD, segment, op, [_ahead(maker, op, view)])
            if isinstance(op, Pool) and isinstance(maker, Conv) and alone:
                yield from _made(MEAN, segment, op, _mean_first(segment, maker, op), gone=maker)
            if isinstance(op, Conv) and isinstance(maker, Pool) and alone:
                for steps in COARSER:
                    instead = _mean_last(segment, maker, op, steps)
                    yield from _made(CONVOLVED.format(steps), segment, op, instead, gone=maker)


def _made(
    what: str,
    segment: DeviceSegment,
    op: DeviceOp,
    instead: list[DeviceOp | None],
    gone: DeviceOp | None = None,
) -> Iterator[Rewrite]:
    """The segment with operators in place of one, if the device has them."""
    new = [item for item in instead if item is not None]
    if not new or len(new) < len(instead):
        return
    try:
        for item in new:
            verify_op(item)
    except IrError:
        return
    ops = placed([item for item in segment.ops if item is not op and item is not gone], new)
    yield Rewrite(what, op.name, dataclasses.replace(segment, ops=without_dead(ops, segment.states)))


def _behind(maker: DeviceOp, op: Rescale) -> DeviceOp | None:
    """An operator that makes at once what a requantisation makes of its output; its bounds are those of both."""
    if maker.lookup is not None or maker.y_zero != op.x_zero or op.scale <= 0:
        return None
    if isinstance(maker, Conv) and maker.epilogue is not None:
        return None
    scales = _scales(maker)
    if not scales:
        return None
    low, high = (_requantised(op, bound) for bound in (maker.low, maker.high))
    told = {name: getattr(maker, name) * op.scale for name in scales}
    return maker.replace(**told, dst=op.dst, y_zero=op.y_zero, low=low, high=high, lookup=op.lookup)


def _scales(op: DeviceOp) -> tuple[str, ...]:
    """The names of the factors of an operator whose results are as large as these; none if it has no such."""
    if isinstance(op, Add):
        return "a_scale", "b_scale"
    if isinstance(op, Conv | Multiply | Rescale) or (isinstance(op, Pool) and op.kind == "average"):
        return ("scale",)
    return ()


def _requantised(op: Rescale, value: int) -> int:
    """What a requantisation makes of a byte, ahead of its table."""
    made = round((value - op.x_zero) * op.scale) + op.y_zero
    return min(max(made, op.low), op.high)


def _ahead(first: Rescale, op: DeviceOp, view: View) -> DeviceOp | None:
    """An operator that reads what a requantisation reads, which saturates nowhere."""
    if _saturates(first) or first.scale <= 0 or first.src.shape != view.shape:
        return None
    if isinstance(op, Add):
        return _ahead_of_addition(first, op, view)
    if isinstance(op, Conv) and view == op.src:
        return _reading(op, first)
    if isinstance(op, Rescale | Pool) and op.x_zero == first.y_zero:
        return op.replace(src=first.src, x_zero=first.x_zero, scale=op.scale * first.scale)
    return None


def _saturates(op: Rescale | Pool) -> bool:
    """Whether a requantisation, or one of a mean, may cut values off, or has a table."""
    ends = [(byte - op.x_zero) * op.scale + op.y_zero for byte in (-128, 127)]
    return op.lookup is not None or min(ends) < op.low - 0.5 or max(ends) > op.high + 0.5


def _reading(op: Conv, first: Rescale | Pool) -> Conv | None:
    """A convolution of what another operator reads, in that one's steps."""
    bias = np.rint(op.bias / first.scale)
    if op.x_zero != first.y_zero or np.abs(bias).max(initial=0) > np.iinfo(op.bias.dtype).max:
        return None
    scale = op.scale * first.scale
    return op.replace(src=first.src, x_zero=first.x_zero, scale=scale, bias=bias.astype(op.bias.dtype))


def _ahead_of_addition(first: Rescale, op: Add, view: View) -> DeviceOp | None:
    if op.a == op.b:
        return None
    side = "a" if op.a == view else "b"
    if getattr(op, f"{side}_zero") != first.y_zero:
        return None
    scale = getattr(op, f"{side}_scale") * first.scale
    return op.replace(**{side: first.src, f"{side}_zero": first.x_zero, f"{side}_scale": scale})


def _mean_first(segment: DeviceSegment, conv: Conv, pool: Pool) -> list[DeviceOp | None]:
    """The mean of a convolution's windows as the convolution of the means of its input."""
    linear = min(conv.y_zero - conv.low, conv.high - conv.y_zero) >= _LINEAR
    if pool.kind != "average" or not _is_plain(conv) or conv.lookup is not None or not linear:
        return [None]
    if conv.y_zero != pool.x_zero or any(pool.window.pad):
        return [None]
    name = namer(segment)
    n, h, w, _ = pool.dst.shape
    means = whole(Buffer(name(f"{pool.name}/means"), (n, h, w, conv.src.shape[3])))
    first = Pool(
        name(f"{pool.name}/mean"), conv.src, means, "average", pool.window,
        x_zero=conv.x_zero, y_zero=conv.x_zero,
    )  # fmt: skip
    then = conv.replace(
        src=means, dst=pool.dst, scale=conv.scale * pool.scale, y_zero=pool.y_zero, low=pool.low, high=pool.high,
        lookup=pool.lookup,
    )  # fmt: skip
    return [first, then]


def _is_plain(conv: Conv) -> bool:
    """Whether a convolution is of one element, and nothing follows it."""
    return conv.window == ONE and conv.pool is None and conv.epilogue is None


def _mean_last(segment: DeviceSegment, pool: Pool, conv: Conv, steps: int) -> list[DeviceOp | None]:
    """The convolution of means of windows as the mean of convolutions, of fewer channels. Padding does not count."""
    counts = pool.include_pad and any(pool.window.pad)
    if pool.kind != "average" or counts or not _is_plain(conv) or _saturates(pool) or pool.scale <= 0:
        return [None]
    before = _reading(conv, pool)
    if before is None or conv.groups > 1 or len(conv.weight) >= conv.src.shape[3]:
        return [None]
    name = namer(segment)
    dst = whole(Buffer(name(f"{conv.name}/values"), (*pool.src.shape[:3], len(conv.weight))))
    first = before.replace(
        name=name(f"{conv.name}/conv"), dst=dst, scale=before.scale / steps, y_zero=0, low=-128, high=127,
        lookup=None,
    )  # fmt: skip
    then = Pool(
        conv.name, dst, conv.dst, "average", pool.window, float(steps), 0, conv.y_zero, conv.low, conv.high,
        lookup=conv.lookup,
    )  # fmt: skip
    return [first, then]
