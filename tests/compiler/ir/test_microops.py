"""The micro-ops against plain loops over the definition of every operator, in exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Add, Attention, Conv, DeviceOp, DeviceSegment, Pool, Rescale, Softmax
from weft.compiler.ir.microops import Value, divide_half_even, elementwise, reindex
from weft.compiler.ir.scales import SHIFT_MAX, quantise_pair, quantise_scale
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.verify import evaluate, is_exact, run_ops, verify_op

Shape = tuple[int, int, int, int]


def view(name: str, shape: Shape) -> View:
    return View(Buffer(name, shape), shape)


def finish(op: DeviceOp, value: Fraction) -> int:
    """Round half to even, zero point, clamp."""
    return min(max(round(value) + op.y_zero, op.low), op.high)


def multiply_by_scale(value: int, scale: float, bits: int = 24) -> Fraction:
    mantissa, shift = quantise_scale(scale, bits)
    return Fraction(value * mantissa, 1 << shift)


def elements_in_range(window: Window, oy: int, ox: int, h: int, w: int) -> list[tuple[int, int, int, int]]:
    """Yield (ky, kx, y, x) of the elements of a window within range."""
    result = []
    for ky in range(window.kernel[0]):
        for kx in range(window.kernel[1]):
            y = oy * window.stride[0] + ky * window.dilation[0] - window.pad[0]
            x = ox * window.stride[1] + kx * window.dilation[1] - window.pad[1]
            if 0 <= y < h and 0 <= x < w:
                result.append((ky, kx, y, x))
    return result


def naive_conv(op: Conv, x: np.ndarray) -> np.ndarray:
    n, h, w, _ = x.shape
    outputs, _, _, cin = op.weight.shape
    oh, ow = op.window.output(h, w)
    result = np.zeros((n, oh, ow, outputs), np.int8)
    for b, oy, ox, c in np.ndindex(*result.shape):
        first = c // (outputs // op.groups) * cin
        acc = int(op.bias[c])
        for ky, kx, y, xx in elements_in_range(op.window, oy, ox, h, w):
            for i in range(cin):
                acc += (int(x[b, y, xx, first + i]) - op.x_zero) * int(op.weight[c, ky, kx, i])
        result[b, oy, ox, c] = finish(op, multiply_by_scale(acc, op.scale[c]))
    return result if op.pool is None else naive_max(op.pool, result)


def naive_max(window: Window, x: np.ndarray) -> np.ndarray:
    n, h, w, c = x.shape
    oh, ow = window.output(h, w)
    result = np.zeros((n, oh, ow, c), np.int8)
    for oy, ox in np.ndindex(oh, ow):
        picks = [x[:, y, xx] for _, _, y, xx in elements_in_range(window, oy, ox, h, w)]
        result[:, oy, ox] = np.max(picks, axis=0)
    return result


def naive_average(op: Pool, x: np.ndarray) -> np.ndarray:
    n, h, w, c = x.shape
    oh, ow = op.window.output(h, w)
    result = np.zeros((n, oh, ow, c), np.int8)
    for b, oy, ox, i in np.ndindex(*result.shape):
        picks = [
            int(x[b, y, xx, i]) - op.x_zero for _, _, y, xx in elements_in_range(op.window, oy, ox, h, w)
        ]
        count = op.window.kernel[0] * op.window.kernel[1] if op.include_pad else len(picks)
        result[b, oy, ox, i] = finish(op, multiply_by_scale(sum(picks), op.scale / count))
    return result


@pytest.mark.parametrize("seed", range(12))
def test_conv(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, cin, each = (int(value) for value in rng.integers(1, 4, 3))
    window = Window((int(rng.integers(1, 4)), int(rng.integers(1, 4))), (1 + seed % 3, 1 + seed % 2), (1 + seed % 2, 1),
                    (1, 0, 1, 2))  # fmt: skip
    shape, outputs = (2, 6, 7, groups * cin), groups * each
    oh, ow = window.output(6, 7)
    pool = Window((2, 2), (1, 1), (1, 1), (1, 0, 0, 0)) if seed % 3 == 0 and min(oh, ow) > 1 else None
    if pool is not None:
        oh, ow = pool.output(oh, ow)
    op = Conv(
        "conv",
        view("x", shape),
        view("y", (2, oh, ow, outputs)),
        rng.integers(-255, 256, (outputs, *window.kernel, cin)).astype(np.int16),
        rng.integers(-5000, 5000, outputs).astype(np.int32),
        rng.uniform(0.0005, 0.01, outputs),
        window,
        groups,
        x_zero=int(rng.integers(-128, 128)),
        y_zero=int(rng.integers(-128, 128)),
        low=-100,
        high=101,
        pool=pool,
    )
    x = rng.integers(-128, 128, shape).astype(np.int8)
    assert np.array_equal(evaluate(op, (x,)), naive_conv(op, x))


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("include", [False, True])
def test_pool(kind: str, include: bool) -> None:
    rng = np.random.default_rng(0)
    window = Window((3, 2), (2, 1), (1, 2), (1, 0, 2, 1))
    shape = (2, 6, 5, 3)
    dst = view("y", (2, *window.output(6, 5), 3))
    op = Pool(
        "pool", view("x", shape), dst, kind, window, 0.7, x_zero=9, y_zero=-4, low=-90, include_pad=include
    )
    x = rng.integers(-128, 128, shape).astype(np.int8)
    if kind == "average":
        expected = naive_average(op, x)
    else:
        expected = np.vectorize(lambda value: finish(op, multiply_by_scale(int(value) - 9, 0.7)))(
            naive_max(window, x)
        )
    assert np.array_equal(evaluate(op, (x,)), expected)


@pytest.mark.parametrize("bits", [16, 24])
def test_add_and_rescale(bits: int) -> None:
    a, b = (np.arange(-128, 128, dtype=np.int16).astype(np.int8).reshape(1, 16, 16, 1) for _ in range(2))
    b = b.transpose(0, 2, 1, 3)
    whole = view("x", a.shape)
    for sign in (1, -1):
        op = Add("add", whole, whole, whole, 0.61, sign * 0.0173, 3, -7, 11, -120, 99)
        first, second, shift = quantise_pair(0.61, 0.0173, bits)
        expected = [
            finish(op, Fraction((int(p) - 3) * first + sign * (int(q) + 7) * second, 1 << shift))
            for p, q in zip(a.flat, b.flat, strict=True)
        ]
        assert evaluate(op, (a, b), bits).reshape(-1).tolist() == expected
    assert np.array_equal(evaluate(Rescale("copy", whole, whole), (a,), bits), a)
    copy = Rescale("rescale", whole, whole, 1.37, -3, 5, -128, 100)
    expected = [finish(copy, multiply_by_scale(int(p) + 3, 1.37, bits)) for p in a.flat]
    assert evaluate(copy, (a,), bits).reshape(-1).tolist() == expected


def naive_attention(op: Attention, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Compute one number at a time; operands are float (images, heads, rows, size)."""
    images, heads, rows, _ = q.shape
    result = np.zeros((images, heads, rows, v.shape[3]), np.int8)
    for image, head, row, column in np.ndindex(*result.shape):
        kv_head = head // (op.heads // op.kv_heads)
        keys = range(op.lengths[image])
        if op.causal:
            keys = range(max(0, min(op.lengths[image], row + op.offset + 1)))
        weights = [
            math.exp(op.score_scale * float(q[image, head, row] @ k[image, kv_head, key])) for key in keys
        ]
        mean = sum(
            weight * v[image, kv_head, key, column] for weight, key in zip(weights, keys, strict=True)
        ) / (sum(weights) or 1.0)
        result[image, head, row, column] = min(max(round(mean * op.scale) + op.y_zero, op.low), op.high)
    return result


@pytest.mark.parametrize("seed", range(8))
def test_attention_reference(seed: int) -> None:
    """Heads lie on either axis for every operand, masked or not."""
    rng = np.random.default_rng(seed)
    images, kv_heads, group, rows, keys, size, v_size = (int(value) for value in rng.integers(1, 5, 7))
    heads, places = kv_heads * group, rng.integers(2, size=4)
    arrays, views, arguments = [], [], []
    for name, place, count, length, width in (
        ("q", places[0], heads, rows, size), ("k", places[1], kv_heads, keys, size),
        ("v", places[2], kv_heads, keys, v_size), ("y", places[3], heads, rows, v_size),
    ):  # fmt: skip
        array = rng.integers(-128, 128, (images, count, length, width)).astype(np.int8)
        arrays.append(array.astype(np.float64))
        shape = (images, 1, length, count * width) if place else (images * count, 1, length, width)
        arguments.append((array.transpose(0, 2, 1, 3) if place else array).reshape(shape))
        views.append(view(name, shape))
    op = Attention(
        "attention", *views, images, heads, kv_heads, 1e-3, tuple(rng.integers(0, keys + 1, images).tolist()),
        0.8, bool(seed % 2), int(rng.integers(-2, 3)), 3, -4, 5, -6, -100, 90,
    )  # fmt: skip
    expected = naive_attention(op, arrays[0] - 3, arrays[1] + 4, arrays[2] - 5)
    result = evaluate(op, tuple(arguments[:3]))
    verify_op(op)
    assert result.shape == views[3].shape
    if places[3]:
        result = result.reshape(images, rows, heads, v_size).transpose(0, 2, 1, 3)
    assert np.array_equal(result.reshape(expected.shape), expected)
    assert not is_exact(DeviceSegment("s", (op,)))


def test_softmax_reference() -> None:
    x = np.arange(-12, 12, dtype=np.int8).reshape(1, 2, 3, 4)
    op = Softmax("softmax", view("x", x.shape), view("y", x.shape), 0.3, 256.0, 5, -128)
    powers = np.exp(0.3 * (x.astype(float) - 5))
    expected = np.rint(256 * powers / powers.sum(3, keepdims=True)) - 128
    assert np.array_equal(evaluate(op, (x,)), expected)
    rows = op.dst.shape[:3]
    assert np.abs((evaluate(op, (x,)).astype(int) + 128).sum(3).reshape(rows) - 256).max() <= 2
    assert is_exact(DeviceSegment("s", ()))


def test_accumulator_wraps_as_the_device_does() -> None:
    weight = np.full((1, 1, 1, 1), 1, np.int16)
    bias = np.array([2**31 - 1], np.int32)
    whole = view("x", (1, 1, 1, 1))
    op = Conv("conv", whole, whole, weight, bias, np.array([1.0]))
    assert evaluate(op, (np.ones((1, 1, 1, 1), np.int8),)).item() == -128
    assert evaluate(op, (np.zeros((1, 1, 1, 1), np.int8),)).item() == 127


def test_division_rounds_half_to_even() -> None:
    value = Value(np.arange(-9, 10), "n")
    for shift in (0, 1, 2, 3, 63):
        expected = [round(Fraction(int(item), 1 << shift)) for item in value.array]
        assert divide_half_even(value, Value(np.asarray(shift), "")).array.tolist() == expected


def test_reindex_fills_elements_out_of_range() -> None:
    source = Value(np.arange(6).reshape(2, 3), "hw")
    columns = Value(np.array([-1, 0, 2, 3]), "k")
    assert reindex(source, "kh", {"w": columns}, 9).array.tolist() == [[9, 9], [0, 3], [2, 5], [9, 9]]


def test_elementwise_matches_axes_by_name() -> None:
    a, b = Value(np.arange(2), "h"), Value(np.arange(3), "w")
    assert elementwise(lambda p, q: 10 * p + q, a, b).array.tolist() == [[0, 1, 2], [10, 11, 12]]


def test_run_ops_sees_views_and_other_shapes_of_one_buffer() -> None:
    joined = Buffer("joined", (1, 1, 1, 5))
    ops = (
        Rescale("left", view("a", (1, 1, 1, 2)), View(joined, (1, 1, 1, 2))),
        Rescale("right", view("b", (1, 1, 1, 3)), View(joined, (1, 1, 1, 3), c=2)),
        Rescale("all", View(Buffer("joined", (5, 1, 1, 1)), (5, 1, 1, 1)), view("y", (5, 1, 1, 1))),
    )
    arguments = {"a": np.array([1, 2], np.int8), "b": np.array([3, 4, 5], np.int8)}
    assert run_ops(DeviceSegment("s", ops), arguments)["y"].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("bits", [16, 24])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.1, 0.9999999999, 3.7e-9, 2.0**-39, 1.9e-19, 65535.0, 0.0])
def test_scale(scale: float, bits: int) -> None:
    mantissa, shift = quantise_scale(scale, bits)
    assert 0 <= shift <= SHIFT_MAX
    assert mantissa < 1 << bits
    assert mantissa >= 1 << (bits - 1) or shift == SHIFT_MAX
    assert abs(Fraction(mantissa, 1 << shift) - Fraction(scale)) <= Fraction(1, 2 << shift)


def test_scale_too_large() -> None:
    with pytest.raises(
        CompileError, match=r"^requantisation scale 65536 is too large: mantissas have 16 bits$"
    ):
        quantise_scale(65536.0, 16)


@pytest.mark.parametrize("scale", [-1.0, np.nan, np.inf])
def test_invalid_scale(scale: float) -> None:
    message = rf"^a requantisation scale must be a finite number of at least 0, not {scale!r}$"
    with pytest.raises(CompileError, match=message):
        quantise_scale(scale)


def test_pair_has_one_shift() -> None:
    assert quantise_pair(0.5, 0.25, 16) == (1 << 15, 1 << 14, 16)
    assert quantise_pair(1e-9, 0.9999999999, 24)[1:] == (1 << 23, 23)
