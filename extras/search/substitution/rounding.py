"""Rewrites that are equal for real numbers but round differently, which are used within a measured error budget only.

Each of them omits a rounding, or moves it across a mean. Saturation is preserved: bounds that may cut off values, such
as those of a ReLU, are carried along, or there is no rewrite.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pool, Rescale
from weft.compiler.ir.views import Buffer, View, whole_view
from weft.compiler.ir.windows import ONE
from weft.compiler.verify import verify_op
from weft.extras.search.substitution.matching import Places, insert_ops, namer, remove_dead

INTO_PRODUCER = "requantisation taken into the operator that makes its input"
INTO_READER = "requantisation taken into the operator that reads it"
MEAN_FIRST = "mean taken before the convolution of one element"
MEAN_LAST = "convolution of one element taken before the mean, in steps of {}"
_RELU_MARGIN = 16
"""Distance in steps of a zero point from the ends of its range above which saturation is not a ReLU."""
STEPS = (2, 4)
"""Factors by which the step of a convolution's output grows when it comes before its mean, because values have a
larger range than means.
"""


class Rewrite(NamedTuple):
    """Rule, operator that it applies to, and resulting segment."""

    rule: str
    operator: str
    segment: DeviceSegment


def rewrites(segment: DeviceSegment) -> Iterator[Rewrite]:
    """Yield all rewrites of a segment, each on its own."""
    places = Places(segment)
    for op in segment.ops:
        for view in op.sources:
            maker = places.writer(view)
            if maker is None or not places.is_private(view.buffer.name):
                continue
            only_reader = len(places.readers[view.buffer.name]) == 1
            if isinstance(op, Rescale) and only_reader:
                yield from _rewrite(
                    INTO_PRODUCER, segment, op, [_merge_into_producer(maker, op)], removed=maker
                )
            if isinstance(maker, Rescale):
                yield from _rewrite(INTO_READER, segment, op, [_merge_into_reader(maker, op, view)])
            if isinstance(op, Pool) and isinstance(maker, Conv) and only_reader:
                yield from _rewrite(MEAN_FIRST, segment, op, _mean_first(segment, maker, op), removed=maker)
            if isinstance(op, Conv) and isinstance(maker, Pool) and only_reader:
                for steps in STEPS:
                    replacements = _mean_last(segment, maker, op, steps)
                    yield from _rewrite(MEAN_LAST.format(steps), segment, op, replacements, removed=maker)


def _rewrite(
    rule: str,
    segment: DeviceSegment,
    op: DeviceOp,
    replacements: list[DeviceOp | None],
    removed: DeviceOp | None = None,
) -> Iterator[Rewrite]:
    """Yield the segment with other operators in place of `op`, if the device has them."""
    new = [item for item in replacements if item is not None]
    if not new or len(new) < len(replacements):
        return
    try:
        for item in new:
            verify_op(item)
    except IrError:
        return
    ops = insert_ops([item for item in segment.ops if item is not op and item is not removed], new)
    yield Rewrite(rule, op.name, dataclasses.replace(segment, ops=remove_dead(ops, segment.states)))


def _merge_into_producer(maker: DeviceOp, op: Rescale) -> DeviceOp | None:
    """Merge a requantisation into the operator that computes its input; its bounds are those of both."""
    if maker.lookup is not None or maker.y_zero != op.x_zero or op.scale <= 0:
        return None
    if isinstance(maker, Conv) and maker.epilogue is not None:
        return None
    scales = _scales(maker)
    if not scales:
        return None
    low, high = (_requantise(op, bound) for bound in (maker.low, maker.high))
    # The requantisation's scale multiplies every term of the result.
    scaled = {name: getattr(maker, name) * op.scale for name in scales}
    return maker.replace(**scaled, dst=op.dst, y_zero=op.y_zero, low=low, high=high, lookup=op.lookup)


def _scales(op: DeviceOp) -> tuple[str, ...]:
    """Return the names of the factors to which an operator's results are proportional; empty if there are none."""
    if isinstance(op, Add):
        return "a_scale", "b_scale"
    if isinstance(op, Conv | Multiply | Rescale) or (isinstance(op, Pool) and op.kind == "average"):
        return ("scale",)
    return ()


def _requantise(op: Rescale, value: int) -> int:
    """Return the byte that a requantisation maps a byte to, before its table."""
    result = round((value - op.x_zero) * op.scale) + op.y_zero
    return min(max(result, op.low), op.high)


def _merge_into_reader(first: Rescale, op: DeviceOp, view: View) -> DeviceOp | None:
    """Merge a requantisation without saturation into an operator that reads its result."""
    if _saturates(first) or first.scale <= 0 or first.src.shape != view.shape:
        return None
    if isinstance(op, Add):
        return _merge_into_addition(first, op, view)
    if isinstance(op, Conv) and view == op.src:
        return _merge_into_convolution(op, first)
    if isinstance(op, Rescale | Pool) and op.x_zero == first.y_zero:
        return op.replace(src=first.src, x_zero=first.x_zero, scale=op.scale * first.scale)
    return None


def _saturates(op: Rescale | Pool) -> bool:
    """Return whether a requantisation, or that of a mean, has a table or may cut off values."""
    # Values within half a step of a bound round to it: nothing is cut off.
    ends = [(byte - op.x_zero) * op.scale + op.y_zero for byte in (-128, 127)]
    return op.lookup is not None or min(ends) < op.low - 0.5 or max(ends) > op.high + 0.5


def _merge_into_convolution(op: Conv, first: Rescale | Pool) -> Conv | None:
    """Merge a requantisation without saturation into a convolution that reads its result."""
    # The bias is in units of the sums, which the first scale no longer shrinks.
    bias = np.rint(op.bias / first.scale)
    if op.x_zero != first.y_zero or np.abs(bias).max(initial=0) > np.iinfo(op.bias.dtype).max:
        return None
    scale = op.scale * first.scale
    return op.replace(src=first.src, x_zero=first.x_zero, scale=scale, bias=bias.astype(op.bias.dtype))


def _merge_into_addition(first: Rescale, op: Add, view: View) -> DeviceOp | None:
    if op.a == op.b:
        return None
    side = "a" if op.a == view else "b"
    if getattr(op, f"{side}_zero") != first.y_zero:
        return None
    scale = getattr(op, f"{side}_scale") * first.scale
    return op.replace(**{side: first.src, f"{side}_zero": first.x_zero, f"{side}_scale": scale})


def _mean_first(segment: DeviceSegment, conv: Conv, pool: Pool) -> list[DeviceOp | None]:
    """Replace the mean of a convolution's windows by the convolution of means of its input."""
    linear = min(conv.y_zero - conv.low, conv.high - conv.y_zero) >= _RELU_MARGIN
    if pool.kind != "average" or not _is_plain(conv) or conv.lookup is not None or not linear:
        return [None]
    if conv.y_zero != pool.x_zero or any(pool.window.pad):
        return [None]
    name = namer(segment)
    n, h, w, _ = pool.dst.shape
    means = whole_view(Buffer(name(f"{pool.name}/means"), (n, h, w, conv.src.shape[3])))
    first = Pool(
        name(f"{pool.name}/mean"), conv.src, means, "average", pool.window,
        x_zero=conv.x_zero, y_zero=conv.x_zero,
    )  # fmt: skip
    last = conv.replace(
        src=means, dst=pool.dst, scale=conv.scale * pool.scale, y_zero=pool.y_zero, low=pool.low, high=pool.high,
        lookup=pool.lookup,
    )  # fmt: skip
    return [first, last]


def _is_plain(conv: Conv) -> bool:
    """Return whether a convolution has a kernel of one element, and no pool or epilogue."""
    return conv.window == ONE and conv.pool is None and conv.epilogue is None


def _mean_last(segment: DeviceSegment, pool: Pool, conv: Conv, steps: int) -> list[DeviceOp | None]:
    """Replace the convolution of means by the mean of a convolution with fewer channels."""
    # A mean whose divisor counts padding would not commute.
    counts_padding = pool.include_pad and any(pool.window.pad)
    if pool.kind != "average" or counts_padding or not _is_plain(conv) or _saturates(pool) or pool.scale <= 0:
        return [None]
    merged = _merge_into_convolution(conv, pool)
    if merged is None or conv.groups > 1 or len(conv.weight) >= conv.src.shape[3]:
        return [None]
    name = namer(segment)
    dst = whole_view(Buffer(name(f"{conv.name}/values"), (*pool.src.shape[:3], len(conv.weight))))
    first = merged.replace(
        name=name(f"{conv.name}/conv"), dst=dst, scale=merged.scale / steps, y_zero=0, low=-128, high=127,
        lookup=None,
    )  # fmt: skip
    last = Pool(
        conv.name, dst, conv.dst, "average", pool.window, float(steps), 0, conv.y_zero, conv.low, conv.high,
        lookup=conv.lookup,
    )  # fmt: skip
    return [first, last]
