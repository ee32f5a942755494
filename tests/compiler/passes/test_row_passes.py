"""Interleaved rows against the plain input, and row kernels that run beside convolutions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import convolution, draw, random_conv, random_inputs, segment_of, whole
from support.repeated import repeated

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment
from weft.compiler.ir.layout import Rows
from weft.compiler.ir.model import dump_segment
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window
from weft.compiler.kernel.operators import LayerNorm
from weft.compiler.machine.target import Target
from weft.compiler.passes import groups as module
from weft.compiler.passes.gather_rows import gather_kernel_rows
from weft.compiler.passes.groups import overlap_rows
from weft.compiler.passes.order import choose_plans
from weft.compiler.pipeline import PIPELINE, run_passes
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops, verify_op
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice


def by_definition(rows: Rows, array: np.ndarray) -> np.ndarray:
    n, h, w, c = array.shape
    out = np.full((n, rows.count, w, rows.kernel * c), rows.fill, array.dtype)
    for y in range(rows.count):
        for k in range(rows.kernel):
            row = y * rows.stride - rows.pad + k * rows.dilation
            if 0 <= row < h:
                out[:, y, :, k * c : (k + 1) * c] = array[:, row]
    return out


@given(
    rows=st.builds(Rows, st.integers(1, 9), st.integers(1, 8), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9),
                   st.integers(1, 6), st.integers(-128, 127)),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 3)),
)  # fmt: skip
def test_layout(rows: Rows, shape: tuple[int, int, int]) -> None:
    n, w, c = shape
    array = np.random.default_rng(0).integers(-128, 128, (n, rows.height, w, c)).astype(np.int8)
    laid = rows.gather(array)
    assert laid.dtype == np.int8
    assert np.array_equal(laid, by_definition(rows, array))


@repeated("seed", range(40))
def test_convolutions_of_it_are_the_same(seed: int) -> None:
    rng = np.random.default_rng([seed, 7])
    op = random_conv(rng)
    while op.groups > 1 or not op.src.contiguous:
        op = random_conv(rng)
    inputs = random_inputs(rng, op)
    other, rows = gather_kernel_rows(op)
    verify_op(other)
    assert other.macs == op.macs
    assert other.window.kernel[0] == 1
    laid = {"x": rows.gather(inputs["x"])}
    expected, got = run_ops(segment_of(op), inputs), run_ops(segment_of(other), laid)
    assert np.array_equal(got["y"], expected["y"])


CONFIGS = {name: PRESETS[name].replace(kernel=64) for name in ("tiny", "small", "default")}


def norm(src: View, name: str, rng: np.random.Generator) -> LayerNorm:
    channels = src.shape[3]
    weight, bias = rng.normal(1, 0.3, channels), rng.normal(0, 0.3, channels)
    return LayerNorm(name, src, whole(name, src.shape, "temp"), weight, bias, 1e-2, 30.0, 3, -8)


def conv(src: View, name: str, out: int, kernel: int, rng: np.random.Generator) -> Conv:
    """Some depthwise, where channels allow it."""
    window = Window((kernel, kernel), pad=(kernel // 2,) * 4)
    result = dataclasses.replace(convolution(src, out, window, name=name, kind="temp"), name=name)
    scale = np.full(out, 60 / (np.sqrt(src.shape[3]) * kernel * 127 * 40))
    if out == src.shape[3] and rng.random() < 0.3:
        return result.replace(weight=result.weight[..., :1], groups=out, scale=scale * np.sqrt(out))
    return result.replace(scale=scale)


def chain(rng: np.random.Generator, most: int, length: int) -> DeviceSegment:
    """Convolutions and normalisations in turn, as rows or as images, from one that is an input to an output."""
    tokens = rng.random() < 0.5
    shape = (1, 1, draw(rng, 1, 3 * most), draw(rng, 1, most)) if tokens else (
        draw(rng, 1, 2), draw(rng, 1, 9), draw(rng, 1, 9), draw(rng, 1, most))  # fmt: skip
    value, ops = whole("x", shape, "input"), list[DeviceOp]()
    for index in range(length):
        name = f"v{index}"
        if index % 2 == int(tokens):
            out = value.shape[3] if rng.random() < 0.5 else draw(rng, 1, most)
            ops.append(conv(value, name, out, 1 if tokens or rng.random() < 0.5 else 3, rng))
        else:
            ops.append(norm(value, name, rng))
        value = ops[-1].dst
    ops[-1] = ops[-1].replace(dst=whole("y", value.shape, "output"))
    return DeviceSegment("chain", tuple(ops))


def inputs_of(segment: DeviceSegment, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"x": rng.integers(-128, 128, segment.ops[0].sources[0].shape).astype(np.int8)}


@pytest.mark.parametrize("name", CONFIGS)
def test_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GAIN", 1e9)
    config, rng, pairs = CONFIGS[name], np.random.default_rng(4), 0
    for _ in range(40):
        segment = chain(rng, 70, draw(rng, 2, 5))
        result = run_passes(PIPELINE, segment, Planner(Target(config)))
        pairs += len(result.overlapped)
        regions = [result.regions[index : index + 2] for index in result.overlapped]
        assert all(one[1] <= other[0] or other[1] <= one[0] for one, other in regions)
        assert dump_segment(result).count("runs beside the next one") == len(result.overlapped)
        compare(compile_segment(segment, config), segment, inputs_of(segment, rng), config, temps=False)
    assert pairs > 20


def test_on_rtl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GAIN", 1e9)
    config, rng = CONFIGS["tiny"], np.random.default_rng(6)
    for case in range(6):
        segment = chain(rng, 30, 4)
        compare_on_rtl(segment, inputs_of(segment, rng), config, case)


def cycles(segment: DeviceSegment, config: Config, *, beside: bool) -> int:
    passes = [item for item in PIPELINE if beside or item.run is not overlap_rows]
    image = Image(compile_segment(segment, config, passes=passes))
    device = TimingDevice(config, image.memory_bytes)
    image.run(device, {"x": np.zeros(segment.ops[0].sources[0].shape, np.int8)})
    return device.counters()[Counter.CYCLES]


@pytest.mark.parametrize(("behind", "share"), [(True, 0.4), (False, 0.65)])
def test_sooner(behind: bool, share: float) -> None:
    config, rng = CONFIGS["default"], np.random.default_rng(0)
    x = whole("x", (1, 1, 128, 512), "input")
    first: DeviceOp = conv(x, "v", 1024, 1, rng) if behind else norm(x, "v", rng)
    last = norm(first.dst, "y", rng) if behind else conv(first.dst, "y", 1024, 1, rng)
    y = whole("y", last.dst.shape, "output")
    segment = DeviceSegment("pair", (first, last.replace(dst=y)))
    source = whole("x", first.dst.shape, "input")
    kernel = norm(source, "v", rng).replace(dst=whole("y", source.shape, "output"))
    alone = cycles(DeviceSegment("norm", (kernel,)), config, beside=False)
    saved = cycles(segment, config, beside=False) - cycles(segment, config, beside=True)
    assert saved > share * alone


def test_not_if_it_is_slower() -> None:
    """A convolution of few pixels would load its weights again for each part of them."""
    rng = np.random.default_rng(0)
    first = conv(whole("x", (1, 1, 4, 512), "input"), "v", 512, 1, rng)
    last = norm(first.dst, "y", rng)
    segment = DeviceSegment("pair", (first, last.replace(dst=whole("y", last.dst.shape, "output"))))
    planner = Planner(Target(CONFIGS["default"]))
    planned = choose_plans(segment, planner)
    assert overlap_rows(planned, planner) is planned
