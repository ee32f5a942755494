"""Add, Sub and Mul of two activations, of which one repeats: against ONNX Runtime, and where the host has to help."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import onnxruntime
import pytest
from support import qdq_models
from support.golden_compare import compare
from support.graph_runs import device_ops, on_host, run_graph

from weft.compiler.backend import compile_segment
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.isa.config import PRESETS, Config

Shape = tuple[int, ...]


def model_of(rng: np.random.Generator, op: str, shapes: tuple[Shape, Shape]) -> tuple[onnx.ModelProto, float]:
    """A model of one operator, and the scale of its output."""
    builder = qdq_models.Builder(rng)
    a, b = (builder.input(shape) for shape in shapes)
    value = builder.node(op, [builder.dequantise(a), builder.dequantise(b)])
    _, zero, unsigned = builder.parameters()
    spread = 90 * a.scale * b.scale * 0.7 if op == "Mul" else max(a.scale, b.scale)
    scale = float(np.float32(spread * rng.uniform(0.5, 2)))
    return builder.finish(builder.quantise(value, np.broadcast_shapes(*shapes), scale, zero, unsigned)), scale


def steps(model: onnx.ModelProto, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Differences from ONNX Runtime in steps of the output."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = {item.name: rng.normal(0, 3, [dim.dim_value for dim in item.type.tensor_type.shape.dim])
             .astype(np.float32) for item in model.graph.input}  # fmt: skip
    expected = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]
    outputs = run_graph(import_model(model), feeds)[model.graph.output[0].name]
    assert outputs.shape == expected.shape
    return np.rint((outputs - expected) / scale)


def random_shapes(rng: np.random.Generator) -> tuple[Shape, Shape]:
    """A shape of rank 1 to 4, and one that repeats to it, with or without its leading axes of one."""
    full = tuple(int(rng.integers(1, 8)) for _ in range(rng.integers(1, 5)))
    part = tuple(1 if rng.random() < 0.4 else size for size in full[:-1]) + full[-1:]
    if len(full) == 4:  # channels are in front
        part = (part[0], full[1], *(1 if rng.random() < 0.5 else size for size in full[2:]))
    while len(part) > 1 and part[0] == 1 and rng.random() < 0.5:
        part = part[1:]
    return full, part


@pytest.mark.drawn(1)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_random_shapes_agree_with_onnxruntime(op: str) -> None:
    wrong = total = repeated = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, len(op), ord(op[0])])
        full, part = random_shapes(rng)
        shapes = (part, full) if op != "Sub" and rng.random() < 0.5 else (full, part)
        model, scale = model_of(rng, op, shapes)
        assert not on_host(import_model(model)), (seed, shapes)
        difference = steps(model, scale, rng)
        assert np.abs(difference).max() <= 1, (seed, shapes)
        wrong += int((difference != 0).sum())
        total += difference.size
        repeated += prod(part) < prod(full)
    assert wrong <= max(1, 5e-3 * total)
    assert repeated > 15


@pytest.mark.parametrize("preset", ["tiny", "default"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_compiled(op: str, preset: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        model, _ = model_of(rng, op, random_shapes(rng))
        config = PRESETS[preset]
        (segment,) = (item for item in import_model(model).segments if isinstance(item, DeviceSegment))
        views = {view.buffer.name: view.buffer.shape for item in segment.ops for view in item.sources}
        inputs = {name: rng.integers(-128, 128, shape).astype(np.int8) for name, shape in views.items()}
        compare(compile_segment(segment, config), segment, inputs, config)


@pytest.mark.parametrize(
    ("op", "shapes", "reason"),
    [
        ("Mul", ((2, 4, 6, 6), (2, 1, 6, 1)), "one of 6 channels would have to be broadcast"),
        ("Add", ((3, 1), (1, 4)), "both would have to be broadcast"),
        ("Sub", ((1, 4, 1, 1), (1, 4, 6, 6)), "the first would have to be broadcast"),
        ("Mul", ((2, 3, 2, 3, 2, 5), (2, 1, 2, 1, 2, 5)), "broadcast along too many axes"),
    ],
)
def test_repeats_that_the_device_lacks(op: str, shapes: tuple[Shape, Shape], reason: str) -> None:
    model, scale = model_of(np.random.default_rng(0), op, shapes)
    actual = " ".join(on_host(import_model(model, config=Config(kernel=0))).values())
    assert reason in actual
    assert not device_ops(import_model(model, config=Config(kernel=0)))
    assert np.abs(steps(model, scale, np.random.default_rng(1))).max() <= 1


def test_squeeze_and_excitation_is_one_segment() -> None:
    """A gate a channel, made of the average of what it is multiplied with."""
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 8, 6, 6)), 16, pads=(1, 1, 1, 1))
    gate = builder.conv(builder.conv(builder.mean(value), 4, (1, 1), relu=True), 16, (1, 1))
    product = builder.node("Mul", [builder.dequantise(value), builder.dequantise(gate)])
    scaled = builder.quantise(
        product, value.shape, float(np.float32(30 * value.scale * gate.scale)), 0, False
    )
    graph = import_model(builder.finish(builder.conv(scaled, 8, (1, 1))))
    assert not on_host(graph)
    names = ["Conv", "Pool", "Conv", "Conv", "Multiply", "Conv"]
    assert [type(op).__name__ for op in device_ops(graph)] == names


def beside_a_constant(rng: np.random.Generator, op: str) -> tuple[onnx.ModelProto, float]:
    """An activation of any shape, often one element, next to a constant that repeats to it, or that it repeats to."""
    full = tuple(int(rng.integers(1, 9)) for _ in range(rng.integers(1, 5)))
    shapes = [full, tuple(size if rng.random() < 0.5 else 1 for size in full)]
    if rng.random() < 0.4:
        shapes[1] = (1,) * int(rng.integers(0, len(full) + 1))
    while shapes[1][:1] == (1,) and rng.random() < 0.3:
        shapes[1] = shapes[1][1:]
    given, constant = shapes if rng.random() < 0.3 else shapes[::-1]
    built = qdq_models.Builder(rng)
    if len(given) == 4 and rng.random() < 0.5:  # what the device made cannot be laid out in any way
        value = built.conv(built.input((given[0], 3, *given[2:])), given[1], (1, 1))
    else:
        value = built.input(given)
    if rng.random() < 0.3:
        other = built.constant(rng.uniform(0.5, 3, constant).astype(np.float32))
    else:
        scale, zero = built.constant(np.float32(0.05)), built.constant(np.int8(0))
        integers = built.constant(rng.integers(1, 100, constant).astype(np.int8))
        other = built.node("DequantizeLinear", [integers, scale, zero])
    operands = [built.dequantise(value), other]
    result = built.node(op, operands if op == "Div" or rng.random() < 0.5 else operands[::-1])
    scale = float(np.float32(value.scale * {"Mul": 3, "Div": 1}.get(op, 1) + (op in ("Add", "Sub")) * 0.05))
    return built.finish(built.quantise(result, np.broadcast_shapes(*shapes), scale, 3, False)), scale


def check_beside_a_constant(seeds: range) -> None:
    for seed in seeds:
        op = ("Add", "Sub", "Mul", "Div")[seed % 4]
        rng = np.random.default_rng([seed, 29])
        model, scale = beside_a_constant(rng, op)
        # A constant of floats may be rounded to the scale of sums; see `ADD_WEIGHT`.
        assert np.abs(steps(model, scale, rng)).max() <= 1, (seed, op)
        for config in (PRESETS["tiny"], PRESETS["default"]):
            import_model(model, config=config)


def test_activations_beside_constants() -> None:
    check_beside_a_constant(range(40))


@pytest.mark.long
def test_activations_beside_constants_for_long() -> None:
    check_beside_a_constant(range(1000, 2000))
