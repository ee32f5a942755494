"""Steps of random graphs: products of two activations, attention with something added to its scores, and windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fuzz.drawn import LARGEST, Graph, Rng, is_image, sizes_of
from support.qdq_models import Quantised

Shape = tuple[int, ...]


def repeated(rng: Rng, shape: Shape) -> Shape:
    """A shape that repeats to `shape`: some axes are 1, and the first ones may be missing."""
    share = rng.choice([0, 0.3, 0.7])
    kept = [1 if rng.random() < share else size for size in shape]
    return tuple(kept[int(rng.integers(len(kept) + 1)) if rng.random() < 0.3 else 0 :])


def operand(graph: Graph, shape: Shape) -> Quantised:
    """A value of a shape: one that is there, an input or a constant."""
    rng, found = graph.builder.rng, None
    if rng.random() < 0.3:
        found = graph.pick(lambda value: value.shape == shape)
    return found or (graph.constant(shape) if rng.random() < 0.35 else graph.input(shape))


def moved(graph: Graph, value: str, source: Quantised) -> str:
    """A float value as it is, or behind a pair of QuantizeLinear and DequantizeLinear."""
    builder = graph.builder
    if builder.rng.random() < 0.5:
        return value
    return builder.dequantise(builder.like(value, builder.shape_of(value), source))


def ints(graph: Graph, values: Sequence[int]) -> str:
    return graph.builder.constant(np.array(values, np.int64))


def reshaped(graph: Graph, value: str, shape: Sequence[int]) -> str:
    return graph.builder.node("Reshape", [value, ints(graph, shape)])


def turned(graph: Graph, value: str, perm: Sequence[int]) -> str:
    return graph.builder.node("Transpose", [value], perm=list(perm))


def product(graph: Graph) -> None:
    """MatMul of a value with another, a constant or an input, of any batches in front; some behind Transpose."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: len(value.shape) >= 2)
    if source is None:
        return
    (*lead, rows, columns), side = source.shape, int(rng.choice([1, 2, 3, 5, 8, 17]))
    left = rng.random() < 0.5
    depth = columns if left else rows
    batch = repeated(rng, tuple(lead)) if lead else ()
    if rng.random() < 0.2 and len(batch) < 3:
        batch = (*sizes_of(rng, 1), *(1,) * (len(lead) - len(batch)), *batch)
    turn = bool(rng.integers(2))
    sides = (depth, side) if left else (side, depth)
    if np.prod(batch, initial=1) * depth * side > LARGEST:
        return
    other = operand(graph, (*batch, *(sides[::-1] if turn else sides)))
    values = [moved(graph, builder.dequantise(source), source), builder.dequantise(other)]
    if turn:
        rank = len(batch) + 2
        perm = (*range(rank - 2), rank - 1, rank - 2)
        values[1] = moved(graph, turned(graph, values[1], perm), other)
    value = builder.node("MatMul", values if left else values[::-1])
    shape = builder.shape_of(value)
    if np.prod(shape) > LARGEST:
        return
    if rng.random() < 0.3 and len(shape) > 2:
        value = turned(graph, value, [int(axis) for axis in rng.permutation(len(shape))])
        shape = builder.shape_of(value)
    scale = source.scale * other.scale * 110 * 110 * depth**0.5 / 64 * 2 ** rng.uniform(-1, 1)
    graph.add(builder.quantise(value, shape, float(np.float32(scale)), *builder.parameters()[1:]))


def attention(graph: Graph) -> None:
    """Attention of one packed value, with something added to its scores, quantised in between or not."""
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
        query = moved(graph, builder.node("Mul", [query, factor]), source)
    value = builder.node("MatMul", [query, turned(graph, key, (0, 1, 3, 2))])
    if way == 1:
        value = builder.node("Mul", [value, factor])
    shape = (batch, heads, rows, rows)
    step = float(np.float32((source.scale * 90) ** 2 * size**0.5 / 64))
    value = _settled(graph, value, shape, step)
    if rng.random() < 0.8:
        value = _settled(graph, _biased(graph, value, shape, step), shape, step)
    value = builder.node("Softmax", [value], axis=-1)
    if rng.random() < 0.8:
        value = builder.dequantise(builder.quantise(value, shape, 1 / 256, 0, True))
    value = builder.node("MatMul", [value, values])
    if rng.random() < 0.7:
        value = reshaped(graph, turned(graph, value, (0, 2, 1, 3)), (batch, rows, heads * size))
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
    """Queries, keys and values of a value that has them beside each other, in one of the ways of exporters."""
    builder, rng = graph.builder, graph.builder.rng
    batch, rows, width = source.shape
    value = builder.dequantise(source)
    if rng.random() < 0.5:
        value = reshaped(graph, value, (batch, rows, 3, heads, size))
        value = moved(graph, turned(graph, value, (2, 0, 3, 1, 4)), source)
        if rng.random() < 0.5:
            picked = [
                builder.node("Gather", [value, builder.constant(np.int64(part))], axis=0) for part in range(3)
            ]
        else:
            picked = [
                builder.node("Squeeze", [part, ints(graph, [0])]) for part in _split(graph, value, 0, [1] * 3)
            ]
        return [moved(graph, part, source) for part in picked]
    parts = [moved(graph, part, source) for part in _split(graph, value, 2, [width // 3] * 3)]
    return [turned(graph, reshaped(graph, part, (batch, rows, heads, size)), (0, 2, 1, 3)) for part in parts]


def _split(graph: Graph, value: str, axis: int, sizes: Sequence[int]) -> list[str]:
    """By Split, or by Slices."""
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


def _settled(graph: Graph, value: str, shape: Shape, step: float) -> str:
    """Scores as they are, or quantised."""
    builder = graph.builder
    if builder.rng.random() < 0.4:
        return value
    return builder.dequantise(builder.quantise(value, shape, step, *builder.parameters()[1:]))


def _biased(graph: Graph, value: str, shape: Shape, step: float) -> str:
    """Scores and a constant, an input, or a mask."""
    builder, rng = graph.builder, graph.builder.rng
    part = repeated(rng, shape)
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
    """Images of which channels come last, cut into windows, and as often as not back."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(is_image)
    if source is None or rng.random() < 0.3:
        sizes = (1, 2), (2, 4, 6, 7, 8), (2, 4, 6, 9), (1, 3, 5, 8, 12)
        source = graph.input(tuple(int(rng.choice(of)) for of in sizes))
    n, h, w, c = source.shape
    value = moved(graph, builder.dequantise(source), source)
    side = [int(rng.choice([1, 2, 3, 4])) for _ in range(2)]
    more = [-h % side[0], -w % side[1]]
    if rng.random() < 0.4:
        value = moved(graph, _rolled(graph, value, (n, h, w, c), int(rng.integers(1, 3))), source)
    if any(more):
        value = moved(graph, builder.node("Pad", [value, ints(graph, [0] * 5 + [*more, 0])]), source)
    h, w = h + more[0], w + more[1]
    if n * h * w * c > LARGEST:
        return
    count = h // side[0], w // side[1]
    value = reshaped(graph, value, (n, count[0], side[0], count[1], side[1], c))
    value = moved(graph, turned(graph, value, (0, 1, 3, 2, 4, 5)), source)
    shape: Shape = (n * count[0] * count[1], side[0] * side[1], c)
    value = moved(graph, reshaped(graph, value, shape), source)
    if rng.random() < 0.4:
        value = reshaped(graph, value, (n, *count, *side, c))
        value = moved(graph, turned(graph, value, (0, 1, 3, 2, 4, 5)), source)
        shape = (n, h, w, c)
        value = reshaped(graph, value, shape)
    graph.add(builder.like(value, shape, source))


def _rolled(graph: Graph, value: str, shape: Shape, axis: int) -> str:
    """What comes behind the end comes in front, as Slices and Concat do it."""
    by = int(graph.builder.rng.integers(0, shape[axis]))
    if not by:
        return value
    first, second = _split(graph, value, axis, [by, shape[axis] - by])
    return graph.builder.node("Concat", [second, first], axis=axis)


def taken(graph: Graph) -> None:
    """Slice, Gather, Pad, or the halves of a value the other way round."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: True)
    if source is None:
        return
    axis = int(rng.integers(len(source.shape)))
    size, value = source.shape[axis], moved(graph, builder.dequantise(source), source)
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
        value = _rolled(graph, value, source.shape, axis)
    shape = builder.shape_of(value)
    if np.prod(shape) <= LARGEST:
        graph.add(builder.like(value, shape, source))


STEPS = {"product": (product, 4), "biased": (attention, 2), "windows": (windows, 2), "taken": (taken, 2)}
"""Steps by name, each with how often it is drawn."""
