"""Write the device's operators as TOSA operations that compute the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Add, Conv, DeviceOp, Multiply, Pad, Pool, Rescale
from weft.compiler.ir.scales import quantise_pair, quantise_scale
from weft.compiler.ir.windows import Window
from weft.extras.mlir import forms
from weft.extras.mlir.operators.tosa_products import sums_range
from weft.extras.mlir.printing import Body, Ssa
from weft.extras.mlir.rescaling import is_exact, may_tie, reciprocal_scale

_MOST = 62
"""Largest shift of a TOSA rescale."""
_LEFT = 7
"""Bits by which TOSA's multipliers are wider than mantissas."""
_WORD = 1 << 31
Levels = tuple[int, int, int]
"""Zero point of a result, and the range that it is clamped to."""


def refuse(op: Any, why: str) -> CompileError:
    """Return the error for an operator that cannot be written."""
    return CompileError(f"operator {op.name!r} ({type(op).__name__}) {why}, so it cannot be printed as TOSA")


def levels_of(op: Any) -> Levels:
    return op.y_zero, op.low, op.high


def write_operator(body: Body, op: DeviceOp, sources: tuple[Ssa, ...]) -> Ssa:
    """Write an operator and return its result. Sources and result are int8 of shape (N, H, W, C).

    Raises
    ------
    CompileError
        If TOSA cannot compute the same bytes.
    """
    kind = _KINDS.get(type(op))
    if kind is None:
        raise refuse(op, "has no TOSA operations with the same bytes")
    result = kind(body, op, sources)
    return result if op.lookup is None else _table(body, result, op.lookup)


def _table(body: Body, x: Ssa, entries: np.ndarray) -> Ssa:
    return body.op("tosa.table", (x, body.constant(np.asarray(entries, np.int8))), "int8", x.shape)


# Requantisation


def requantise(
    body: Body, op: Any, total: Ssa, scales: np.ndarray, ranges: tuple[np.ndarray, np.ndarray]
) -> Ssa:
    """Multiply 32-bit sums that lie in `ranges` by the scales of channels.

    This takes one rescale if no product can be half way between two integers, else
    `weft.extras.mlir.forms.REQUANTISED`.
    """
    pairs = [quantise_scale(float(scale)) for scale in np.atleast_1d(scales).tolist()]
    if len(set(pairs)) == 1:
        pairs = pairs[:1]
    low, high = (np.broadcast_to(end, (max(len(pairs), end.size),)).tolist() for end in ranges)
    union = (min(low), max(high))
    channel_ranges = list(zip(low, high, strict=True)) if len(low) == len(pairs) else [union] * len(pairs)
    multipliers, shifts, can_tie = [], [], False
    for (mantissa, shift), values in zip(pairs, channel_ranges, strict=True):
        multiplier, right = _widen(op, mantissa, shift, values)
        multipliers.append(multiplier)
        shifts.append(right)
        zeros = (multiplier & -multiplier).bit_length() - 1
        can_tie |= bool(multiplier and may_tie(multiplier >> zeros, right - zeros, values))
    zero, least, most = levels_of(op)
    # Without ties, half up and half to even agree.
    if not can_tie:
        scaled = _rescale(body, total, multipliers, shifts, (0, zero), "int8")
        return clamp(body, scaled, least, most)
    tie_bits = [
        forms.tie_bits(multiplier, shift) for multiplier, shift in zip(multipliers, shifts, strict=True)
    ]
    values_of_form = {"sum": total, "multiplier": multipliers, "shift": shifts, "mask": [mask for mask, _ in tie_bits],
             "half": [half for _, half in tie_bits], "zero": zero, "low": least, "high": most}  # fmt: skip
    return body.form(forms.REQUANTISED, values_of_form)


def _widen(op: Any, mantissa: int, shift: int, values: tuple[int, int]) -> tuple[int, int]:
    """Return TOSA's multiplier and shift, with as many bits as fit. TOSA requires values below 2**(shift - 1)."""
    reach = max(abs(values[0]), abs(values[1]), 1)
    if not mantissa or (reach * mantissa < 1 << max(shift - 1, 0) and shift > _MOST):
        return 0, _MOST  # all results are 0
    more = min(_LEFT, _MOST - shift)
    if (
        more < 0
        or shift + more < 2
        or reach >= 1 << (shift + more - 1)
        # 256 leaves room for the zero point, which TOSA adds in 32 bits before it saturates.
        or (reach * mantissa >> shift) >= _WORD - 256
    ):
        raise refuse(
            op,
            f"requantises sums of up to {reach:,} by {mantissa} / 2**{shift}, which TOSA's rescale cannot",
        )
    return mantissa << more, shift + more


def _rescale(
    body: Body, x: Ssa, multipliers: list[int], shifts: list[int], zeros: tuple[int, int], dtype: str
) -> Ssa:
    operands = (
        x,
        body.constant(np.array(multipliers, np.int32)),
        body.constant(np.array(shifts, np.int8)),
        body.number(zeros[0], x.dtype),
        body.number(zeros[1], dtype),
    )
    return body.op(
        "tosa.rescale",
        operands,
        dtype,
        x.shape,
        scale32=True,
        rounding_mode="SINGLE_ROUND",
        per_channel=len(multipliers) > 1,
        input_unsigned=x.dtype.startswith("u"),
        output_unsigned=dtype.startswith("u"),
    )


def convert_signedness(body: Body, x: Ssa, dtype: str) -> Ssa:
    """Convert bytes between int8 and uint8, by adding or subtracting 128."""
    # 2**30 >> 30 is a scale of 1: only the zero points change.
    zeros = (128, 0) if x.dtype == "uint8" else (0, 128)
    return _rescale(body, x, [1 << 30], [30], zeros, dtype)


def clamp(body: Body, x: Ssa, low: int, high: int) -> Ssa:
    if (low, high) == (-128, 127):
        return x
    return body.op("tosa.clamp", (x,), "int8", x.shape, min_val=low, max_val=high)


def rescale(body: Body, op: Any, x: Ssa) -> Ssa:
    """Requantise bytes: a copy, one rescale, or a table."""
    zero, low, high = levels_of(op)
    if op.scale == 1.0 and op.x_zero == zero:
        return clamp(body, x, low, high)
    mantissa, shift = quantise_scale(op.scale)
    values = (-128 - op.x_zero, 127 - op.x_zero)
    zeros = (mantissa & -mantissa).bit_length() - 1
    if mantissa and 2 <= shift <= _MOST - _LEFT and not may_tie(mantissa >> zeros, shift - zeros, values):
        scaled = _rescale(body, x, [mantissa << _LEFT], [shift + _LEFT], (op.x_zero, zero), "int8")
        if max(map(abs, values)) * mantissa >> shift < _WORD - 256:
            return clamp(body, scaled, low, high)
    # A table of 256 entries holds any requantisation of bytes.
    entries = [_half_even((byte - op.x_zero) * mantissa, shift) + zero for byte in range(-128, 128)]
    return _table(body, x, np.clip(entries, low, high))


def _half_even(number: int, shift: int) -> int:
    floor = number >> shift
    remainder, half = number - (floor << shift), (1 << shift) >> 1
    return floor + int(shift > 0 and (remainder > half or (remainder == half and floor % 2 == 1)))


# Windows


def crop(body: Body, op: Any, x: Ssa, window: Window) -> tuple[Ssa, list[int]]:
    """Return an image without the rows and columns after the last window, as TOSA requires, and its padding (top,
    bottom, left, right)."""
    top, left, bottom, right = window.pad
    pads, shape = [top, bottom, left, right], list(x.shape)
    for axis in (0, 1):
        span = (window.kernel[axis] - 1) * window.dilation[axis] + 1
        left_over = (shape[1 + axis] + pads[2 * axis] + pads[2 * axis + 1] - span) % window.stride[axis]
        cut = min(left_over, pads[2 * axis + 1])
        pads[2 * axis + 1] -= cut
        shape[1 + axis] -= left_over - cut
        if shape[1 + axis] < 1:
            raise refuse(op, "has windows that lie in the padding alone")
    return body.slice(x, [0] * 4, shape), pads


def _conv(body: Body, op: Conv, sources: tuple[Ssa, ...]) -> Ssa:
    """Write a convolution of all channels, of each channel, or of groups of channels."""
    if op.epilogue is not None:
        raise refuse(op, "has an epilogue, which only compiler passes add")
    x, pads = crop(body, op, sources[0], op.window)
    outputs, channels = op.weight.shape[0], x.shape[3]
    shape = (x.shape[0], *op.window.output(*sources[0].shape[1:3]), outputs)
    ranges = sums_range(op.weight.astype(np.int64), op.bias.astype(np.int64), "int8", op.x_zero)
    if ranges[0].min() < -_WORD or ranges[1].max() >= _WORD:
        raise refuse(op, "may make sums that do not fit 32 bits")
    zero = _weight_zero(op)
    weight = (op.weight + zero).astype(np.int8)
    attributes = {
        "pad": pads,
        "stride": list(op.window.stride),
        "dilation": list(op.window.dilation),
        "acc_type": "i32",
    }

    def sums(name: str, image: Ssa, filters: np.ndarray, bias: np.ndarray) -> Ssa:
        parameters = body.constant(filters), body.constant(bias.astype(np.int32))
        operands = (image, *parameters, body.number(op.x_zero), body.number(zero))
        return body.op(name, operands, "int32", (*shape[:3], len(bias)), **attributes)

    if op.groups == 1:
        result = requantise(body, op, sums("tosa.conv2d", x, weight, op.bias), op.scale, ranges)
    elif op.groups == channels:
        # TOSA's order is rows, columns, channels, outputs of each channel.
        filters = (
            weight[..., 0].reshape(channels, outputs // channels, *op.window.kernel).transpose(2, 3, 0, 1)
        )
        total = sums("tosa.depthwise_conv2d", x, np.ascontiguousarray(filters), op.bias)
        result = requantise(body, op, total, op.scale, ranges)
    else:
        # TOSA has no groups: each gets a convolution of its own.
        each, width = channels // op.groups, outputs // op.groups
        parts = []
        for at in range(op.groups):
            own = slice(at * width, (at + 1) * width)
            image = body.slice(x, (0, 0, 0, at * each), (*x.shape[:3], each))
            total = sums("tosa.conv2d", image, weight[own], op.bias[own])
            parts.append(requantise(body, op, total, op.scale[own], (ranges[0][own], ranges[1][own])))
        result = body.concat(parts, 3)
    return result if op.pool is None else _maximum(body, op, result, op.pool)


def _weight_zero(op: Conv) -> int:
    """Return a zero point with which the weights fit 8 bits."""
    low, high = int(op.weight.min()), int(op.weight.max())
    if high - low > 255:
        raise refuse(op, f"has weights from {low} to {high}, which no zero point brings into 8 bits")
    return 0 if low >= -128 and high <= 127 else min(127 - high, 127) if high > 127 else -128 - low


def _maximum(body: Body, op: Any, x: Ssa, window: Window) -> Ssa:
    if window.dilation != (1, 1):
        raise refuse(op, f"has dilations {window.dilation}, which TOSA's pools do not")
    shape = (x.shape[0], *window.output(*x.shape[1:3]), x.shape[3])
    image, pads = crop(body, op, x, window)
    if max(pads[:2]) >= window.kernel[0] or max(pads[2:]) >= window.kernel[1]:
        raise refuse(op, "has padding as large as its window")
    return body.op(
        "tosa.max_pool2d",
        (image,),
        "int8",
        shape,
        kernel=list(window.kernel),
        stride=list(window.stride),
        pad=pads,
    )


def _pool(body: Body, op: Pool, sources: tuple[Ssa, ...]) -> Ssa:
    """Write a pool: the maximum, or the mean over windows that all have the same number of elements."""
    x = sources[0]
    if op.kind == "max":
        return rescale(body, op, _maximum(body, op, x, op.window))
    n, h, w, c = x.shape
    outputs = op.window.output(h, w)
    number = _number(op, (h, w), outputs)
    mantissa, shift = quantise_scale(op.scale / number)
    values = (number * (-128 - op.x_zero), number * (127 - op.x_zero))
    image, pads = crop(body, op, x, op.window)
    if (
        op.window.dilation == (1, 1)
        and not any(pads)
        and _is_exact_mean(op, number, (mantissa, shift), values)
    ):
        zeros = (body.number(op.x_zero), body.number(op.y_zero))
        mean = body.op("tosa.avg_pool2d", (image, *zeros), "int8", (n, *outputs, c), kernel=list(op.window.kernel),
                       stride=list(op.window.stride), pad=pads, acc_type="i32")  # fmt: skip
        return clamp(body, mean, op.low, op.high)
    # A depthwise convolution with ones computes the sums exactly; the requantisation divides them.
    ones = np.ones((*op.window.kernel, c, 1), np.int8)
    operands = (
        image,
        body.constant(ones),
        body.constant(np.zeros(c, np.int32)),
        body.number(op.x_zero),
        body.number(0),
    )
    steps = {"stride": list(op.window.stride), "dilation": list(op.window.dilation)}
    total = body.op(
        "tosa.depthwise_conv2d", operands, "int32", (n, *outputs, c), pad=pads, **steps, acc_type="i32"
    )
    # Padding adds 0, so sums at the border lie between 0 and those of full windows.
    full = int(np.prod(op.window.kernel))
    ends = (np.array([min(full * (-128 - op.x_zero), 0)]), np.array([max(full * (127 - op.x_zero), 0)]))
    return requantise(body, op, total, np.array([op.scale / number]), ends)


def _number(op: Pool, sizes: tuple[int, int], outputs: tuple[int, int]) -> int:
    """Return the number of elements in each window of an average."""
    sides = []
    for axis, (size, count) in enumerate(zip(sizes, outputs, strict=True)):
        steps = np.arange(op.window.kernel[axis]) * op.window.dilation[axis]
        places = np.arange(count)[:, None] * op.window.stride[axis] - op.window.pad[axis] + steps
        first, last = (-op.window.pad[axis], size + op.window.pad[axis + 2]) if op.include_pad else (0, size)
        sides.append(((places >= first) & (places < last)).sum(1))
    counts = np.unique(np.outer(*sides))
    if counts.size > 1 or counts[0] < 1:
        raise refuse(
            op,
            f"averages windows of {', '.join(map(str, counts.tolist()))} elements, which need different scales",
        )
    return int(counts[0])


def _is_exact_mean(op: Pool, number: int, pair: tuple[int, int], values: tuple[int, int]) -> bool:
    """Return whether TOSA's division gives the device's bytes."""
    levels = (-128 - op.y_zero, 127 - op.y_zero)
    return is_exact(reciprocal_scale(number), pair, values, levels)


# Element by element


def _add(body: Body, op: Add, sources: tuple[Ssa, ...]) -> Ssa:
    a, b, shift = quantise_pair(op.a_scale, abs(op.b_scale))
    if not a or not b or not forms.SHIFTS[0] <= shift <= forms.SHIFTS[1]:
        raise refuse(
            op, f"adds with scales {op.a_scale:g} and {op.b_scale:g}, which are too far apart, or from 1"
        )
    mask = (1 << (shift - forms.PART)) - 1
    values: dict[str, Any] = {"a": sources[0], "b": sources[1], "shift": shift - forms.PART, "mask": mask,
                             "half": (mask + 1) >> 1, "zero": op.y_zero, "low": op.low, "high": op.high}  # fmt: skip
    for name, number, zero in (("a", a, op.a_zero), ("b", b if op.b_scale > 0 else -b, op.b_zero)):
        upper = number >> forms.PART
        values |= {
            f"{name}_upper": upper,
            f"{name}_lower": number - (upper << forms.PART),
            f"{name}_zero": zero,
        }
    return body.form(forms.ADDED, values)


def _multiply(body: Body, op: Multiply, sources: tuple[Ssa, ...]) -> Ssa:
    one, other = (
        body.form(forms.subtract_zero("x"), {"x": source, "x_zero": zero})
        for source, zero in zip(sources, (op.a_zero, op.b_zero), strict=True)
    )
    total = body.op("tosa.mul", (one, other, body.number(0)), "int32", one.shape)
    # A product has its extremes at the ends of both ranges.
    ends = [a * b for a in (-128 - op.a_zero, 127 - op.a_zero) for b in (-128 - op.b_zero, 127 - op.b_zero)]
    return requantise(body, op, total, np.array([op.scale]), (np.array([min(ends)]), np.array([max(ends)])))


def _rescale_op(body: Body, op: Rescale, sources: tuple[Ssa, ...]) -> Ssa:
    return rescale(body, op, sources[0])


def _pad(body: Body, op: Pad, sources: tuple[Ssa, ...]) -> Ssa:
    """Write padding of an image, and a requantisation."""
    x = sources[0]
    top, left, bottom, right = op.window.pad
    shape = (x.shape[0], x.shape[1] + top + bottom, x.shape[2] + left + right, x.shape[3])
    pads = body.sizes((0, 0, top, bottom, left, right, 0, 0))
    return rescale(body, op, body.op("tosa.pad", (x, pads, body.number(op.fill)), "int8", shape))


_KINDS: dict[type[DeviceOp], Callable[[Body, Any, tuple[Ssa, ...]], Ssa]] = {
    Conv: _conv, Pool: _pool, Add: _add, Multiply: _multiply, Rescale: _rescale_op, Pad: _pad,
}  # fmt: skip
