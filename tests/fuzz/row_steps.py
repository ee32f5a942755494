"""Steps of random graphs: pairs with a repeated value, reductions, normalisations written out, branches."""

from __future__ import annotations

import numpy as np
import onnx
from fuzz.drawn import LARGEST, Graph, is_image
from fuzz.product_steps import ints, operand, repeated_shape
from support.qdq_models import Quantised


def pair(graph: Graph) -> None:
    """Add Add, Sub, Mul, Min, Max or Div of a value and another that repeats, or 8-bit or float constants."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: True)
    if source is None:
        return
    op = str(rng.choice(["Add", "Add", "Sub", "Mul", "Mul", "Min", "Max", "Div"]))
    part = repeated_shape(rng, source.shape)
    name = builder.dequantise(source)
    if rng.random() < 0.25 and op != "Div":
        other, step = builder.constant(rng.normal(0, 3, part).astype(np.float32)), 3 / 64
    else:
        value = operand(graph, part)
        other, step = builder.dequantise(value), value.scale
    inputs = [name, other] if rng.random() < 0.6 else [other, name]
    result = builder.node(op, inputs)
    if op in ("Mul", "Div"):
        scale = (
            source.scale * step * 64
            if op == "Mul"
            else (source.scale / step if inputs[0] == name else step / source.scale) / 16
        )
    else:
        scale = (source.scale + step) * rng.uniform(0.4, 1.2)
    graph.add(
        builder.quantise(
            result, builder.shape_of(result), float(np.float32(scale)), *builder.parameters()[1:]
        )
    )


def concat(graph: Graph) -> None:
    """Add Concat of a value with constants and inputs, on either side."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: True)
    if source is None:
        return
    axis = int(rng.integers(len(source.shape)))
    parts = [source]
    for _ in range(int(rng.integers(1, 3))):
        shape = list(source.shape)
        shape[axis] = int(rng.integers(1, 5))
        parts.insert(int(rng.integers(len(parts) + 1)), operand(graph, tuple(shape)))
    result = builder.node("Concat", [builder.dequantise(part) for part in parts], axis=axis)
    shape_of = builder.shape_of(result)
    if np.prod(shape_of) <= LARGEST:
        scale = max(part.scale for part in parts)
        graph.add(builder.quantise(result, shape_of, scale, source.zero, source.unsigned))


def _axes(graph: Graph, source: Quantised) -> list[int]:
    rng, rank = graph.builder.rng, len(source.shape)
    if rng.random() < 0.5:
        return [rank - 1]
    return sorted(int(axis) for axis in rng.choice(rank, int(rng.integers(1, rank + 1)), replace=False))


def reduce(graph: Graph) -> None:
    """Add a reduction over any axes."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: True)
    if source is None:
        return
    op = str(rng.choice(["Mean", "Mean", "Mean", "Sum", "Max", "Min", "L1", "L2", "SumSquare"]))
    axes = _axes(graph, source)
    value = builder.node(
        f"Reduce{op}", [builder.dequantise(source), ints(graph, axes)], keepdims=int(rng.integers(2))
    )
    shape, count = builder.shape_of(value), float(np.prod([source.shape[axis] for axis in axes]))
    if not shape:
        return
    gain = {"Sum": count**0.5, "L1": count, "L2": 2 * count**0.5, "SumSquare": 100 * source.scale * count}
    scale = source.scale * gain.get(op, 1) * rng.uniform(0.4, 1.1)
    graph.add(builder.quantise(value, shape, float(np.float32(scale)), *builder.parameters()[1:]))


def logarithms(graph: Graph) -> None:
    """Add LogSoftmax along any axis."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: True)
    if source is None:
        return
    axis = -1 if rng.random() < 0.6 else int(rng.integers(len(source.shape)))
    value = builder.node("LogSoftmax", [builder.dequantise(source)], axis=axis)
    unsigned = bool(rng.integers(2))
    scale = float(np.float32((source.scale * rng.uniform(40, 255) + 3) / 255))
    graph.add(builder.quantise(value, source.shape, scale, 255 if unsigned else 127, unsigned))


def responses(graph: Graph) -> None:
    """Add LRN of images."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(is_image)
    if source is None:
        return
    largest, bias = 128 * source.scale, float(rng.uniform(0.5, 3))
    ratio, beta = float(10.0 ** rng.uniform(-2, 2)), float(rng.choice([0.5, 0.75, 1]))
    value = builder.node(
        "LRN", [builder.dequantise(source)], size=int(rng.choice([1, 3, 5, 9])), alpha=ratio * bias / largest**2,
        beta=beta, bias=bias,
    )  # fmt: skip
    scale = largest / (bias + 0.2 * ratio * bias) ** beta / 127
    graph.add(builder.quantise(value, source.shape, float(np.float32(scale)), *builder.parameters()[1:]))


def places(graph: Graph) -> None:
    """Add ArgMax or ArgMin along any axis, as floats."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: True)
    if source is None:
        return
    value = builder.node(
        str(rng.choice(["ArgMax", "ArgMin"])), [builder.dequantise(source)],
        axis=int(rng.integers(len(source.shape))), select_last_index=int(rng.integers(2)),
    )  # fmt: skip
    value = builder.node("Cast", [value], to=onnx.TensorProto.FLOAT)
    graph.add(builder.quantise(value, builder.shape_of(value), 0.5, *builder.parameters()[1:]))


def normalise(graph: Graph) -> None:
    """Add a normalisation written out: with or without mean subtraction, scale and bias."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(lambda value: True)
    if source is None:
        return
    axes, value = _axes(graph, source), builder.dequantise(source)
    if rng.random() < 0.6:
        mean = builder.node("ReduceMean", [value, ints(graph, axes)])
        value = builder.node("Sub", [value, mean])
    if rng.random() < 0.5:
        square = builder.node("Mul", [value, value])
    else:
        square = builder.node("Pow", [value, builder.constant(np.float32(2))])
    spread = builder.node("ReduceMean", [square, ints(graph, axes)])
    spread = builder.node("Add", [spread, builder.constant(np.float32(10 ** rng.uniform(-6, -2)))])
    if rng.random() < 0.3:
        spread = builder.dequantise(
            builder.quantise(
                spread, builder.shape_of(spread), float(np.float32(source.scale**2 * 90)), 0, True
            )
        )
    value = builder.node("Div", [value, builder.node("Sqrt", [spread])])
    shape = tuple(size if axis in axes else 1 for axis, size in enumerate(source.shape))[min(axes) :]
    for op in ("Mul", "Add"):
        if rng.random() < 0.5:
            value = builder.node(op, [value, builder.constant(rng.normal(0, 1, shape).astype(np.float32))])
    scale = float(np.float32(rng.uniform(0.01, 0.05)))
    graph.add(builder.quantise(value, source.shape, scale, *builder.parameters()[1:]))


def branches(graph: Graph) -> None:
    """Add two convolutions of one image, or of two, joined by a sum or a product."""
    builder, rng = graph.builder, graph.builder.rng
    source = graph.pick(is_image)
    if source is None or source.shape[1] > 40:
        return
    outputs, stride = int(rng.integers(1, 20)), int(rng.integers(1, 3))

    def branch(value: Quantised, kernel: int, by: int, to: int) -> Quantised:
        pad = (kernel - 1) // 2
        return builder.conv(
            value, to, (kernel, kernel), stride=(by, by), pads=(pad,) * 4, relu=bool(rng.integers(2)),
            per_channel=bool(rng.integers(2)), unsigned_weight=bool(rng.random() < 0.3),
        )  # fmt: skip

    if outputs * np.prod(source.shape[2:]) * source.shape[0] > LARGEST:
        return
    short = branch(source, 1, stride, outputs)
    long = branch(source, int(rng.choice([1, 3])), stride, outputs)
    for _ in range(int(rng.integers(0, 3))):
        long = branch(long, int(rng.choice([1, 3])), 1, outputs)
    if short.shape != long.shape:
        return
    op = str(rng.choice(["Add", "Add", "Mul", "Sub"]))
    parts = [short, long] if rng.integers(2) else [long, short]
    value = builder.node(op, [builder.dequantise(part) for part in parts])
    if rng.integers(2):
        value = builder.node("Relu", [value])
    scale = short.scale * long.scale * 64 if op == "Mul" else short.scale + long.scale
    graph.add(builder.quantise(value, short.shape, float(np.float32(scale)), *builder.parameters()[1:]))
    if rng.random() < 0.2:
        graph.add(short)


STEPS = {
    "paired": (pair, 3), "joined": (concat, 2), "reduced": (reduce, 2), "normalised": (normalise, 2),
    "branches": (branches, 2), "logarithms": (logarithms, 1), "places": (places, 1),
    "responses": (responses, 1),
}  # fmt: skip
"""Steps by name, each with its relative frequency."""
