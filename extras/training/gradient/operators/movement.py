"""Operators that move elements, as expressions."""

from __future__ import annotations

import math

import numpy as np

from weft.extras.training.gradient.expression import Axis, Expression, Place, Reindex, apply
from weft.extras.training.gradient.meaning import Context, axes_of, handles, permute, reshape


@handles("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(context: Context) -> Expression:
    x, op = context.x, context.node.op
    shape = list(x.shape)
    if op == "Reshape":
        wanted, keeps = context.integers(1), not context.get("allowzero", 0)
        sizes = [shape[at] if size == 0 and keeps else size for at, size in enumerate(wanted)]
        if -1 in sizes:
            sizes[sizes.index(-1)] = math.prod(shape) // -math.prod(sizes)
        return reshape(x, sizes)
    if op == "Flatten":
        at = context.get("axis", 1) % (len(shape) + 1)
        return reshape(x, (math.prod(shape[:at]), math.prod(shape[at:])))
    chosen = context.integers(1, "axes")
    if op == "Squeeze":
        gone = [at % len(shape) for at in chosen] or [at for at, size in enumerate(shape) if size == 1]
        return reshape(x, [size for at, size in enumerate(shape) if at not in gone])
    rank = len(shape) + len(chosen)
    new = sorted(at % rank for at in chosen)
    for at in new:
        shape.insert(at, 1)
    return reshape(x, shape)


def _slice_axis(x: Expression, at: int, size: int, place: tuple[int, int]) -> Expression:
    """Return axis number `at` with `size` elements: element i is ``first + i * step`` of the operand."""
    axes = list(x.axes)
    axes[at] = Axis(size, axes[at].label)
    first, step = place
    places = {axis: Place.of(axis) for axis in x.axes}
    places[x.axes[at]] = Place(((axes[at], step),), first)
    return Reindex(x, tuple(axes), places)


@handles("Slice")
def _slice(context: Context) -> Expression:
    x, starts, ends = context.x, context.integers(1, "starts"), context.integers(2, "ends")
    chosen = context.integers(3, "axes") or list(range(len(starts)))
    steps = context.integers(4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, chosen, steps, strict=True):
        at = axis % len(x.axes)
        # ONNX counts negative ends from the back and clamps them, as Python does.
        indices = range(*slice(start, end, step).indices(x.axes[at].size))
        x = _slice_axis(x, at, len(indices), (indices.start, step))
    return x


@handles("Split")
def _split(context: Context) -> list[Expression]:
    x, count = context.x, len(context.node.outputs)
    at = context.get("axis", 0) % len(x.axes)
    size = x.axes[at].size
    # Without sizes, all parts are equal but for a smaller last one.
    most = -(-size // count)
    sizes = context.integers(1, "split") or [min(most, size - most * index) for index in range(count)]
    firsts = np.cumsum([0, *sizes[:-1]])
    return [_slice_axis(x, at, part, (int(first), 1)) for first, part in zip(firsts, sizes, strict=True)]


@handles("Concat")
def _concat(context: Context) -> Expression:
    parts = [context.operand(index) for index in range(len(context.inputs))]
    at = context.get("axis", 0) % len(parts[0].axes)
    axes = list(parts[0].axes)
    axes[at] = Axis(sum(part.axes[at].size for part in parts), axes[at].label)
    first, moved = 0, []
    for part in parts:
        places = {own: Place.of(axis) for own, axis in zip(part.axes, axes, strict=True)}
        places[part.axes[at]] = Place(((axes[at], 1),), -first)
        moved.append(Reindex(part, tuple(axes), places))
        first += part.axes[at].size
    result: Expression = moved[0]
    # Each part is 0 outside its place, so that their sum is the concatenation.
    for part in moved[1:]:
        result = apply("add", result, part)
    return result


@handles("Pad")
def _pad(context: Context) -> Expression:
    pads, value, x = context.integers(1, "pads"), context.constant_input(2, "value"), context.x
    if context.get("mode", "constant") != "constant":
        raise context.refuse(f"with mode {context.get('mode')!r}")
    if value is not None and value.size and float(value) != 0.0:
        raise context.refuse(f"with the value {float(value)}")
    rank = len(x.axes)
    chosen = context.integers(3) or list(range(rank))
    for index, axis in enumerate(chosen):
        before, after = pads[index], pads[index + len(chosen)]
        at = axis % rank
        if before or after:
            x = _slice_axis(x, at, x.axes[at].size + before + after, (-before, 1))
    return x


@handles("Expand", "Tile")
def _expand(context: Context) -> Expression:
    x, wanted = context.x, context.integers(1)
    if context.node.op == "Tile":
        if any(repeat > 1 and axis.size > 1 for repeat, axis in zip(wanted, x.axes, strict=True)):
            raise context.refuse("where it repeats more than one element")
        sizes = [axis.size * repeat for axis, repeat in zip(x.axes, wanted, strict=True)]
    else:
        sizes = list(np.broadcast_shapes(x.shape, tuple(wanted)))
    axes = axes_of(sizes)
    own = axes[len(axes) - len(x.axes) :]
    places = {
        axis: Place.of(new) if axis.size == new.size else Place()
        for axis, new in zip(x.axes, own, strict=True)
    }
    return Reindex(x, axes, places)


@handles("Resize", "Upsample")
def _resize(context: Context) -> Expression:
    x = context.x
    kind = context.network.type_of(context.node.outputs[0])
    sizes = kind.sizes if kind is not None else None
    integral = sizes is not None and all(new % old == 0 for new, old in zip(sizes, x.shape, strict=True))
    if context.get("mode", "nearest") != "nearest" or sizes is None or not integral:
        raise context.refuse("but where each element is repeated a whole number of times")
    axes = tuple(
        axis if axis.size == size else Axis(size, axis.label)
        for axis, size in zip(x.axes, sizes, strict=True)
    )
    places = {
        axis: Place(((new, 1),), 0, new.size // axis.size, floor=new is not axis)
        for axis, new in zip(x.axes, axes, strict=True)
    }
    return Reindex(x, axes, places)


@handles("Transpose")
def _transpose(context: Context) -> Expression:
    rank = len(context.x.axes)
    return permute(context.x, context.get("perm", tuple(reversed(range(rank)))))
