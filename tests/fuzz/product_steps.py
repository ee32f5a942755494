"""Steps of random graphs: products of two activations, attention with additions to its scores, and windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fuzz.drawn import LARGEST, Graph, Rng, is_image, sizes_of
from support.qdq_models import Quantised

Shape = tuple[int, ...]


def repeated_shape(rng: Rng, shape: Shape) -> Shape:
    """Draw a shape that repeats to `shape`: some axes are 1, and the first ones may be missing."""
    share = rng.choice([0, 0.3, 0.7])
    kept = [1 if rng.random() < share else size for size in shape]
    return tuple(kept[int(rng.integers(len(kept) + 1)) if rng.random() < 0.3 else 0 :])


def operand(graph: Graph, shape: Shape) -> Quantised:
    """Return a value of a shape: an existing one, an input or a constant."""
    rng, found = graph.builder.rng, None
    if rng.random() < 0.3:
        found = graph.pick(lambda value: value.shape == shape)
    return found or (graph.constant(shape) if rng.random() < 0.35 else graph.input(shape))


def maybe_requantise(graph: Graph, value: str, source: Quantised) -> str:
    """Return a float value, directly or after QuantizeLinear and DequantizeLinear."""
    builder = graph.builder
    if builder.rng.random() < 0.5:
        return value
    return builder.dequantise(builder.like(value, builder.shape_of(value), source))


def ints(graph: Graph, values: Sequence[int]) -> str:
    return graph.builder.constant(np.array(values, np.int64))


def reshape(graph: Graph, value: str, shape: Sequence[int]) -> str:
    return graph.builder.node("Reshape", [value, ints(graph, shape)])


def transpose(graph: Graph, value: str, perm: Sequence[int]) -> str:
    return graph.builder.node("Transpose", [value], perm=list(perm))


def product(graph: Graph) -> None:
    """Add MatMul of a value with another, a constant or an input, with any batch axes; some after Transpose."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: len(value.shape) >= 2)
    if source is None:
        return
    (*lead, rows, columns), side = source.shape, int(rng.choice([1, 2, 3, 5, 8, 17]))
    left = rng.random() < 0.5
    depth = columns if left else rows
    batch = repeated_shape(rng, tuple(lead)) if lead else ()
    if rng.random() < 0.2 and len(batch) < 3:
        batch = (*sizes_of(rng, 1), *(1,) * (len(lead) - len(batch)), *batch)
    turn = bool(rng.integers(2))
    sides = (depth, side) if left else (side, depth)
    if np.prod(batch, initial=1) * depth * side > LARGEST:
        return
    other = operand(graph, (*batch, *(sides[::-1] if turn else sides)))
    values = [maybe_requantise(graph, builder.dequantise(source), source), builder.dequantise(other)]
    if turn:
        rank = len(batch) + 2
        perm = (*range(rank - 2), rank - 1, rank - 2)
        values[1] = maybe_requantise(graph, transpose(graph, values[1], perm), other)
    value = builder.node("MatMul", values if left else values[::-1])
    shape = builder.shape_of(value)
    if np.prod(shape) > LARGEST:
        return
    if rng.random() < 0.3 and len(shape) > 2:
        value = transpose(graph, value, [int(axis) for axis in rng.permutation(len(shape))])
        shape = builder.shape_of(value)
    scale = source.scale * other.scale * 110 * 110 * depth**0.5 / 64 * 2 ** rng.uniform(-1, 1)
    graph.add(builder.quantise(value, shape, float(np.float32(scale)), *builder.parameters()[1:]))


def attention(graph: Graph) -> None:
    """Add attention of one packed value, with an addition to its scores, optionally quantised in between."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: len(value.shape) == 3 and value.shape[2] % 3 == 0)
    heads = int(rng.choice([1, 2, 3, 4]))
    if source is None or source.shape[2] % (3 * heads) or rng.random() < 0.3:
        batch, rows, size = (int(rng.choice(sizes)) for sizes in ((1, 2, 4), (1, 4, 9, 16, 20), (1, 3, 4, 8)))
        source = graph.input((batch, rows, 3 * heads * size))
    batch, rows, width = source.shape
    if batch * heads * rows**2 > LARGEST or rows > 64:
        return
    size = width // 3 // heads
    query, key, values = _parts(graph, source, heads, size)
    factor = builder.constant(np.float32(size**-0.5))
    way = int(rng.integers(3))
    if way == 0:
        query = maybe_requantise(graph, builder.node("Mul", [query, factor]), source)
    value = builder.node("MatMul", [query, transpose(graph, key, (0, 1, 3, 2))])
    if way == 1:
        value = builder.node("Mul", [value, factor])
    shape = (batch, heads, rows, rows)
    step = float(np.float32((source.scale * 90) ** 2 * size**0.5 / 64))
    value = _maybe_quantise(graph, value, shape, step)
    if rng.random() < 0.8:
        value = _maybe_quantise(graph, _add_bias(graph, value, shape, step), shape, step)
    value = builder.node("Softmax", [value], axis=-1)
    if rng.random() < 0.8:
        value = builder.dequantise(builder.quantise(value, shape, 1 / 256, 0, True))
    value = builder.node("MatMul", [value, values])
    if rng.random() < 0.7:
        value = reshape(graph, transpose(graph, value, (0, 2, 1, 3)), (batch, rows, heads * size))
    graph.add(
        builder.quantise(
            value,
            builder.shape_of(value),
            float(np.float32(source.scale * 0.9)),
            source.zero,
            source.unsigned,
        )
    )


def _parts(graph: Graph, source: Quantised, heads: int, size: int) -> list[str]:
    """Return queries, keys and values of a packed value, split in one of the ways of exporters."""
    builder, rng = graph.builder, graph.builder.rng
    batch, rows, width = source.shape
    value = builder.dequantise(source)
    if rng.random() < 0.5:
        value = reshape(graph, value, (batch, rows, 3, heads, size))
        value = maybe_requantise(graph, transpose(graph, value, (2, 0, 3, 1, 4)), source)
        if rng.random() < 0.5:
            picked = [
                builder.node("Gather", [value, builder.constant(np.int64(part))], axis=0) for part in range(3)
            ]
        else:
            picked = [
                builder.node("Squeeze", [part, ints(graph, [0])]) for part in _split(graph, value, 0, [1] * 3)
            ]
        return [maybe_requantise(graph, part, source) for part in picked]
    parts = [maybe_requantise(graph, part, source) for part in _split(graph, value, 2, [width // 3] * 3)]
    return [
        transpose(graph, reshape(graph, part, (batch, rows, heads, size)), (0, 2, 1, 3)) for part in parts
    ]


def _split(graph: Graph, value: str, axis: int, sizes: Sequence[int]) -> list[str]:
    """Split with Split, or with Slices."""
    builder = graph.builder
    if builder.rng.random() < 0.5:
        name = builder.node("Split", [value, ints(graph, sizes)], axis=axis)
        node = builder.nodes[-1]
        node.output.extend(f"{name}_{index}" for index in range(1, len(sizes)))
        return list(node.output)
    ends = np.cumsum(sizes)
    return [
        builder.node("Slice", [value, *(ints(graph, [int(at)]) for at in (end - size, end, axis))])
        for size, end in zip(sizes, ends, strict=True)
    ]


def _maybe_quantise(graph: Graph, value: str, shape: Shape, step: float) -> str:
    """Return scores, optionally quantised."""
    builder = graph.builder
    if builder.rng.random() < 0.4:
        return value
    return builder.dequantise(builder.quantise(value, shape, step, *builder.parameters()[1:]))


def _add_bias(graph: Graph, value: str, shape: Shape, step: float) -> str:
    """Add a constant, an input, or a mask to scores."""
    builder, rng = graph.builder, graph.builder.rng
    part = repeated_shape(rng, shape)
    kind = int(rng.integers(4))
    if kind == 0:
        numbers = np.where(rng.random(part) < 0.8, 0, rng.choice([-100.0, -10000.0])).astype(np.float32)
        added = builder.constant(numbers)
    elif kind == 1:
        added = builder.constant(rng.normal(0, 20 * step, part).astype(np.float32))
    else:
        made = graph.constant(part) if kind == 2 else graph.input(part)
        added = builder.dequantise(made)
    return builder.node("Add", [value, added] if rng.integers(2) else [added, value])


def windows(graph: Graph) -> None:
    """Partition channels-last images into windows, and in half of the draws merge them again."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(is_image)
    if source is None or rng.random() < 0.3:
        sizes = (1, 2), (2, 4, 6, 7, 8), (2, 4, 6, 9), (1, 3, 5, 8, 12)
        source = graph.input(tuple(int(rng.choice(of)) for of in sizes))
    n, h, w, c = source.shape
    value = maybe_requantise(graph, builder.dequantise(source), source)
    side = [int(rng.choice([1, 2, 3, 4])) for _ in range(2)]
    more = [-h % side[0], -w % side[1]]
    if rng.random() < 0.4:
        value = maybe_requantise(graph, _roll(graph, value, (n, h, w, c), int(rng.integers(1, 3))), source)
    if any(more):
        value = maybe_requantise(
            graph, builder.node("Pad", [value, ints(graph, [0] * 5 + [*more, 0])]), source
        )
    h, w = h + more[0], w + more[1]
    if n * h * w * c > LARGEST:
        return
    count = h // side[0], w // side[1]
    value = reshape(graph, value, (n, count[0], side[0], count[1], side[1], c))
    value = maybe_requantise(graph, transpose(graph, value, (0, 1, 3, 2, 4, 5)), source)
    shape: Shape = (n * count[0] * count[1], side[0] * side[1], c)
    value = maybe_requantise(graph, reshape(graph, value, shape), source)
    if rng.random() < 0.4:
        value = reshape(graph, value, (n, *count, *side, c))
        value = maybe_requantise(graph, transpose(graph, value, (0, 1, 3, 2, 4, 5)), source)
        shape = (n, h, w, c)
        value = reshape(graph, value, shape)
    graph.add(builder.like(value, shape, source))


def _roll(graph: Graph, value: str, shape: Shape, axis: int) -> str:
    """Roll an axis, as Slices and Concat do it."""
    by = int(graph.builder.rng.integers(0, shape[axis]))
    if not by:
        return value
    first, second = _split(graph, value, axis, [by, shape[axis] - by])
    return graph.builder.node("Concat", [second, first], axis=axis)


def take(graph: Graph) -> None:
    """Add Slice, Gather, Pad, or exchange the halves of a value."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: True)
    if source is None:
        return
    axis = int(rng.integers(len(source.shape)))
    size, value = source.shape[axis], maybe_requantise(graph, builder.dequantise(source), source)
    way = int(rng.integers(4))
    if way == 0:
        start, step = int(rng.integers(size)), int(rng.choice([1, 1, 2, 3, -1]))
        end = -(1 << 31) if step < 0 else int(rng.integers(start, size)) + 1
        value = builder.node("Slice", [value, *(ints(graph, [at]) for at in (start, end, axis, step))])
    elif way == 1:
        shape = () if rng.random() < 0.3 and len(source.shape) > 1 else (int(rng.integers(1, 5)),)
        value = builder.node("Gather", [value, builder.constant(rng.integers(0, size, shape))], axis=axis)
    elif way == 2:
        pads = np.zeros((2, len(source.shape)), np.int64)
        pads[:, axis] = rng.integers(0, 3, 2)
        value = builder.node("Pad", [value, ints(graph, pads.reshape(-1).tolist())])
    else:
        value = _roll(graph, value, source.shape, axis)
    shape = builder.shape_of(value)
    if np.prod(shape) <= LARGEST:
        graph.add(builder.like(value, shape, source))


STEPS = {"product": (product, 4), "biased": (attention, 2), "windows": (windows, 2), "taken": (take, 2)}
"""Steps by name, each with its relative frequency."""
