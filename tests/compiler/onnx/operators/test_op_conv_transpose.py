"""ConvTranspose: every constraint violated once, and random ones against ONNX Runtime and on the golden interpreter."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support import one_step
from support.fallbacks import Case, builder, check_fallback, finish_model, source, untested_constraints
from support.graph_runs import device_ops
from support.qdq_models import Builder, Quantised, Rng

from weft.compiler.frontend import import_model
from weft.compiler.machine.target import Target
from weft.compiler.onnx.conditions import weights_per_output
from weft.compiler.onnx.operators.conv import CONV_TRANSPOSE_OPERATORS, Spread, rows_or_images, strides_few
from weft.compiler.pipeline import PIPELINE, run_passes
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS


def draw_attributes(rng: Rng, *sizes: int) -> list[int]:
    return [int(rng.integers(1, size + 1)) for size in sizes]


def conv_transpose(
    built: Builder,
    given: Quantised,
    op: dict[str, object],
    weight: tuple[int, ...],
    *,
    bias: bool,
    each: bool,
) -> str:
    """ConvTranspose with weights of shape `weight`, one scale per output of a group if `each`."""
    name, scales = built.weight(weight, 1, per_channel=each, unsigned=bool(built.rng.integers(2)))
    inputs = [built.dequantise(given), name]
    if bias:
        inputs.append(built.bias(given, np.tile(scales, int(op.get("group", 1)))))  # type: ignore[call-overload]
    return built.node("ConvTranspose", inputs, **op)


def random_model(rng: Rng, rank: int) -> tuple[Builder, Quantised]:
    """Draw all attributes that ONNX allows."""
    built, groups = Builder(rng), int(rng.choice([1, 1, 2, 3]))
    inputs, outputs = (groups * size for size in draw_attributes(rng, 5, 5))
    if rng.random() < 0.2:
        groups = outputs = inputs
    sizes, kernel, strides, dilations = (draw_attributes(rng, *[most] * rank) for most in (7, 4, 3, 3))
    op: dict[str, object] = {"group": groups, "strides": strides, "dilations": dilations}
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    full = [(size - 1) * stride + span for size, stride, span in zip(sizes, strides, reach, strict=True)]
    kind = int(rng.integers(5))
    if kind == 0:
        op["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        op["output_padding"] = [int(rng.integers(0, stride)) for stride in strides]
    elif kind == 1:
        ends = [(max(least, most - 3), max(least, most)) for least, most in zip(sizes, full, strict=True)]
        op["output_shape"] = [int(rng.integers(low, high + 1)) for low, high in ends]
        op["auto_pad"] = str(rng.choice(["NOTSET", "SAME_UPPER", "SAME_LOWER"]))
    elif kind != 2:
        pads = [int(rng.integers(0, min(size, 4))) // 2 for size in (*full, *full)]
        op["pads"] = pads
        op["output_padding"] = [int(rng.integers(0, stride)) for stride in strides]
    arrays = built.input((int(rng.integers(1, 3)), inputs, *sizes))
    weight = (inputs, outputs // groups, *kernel)
    value = conv_transpose(built, arrays, op, weight, bias=bool(rng.integers(2)), each=bool(rng.integers(2)))
    if rng.random() < 0.3:
        value = built.node("Relu", [value])
    _, zero, unsigned = built.parameters()
    return built, built.quantise(
        value, built.shape_of(value), float(np.float32(rng.uniform(0.02, 0.2))), zero, unsigned
    )


@pytest.mark.drawn(1)
@pytest.mark.parametrize("rank", [1, 2])
def test_random(rank: int) -> None:
    tally = one_step.Tally()
    for seed in range(40):
        rng = np.random.default_rng([seed, rank])
        built, value = random_model(rng, rank)
        one_step.check(built.finish(value), rng, tally, "tiny" if seed % 2 else "small")
    assert tally.wrong < 1e-3 * tally.elements


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.long
def test_random_more(seed: int) -> None:
    rng = np.random.default_rng([seed, 7])
    built, value = random_model(rng, 1 + seed % 2)
    one_step.check(built.finish(value), rng, one_step.Tally())


def test_no_multiplication_by_zeros() -> None:
    """Four convolutions whose kernels partition the whole kernel."""
    built = builder()
    given = source(built, (1, 8, 6, 6))
    name = conv_transpose(
        built, given, {"strides": [2, 2], "pads": [1, 1, 1, 1]}, (8, 8, 4, 4), bias=True, each=True
    )
    graph = import_model(built.finish(built.quantise(name, built.shape_of(name), 0.1, 0, False)))
    ops = device_ops(graph)
    assert [op.weight.shape for op in ops] == [(8, 2, 2, 8)] * 4
    assert sum(op.macs for op in ops) == 4 * 36 * 4 * 64


def test_phases_cover_results() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        size, kernel, stride, dilation = draw_attributes(rng, 6, 5, 4, 4)
        output, before = draw_attributes(rng, 20, 5)
        axis = Spread(size, output, kernel, stride, dilation, before)
        met = np.zeros((output, size, kernel), int)
        for phase in axis.phases():
            for j in range(phase.length):
                for at, tap in enumerate(phase.taps):
                    read = j - phase.before + at * phase.dilation
                    if 0 <= read < size:
                        met[phase.first + j * stride, read, tap] += 1
        places = [i * stride + k * dilation - before for i in range(size) for k in range(kernel)]
        expected = [
            (o, i, k) for (i, k), o in zip(np.ndindex(size, kernel), places, strict=True) if 0 <= o < output
        ]
        assert sorted(expected) == [tuple(found) for found in np.argwhere(met).tolist()]
        assert met.max(initial=0) <= 1


def one_table() -> onnx.ModelProto:
    built = builder()
    name = conv_transpose(built, source(built), {"strides": [2, 2]}, (4, 4, 2, 2), bias=False, each=False)
    value = built.quantise(name, built.shape_of(name), 0.1, 0, False)
    rounded = built.node("Sigmoid", [built.dequantise(value)])
    return built.finish(built.quantise(rounded, value.shape, 1 / 256, 0, True))


def test_following_tables_are_fused() -> None:
    graph = import_model(one_table())
    (segment,) = (item for item in graph.segments if hasattr(item, "ops"))
    config = PRESETS["small"]
    ops = run_passes(PIPELINE, segment, Planner(Target(config))).ops
    assert len(ops) == (4 if config.lookup_tables else 5)
    one_step.on_golden(graph, "small", np.random.default_rng(0))


@pytest.mark.parametrize(("preset", "count"), [("tiny", 4), ("small", 4), ("default", 5)])
@pytest.mark.parametrize("first", [False, True])
def test_following_sums_are_fused(preset: str, count: int, first: bool) -> None:
    """The other operand has the result's steps, and fusion is faster by estimate."""
    rng = np.random.default_rng(4)
    built = Builder(rng)
    arguments, other = built.input((1, 4, 20, 24)), built.input((1, 8, 40, 48))
    name = conv_transpose(built, arguments, {"strides": [2, 2]}, (4, 8, 2, 2), bias=True, each=True)
    value = built.quantise(name, other.shape, 0.3, 3, False)
    total = built.add(*((value, other) if first else (other, value)), relu=True)
    graph = one_step.check(built.finish(total), rng, one_step.Tally(), preset)
    (segment,) = (item for item in graph.segments if hasattr(item, "ops"))
    ops = run_passes(PIPELINE, segment, Planner(Target(PRESETS[preset]))).ops
    assert len(ops) == count
    assert all((getattr(op, "epilogue", None) is not None) == (count == 4) for op in ops)


def cubes() -> onnx.ModelProto:
    built = builder()
    name = conv_transpose(built, source(built, (1, 2, 3, 4, 5)), {}, (2, 2, 1, 1, 1), bias=False, each=False)
    return finish_model(built, name)


def far(stride: int) -> onnx.ModelProto:
    built = builder()
    return finish_model(
        built,
        conv_transpose(built, source(built), {"strides": [stride, 9]}, (4, 2, 2, 2), bias=False, each=False),
    )


def other_axis() -> onnx.ModelProto:
    built = builder()
    name, _ = built.weight((4, 2, 3, 3), 0, per_channel=True, unsigned=False)
    return finish_model(built, built.node("ConvTranspose", [built.dequantise(source(built)), name]))


CASES: dict[str, Case] = {
    "three dimensions": (cubes, "ConvTranspose", rows_or_images),
    "large strides": (lambda: far(8), "ConvTranspose", strides_few),
    "scales per input": (other_axis, "ConvTranspose", weights_per_output),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # Tried with Conv, or implied in any model that ONNX accepts.
    others = {"image_order", "input_quantised", "weights_constant", "bias_constant"}
    assert untested_constraints(CONV_TRANSPOSE_OPERATORS, CASES.values()) == others
