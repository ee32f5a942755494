"""TOSA by its specification, in numpy and Python integers: an oracle for the reader and the printer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.extras.mlir.program import Op, import_with_xdsl


def run(text: str, *arguments: np.ndarray) -> list[np.ndarray]:
    """Evaluate a text's function on integers."""
    program = import_with_xdsl("inline").parse_program(text, "the text")
    values: dict[Any, np.ndarray] = dict(zip(program.arguments, arguments, strict=True))
    for op in program.ops:
        values[op.results[0]] = _evaluate(op, [values[operand] for operand in op.operands])
    return [values[result] for result in program.results]


def _evaluate(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    name, type_ = op.name.removeprefix("tosa."), op.results[0].type
    wide = [item.astype(np.int64) if item.dtype != np.bool_ else item for item in operands]
    if name in ("const", "const_shape"):
        computed = op.attributes["values"]
    elif name in _ELEMENTS:
        computed = _ELEMENTS[name](*wide[:2])
    else:
        computed = _OTHERS[name](op, wide)
    computed = np.asarray(computed)
    assert computed.shape == type_.shape, (op.label, computed.shape, type_.shape)
    result: np.ndarray = computed.astype(type_.dtype)
    assert (result == computed).all(), (op.label, "does not fit", type_.dtype)
    return result


def apply_scale(value: int, multiplier: int, shift: int, double: bool) -> int:
    assert multiplier >= 0
    assert 2 <= shift <= 62
    assert -(1 << (shift - 1)) <= value < 1 << (shift - 1)
    half = 1 << (shift - 1)
    if double and shift > 31:
        half += (1 << 30) if value >= 0 else -(1 << 30)
    result = (value * multiplier + half) >> shift
    assert -(1 << 31) <= result < 1 << 31
    return result


def _rescale(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    x, multiplier, shift, in_zero, out_zero = operands
    shape = x.shape
    double = op.attributes["rounding_mode"] == "DOUBLE_ROUND"
    factors, shifts = (np.broadcast_to(item, (shape[-1],)).tolist() for item in (multiplier, shift))
    limits = np.iinfo(op.results[0].type.dtype)
    rows = (x - in_zero).reshape(-1, shape[-1]).tolist()
    computed = [
        [apply_scale(value, m, s, double) for value, m, s in zip(row, factors, shifts, strict=True)]
        for row in rows
    ]
    return np.clip(np.array(computed).reshape(shape) + out_zero, limits.min, limits.max)


def _windows(x: np.ndarray, op: Op, kernel: tuple[int, int], fill: int) -> np.ndarray:
    """(N, rows, columns, kernel rows, kernel columns, C)."""
    top, bottom, left, right = op.attributes["pad"]
    stride, dilation = op.attributes["stride"], op.attributes.get("dilation", [1, 1])
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
    sizes = []
    for axis in (0, 1):
        left_over = padded.shape[1 + axis] - (kernel[axis] - 1) * dilation[axis] - 1
        assert left_over % stride[axis] == 0, (op.label, "windows do not end where the image does")
        sizes.append(left_over // stride[axis] + 1)
    rows = np.arange(sizes[0])[:, None] * stride[0] + np.arange(kernel[0]) * dilation[0]
    columns = np.arange(sizes[1])[:, None] * stride[1] + np.arange(kernel[1]) * dilation[1]
    return padded[:, rows[:, None, :, None], columns[None, :, None, :]]


def _conv2d(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    x, weight, bias, in_zero, weight_zero = operands
    seen = _windows(x - in_zero, op, weight.shape[1:3], 0)
    return np.einsum("nhwyxc,oyxc->nhwo", seen, weight - weight_zero) + bias


def _depthwise_conv2d(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    x, weight, bias, in_zero, weight_zero = operands
    seen = _windows(x - in_zero, op, weight.shape[:2], 0)
    computed = np.einsum("nhwyxc,yxcm->nhwcm", seen, weight - weight_zero)
    return computed.reshape(*computed.shape[:3], -1) + bias


def _max_pool2d(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    return _windows(operands[0], op, tuple(op.attributes["kernel"]), -128).max(axis=(3, 4))


def _avg_pool2d(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    x, in_zero, out_zero = operands
    kernel = tuple(op.attributes["kernel"])
    total = _windows(x - in_zero, op, kernel, 0).sum(axis=(3, 4))
    counts = _windows(np.ones_like(x), op, kernel, 0).sum(axis=(3, 4))
    computed = []
    for value, count in zip(total.reshape(-1).tolist(), counts.reshape(-1).tolist(), strict=True):
        bits = (count - 1).bit_length()
        computed.append(apply_scale(value, (((1 << 30) + 1) << bits) // count, 30 + bits, double=False))
    return np.clip(np.array(computed).reshape(total.shape) + out_zero, -128, 127)


def _pad(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    x, pads, fill = operands
    return np.pad(x, pads.reshape(-1, 2).tolist(), constant_values=int(fill.item()))


def _slice(op: Op, operands: list[np.ndarray]) -> np.ndarray:
    x, starts, sizes = operands
    return x[
        tuple(slice(start, start + size) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True))
    ]


_ELEMENTS: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "bitwise_and": np.bitwise_and, "logical_and": np.logical_and, "logical_or": np.logical_or, "equal": np.equal,
    "greater": np.greater, "arithmetic_right_shift": np.right_shift, "table": lambda x, entries: entries[x + 128],
    "reshape": lambda x, shape: x.reshape(shape),
}  # fmt: skip
_OTHERS: Mapping[str, Callable[[Op, list[np.ndarray]], Any]] = {
    "rescale": _rescale,
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise_conv2d,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "matmul": lambda op, operands: (operands[0] - operands[2]) @ (operands[1] - operands[3]),
    "clamp": lambda op, operands: np.clip(operands[0], op.attributes["min_val"], op.attributes["max_val"]),
    "cast": lambda op, operands: operands[0],
    "select": lambda op, operands: np.where(*operands),
    "concat": lambda op, operands: np.concatenate(operands, op.attributes["axis"]),
    "transpose": lambda op, operands: operands[0].transpose(op.attributes["perms"]),
    "pad": _pad,
    "slice": _slice,
    "reduce_sum": lambda op, operands: operands[0].sum(op.attributes["axis"], keepdims=True),
}
