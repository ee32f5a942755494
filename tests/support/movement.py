"""Random operators that only move elements, between a DequantizeLinear and a QuantizeLinear or on integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from support.qdq_models import Builder, Quantised, Rng

Shape = tuple[int, ...]
Moved = tuple[str, Shape]
"""A value's name and shape."""


def integers(built: Builder, *values: int) -> str:
    return built.constant(np.array(values, np.int64))


def draw(rng: Rng, low: int, high: int) -> int:
    """Draw an integer from `low` to `high`, both included."""
    return int(rng.integers(low, high + 1))


def slice_axes(built: Builder, value: str, shape: Shape) -> Moved:
    """Slice some axes, with steps; of images not the channels."""
    rng = built.rng
    axes = [axis for axis in range(len(shape)) if rng.random() < 0.6] or [0]
    starts, ends, steps, out = [], [], [], list(shape)
    for axis in axes:
        start = draw(rng, 0, shape[axis] - 1)
        stop, step = draw(rng, start + 1, shape[axis]), draw(rng, 1, 3)
        starts.append(start if rng.random() < 0.5 else start - shape[axis])
        ends.append(stop if stop < shape[axis] else 1 << 40)
        steps.append(step)
        out[axis] = len(range(start, stop, step))
    given = [integers(built, *values) for values in (starts, ends, axes, steps)]
    return built.node("Slice", [value, *given]), tuple(out)


def split(built: Builder, value: str, shape: Shape) -> Moved:
    """Split into two or three parts, and concatenate them in another order."""
    rng, axis = built.rng, draw(built.rng, 0, len(shape) - 1)
    if shape[axis] < 3:
        return slice_axes(built, value, shape)
    first = draw(rng, 1, shape[axis] - 2)
    sizes = [first, draw(rng, 1, shape[axis] - first - 1)]
    sizes.append(shape[axis] - sum(sizes))
    names = [built.name("part") for _ in sizes]
    node = helper.make_node(
        "Split", [value, integers(built, *sizes)], names, name=built.name("split"), axis=axis
    )
    built.nodes.append(node)
    order = rng.permutation(3)
    return built.node("Concat", [names[at] for at in order], axis=axis), shape


def pad(built: Builder, value: str, shape: Shape) -> Moved:
    """Pad rows and columns, or channels, with a constant or with existing elements."""
    rng, rank = built.rng, len(shape)
    mode = str(rng.choice(["constant", "constant", "edge", "reflect"]))
    axes = [2, 3] if rank == 4 else list(range(rank - 1))
    if rng.random() < 0.3 or rank == 1:
        axes = [1 if rank == 4 else rank - 1]
    low = -1 if mode == "constant" else 0
    pads = [draw(rng, low if shape[axis] > 2 else 0, 2 if mode != "reflect" else min(2, shape[axis] - 1))
            for _ in range(2) for axis in axes]  # fmt: skip
    out = list(shape)
    for at, axis in enumerate(axes):
        out[axis] += pads[at] + pads[at + len(axes)]
    return built.node("Pad", [value, integers(built, *pads), "", integers(built, *axes)], mode=mode), tuple(
        out
    )


def repeat(built: Builder, value: str, shape: Shape) -> Moved:
    rng = built.rng
    repeats = [draw(rng, 1, 2) for _ in shape]
    return built.node("Tile", [value, integers(built, *repeats)]), tuple(
        size * many for size, many in zip(shape, repeats, strict=True)
    )


def expand(built: Builder, value: str, shape: Shape) -> Moved:
    rng = built.rng
    out = tuple(draw(rng, 1, 9) if size == 1 else size for size in shape)
    return built.node("Expand", [value, integers(built, *out)]), out


def resize(built: Builder, value: str, shape: Shape) -> Moved:
    """Resize by integer factors, in both directions."""
    rng = built.rng
    factors = [1] * len(shape)
    for axis in range(max(0, len(shape) - 2), len(shape)) if len(shape) == 4 else range(len(shape) - 1):
        factors[axis] = draw(rng, 1, 3)
    scales = built.constant(np.array(factors, np.float32))
    how = {
        "coordinate_transformation_mode": str(rng.choice(["asymmetric", "half_pixel", "pytorch_half_pixel"])),
        "nearest_mode": str(rng.choice(["floor", "round_prefer_floor", "round_prefer_ceil"])),
    }
    return built.node("Resize", [value, "", scales], mode="nearest", **how), tuple(
        size * factor for size, factor in zip(shape, factors, strict=True)
    )


def gather(built: Builder, value: str, shape: Shape) -> Moved:
    rng, axis = built.rng, draw(built.rng, 0, len(shape) - 1)
    indices = rng.integers(-shape[axis], shape[axis], draw(rng, 1, 6))
    return built.node("Gather", [value, integers(built, *indices.tolist())], axis=axis), (
        *shape[:axis], len(indices), *shape[axis + 1 :],
    )  # fmt: skip


def to_space(built: Builder, value: str, shape: Shape) -> Moved:
    size = 3 if len(shape) == 4 and shape[1] % 9 == 0 else 2
    if len(shape) != 4 or shape[1] % size**2:
        return slice_axes(built, value, shape)
    mode = str(built.rng.choice(["DCR", "CRD"]))
    n, c, h, w = shape
    return built.node("DepthToSpace", [value], blocksize=size, mode=mode), (
        n,
        c // size**2,
        h * size,
        w * size,
    )


def to_depth(built: Builder, value: str, shape: Shape) -> Moved:
    if len(shape) != 4 or shape[2] % 2 or shape[3] % 2:
        return slice_axes(built, value, shape)
    n, c, h, w = shape
    return built.node("SpaceToDepth", [value], blocksize=2), (n, c * 4, h // 2, w // 2)


def concat_twice(built: Builder, value: str, shape: Shape) -> Moved:
    """Concatenate a value with itself, along any axis."""
    axis = draw(built.rng, 0, len(shape) - 1)
    return built.node("Concat", [value, value], axis=axis), (
        *shape[:axis],
        2 * shape[axis],
        *shape[axis + 1 :],
    )


MOVES: dict[str, Callable[[Builder, str, Shape], Moved]] = {
    "slice": slice_axes, "split": split, "pad": pad, "tile": repeat, "expand": expand, "resize": resize,
    "gather": gather, "to space": to_space, "to depth": to_depth, "concat": concat_twice,
}  # fmt: skip
LARGEST = 40_000
"""Elements above which nothing is repeated."""


def append_move(built: Builder, source: Quantised, kind: str) -> Quantised:
    """Add one operator on a value, on its integers or its floats; some change the quantisation."""
    move, rng = MOVES[kind], built.rng
    if np.prod(source.shape) > LARGEST:
        move = slice_axes
    if rng.random() < 0.3:
        name, shape = move(built, source.name, source.shape)
        return Quantised(name, shape, source.scale, source.zero, source.unsigned, source.bits)
    name, shape = move(built, built.dequantise(source), source.shape)
    if rng.random() < 0.7:
        return built.like(name, shape, source)
    _, zero, unsigned = built.parameters()
    return built.quantise(name, shape, float(np.float32(source.scale * 1.37)), zero, unsigned)


def random_shape(rng: Rng, rank: int) -> Shape:
    """Draw a shape; some have 16 times as many channels."""
    shape = [draw(rng, 1, 6) for _ in range(rank)]
    if rank == 4:
        shape[1] = int(rng.choice([1, 3, 4, 8, 9, 16, 36]))
        shape[2:] = [draw(rng, 1, 12), draw(rng, 1, 12)]
    return tuple(shape)


def random_model(rng: Rng, kinds: list[str], rank: int = 4) -> onnx.ModelProto:
    """Draw a sequence of operators; some results are read again at the end, by a convolution or a sum."""
    built = Builder(rng)
    value = built.input(random_shape(rng, rank))
    if rank == 4 and rng.random() < 0.5:
        value = built.conv(value, value.shape[1], (1, 1))
    values: list[Any] = [value]
    for kind in kinds:
        values.append(append_move(built, values[-1], kind))
    value = values[-1]
    if rank == 4 and rng.random() < 0.7:
        return built.finish(built.conv(value, draw(rng, 1, 9), (1, 1)))
    alike = [other for other in values[:-1] if other.shape == value.shape]
    return built.finish(add(built, value, alike[0]) if alike else value)


def add(built: Builder, a: Quantised, b: Quantised) -> Quantised:
    """Add two values, with a scale that avoids halfway sums."""
    result = built.node("Add", [built.dequantise(a), built.dequantise(b)])
    _, zero, unsigned = built.parameters()
    return built.quantise(result, a.shape, float(np.float32((a.scale + b.scale) * 0.7183)), zero, unsigned)
