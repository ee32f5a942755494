"""Random quantised graphs, compiled for every preset and every board, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fuzz import product_steps, row_steps
from fuzz.against_ort import compare_with_ort
from fuzz.drawn import LARGEST, Graph, Rng, is_image, sizes_of
from fuzz.files import Edit
from fuzz.outcome import Outcome
from support.qdq_models import Quantised

from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.hdl.isa.config import PRESETS, Config

CONFIGS: dict[str, Config] = (
    PRESETS
    | {board.name: board.config for board in BOARDS.values()}
    | {f"{name}, kernels": config.replace(kernel=64) for name, config in PRESETS.items()}
)
_SEQUENTIAL = {board.name for board in BOARDS.values() if board.core is CoreKind.SEQUENTIAL}


def draw(rng: Rng) -> list[Edit]:
    """Draw the configuration, and two to nine steps, each with its own seed."""
    config = str(rng.choice(list(CONFIGS)))
    count = int(rng.integers(1, 9))
    steps = ["input", *(str(name) for name in rng.choice(list(STEPS), count, p=_CHANCES))]
    if CONFIGS[config].kernel and rng.random() < 0.5:
        steps.insert(int(rng.choice([0, 0, count])), "wide")
    return [["graph", config], *([name, int(rng.integers(1 << 30))] for name in steps)]


def run(edits: list[Edit], folder: Path) -> Outcome:
    (_, name), *steps = edits
    graph = Graph()
    for step, seed in steps:
        graph.builder.rng = np.random.default_rng(seed)
        STEPS[step](graph)
    if not graph.inputs:
        return Outcome("refused", "no input")
    model = graph.finish()
    onnx.save(model, folder / "model.onnx")
    feeds = graph.feeds(np.random.default_rng(steps[-1][1]))
    np.savez(folder / "in.npz", **feeds)
    return compare_with_ort(model, feeds, CONFIGS[name], timing=name not in _SEQUENTIAL)


def _input(graph: Graph) -> None:
    rank = int(graph.builder.rng.choice([2, 3, 4, 4, 4]))
    graph.add(graph.input(sizes_of(graph.builder.rng, rank)))


def _conv(graph: Graph) -> None:
    rng = graph.builder.rng
    source = graph.pick(is_image)
    if source is None:
        return
    _, channels, *size = source.shape
    groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
    kernel = [int(value) for value in rng.integers(1, 6, 2)]
    dilation = [int(value) for value in rng.integers(1, 4, 2)]
    pads = [int(rng.integers(0, kernel[axis % 2] * dilation[axis % 2])) for axis in range(4)]
    for axis in range(2):
        if size[axis] + pads[axis] + pads[axis + 2] < (kernel[axis] - 1) * dilation[axis] + 1:
            kernel[axis] = dilation[axis] = 1
    outputs = groups * int(rng.integers(1, 20 if groups == 1 else 3))
    value = graph.builder.conv(
        source, outputs, (kernel[0], kernel[1]), stride=(int(rng.integers(1, 4)), int(rng.integers(1, 4))),
        dilation=(dilation[0], dilation[1]), pads=(pads[0], pads[1], pads[2], pads[3]), groups=groups,
        per_channel=bool(rng.integers(2)), unsigned_weight=bool(rng.random() < 0.25), bias=bool(rng.integers(2)),
        relu=bool(rng.integers(2)), gain=float(2 ** rng.uniform(-2, 1)),
    )  # fmt: skip
    if np.prod(value.shape) <= LARGEST:
        graph.add(value)


def _dense(graph: Graph) -> None:
    rng = graph.builder.rng
    op = str(rng.choice(["Gemm", "MatMul"]))
    source = graph.pick(lambda value: op == "MatMul" or len(value.shape) == 2)
    if source is not None:
        outputs = int(rng.choice([1, 2, 5, 8, 17, 40]))
        graph.add(
            graph.builder.dense(
                source, outputs, op=op, per_channel=bool(rng.integers(2)), bias=bool(rng.integers(2))
            )
        )


def _pool(graph: Graph) -> None:
    rng = graph.builder.rng
    source = graph.pick(is_image)
    if source is None:
        return
    op = str(rng.choice(["MaxPool", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"]))
    attributes: dict[str, Any] = {}
    if not op.startswith("Global"):
        kernel = [min(int(rng.integers(1, 5)), size) for size in source.shape[2:]]
        pads = [int(rng.integers(0, kernel[axis % 2])) for axis in range(4)]
        attributes = {
            "kernel_shape": kernel,
            "strides": [int(value) for value in rng.integers(1, 4, 2)],
            "pads": pads,
        }
        if op == "AveragePool":
            attributes["count_include_pad"] = int(rng.integers(2))
    graph.add(graph.builder.pool(source, op, same=op == "MaxPool", **attributes))


def _mean(graph: Graph) -> None:
    source = graph.pick(is_image)
    if source is not None:
        graph.add(graph.builder.mean(source, keep=bool(graph.builder.rng.integers(2))))


def _add(graph: Graph) -> None:
    source = graph.pick(lambda value: True)
    if source is None:
        return
    other = graph.pick(lambda value: value.shape == source.shape)
    if other is not None and (other.name != source.name or graph.builder.rng.random() < 0.2):
        graph.add(graph.builder.add(source, other, relu=bool(graph.builder.rng.integers(2))))


def _concat(graph: Graph) -> None:
    source = graph.pick(lambda value: True)
    if source is None:
        return
    axis = int(graph.builder.rng.integers(len(source.shape)))

    def fits(value: Quantised) -> bool:
        rest = [
            shape[:axis] + shape[axis + 1 :] for shape in (value.shape, source.shape) if len(shape) > axis
        ]
        return (
            value.unsigned == source.unsigned
            and len(rest) == 2
            and rest[0] == rest[1]
            and len(value.shape) == len(source.shape)
        )

    parts = [
        part for part in (graph.pick(fits) for _ in range(int(graph.builder.rng.integers(1, 4)))) if part
    ]
    if parts:
        graph.add(graph.builder.concat([source, *parts], axis))


def _softmax(graph: Graph) -> None:
    source = graph.pick(lambda value: True)
    if source is None:
        return
    builder, rng = graph.builder, graph.builder.rng
    unsigned = bool(rng.integers(2))
    value = builder.node("Softmax", [builder.dequantise(source)], axis=-1)
    scale = float(rng.choice([1 / 256, 1 / 255, 1 / 128]))
    graph.add(builder.quantise(value, source.shape, scale, 0 if unsigned else -128, unsigned))


def _view(graph: Graph) -> None:
    """Add Reshape, Flatten or Transpose, which move elements, with their input's parameters."""
    source = graph.pick(lambda value: True)
    if source is None:
        return
    builder, rng = graph.builder, graph.builder.rng
    choice = int(rng.integers(3))
    if choice == 0:
        graph.add(builder.flatten(source))
        return
    if choice == 1:
        perm = [int(axis) for axis in rng.permutation(len(source.shape))]
        value = builder.node("Transpose", [builder.dequantise(source)], perm=perm)
        graph.add(builder.like(value, tuple(source.shape[axis] for axis in perm), source))
        return
    sizes = [factor for size in source.shape for factor in _factors(size)]
    rng.shuffle(sizes)
    rank = int(rng.integers(2, 5))
    cuts = sorted(int(value) for value in rng.integers(0, len(sizes) + 1, rank - 1))
    shape = tuple(int(np.prod(part)) for part in np.split(np.array(sizes, int), cuts))
    value = builder.node("Reshape", [builder.dequantise(source), builder.constant(np.array(shape, np.int64))])
    graph.add(builder.like(value, shape, source))


def _factors(number: int) -> list[int]:
    for prime in (2, 3, 5, 7, 11, 13, 17):
        if number % prime == 0 and number > prime:
            return [prime, *_factors(number // prime)]
    return [number]


def _clamp(graph: Graph) -> None:
    """Add Relu, Clip or nothing, and requantise."""
    source = graph.pick(lambda value: True)
    if source is None:
        return
    builder, rng = graph.builder, graph.builder.rng
    value, choice = builder.dequantise(source), int(rng.integers(3))
    if choice == 1:
        value = builder.node("Relu", [value])
    elif choice == 2:
        limits = [builder.constant(np.float32(limit)) for limit in (rng.uniform(-2, 0), rng.uniform(0, 4))]
        value = builder.node("Clip", [value, *limits])
    scale = float(np.float32(source.scale * 2 ** rng.uniform(-2, 2)))
    _, zero, unsigned = builder.parameters()
    graph.add(builder.quantise(value, source.shape, scale, zero, unsigned))


def _host(graph: Graph) -> None:
    """Add an operator that the device does not have."""
    source = graph.pick(lambda value: True)
    if source is not None:
        builder = graph.builder
        value = builder.node("Hardmax", [builder.dequantise(source)])
        graph.add(builder.quantise(value, source.shape, *builder.parameters()))


def _function(graph: Graph) -> None:
    """Add a function of each element."""
    source = graph.pick(lambda value: True)
    if source is not None:
        builder = graph.builder
        op = str(builder.rng.choice(["Sigmoid", "Abs", "Neg", "HardSwish"]))
        value = builder.node(op, [builder.dequantise(source)])
        _, zero, unsigned = builder.parameters()
        scale = 1 / 200 if op == "Sigmoid" else source.scale
        graph.add(builder.quantise(value, source.shape, float(np.float32(scale)), zero, unsigned))


def _attention(graph: Graph) -> None:
    """Add attention of a value with itself, or with new keys and values, and scores of all sizes."""
    builder, rng = graph.builder, graph.builder.rng
    query = graph.pick(is_image)
    if query is None or query.shape[2] > 40:
        return
    batch, heads, rows, size = query.shape
    keys = int(rng.choice([1, 3, 8, 17, 40]))
    if rng.random() < 0.3:
        key = value = query
    else:
        key, value = (
            graph.input((batch, heads, keys, size)),
            graph.input((batch, heads, keys, int(rng.integers(1, 20)))),
        )
    largest = 256 * 256 * size * query.scale * key.scale
    nats = float(10 ** rng.uniform(0, 3.2))
    result = builder.node(
        "Attention", [builder.dequantise(item) for item in (query, key, value)], scale=nats / largest,
        is_causal=int(rng.integers(2)),
    )  # fmt: skip
    shape = (batch, heads, rows, value.shape[3])
    graph.add(
        builder.quantise(
            result, shape, float(np.float32(value.scale * rng.uniform(0.7, 1))), value.zero, value.unsigned
        )
    )


def _spread(graph: Graph) -> None:
    source, builder, rng = graph.pick(is_image), graph.builder, graph.builder.rng
    if source is None:
        return
    kernel, strides, dilations = (rng.integers(1, most, 2).tolist() for most in (5, 4, 3))
    outputs = int(rng.integers(1, 9))
    weight, scales = builder.weight((source.shape[1], outputs, *kernel), 1, per_channel=True, unsigned=False)
    value = builder.node(
        "ConvTranspose", [builder.dequantise(source), weight], strides=strides, dilations=dilations
    )
    shape = builder.shape_of(value)
    if np.prod(shape) <= LARGEST:
        spread = source.scale * float(scales.mean()) * 90 * float(source.shape[1] * np.prod(kernel)) ** 0.5
        graph.add(builder.quantise(value, shape, float(np.float32(spread)), *builder.parameters()[1:]))


def _slopes(graph: Graph) -> None:
    """Add PRelu with a slope for each channel of images."""
    source, builder = graph.pick(is_image), graph.builder
    if source is not None:
        slopes = builder.rng.uniform(0, 1.2, (source.shape[1], 1, 1)).astype(np.float32)
        value = builder.node("PRelu", [builder.dequantise(source), builder.constant(slopes)])
        graph.add(builder.quantise(value, source.shape, source.scale, *builder.parameters()[1:]))


def _resize(graph: Graph) -> None:
    """Resize images by linear interpolation."""
    source, builder, rng = graph.pick(is_image), graph.builder, graph.builder.rng
    if source is None:
        return
    factors = [1, 1, *rng.choice([0.5, 1, 2, 3], 2)]
    if np.prod(source.shape) * np.prod(factors) > LARGEST or min(source.shape[2:]) < 2:
        return
    scales = builder.constant(np.array(factors, np.float32))
    mode = str(rng.choice(["half_pixel", "asymmetric", "pytorch_half_pixel"]))
    name = builder.node(
        "Resize", [builder.dequantise(source), "", scales], mode="linear", coordinate_transformation_mode=mode
    )
    scale = float(np.float32(source.scale * 0.91))
    graph.add(builder.quantise(name, builder.shape_of(name), scale, *builder.parameters()[1:]))


def _wide(graph: Graph) -> None:
    """Let later values have 16 bits sometimes or always."""
    graph.builder.wide = float(graph.builder.rng.choice([0.3, 0.6, 1.0]))


STEPS: dict[str, Callable[[Graph], None]] = {
    "input": _input, "conv": _conv, "dense": _dense, "pool": _pool, "mean": _mean, "add": _add, "concat": _concat,
    "softmax": _softmax, "view": _view, "clamp": _clamp, "host": _host, "function": _function, "attention": _attention,
    "spread": _spread, "slopes": _slopes, "resized": _resize, "wide": _wide,
}  # fmt: skip
"""Steps of a graph, by name."""
_WEIGHTS = dict(zip(STEPS, [1, 5, 3, 3, 1, 3, 2, 1, 2, 1, 1, 2, 1.5, 1, 1, 1, 0], strict=True))
for _name, (_step, _weight) in (product_steps.STEPS | row_steps.STEPS).items():
    STEPS[_name], _WEIGHTS[_name] = _step, _weight
_CHANCES = np.array(list(_WEIGHTS.values())) / sum(_WEIGHTS.values())
