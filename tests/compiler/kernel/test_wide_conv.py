"""16-bit convolutions against float64, on golden with every tiling, and on the RTL."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from support import op_cases, wide_cases
from support.golden_compare import compare, compare_on_rtl
from support.wide_cases import CONFIGS, Rng, Shape

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError, IrError
from weft.compiler.ir.graph import Conv
from weft.compiler.ir.windows import Window
from weft.compiler.kernel.evaluate import LIMITS
from weft.compiler.kernel.wide import WideConv
from weft.compiler.onnx import wide as wide_operators
from weft.compiler.operators.record import operator_of
from weft.compiler.plan.conv_plan import ConvPlan, boxes, candidates
from weft.compiler.plan.conv_plan import plan as best
from weft.compiler.plan.conv_shape import ConvShape

BOTH = (False, True)


def scales(rng: Rng, op: Conv, x_wide: bool, wide: bool) -> np.ndarray:
    """Scale per channel: results fill most of their range, far less, or more."""
    usual = np.sqrt(np.square(op.weight.astype(np.float64)).sum(axis=(1, 2, 3)) + 1)
    sizes = (28000 if wide else 100) / (19000 if x_wide else 74) / usual
    return np.asarray(
        sizes * 10 ** rng.uniform(*((-1, 0.2) if rng.random() < 0.7 else (-4, 0.2)), len(usual))
    )


def widen(rng: Rng, op: Conv, x_wide: bool, wide: bool) -> WideConv:
    """Give a convolution's geometry inputs and results of 16 or 8 bits."""
    out = len(op.scale)
    scale = scales(rng, op, x_wide, wide)
    bias = rng.normal(0, (20000 if wide else 80), out) / scale
    n, h, w, _ = op.src.shape
    shape = (n, *op.window.output(h, w), out)
    dst = op.dst if op.pool is None else op_cases.whole("y", shape, "output")
    return WideConv(
        name="conv", src=wide_cases.with_planes(op.src, wide=x_wide), dst=wide_cases.with_planes(dst, wide=wide),
        weight=op.weight, bias=np.rint(bias).astype(np.int64), scale=scale, window=op.window, groups=op.groups,
        x_zero=wide_cases.zero(rng, wide=x_wide), x_wide=x_wide, wide=wide, **wide_cases.clamp(rng, wide=wide),
    )  # fmt: skip


def random_conv(rng: Rng) -> WideConv:
    op = op_cases.random_matmul(rng) if rng.random() < 0.2 else op_cases.random_conv(rng)
    if rng.random() < 0.2:  # a few large weights, of which the second part is small
        many = np.clip(np.rint(rng.normal(0, 35, op.weight.shape)), -128, 127)
        far = rng.random(op.weight.shape) < 0.02
        op = op.replace(weight=np.where(far, rng.integers(-255, 256, many.shape), many).astype(np.int16))
    x_wide, wide = BOTH[int(rng.integers(2))], BOTH[int(rng.integers(2))]
    return widen(rng, op, x_wide or not wide, wide)


def windows(x: np.ndarray, window: Window, fill: int) -> np.ndarray:
    """Elements that each output reads: (n, oh, ow, kh, kw, c)."""
    top, remaining, bottom, right = window.pad
    padded = np.pad(x, ((0, 0), (top, bottom), (remaining, right), (0, 0)), constant_values=fill)
    size = window.output(*x.shape[1:3])
    at = [
        np.arange(count)[:, None] * stride + np.arange(kernel) * dilation
        for count, stride, kernel, dilation in zip(
            size, window.stride, window.kernel, window.dilation, strict=True
        )
    ]
    actual = padded[:, at[0][:, :, None, None], at[1]]  # (n, oh, kh, ow, kw, c)
    return actual.transpose(0, 1, 3, 2, 4, 5)


def exact(op: WideConv, x: np.ndarray) -> np.ndarray:
    read = windows(x - op.x_zero, op.window, 0).astype(np.float64)
    out, kh, kw, cin = op.weight.shape
    grouped = read.reshape(*read.shape[:5], op.groups, cin)
    weight = op.weight.reshape(op.groups, out // op.groups, kh, kw, cin).astype(np.float64)
    total = np.einsum("nhwyxgi,goyxi->nhwgo", grouped, weight, optimize=True).reshape(op.dst.shape)
    return wide_cases.saturate((total + op.bias) * op.scale, op.y_zero, op.clamp, wide=op.wide)


def split(x: np.ndarray, op: WideConv) -> list[np.ndarray]:
    return np.split(wide_cases.planes(x, wide=op.x_wide), 1 + op.x_wide)


def test_results_are_near_float64() -> None:
    wrong = total = 0
    for case in range(120):
        rng = np.random.default_rng(case)
        op = random_conv(rng)
        x = wide_cases.contents(rng, op.src.shape, wide=op.x_wide)
        difference = np.abs(wide_cases.run(op, split(x, op), wide=op.wide) - exact(op, x))
        assert difference.max() <= 1, (case, op.x_wide, op.wide, difference.max())
        wrong, total = wrong + int(difference.sum()), total + difference.size
    assert wrong < 0.1 * total


@pytest.mark.parametrize("count", [1, 500, 4000, 60000])
@pytest.mark.parametrize("x_wide", BOTH)
def test_long_sums(x_wide: bool, count: int) -> None:
    """All inputs and weights at their ends, up to the limit of 32 bits."""
    for weight, wide in ((-255, True), (255, not x_wide), (1, True)):
        rng = np.random.default_rng(count)
        conv = op_cases.convolution(op_cases.whole("x", (1, 1, 3, count), "input"), 2)
        op = widen(rng, conv.replace(weight=np.full((2, 1, 1, count), weight, np.int16)), x_wide, wide)
        low, high = wide_cases.LIMITS[x_wide]
        x = np.stack([np.full(count, low), np.full(count, high), np.resize([low, high], count)])
        x = x.reshape(1, 1, 3, count)
        assert np.abs(wide_cases.run(op, split(x, op), wide=wide) - exact(op, x)).max() <= 1


def test_ranges() -> None:
    """Every expression stays in its range, for the largest possible sums."""
    for case in range(80):
        rng = np.random.default_rng(case)
        op = random_conv(rng)
        most = 128 * np.abs(op.weight).astype(np.int64).sum(axis=(1, 2, 3))
        signs = np.array(np.meshgrid(*[(-1, 0, 1)] * len(op.fills))).reshape(len(op.fills), -1)
        sums = most[None, :, None] * signs.T[:, None, :]
        wide_cases.check_ranges(op.kernel, [sums, *(vector[None] for vector in op.vectors)])
        assert most.max() == op.form.largest


def geometry(rng: Rng) -> Conv:
    """Draw a geometry that exceeds small memories: many channels, a large window or image, or large groups."""
    kind = int(rng.integers(5))
    groups = (1, 1, 1, 3, 24)[kind]
    h, w, cin, out = ((2, 3, 60, 14), (9, 12, 5, 6), (3, 4, 12, 40), (4, 5, 12, 6), (6, 9, 1, 2))[kind]
    window = op_cases.draw_window(rng, h, w, kernel=3, pad=1)
    limit = int(rng.choice([127, 255]))
    weight = rng.integers(-limit, limit + 1, (groups * out, *window.kernel, cin)).astype(np.int16)
    src = op_cases.random_source(rng, "x", (1, h, w, cin * groups))
    dst = op_cases.random_view(rng, "y", (1, *window.output(h, w), groups * out), "output")
    zeros = np.zeros(groups * out, np.int32)
    return Conv("conv", src, dst, weight, zeros, np.ones(groups * out), window, groups)


def any_plan(rng: Rng, seen: set[tuple[str, bool]]) -> Callable[[ConvShape], ConvPlan | None]:
    """Choose any candidate, and record how it cuts."""

    def choose(shape: ConvShape) -> ConvPlan | None:
        known = candidates(shape)
        if not known:
            return None
        actual = known[int(rng.integers(len(known)))]
        tiles = len(boxes(shape, actual.tile))
        parts = {
            "chunked": actual.chunked, "blocked": actual.block > 1, "grouped": actual.group < len(shape.tiles),
            "tiles": tiles > 1, "parts": shape.parts > 1, "stored": actual.store > 1, "groups": shape.op.groups > 1,
            "16 to 16": len(shape.fills) > 1 and shape.wide, "16 to 8": len(shape.fills) > 1 and not shape.wide,
            "8 to 16": len(shape.fills) == 1,
        }  # fmt: skip
        seen.update(part for part in parts.items())
        return actual

    return choose


def test_every_tiling() -> None:
    seen: set[tuple[str, bool]] = set()
    for case in range(36):
        rng = np.random.default_rng(case)
        config = CONFIGS[str(rng.choice(["no room", "few sums", "few vectors", "tiny"]))]
        x_wide, wide = ((True, True), (True, False), (False, True))[case % 3]
        op = widen(rng, geometry(rng), x_wide, wide)
        segment = wide_cases.segment(op)
        program = compile_segment(segment, config, choose=any_plan(rng, seen))
        compare(program, segment, wide_cases.buffers(rng, op), config)
    names = {name for name, _ in seen}
    assert seen == {(name, flag) for name in names for flag in BOTH}


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(len(name))
    for _ in range(5):
        segment = wide_cases.segment(random_conv(rng))
        compare(compile_segment(segment, config), segment, wide_cases.buffers(rng, segment.ops[0]), config)


def small_conv(rng: Rng, x_wide: bool, wide: bool) -> WideConv:
    while True:
        op = op_cases.random_conv(rng)
        if math.prod(op.dst.shape) * op.weight[0].size < 8000 and op.pool is None:
            return widen(rng, op, x_wide, wide)


@pytest.mark.parametrize(("x_wide", "wide"), [(True, True), (True, False), (False, True)])
def test_on_rtl(x_wide: bool, wide: bool) -> None:
    rng = np.random.default_rng([x_wide, wide])
    for case in range(2):
        segment = wide_cases.segment(small_conv(rng, x_wide, wide))
        compare_on_rtl(segment, wide_cases.buffers(rng, segment.ops[0]), CONFIGS["tiny"], case)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_many(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng([7, len(name)])
    for case in range(80):
        op = (
            random_conv(rng)
            if case % 3
            else widen(rng, geometry(rng), case % 2 == 0, case % 4 < 2 or case % 2 == 1)
        )
        segment = wide_cases.segment(op)
        choose = best if case % 2 else any_plan(rng, set())
        compare(compile_segment(segment, config, choose=choose), segment, wide_cases.buffers(rng, op), config)


@pytest.mark.long
@pytest.mark.parametrize("name", ["tiny", "small"])
def test_many_on_rtl(name: str) -> None:
    rng = np.random.default_rng(3)
    for case in range(16):
        x_wide, wide = ((True, True), (True, False), (False, True))[case % 3]
        segment = wide_cases.segment(small_conv(rng, x_wide, wide))
        compare_on_rtl(segment, wide_cases.buffers(rng, segment.ops[0]), CONFIGS[name], case)


def plain(shape: Shape = (1, 1, 2, 5), outputs: int = 3) -> WideConv:
    conv = op_cases.convolution(op_cases.whole("x", shape, "input"), outputs)
    return widen(np.random.default_rng(0), conv, True, True)


def test_of_an_int8_convolution() -> None:
    conv = op_cases.convolution(op_cases.whole("x", (1, 3, 4, 5), "input"), 7, Window((2, 2)))
    given = conv.replace(x_zero=5, scale=np.full(7, 0.3), low=LIMITS[0], high=LIMITS[1])
    (op,) = wide_operators.widen(given, wide=True)
    assert isinstance(op, WideConv)
    x = np.random.default_rng(0).integers(-128, 128, conv.src.shape)
    assert (op.x_wide, op.wide) == (False, True)
    assert np.abs(wide_cases.run(op, [x.astype(np.int8)], wide=True) - exact(op, x)).max() <= 1
    assert op.macs == conv.macs


def test_scales_that_are_too_large() -> None:
    """Sums times their scale must fit the kernel, whatever the inputs."""
    op = plain()
    most = 128 * np.abs(op.weight).astype(np.int64).sum(axis=(1, 2, 3)).max()
    fits = (1 << 27) / 256 / most
    assert op.replace(scale=np.full(3, fits * 0.99)).form.places == 2
    with pytest.raises(
        CompileError, match=r"^conv: of 16 bits sums times their scale must stay below 134,217,728, but"
    ):
        compile_segment(wide_cases.segment(op.replace(scale=np.full(3, fits * 1.01))), CONFIGS["tiny"])


def test_scales_next_to_a_power_of_two() -> None:
    """Mantissas that rounding would carry to one bit more."""
    op = plain()
    op = op.replace(scale=np.array([1 - 2.0**-20, 1.0, 1 + 2.0**-20]) / 64, y_zero=0, bias=0 * op.bias)
    x = wide_cases.contents(np.random.default_rng(7), op.src.shape, wide=True) // 20
    assert np.abs(wide_cases.run(op, split(x, op), wide=True) - exact(op, x)).max() <= 1


def test_sums_that_are_too_long() -> None:
    """Sums must fit the 32 bits of the accumulator."""
    count = (1 << 31) // (128 * 255)
    op = plain((1, 1, 1, count + 1), 1)
    long = op.replace(weight=np.full((1, 1, 1, count + 1), -255, np.int16), scale=np.full(1, 1e-9))
    with pytest.raises(CompileError, match=r"^conv: sums of products must fit 32 bits, but"):
        _ = long.form
    short = plain((1, 1, 1, count), 1)
    _ = short.replace(weight=np.full((1, 1, 1, count), -255, np.int16), scale=np.full(1, 1e-9)).form


def test_least_memories() -> None:
    """Operators that fit 32 vectors run; others are refused."""
    config, refused = CONFIGS["no room"].replace(scratchpad_banks=2, scratchpad_depth=16), 0
    compared = 0
    for case in range(12):
        rng = np.random.default_rng(case)
        op = small_conv(rng, case % 3 < 2, case % 3 != 1)
        segment = wide_cases.segment(op)
        try:
            program = compile_segment(segment, config)
        except CompileError as error:
            refused += str(error).startswith("conv: not even one output of this wideconv fits on chip")
            continue
        compared += 1
        compare(program, segment, wide_cases.buffers(rng, op), config)
    assert min(refused, compared) > 0
    assert refused + compared == 12


def test_mismatched_shapes_are_refused() -> None:
    op = plain()
    for wrong in (op.replace(groups=2), op.replace(bias=op.bias[:2]), op.replace(window=Window((1, 2)))):
        with pytest.raises(IrError, match=r"^conv: weight \(3, 1, 1, 5\)"):
            operator_of(op).shape(wrong)
    with pytest.raises(IrError, match="look-up table"):
        operator_of(op).verify(op.replace(lookup=np.zeros(256, np.int8)))


def test_needs_an_engine() -> None:
    config = CONFIGS["tiny"].replace(kernel=0)
    assert operator_of(plain()).unsupported(plain(), config) == (
        "this configuration has no kernel engine; set 'kernel' to 64"
    )
