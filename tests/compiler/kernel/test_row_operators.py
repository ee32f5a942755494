"""Row operators against float64, and compiled programs on the golden interpreter and the RTL."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import draw, random_inputs, random_source, random_view

from weft.compiler.backend import compile_segment
from weft.compiler.errors import IrError
from weft.compiler.ir.graph import DeviceOp, DeviceSegment
from weft.compiler.ir.views import Buffer, View
from weft.compiler.kernel.operators import RowFunction
from weft.compiler.kernel.products import RowNorm, RowProduct, RowScale, RowShare
from weft.compiler.kernel.rows import RowPair, RowPlace, RowTotal
from weft.compiler.onnx.wide import upper_plane
from weft.compiler.operators.record import operator_of
from weft.hdl.isa.config import PRESETS
from weft.run.runtime import Image
from weft.sim.rtl.device import RtlDevice

CONFIGS = {name: PRESETS[name].replace(kernel=64) for name in ("tiny", "small", "default")}
Rng = np.random.Generator
Shape = tuple[int, int, int, int]


def random_shape(rng: Rng, most: int) -> Shape:
    return draw(rng, 1, 2), draw(rng, 1, 5), draw(rng, 1, 30), draw(rng, 1, most)


def clamp(rng: Rng) -> dict[str, int]:
    actual = {"y_zero": draw(rng, -128, 127), "x_zero": draw(rng, -128, 127)}
    if rng.random() < 0.3:
        actual |= {"low": draw(rng, -128, 0), "high": draw(rng, 0, 127)}
    return actual


def random_total(rng: Rng, most: int) -> RowTotal:
    shape = random_shape(rng, most)
    root = str(rng.choice(["", "root", "inverse"]))
    kinds = ["magnitudes", "squares", "spread"] if root else ["sum", "largest", "smallest"]
    kind = str(rng.choice([*kinds, "squares", "spread"]))
    size = {"magnitudes": 60 * shape[3], "sum": 200 * shape[3] ** 0.5, "largest": 100, "smallest": 100}
    factor = float(10.0 ** rng.uniform(-3, 3)) * (1 if root else float(rng.choice([-1, 1, 1])))
    usual = abs(factor) * size.get(kind, 5000 * shape[3])
    usual = {"": usual, "root": usual**0.5, "inverse": usual**-0.5}[root]
    scale = float(10.0 ** rng.uniform(1, 3)) / usual
    offset = float(rng.choice([0, 1e-6, 3.0])) if root else float(rng.uniform(-100, 100) / scale)
    return RowTotal(
        "total", random_source(rng, "x", shape), random_view(rng, "y", (*shape[:3], 1), "output"), kind, factor, offset,
        root, float(rng.choice([0, 0, 100.0])), scale, **clamp(rng),
    )  # fmt: skip


def affine(rng: Rng, shape: Shape, scale: float) -> dict[str, object]:
    """Weights and biases, or none."""
    actual: dict[str, object] = {"scale": scale, **clamp(rng), "centre": bool(rng.integers(2))}
    if rng.integers(2):
        weight = rng.normal(1, 0.4, shape[3]) * rng.choice([-1, 1, 1, 0.1], shape[3])
        actual |= {"weight": weight, "bias": rng.normal(0, 30, shape[3]) / scale}
    return actual


def random_scale(rng: Rng, most: int) -> RowScale:
    shape = random_shape(rng, most)
    by = str(rng.choice(["times", "over", "root", ""]))
    gain = {"times": 1e-2, "over": 100.0, "root": 10.0, "": 1.0}[by] * float(10.0 ** rng.uniform(-1, 1))
    return RowScale(
        name="scale", src=random_source(rng, "x", shape), dst=random_view(rng, "y", shape, "output"),
        number=random_source(rng, "r", (*shape[:3], 1)) if by else None, by=by,
        offset=float(rng.choice([0, 1e-3, 7.5])), gain=gain / 3, r_zero=-128 if by == "root" else draw(rng, -128, 127),
        **affine(rng, shape, 3.0),  # type: ignore[arg-type]
    )  # fmt: skip


def random_share(rng: Rng, most: int) -> RowShare:
    shape = random_shape(rng, most)
    gain = shape[3] * float(10.0 ** rng.uniform(-1, 0.5))
    views = {"src": random_source(rng, "x", shape), "dst": random_view(rng, "y", shape, "output")}
    fields = affine(rng, shape, 100.0) | {"centre": False}
    return RowShare(name="share", **views, gain=gain, **fields)  # type: ignore[arg-type]


def random_norm(rng: Rng, most: int) -> RowNorm:
    shape = random_shape(rng, most)
    root = str(rng.choice(["", "root"]))
    total = str(rng.choice(["sum", "magnitudes", *(["spread", "squares"] if root else ["largest"])]))
    unit = (
        float(10.0 ** rng.uniform(-3, 3))
        / (1 if total == "largest" else shape[3])
        / (3000 if total in ("squares", "spread") else 60)
    )
    return RowNorm(
        name="norm", src=random_source(rng, "x", shape), dst=random_view(rng, "y", shape, "output"),
        of=random_source(rng, "r", shape), total=total, factor=unit,
        offset=float(rng.choice([0, 1e-6, 3])) if root else 0.0, root=root,
        least=float(rng.choice([0, 0, 2.0])) if root else 0.0, of_zero=-128 if total == "sum" else draw(rng, -128, 127),
        gain=float(10.0 ** rng.uniform(-1, 1)), **affine(rng, shape, 3.0),  # type: ignore[arg-type]
    )  # fmt: skip


def random_pair(rng: Rng, most: int) -> RowPair:
    shape = random_shape(rng, most)
    other = tuple(1 if rng.random() < 0.2 else size for size in shape)
    kind = str(rng.choice(["minimum", "maximum", "quotient", "ratio"]))
    scales = [float(10.0 ** rng.uniform(-1, 0.5)) for _ in range(2)]
    scales = [scales[0] * 100, 1.0] if kind in ("quotient", "ratio") else scales
    given = clamp(rng)
    given["a_zero"] = given.pop("x_zero")
    views = random_source(rng, "x", shape), random_source(rng, "r", other)
    return RowPair(
        "pair", *views, random_view(rng, "y", shape, "output"), kind, *scales, b_zero=draw(rng, -128, 127), **given
    )  # fmt: skip


RANDOM: dict[str, Callable[[Rng, int], DeviceOp]] = {
    "total": random_total, "scale": random_scale, "share": random_share, "norm": random_norm, "pair": random_pair,
}  # fmt: skip


def number_of(op: RowTotal | RowNorm, x: np.ndarray, zero: int) -> np.ndarray:
    d = x.astype(np.float64) - zero
    number = {
        "sum": lambda: d.sum(-1), "magnitudes": lambda: np.abs(d).sum(-1), "squares": lambda: (d**2).sum(-1),
        "spread": lambda: ((d - d.mean(-1, keepdims=True)) ** 2).sum(-1), "largest": lambda: d.max(-1),
        "smallest": lambda: d.min(-1),
    }[op.total]()[..., None]  # fmt: skip
    number = number * op.factor + op.offset
    number = np.maximum(number, op.least) if op.least else number
    if op.root:
        number = np.sqrt(np.maximum(number, 0)) ** (-1 if op.root == "inverse" else 1)
    return number


def total_of(op: RowTotal, x: np.ndarray) -> np.ndarray:
    return number_of(op, x, op.x_zero) * op.scale


def product_of(op: RowProduct, x: np.ndarray, number: np.ndarray) -> np.ndarray:
    d = x.astype(np.float64)
    d = d - (d.mean(-1, keepdims=True) if op.centre else op.x_zero)
    weight, bias = (1.0, 0.0) if op.weight is None else (op.weight, op.bias)
    return op.scale * (op.gain * d * number * weight + bias)


def run_scaled(op: RowScale, x: np.ndarray, *r: np.ndarray) -> np.ndarray:
    if not r:
        return product_of(op, x, np.ones(1))
    number = r[0].astype(np.float64) - op.r_zero
    return product_of(
        op,
        x,
        {
            "times": lambda: number,
            "over": lambda: 1 / number,
            "root": lambda: 1 / np.sqrt(number + op.offset),
        }[op.by](),
    )


def share_of(op: RowShare, x: np.ndarray) -> np.ndarray:
    total = np.abs(x.astype(np.float64) - op.x_zero).sum(-1, keepdims=True)
    return product_of(op, x, 1 / np.where(total == 0, 1, total))


def norm_of(op: RowNorm, x: np.ndarray, r: np.ndarray) -> np.ndarray:
    return product_of(op, x, 1 / number_of(op, r, op.of_zero))


def run_pair(op: RowPair, x: np.ndarray, r: np.ndarray) -> np.ndarray:
    a, b = (x.astype(np.float64) - op.a_zero) * op.a_scale, (r.astype(np.float64) - op.b_zero) * op.b_scale
    if op.kind == "ratio":
        a, b = (r.astype(np.float64) - op.b_zero) * op.a_scale, x.astype(np.float64) - op.a_zero
    return {"minimum": np.minimum, "maximum": np.maximum}.get(op.kind, np.divide)(a, b)


EXACT: dict[type, Callable[..., np.ndarray]] = {
    RowTotal: total_of, RowScale: run_scaled, RowShare: share_of, RowPair: run_pair, RowNorm: norm_of,
}  # fmt: skip


def exact(op: DeviceOp, given: list[np.ndarray]) -> np.ndarray:
    """Compute in float64 and round as ONNX Runtime's QuantizeLinear; NaN becomes the lowest value."""
    with np.errstate(all="ignore"):
        actual = np.rint(EXACT[type(op)](op, *given)) + op.y_zero
    return np.clip(np.nan_to_num(actual, nan=-1e9, posinf=1e9, neginf=-1e9), op.low, op.high)


def spread(rng: Rng, shape: Shape) -> np.ndarray:
    """Draw rows of any spread; some constant."""
    size = rng.choice([0, 0.6, 4, 30, 150], (*shape[:3], 1))
    values = rng.normal(0, 1, shape) * size + rng.uniform(-60, 60, (*shape[:3], 1))
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


@pytest.mark.parametrize("kind", RANDOM)
def test_results_are_near_float64(kind: str) -> None:
    wrong = total = 0
    for case in range(150):
        rng = np.random.default_rng([case, len(kind)])
        op = RANDOM[kind](rng, 3000 if case % 10 == 0 else 90)
        arguments = [spread(rng, view.shape) for view in op.sources]
        actual = operator_of(op).evaluate(op, tuple(arguments), 24).astype(int)
        difference = np.abs(actual - exact(op, arguments))
        assert difference.max() <= 1, (case, op)
        wrong, total = wrong + int(difference.sum()), total + difference.size
    assert wrong < 0.03 * total


def random_place(rng: Rng, most: int, channels: int = 0) -> RowPlace:
    shape = (*random_shape(rng, 1)[:3], channels or draw(rng, 1, most))
    wide = shape[3] > 256 or bool(rng.integers(2))
    dst = random_view(rng, "y", (*shape[:3], 1), "output")
    return RowPlace("place", random_source(rng, "x", shape), upper_plane(dst) if wide else dst,
                    bool(rng.integers(2)), bool(rng.integers(2)), wide)  # fmt: skip


def few(rng: Rng, shape: Shape) -> np.ndarray:
    """Rows of few different values, so that extremes repeat; some at the ends of the range."""
    values = rng.integers(0, rng.choice([1, 3, 6, 300], (*shape[:3], 1)), shape) + rng.choice([-128, 0, 125])
    return np.clip(values * rng.choice([-1, 1]), -128, 127).astype(np.int8)


def place_of(op: RowPlace, x: np.ndarray) -> np.ndarray:
    """Channel of the extreme, by numpy."""
    values = -x.astype(int) if op.smallest else x.astype(int)
    if op.final:
        return values.shape[-1] - 1 - values[..., ::-1].argmax(-1)
    return values.argmax(-1)


def test_places_of_extremes() -> None:
    for case in range(120):
        rng = np.random.default_rng([case, 3])
        op = random_place(rng, 1000, {0: 65535, 1: 1, 2: 2, 3: 256, 4: 257, 5: 32769, 6: 128}.get(case, 0))
        x = few(rng, op.src.shape)
        actual = operator_of(op).evaluate(op, (x,), 24).astype(int)
        if op.wide:
            upper, lower = np.split(actual, 2)
            actual = (upper << 8) + lower + 128 + (1 << 15)
        else:
            actual = actual + 128
        assert np.array_equal(actual[..., 0], place_of(op, x)), (case, op)


@pytest.mark.parametrize("name", CONFIGS)
def test_places_on_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(11)
    for _ in range(12):
        op = random_place(rng, 300)
        inputs = {"x": few(rng, op.src.buffer.shape)}
        segment = DeviceSegment("rows", (op,))
        compare(compile_segment(segment, config), segment, inputs, config)


def test_places_on_rtl() -> None:
    config, rng = CONFIGS["tiny"], np.random.default_rng(12)
    for case in range(4):
        op = random_place(rng, 40)
        compare_on_rtl(DeviceSegment("rows", (op,)), {"x": few(rng, op.src.buffer.shape)}, config, case)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", RANDOM)
def test_golden(kind: str, name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(len(kind))
    for _ in range(12):
        op = RANDOM[kind](rng, 90)
        segment = DeviceSegment("rows", (op,))
        compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)


def test_root_of_zero() -> None:
    """1 / sqrt(0) is infinite, not a large number."""
    views = [View(Buffer(name, shape, kind), shape) for name, shape, kind in
             (("x", (1, 1, 2, 4), "input"), ("y", (1, 1, 2, 1), "output"))]  # fmt: skip
    op = RowTotal("total", *views, "squares", root="inverse", scale=0.1)
    x = np.array([0, 0, 0, 0, 3, 0, 0, 0], np.int8).reshape(1, 1, 2, 4)
    assert operator_of(op).evaluate(op, (x,), 24).reshape(-1).tolist() == [127, 0]


@pytest.mark.parametrize(
    ("total", "actual"), [("sum", -2), ("largest", 5), ("smallest", -7), ("magnitudes", 12)]
)
def test_plain_totals(total: str, actual: int) -> None:
    """Neither an addend nor a factor."""
    views = [View(Buffer(name, shape, kind), shape) for name, shape, kind in
             (("x", (1, 1, 1, 3), "input"), ("y", (1, 1, 1, 1), "output"))]  # fmt: skip
    x = np.array([5, -7, 0], np.int8).reshape(1, 1, 1, 3)
    op = RowTotal("total", *views, total)
    assert operator_of(op).evaluate(op, (x,), 24).reshape(-1).tolist() == [actual]


def test_plain_functions() -> None:
    """A user-written kernel keeps its stored values, over all of int8."""
    shape = (1, 1, 2, 128)
    x, y = (View(Buffer(name, shape, kind), shape) for name, kind in (("x", "input"), ("y", "output")))
    op = RowFunction("function", (x,), y, lambda rows: rows.store(rows.read(0)))
    assert (op.sources, op.vectors, op.y_zero, op.low, op.high) == ((x,), (), 0, -128, 127)
    values = np.arange(-128, 128).astype(np.int8).reshape(shape)
    assert np.array_equal(operator_of(op).evaluate(op, (values,), 24), values)


def test_views_of_functions() -> None:
    """All operands are mapped, although they are a tuple in one field."""
    shape = (1, 1, 2, 8)
    x, y, z = (View(Buffer(name, shape), shape) for name in "xyz")
    op = RowFunction("function", (x, x), y, lambda rows: rows.store(rows.read(0) + rows.read(1)))
    mapped = op.map_views(lambda view: z if view is x else view)
    assert (mapped.sources, mapped.dst) == ((z, z), y)


def test_mismatched_shapes_are_refused() -> None:
    views = [
        View(Buffer(name, shape, "input"), shape)
        for name, shape in (("a", (1, 2, 3, 4)), ("b", (1, 1, 2, 4)))
    ]
    op = RowPair("pair", *views, View(Buffer("y", (1, 2, 3, 4)), (1, 2, 3, 4)), "minimum", 1.0, 1.0)
    with pytest.raises(IrError, match=r"rows of \(1, 1, 2, 4\) beside those of \(1, 2, 3, 4\)"):
        operator_of(op).shape(op)


@pytest.mark.long
@pytest.mark.parametrize("kind", RANDOM)
def test_on_rtl(kind: str) -> None:
    config, rng = CONFIGS["tiny"], np.random.default_rng(len(kind))
    for case in range(6):
        op = RANDOM[kind](rng, 30)
        segment = DeviceSegment("rows", (op,))
        inputs = {
            view.buffer.name: rng.integers(-128, 128, view.buffer.shape).astype(np.int8)
            for view in op.sources
        }
        image = Image(compile_segment(segment, config))
        stalls = {"stall_probability": 0.3, "stall_seed": case} if case % 2 else {}
        with RtlDevice(config, image.memory_bytes, latency=5 * case + 1, **stalls) as rtl:
            image.run(rtl, inputs)
            actual = image.read(rtl, "y")
        compare(compile_segment(segment, config), segment, inputs, config)
        expected = golden(image, config, inputs)
        assert np.array_equal(actual, expected), case


def golden(image: Image, config: object, inputs: dict[str, np.ndarray]) -> np.ndarray:
    from weft.sim.golden.interpreter import GoldenDevice

    device = GoldenDevice(config, image.memory_bytes)  # type: ignore[arg-type]
    image.run(device, inputs)
    return image.read(device, "y")
