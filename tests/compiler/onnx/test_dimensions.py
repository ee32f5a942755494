"""Convolutions and pools with one dimension behind channels, and with three, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from support import one_step
from support.graph_runs import device_ops
from support.qdq_models import Builder, Quantised, Rng

from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Conv, Rescale
from weft.hdl.isa.config import Config

Shape = tuple[int, ...]


def requantise(built: Builder, value: str, scale: float) -> Quantised:
    _, zero, unsigned = built.parameters()
    return built.quantise(value, built.shape_of(value), float(np.float32(scale)), zero, unsigned)


def conv(
    built: Builder,
    given: Quantised,
    outputs: int,
    kernel: Shape,
    *,
    groups: int = 1,
    bias: bool = True,
    **attributes: object,
) -> Quantised:
    shape = (outputs, given.shape[1] // groups, *kernel)
    name, scales = built.weight(shape, 0, per_channel=True, unsigned=False)
    inputs = [built.dequantise(given), name, *([built.bias(given, scales)] if bias else [])]
    value = built.node("Conv", inputs, group=groups, **attributes)
    return requantise(built, value, given.scale * float(scales.mean()) * 90 * np.prod(shape[1:]) ** 0.5)


def padding(
    rng: Rng, rank: int, kernel: list[int], dilations: list[int], strides: list[int]
) -> dict[str, object]:
    """All that ONNX has for it."""
    kind = int(rng.integers(4))
    if kind == 0:
        return {"auto_pad": "VALID"}
    if kind == 1 and max(strides) == max(dilations) == 1:
        return {"auto_pad": str(rng.choice(["SAME_UPPER", "SAME_LOWER"]))}
    return {"pads": [int(rng.integers(0, kernel[at % rank])) for at in range(2 * rank)]}


def window(rng: Rng, shape: Shape, *, dilated: bool = True) -> tuple[list[int], dict[str, object]]:
    """A kernel that fits, and its attributes; along depth one element."""
    rank = len(shape) - 2
    kernel = [int(rng.integers(1, min(4, size) + 1)) for size in shape[2:]]
    strides = [int(rng.integers(1, 4)) for _ in kernel]
    dilations = [int(rng.integers(1, 3)) if dilated and (size - 1) * 2 < most else 1
                 for size, most in zip(kernel, shape[2:], strict=True)]  # fmt: skip
    actual = padding(rng, rank, kernel, dilations, strides)
    if rank == 3:
        kernel[0] = strides[0] = dilations[0] = 1
        pads = actual.get("pads")
        if isinstance(pads, list):
            pads[0] = pads[3] = 0
    return kernel, {"strides": strides, "dilations": dilations, **actual}


def size(rng: Rng, rank: int) -> Shape:
    shape = [
        int(rng.integers(1, 3)),
        int(rng.integers(1, 7)),
        *(int(rng.integers(2, 9)) for _ in range(rank)),
    ]
    if rank == 3 and rng.random() < 0.3:
        shape[2] = 1
    if rank == 1 and rng.random() < 0.5:
        shape[2] = int(rng.integers(1, 200))
    return tuple(shape)


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions(rank: int) -> None:
    tally = one_step.Tally()
    for seed in range(25):
        rng = np.random.default_rng([seed, rank])
        built, shape = Builder(rng), size(rng, rank)
        kernel, attributes = window(rng, shape)
        groups = shape[1] if rng.random() < 0.3 else 1
        value = conv(
            built,
            built.input(shape),
            groups * int(rng.integers(1, 6)),
            tuple(kernel),
            groups=groups,
            bias=bool(seed % 2),
            **attributes,
        )
        one_step.check(built.finish(value), rng, tally)
    assert tally.wrong < 1e-3 * tally.elements


@pytest.mark.drawn(4)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pools(op: str, rank: int) -> None:
    tally = one_step.Tally()
    for seed in range(12):
        rng = np.random.default_rng([seed, rank])
        built, shape = Builder(rng), size(rng, rank)
        arguments, attributes = built.input(shape), {}
        if not op.startswith("Global"):
            kernel, attributes = window(rng, shape, dilated=False)
            attributes["kernel_shape"] = kernel
            if op == "AveragePool":
                attributes["count_include_pad"] = int(rng.integers(2))
        value = built.node(op, [built.dequantise(arguments)], **attributes)
        # No exact halves, but those of small averages.
        one_step.check(built.finish(requantise(built, value, arguments.scale * 0.7183)), rng, tally)
    assert tally.wrong < 1e-2 * tally.elements


def test_kernels_deeper_than_the_input() -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        built, depth = Builder(rng), int(rng.integers(2, 5))
        before = int(rng.integers(0, depth))
        pads = [before, 1, 0, depth - 1 - before, 0, 1]
        given = built.input((2, 3, 1, 5, 6))
        if seed % 2:
            value = conv(built, given, 4, (depth, 2, 2), pads=pads)
        else:
            name = built.node("MaxPool", [built.dequantise(given)], kernel_shape=[depth, 2, 2], pads=pads)
            value = built.like(name, built.shape_of(name), given)
        one_step.check(built.finish(value), rng, one_step.Tally())


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("behind", ["conv", "input"])
def test_constants_of_channels(rank: int, behind: str) -> None:
    """BatchNormalization, and Add and Mul of one number a channel."""
    tally = one_step.Tally()
    for seed, op in enumerate(["BatchNormalization", "Add", "Mul"]):
        rng = np.random.default_rng([seed, rank])
        built = Builder(rng)
        given = built.input((2, 5, *(4, 6, 7)[:rank]))
        value = built.dequantise(given)
        if behind == "conv":
            weight, _ = built.weight((5, 5, *(1,) * rank), 0, per_channel=True, unsigned=False)
            value = built.node("Conv", [value, weight])
        numbers = [built.constant(rng.uniform(0.5, 2, 5).astype(np.float32)) for _ in range(4)]
        one = built.constant(rng.uniform(-2, 2, (1, 5, *(1,) * rank)).astype(np.float32))
        value = built.node(op, [value, *(numbers if op == "BatchNormalization" else [one])])
        one_step.check(built.finish(requantise(built, value, given.scale * 1.37)), rng, tally)
    assert tally.wrong < 2e-2 * tally.elements


def test_one_constant_moves_no_byte() -> None:
    rng = np.random.default_rng(0)
    built = Builder(rng)
    given = conv(built, built.input((1, 6, 32)), 6, (3,), pads=[1, 1])
    value = built.node("Add", [built.dequantise(given), built.constant(np.full((1, 1, 1), 0.7, np.float32))])
    model = built.finish(requantise(built, value, given.scale))
    assert [type(op) for op in device_ops(import_model(model, config=Config(lookup_tables=0)))] == [
        Conv,
        Conv,
    ]


def test_network_of_rows() -> None:
    rng = np.random.default_rng(0)
    built = Builder(rng)
    first = conv(built, built.input((1, 6, 64)), 8, (5,), strides=[2], pads=[2, 2])
    second = conv(built, first, 8, (3,), pads=[1, 1], groups=8)
    total = built.add(first, second, relu=True)
    joined = built.concat([total, second], 1)
    table = built.node("Sigmoid", [built.dequantise(joined)])
    last = conv(built, built.quantise(table, joined.shape, 1 / 256, 0, True), 4, (1,))
    pooled = built.node("GlobalAveragePool", [built.dequantise(last)])
    value = built.dense(built.flatten(requantise(built, pooled, last.scale * 0.5)), 3)
    tally = one_step.Tally()
    graph = one_step.check(built.finish(value), rng, tally, "small")
    assert [type(op) for op in device_ops(graph)].count(Conv) == 4
    # Those of Concat, and the table.
    assert [type(op) for op in device_ops(graph)].count(Rescale) == 3
