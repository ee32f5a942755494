"""What `weft.extras.mlir.forms` has, recognised where its last operation converts to 8 bits."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.scales import quantise_pair
from weft.extras.mlir import forms
from weft.extras.mlir.byte_functions import scaled_bytes, stored_as
from weft.extras.mlir.context import Context
from weft.extras.mlir.program import Value


def _bounds(found: forms.Bindings) -> tuple[int, tuple[int, int]] | None:
    """The zero point and the range of a form's result; None if they are no single numbers of 8 bits."""
    numbers = [found[name] for name in ("zero", "low", "high")]
    if any(number.size != 1 for number in numbers):
        return None
    zero, low, high = (int(number.item()) for number in numbers)
    good = -128 <= zero <= 127 and -128 <= low < high <= 127
    return (zero, (low, high)) if good else None


def requantised(context: Context) -> bool:
    """A requantisation that rounds halves to even."""
    builder = context.builder
    found = forms.matched(builder, forms.REQUANTISED, _with_maker(context))
    if found is None:
        return False
    known, ends = builder.sums.get(found["sum"]), _bounds(found)
    count = max(found[name].size for name in ("multiplier", "shift", "mask", "half"))
    if known is None or ends is None:
        return False
    columns = [
        np.broadcast_to(found[name].reshape(-1), (count,)).tolist()
        for name in ("multiplier", "shift", "mask", "half")
    ]
    for multiplier, shift, mask, half in zip(*columns, strict=True):
        if (
            forms.halves(multiplier, shift) != (mask, half)
            or (multiplier >> forms.trailing_zeros(multiplier)).bit_length() > 24
        ):
            return False
    scale = np.array(
        [math.ldexp(int(m), -int(s)) for m, s in zip(columns[0], columns[1], strict=True)], np.float32
    )
    scale = scale[:1] if (scale == scale[0]).all() else scale
    if not scale.all() or (scale.size > 1 and scale.size != context.shape()[-1]):
        return False
    zero, bounds = ends
    context.put(stored_as(builder, known.scaled(scale), zero, bounds, "int8"))
    return True


def _with_maker(context: Context) -> Value:
    """The result of the operation at hand, which is not done yet, with the operation as its maker."""
    context.builder.makers[context.result()] = context.op
    return context.result()


def added(context: Context) -> bool:
    """A sum of two scaled numbers that rounds halves to even."""
    builder = context.builder
    found = forms.matched(builder, forms.ADDED, _with_maker(context))
    ends = None if found is None else _bounds(found)
    if found is None or ends is None:
        return False
    names = ("a_upper", "a_lower", "b_upper", "b_lower", "shift", "mask", "half", "a_zero", "b_zero")
    if any(found[name].size != 1 for name in names):
        return False
    numbers = {name: int(found[name].item()) for name in names}
    a, b = ((numbers[f"{name}_upper"] << forms.PART) + numbers[f"{name}_lower"] for name in "ab")
    shift = numbers["shift"] + forms.PART
    if (numbers["mask"], numbers["half"]) != (
        (1 << (shift - forms.PART)) - 1,
        1 << (shift - forms.PART - 1),
    ) or a < 0:
        return False
    scales = [math.ldexp(number, -shift) for number in (a, b)]
    try:
        exact = quantise_pair(float(np.float32(scales[0])), float(np.float32(abs(scales[1])))) == (
            a,
            abs(b),
            shift,
        )
    except CompileError:
        return False
    if not exact or not a or not b:
        return False
    reals = [
        builder.dequantised(
            builder.stored(found[name]),
            scaled_bytes(np.array([abs(scale)], np.float32), numbers[f"{name}_zero"], "int8", None),
            found[name].type,
        )
        for name, scale in zip("ab", scales, strict=True)
    ]
    zero, bounds = ends
    total = builder.emit("Add" if b > 0 else "Sub", reals)
    context.put(stored_as(builder, total, zero, bounds, "int8"))
    return True
