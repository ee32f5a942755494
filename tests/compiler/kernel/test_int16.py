"""16-bit elements against float64, ranges of their kernels, and programs on golden and RTL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import wide_cases
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import draw
from support.wide_cases import CONFIGS, Rng, Shape

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError, IrError
from weft.compiler.ir.views import View
from weft.compiler.kernel.evaluate import LIMITS, WideElements
from weft.compiler.operators.record import operator_of
from weft.hdl.isa.config import PRESETS

KINDS = ("requantise", "sum", "product", "minimum", "maximum")


def shape_of(rng: Rng, most: int) -> Shape:
    return draw(rng, 1, 2), draw(rng, 1, 4), draw(rng, 1, 24), draw(rng, 1, most)


def repeating_shape(rng: Rng, shape: Shape) -> Shape:
    """Return the shape, a shape that repeats some axes, or one channel per pixel."""
    way = rng.random()
    if way < 0.4:
        return shape
    pixels = tuple(1 if rng.random() < 0.3 else size for size in shape[:3])
    n, h, w = pixels
    return (n, h, w, 1 if way > 0.7 else shape[3])


def elements(rng: Rng, kind: str, shape: Shape, *wide: bool) -> WideElements:
    """Operator on a, b and y, each of 16 bits if its entry in `wide` is set."""
    a_wide, b_wide, y_wide = wide
    sizes = [30000 if each else 120 for each in (a_wide, b_wide, y_wide)]
    by = [float(10 ** rng.uniform(-1, 0.3)) for _ in range(2)]
    scales = {"a_scale": sizes[2] / sizes[0] * by[0]}
    more: dict[str, Any] = {}
    if kind == "product":
        scales = {"a_scale": sizes[2] / sizes[0] / sizes[1] * by[0] * 2}
    if kind != "requantise":
        b = wide_cases.source(rng, "b", repeating_shape(rng, shape), wide=b_wide)
        more = {"b": b, "b_wide": b_wide, "b_zero": wide_cases.zero(rng, wide=b_wide)}
        scales |= (
            {"b_scale": sizes[2] / sizes[1] * by[1] * float(rng.choice([-1, 1]))} if kind != "product" else {}
        )
    if rng.random() < 0.15:
        scales["a_scale"] *= float(rng.choice([0.0, 1e-6, -1.0, 8.0, 60.0]))
        scales["a_scale"] = min(scales["a_scale"], 60.0 if a_wide else 16000.0)
    return WideElements(
        name="elements", kind=kind, a=wide_cases.source(rng, "a", shape, wide=a_wide),
        dst=wide_cases.target(rng, shape, wide=y_wide), a_zero=wide_cases.zero(rng, wide=a_wide), a_wide=a_wide,
        wide=y_wide, **scales, **more, **wide_cases.clamp(rng, wide=y_wide),
    )  # fmt: skip


def random_elements(rng: Rng, kind: str, most: int) -> WideElements:
    return elements(rng, kind, shape_of(rng, most), *(bool(each) for each in rng.integers(0, 2, 3)))


def exact(op: WideElements, a: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    x = (a - op.a_zero) * (op.a_scale if op.kind != "product" else 1.0)
    y = np.zeros(1) if b is None else (b - op.b_zero) * (op.b_scale if op.kind != "product" else op.a_scale)
    actual = {
        "requantise": lambda: x, "sum": lambda: x + y, "product": lambda: x * y, "minimum": lambda: np.minimum(x, y),
        "maximum": lambda: np.maximum(x, y),
    }[op.kind]()  # fmt: skip
    return wide_cases.saturate(actual, op.y_zero, op.clamp, wide=op.wide)


def operands(rng: Rng, op: WideElements) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Elements of each operand, and the planes of all."""
    views: list[tuple[View, bool]] = [(op.a, op.a_wide)]
    views += [] if op.b is None else [(op.b, op.b_wide)]
    values = [wide_cases.contents(rng, view.shape, wide=wide) for view, wide in views]
    planes = [
        plane
        for value, (view, wide) in zip(values, views, strict=True)
        for plane in np.split(wide_cases.planes(value, wide=wide), 2 if wide else 1)
    ]
    return values, planes


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_near_float64(kind: str) -> None:
    wrong = total = 0
    for case in range(200):
        rng = np.random.default_rng([case, len(kind)])
        op = random_elements(rng, kind, 3000 if case % 20 == 0 else 60)
        values, planes = operands(rng, op)
        actual = wide_cases.run(op, planes, wide=op.wide)
        expected = exact(op, values[0], values[1] if len(values) > 1 else None)
        difference = np.abs(actual - expected)
        assert difference.max() <= 1, (case, op)
        wrong, total = wrong + int(difference.sum()), total + difference.size
    assert wrong < 0.05 * total


@pytest.mark.parametrize("kind", KINDS)
def test_ranges(kind: str) -> None:
    """Every expression stays in its range, with zero points and elements at all ends."""
    ends = np.array([-128, -127, 0, 127])
    for case in range(60):
        rng = np.random.default_rng([case, len(kind)])
        wide = tuple(bool(each) for each in rng.integers(0, 2, 3))
        op = elements(rng, kind, (1, 1, 1, 256), *wide)
        count = len(op.sources)
        grid = np.stack(np.meshgrid(*[ends] * count, indexing="ij"), axis=-1).reshape(-1, count)
        tensors = [np.resize(column, 256)[None] for column in grid.T]
        single = [tensor.T for tensor in tensors]
        one = op.b is not None and op.b.shape[3] == 1
        first = 1 + op.a_wide
        tensors = (
            [np.repeat(t, 256, 0) if i < first else single[i] for i, t in enumerate(tensors)]
            if one
            else tensors
        )
        wide_cases.check_ranges(op.rows(), [tensor.astype(np.int8) for tensor in tensors])


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(len(name))
    for kind in KINDS:
        for _ in range(2):
            segment = wide_cases.segment(random_elements(rng, kind, 60))
            inputs = wide_cases.buffers(rng, segment.ops[0])
            compare(compile_segment(segment, config), segment, inputs, config)


@pytest.mark.parametrize("wide", [(a, b, y) for a in (0, 1) for b in (0, 1) for y in (0, 1)])
def test_all_widths(wide: tuple[int, int, int]) -> None:
    """All widths of operands and results, on `tiny`."""
    config, rng = CONFIGS["tiny"], np.random.default_rng(wide)
    for kind in KINDS:
        op = elements(rng, kind, shape_of(rng, 40), *(bool(each) for each in wide))
        segment = wide_cases.segment(op)
        compare(compile_segment(segment, config), segment, wide_cases.buffers(rng, op), config)


@pytest.mark.parametrize("kind", KINDS)
def test_on_rtl(kind: str) -> None:
    config, rng = CONFIGS["tiny"], np.random.default_rng(5)
    for case in range(2):
        segment = wide_cases.segment(random_elements(rng, kind, 30))
        compare_on_rtl(segment, wide_cases.buffers(rng, segment.ops[0]), config, case)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_many(kind: str, name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng([len(kind), len(name)])
    for _ in range(40):
        segment = wide_cases.segment(
            random_elements(rng, kind, min(200, config.scratchpad_size * config.n // 8))
        )
        compare(compile_segment(segment, config), segment, wide_cases.buffers(rng, segment.ops[0]), config)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["tiny", "small", "wide bus"])
def test_many_on_rtl(kind: str, name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(len(kind))
    for case in range(8):
        segment = wide_cases.segment(random_elements(rng, kind, 30))
        compare_on_rtl(segment, wide_cases.buffers(rng, segment.ops[0]), config, case)


def test_scales_of_sums() -> None:
    """From 1e-3 to the maximum, where a second term brings the first back into range."""
    shape = (1, 1, 1, 3000)
    for case in range(60):
        rng = np.random.default_rng(case)
        wide, y_wide = bool(rng.integers(2)), bool(rng.integers(4))
        low, high = wide_cases.LIMITS[wide]
        op = whole(elements(rng, "sum", shape, wide, wide, y_wide), shape)
        most = float(10 ** rng.uniform(-3, np.log10((1 << 22) / (high - low))))
        op = op.replace(a_scale=most * rng.uniform(0.9, 1), b_scale=most * rng.uniform(-1, 1), clamp=LIMITS)
        a = rng.integers(low, high + 1, shape)
        b = (rng.uniform(-33000, 33000, shape) - (a - op.a_zero) * op.a_scale) / op.b_scale + op.b_zero
        b = np.clip(np.rint(b), low, high).astype(np.int64)
        parts = [part for each in (a, b) for part in np.split(wide_cases.planes(each, wide=wide), 1 + wide)]
        assert np.abs(wide_cases.run(op, parts, wide=y_wide) - exact(op, a, b)).max() <= 1, case


def test_scales_of_products() -> None:
    """Up to the maximum: most products are in range only if one factor is small."""
    shape = (1, 1, 1, 3000)
    for case in range(60):
        rng = np.random.default_rng(case)
        wide = bool(rng.integers(2)), bool(rng.integers(2))
        op = whole(elements(rng, "product", shape, *wide, True), shape)
        op = op.replace(
            a_scale=float(10 ** rng.uniform(-4, np.log10(0.125) if all(wide) else 4)), clamp=LIMITS
        )
        (low, high), (first, last) = (wide_cases.LIMITS[each] for each in wide)
        a = rng.integers(low, high + 1, shape)
        distance = np.where(a == op.a_zero, 1, a - op.a_zero) * op.a_scale
        b = np.clip(np.rint(rng.uniform(-40000, 40000, shape) / distance + op.b_zero), first, last).astype(
            np.int64
        )
        parts = [
            part
            for each, is_wide in zip((a, b), wide, strict=True)
            for part in np.split(wide_cases.planes(each, wide=is_wide), 1 + is_wide)
        ]
        assert np.abs(wide_cases.run(op, parts, wide=True) - exact(op, a, b)).max() <= 1, case


def whole(op: WideElements, shape: Shape) -> WideElements:
    """The operator on whole buffers, without repetition."""
    a = wide_cases.plain("a", shape, "input", wide=op.a_wide)
    b = wide_cases.plain("b", shape, "input", wide=op.b_wide)
    return op.replace(a=a, b=b, dst=wide_cases.plain("y", shape, "output", wide=op.wide))


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 0.3, 1.0, 7.0, 1023.0, 1025.0, 3000.0, 30000.0, 1e7])
@pytest.mark.parametrize("kind", ["requantise", "minimum", "maximum"])
def test_scales(kind: str, scale: float) -> None:
    """Small scales, and scales at which one step saturates."""
    shape = (1, 1, 1, 300)
    for case in range(8):
        rng = np.random.default_rng(case)
        wide = bool(rng.integers(2))
        op = whole(elements(rng, kind, shape, wide, wide, True), shape)
        op = op.replace(a_scale=scale, b_scale=float(scale * rng.uniform(-1, 1)), clamp=LIMITS)
        op = op.replace(b=None) if kind == "requantise" else op
        near = [
            np.clip(zero + rng.integers(-40, 41, shape), *wide_cases.LIMITS[wide])
            for zero in (op.a_zero, op.b_zero)
        ]
        near = near[: 1 + (kind != "requantise")]
        parts = [part for each in near for part in np.split(wide_cases.planes(each, wide=wide), 1 + wide)]
        expected = exact(op, near[0], near[-1] if len(near) > 1 else None)
        assert np.abs(wide_cases.run(op, parts, wide=True) - expected).max() <= 1, case


@pytest.mark.parametrize(
    ("kind", "scale", "message"),
    [
        (
            "sum",
            64.01,
            r"^elements: terms of sums of 16 bits are at most 4,194,304 steps of the result, but one may be",
        ),
        (
            "product",
            0.13,
            r"^elements: scales of products of two values of 16 bits are at most 0.125, but one is 0.13$",
        ),
    ],
)
def test_scales_that_are_refused(kind: str, scale: float, message: str) -> None:
    shape = (1, 1, 2, 3)
    op = whole(elements(np.random.default_rng(0), kind, shape, True, True, True), shape)
    op = op.replace(a_zero=-32768, a_scale=scale, b_scale=1.0)
    with pytest.raises(CompileError, match=message):
        op.rows()
    op.replace(a_scale=scale * 0.9).rows()


def test_rows_larger_than_the_scratchpad_are_refused() -> None:
    """The planes of one row exceed the scratchpad."""
    shape = (1, 1, 1, 4 * PRESETS["tiny"].scratchpad_size)
    op = whole(elements(np.random.default_rng(0), "sum", shape, True, True, True), shape)
    with pytest.raises(
        CompileError, match=r"^elements: not even one output of this wideelements fits on chip"
    ):
        compile_segment(wide_cases.segment(op), CONFIGS["tiny"])


def test_views_must_be_planes() -> None:
    """A view covers all images of its buffer, or those of one plane."""
    op = elements(np.random.default_rng(0), "requantise", (1, 2, 3, 4), True, True, True)
    narrow = wide_cases.plain("a", (3, 2, 3, 4), "input", wide=False)
    with pytest.raises(IrError, match="leaves buffer"):
        operator_of(op).verify(op.replace(a=View(narrow.buffer, (1, 2, 3, 4))))
    b = wide_cases.plain("b", (1, 1, 2, 4), "input", wide=True)
    with pytest.raises(IrError, match="beside those of"):
        operator_of(op).verify(op.replace(kind="sum", b=b, b_wide=True))
