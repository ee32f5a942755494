"""Random device operators, small enough for the RTL, with the important corner cases."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pad, Pool, Rescale
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.verify import verify_op
from weft.hdl.isa.config import Config

Shape = tuple[int, int, int, int]


def whole(name: str, shape: Shape, kind: str) -> View:
    return View(Buffer(name, shape, kind), shape)


def draw(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw an integer from `low` to `high`, both included."""
    return int(rng.integers(low, high + 1))


def draw_window(rng: np.random.Generator, h: int, w: int, *, kernel: int = 4, pad: int = 3) -> Window:
    """Draw a window with unequal sizes, strides and pads that leaves at least one output."""
    while True:
        k = (draw(rng, 1, kernel), draw(rng, 1, kernel))
        window = Window(
            k,
            (draw(rng, 1, 3), draw(rng, 1, 3)),
            (draw(rng, 1, 3), draw(rng, 1, 3)),
            (draw(rng, 0, pad), draw(rng, 0, pad), draw(rng, 0, pad), draw(rng, 0, pad)),
        )
        if min(window.output(h, w)) >= 1:
            return window


def random_view(rng: np.random.Generator, name: str, shape: Shape, kind: str) -> View:
    """Draw a whole buffer, or a box inside a larger one, some with steps between rows and columns."""
    if rng.random() < 0.7:
        return whole(name, shape, kind)
    n, h, w, c = shape
    y, x, at = draw(rng, 0, 2), draw(rng, 0, 2), draw(rng, 0, 5)
    step = (draw(rng, 1, 3), draw(rng, 1, 3)) if rng.random() < 0.5 else (1, 1)
    around = 0 if rng.random() < 0.5 else at + draw(rng, 0, 5)
    at = min(at, around)
    spans = [(size - 1) * by + 1 for size, by in zip((h, w), step, strict=True)]
    outer = (n, spans[0] + y + draw(rng, 0, 2), spans[1] + x + draw(rng, 0, 2), c + around)
    return View(Buffer(name, outer, kind), shape, y, x, at, step)


def random_source(rng: np.random.Generator, name: str, shape: Shape) -> View:
    """Draw a view like `random_view`, which may also repeat a row or a column."""
    view = random_view(rng, name, shape, "input")
    if rng.random() < 0.1:
        step = (0, view.step[1]) if rng.random() < 0.5 else (view.step[0], 0)
        return dataclasses.replace(view, step=step)
    return view


def convolution(
    x: View, out: int, window: Window = Window(), *, name: str = "y", kind: str = "output"
) -> Conv:
    """Build a convolution of all channels of `x` in one group, to `out` channels in a buffer of its own."""
    n, h, w, cin = x.shape
    y = whole(name, (n, *window.output(h, w), out), kind)
    weight = np.random.default_rng(0).integers(-127, 128, (out, *window.kernel, cin)).astype(np.int16)
    return Conv("conv", x, y, weight, np.zeros(out, np.int32), np.full(out, 0.001), window)


def random_conv(rng: np.random.Generator) -> Conv:
    n, h, w = draw(rng, 1, 2), draw(rng, 1, 14), draw(rng, 1, 14)
    groups, kind = 1, rng.random()
    if kind < 0.2:  # depthwise, with a multiplier
        groups, cin, per_out = draw(rng, 2, 36), 1, draw(rng, 1, 2)
    elif kind < 0.4:
        groups, cin, per_out = draw(rng, 2, 4), draw(rng, 1, 20), draw(rng, 1, 20)
    else:
        cin, per_out = draw(rng, 1, 40), draw(rng, 1, 40)
    window = draw_window(rng, h, w)
    oh, ow = window.output(h, w)
    pool = None
    if rng.random() < 0.25 and oh > 1 and ow > 1:
        pool = Window((2, 2) if rng.random() < 0.5 else (min(3, oh), min(3, ow)), (draw(rng, 1, 2), draw(rng, 1, 3)),
                      (1, 1), (0, 0, 0, 0) if rng.random() < 0.5 else (1, 0, 0, 1))  # fmt: skip
    out = groups * per_out
    limit = int(rng.choice([127, 127, 127, 128, 255]))
    weight = rng.integers(-limit, limit + 1, (out, *window.kernel, cin)).astype(np.int16)
    typical = math.sqrt(cin * window.kernel[0] * window.kernel[1]) * limit * 40
    final = pool.output(oh, ow) if pool else (oh, ow)
    low, high = (-128, 127) if rng.random() < 0.6 else (draw(rng, -128, 0), draw(rng, 0, 127))
    return Conv(
        "conv",
        random_source(rng, "x", (n, h, w, cin * groups)),
        random_view(rng, "y", (n, *final, out), "output"),
        weight,
        rng.integers(-(1 << 14), 1 << 14, out).astype(np.int32),
        rng.uniform(30, 90, out) / typical,
        window,
        groups,
        draw(rng, -128, 127),
        draw(rng, -128, 127),
        low,
        high,
        pool,
    )


def random_matmul(rng: np.random.Generator) -> Conv:
    """Draw a matrix product: rows by features, all three sizes free."""
    rows, features, out = draw(rng, 1, 70), draw(rng, 1, 90), draw(rng, 1, 70)
    weight = rng.integers(-127, 128, (out, 1, 1, features)).astype(np.int16)
    scale = rng.uniform(30, 90, out) / (math.sqrt(features) * 127 * 40)
    return Conv(
        "matmul",
        whole("x", (1, 1, rows, features), "input"),
        whole("y", (1, 1, rows, out), "output"),
        weight,
        rng.integers(-(1 << 14), 1 << 14, out).astype(np.int32),
        scale,
        x_zero=draw(rng, -128, 127),
        y_zero=draw(rng, -20, 20),
    )


def random_pool(rng: np.random.Generator) -> Pool:
    n, h, w, c = draw(rng, 1, 2), draw(rng, 2, 14), draw(rng, 2, 14), draw(rng, 1, 40)
    if rng.random() < 0.3:
        window = Window((h, w))
    else:
        while True:
            window = draw_window(rng, h, w, pad=1)
            if min(window.kernel) > 1:
                break
    same = rng.random() < 0.5
    return Pool(
        "pool",
        random_source(rng, "x", (n, h, w, c)),
        random_view(rng, "y", (n, *window.output(h, w), c), "output"),
        "max" if rng.random() < 0.5 else "average",
        window,
        1.0 if same else rng.uniform(0.3, 3),
        draw(rng, -128, 0),
        draw(rng, -128, 127),
        include_pad=rng.random() < 0.3,
    )


def random_add(rng: np.random.Generator) -> Add:
    shape = (draw(rng, 1, 2), draw(rng, 1, 12), draw(rng, 1, 12), draw(rng, 1, 40))
    a, b = (random_source(rng, name, shape) for name in "ab")
    return Add(
        "add", a, b, random_view(rng, "y", shape, "output"), rng.uniform(0.01, 2), rng.uniform(0.01, 2),
        draw(rng, -128, 127), draw(rng, -128, 127), draw(rng, -128, 127),
    )  # fmt: skip


def random_repeated(rng: np.random.Generator, shape: Shape) -> Shape:
    """Draw a shape that repeats to `shape`; half of the draws do not repeat."""
    if rng.random() < 0.5:
        return shape
    n, h, w = (1 if rng.random() < 0.5 else size for size in shape[:3])
    return (n, h, w, shape[3])


def random_pairwise(rng: np.random.Generator) -> Add | Multiply:
    shape = (draw(rng, 1, 2), draw(rng, 1, 12), draw(rng, 1, 12), draw(rng, 1, 40))
    a = random_source(rng, "a", shape)
    b = random_source(rng, "b", random_repeated(rng, shape))
    y, zeros = random_view(rng, "y", shape, "output"), [draw(rng, -128, 127) for _ in range(3)]
    if rng.random() < 0.3:
        return Add("subtract", a, b, y, rng.uniform(0.01, 2), -rng.uniform(0.01, 2), *zeros)
    if rng.random() < 0.3:
        return Add("add", a, b, y, rng.uniform(0.01, 2), rng.uniform(0.01, 2), *zeros)
    return Multiply("multiply", a, b, y, 10 ** rng.uniform(-4, -1), *zeros)


def random_rescale(rng: np.random.Generator) -> Rescale:
    shape = (draw(rng, 1, 2), draw(rng, 1, 12), draw(rng, 1, 12), draw(rng, 1, 40))
    scale = 1.0 if rng.random() < 0.3 else rng.uniform(0.1, 3)
    return Rescale("rescale", random_source(rng, "x", shape), random_view(rng, "y", shape, "output"), scale,
                   draw(rng, -128, 127), draw(rng, -128, 127))  # fmt: skip


def random_pad(rng: np.random.Generator) -> Pad:
    """Draw padding of rows and columns; some exceeds the image."""
    n, h, w, c = draw(rng, 1, 2), draw(rng, 1, 12), draw(rng, 1, 12), draw(rng, 1, 40)
    most = 20 if rng.random() < 0.2 else 3
    window = Window(pad=(draw(rng, 0, most), draw(rng, 0, most), draw(rng, 0, most), draw(rng, 0, most)))
    target = random_view(rng, "y", (n, *window.output(h, w), c), "output")
    scale = 1.0 if rng.random() < 0.5 else rng.uniform(0.1, 3)
    fill, *zeros = (draw(rng, -128, 127) for _ in range(3))
    return Pad("pad", random_source(rng, "x", (n, h, w, c)), target, window, fill, scale, *zeros)


def random_lookup(rng: np.random.Generator) -> np.ndarray:
    """Draw a look-up table of any bytes, or of some that rise."""
    table = rng.integers(-128, 128, 256).astype(np.int8)
    return np.sort(table) if rng.random() < 0.4 else table


def random_op(rng: np.random.Generator) -> DeviceOp:
    """Draw any operator, some with a look-up table, two if there is an epilogue."""
    makers = (
        random_conv,
        random_matmul,
        random_pool,
        random_add,
        random_pairwise,
        random_rescale,
        random_pad,
    )
    maker = makers[int(rng.choice(len(makers), p=[0.42, 0.13, 0.1, 0.05, 0.15, 0.08, 0.07]))]
    op = maker(rng)
    if isinstance(op, Conv) and rng.random() < 0.3:
        op = extend_epilogue(rng, op)
        if op.epilogue is not None and rng.random() < 0.3:
            op = op.replace(epilogue=op.epilogue.replace(lookup=random_lookup(rng)))
    if rng.random() < 0.3:
        op = op.replace(lookup=random_lookup(rng))
    verify_op(op)
    return op


def random_op_of(rng: np.random.Generator, config: Config) -> DeviceOp:
    """Draw any operator that hardware of `config` has."""
    while True:
        op = random_op(rng)
        steps = [op, op.epilogue] if isinstance(op, Conv) and op.epilogue is not None else [op]
        if not config.multiply and any(map(_multiplies, steps)):
            continue
        if config.lookup_tables:
            return op
        if len(steps) > 1:
            op = op.replace(epilogue=steps[1].replace(lookup=None))
        return op.replace(lookup=None)


def _multiplies(op: DeviceOp) -> bool:
    """Return whether an operator is a product of two tensors or a difference."""
    return isinstance(op, Multiply) or (isinstance(op, Add) and min(op.a_scale, op.b_scale) < 0)


def extend_epilogue(rng: np.random.Generator, conv: Conv) -> Conv:
    """Return the convolution with an addition to its result, or another requantisation."""
    shape = conv.dst.shape
    middle = whole("m", shape, "temp")
    if rng.random() < 0.3:
        rescale = Rescale("again", middle, conv.dst, rng.uniform(0.1, 1.5), conv.y_zero, draw(rng, -128, 127),
                          draw(rng, -128, 0), 127)  # fmt: skip
        return dataclasses.replace(conv, epilogue=rescale)
    if rng.random() < 0.3:
        factor = random_source(rng, "r", shape)
        zeros = conv.y_zero, draw(rng, -128, 127), draw(rng, -128, 127)
        return dataclasses.replace(conv, epilogue=Multiply("product", middle, factor, conv.dst, 0.01, *zeros))
    added, sign = random_source(rng, "r", shape), int(rng.choice([1, 1, -1]))
    add = Add(
        "sum", middle, added, conv.dst, rng.uniform(0.1, 1.5), sign * rng.uniform(0.1, 1.5), conv.y_zero,
        draw(rng, -128, 127), draw(rng, -128, 127), draw(rng, -128, 0), 127,
    )  # fmt: skip
    return dataclasses.replace(conv, epilogue=add)


def segment_of(*ops: DeviceOp) -> DeviceSegment:
    return DeviceSegment(ops[0].name, ops)


def split_operators(conv: Conv) -> tuple[DeviceOp, ...]:
    """Return a convolution, its pooling and its epilogue as separate operators."""
    if conv.epilogue is not None:
        return *split_operators(conv.replace(dst=conv.epilogue.sources[0], epilogue=None)), conv.epilogue
    if conv.pool is None:
        return (conv,)
    n, h, w, _ = conv.src.shape
    between = whole("unpooled", (n, *conv.window.output(h, w), len(conv.weight)), "temp")
    pool = Pool(
        "pool", between, conv.dst, "max", conv.pool, 1.0, conv.y_zero, conv.y_zero, conv.low, conv.high,
        lookup=conv.lookup,
    )  # fmt: skip
    return conv.replace(dst=between, pool=None, lookup=None), pool


def random_inputs(rng: np.random.Generator, op: DeviceOp) -> dict[str, np.ndarray]:
    """Draw full-range contents of the buffers that an operator reads."""
    return {
        view.buffer.name: rng.integers(-128, 128, view.buffer.shape).astype(np.int8) for view in op.sources
    }


def random_chain(
    rng: np.random.Generator, side: int = 10, channels: int = 24
) -> tuple[DeviceSegment, dict[str, np.ndarray]]:
    """Draw a residual block with concatenated branches: temporaries, views and reuse of memory."""
    h, w, c = draw(rng, 5, side), draw(rng, 5, side), draw(rng, 3, channels)
    shape = (1, h, w, c)
    x, t0, t1, t2 = whole("x", shape, "input"), *(whole(f"t{i}", shape, "temp") for i in range(3))
    both = whole("both", (1, h, w, 2 * c), "temp")
    y = whole("y", (1, h, w, 9), "output")

    def conv(name: str, src: View, dst: View, kernel: int) -> Conv:
        cin, out = src.shape[3], dst.shape[3]
        weight = rng.integers(-127, 128, (out, kernel, kernel, cin)).astype(np.int16)
        pad = (kernel // 2,) * 4
        scale = np.full(out, 60 / (np.sqrt(cin * kernel * kernel) * 127 * 40))
        bias = rng.integers(-999, 999, out).astype(np.int32)
        return Conv(
            name, src, dst, weight, bias, scale, Window((kernel, kernel), pad=pad), x_zero=3, y_zero=3
        )

    left, right = View(both.buffer, shape), View(both.buffer, shape, c=c)
    ops = (
        conv("c0", x, t0, 3),
        conv("c1", t0, t1, 3),
        Add("add", t0, t1, t2, 0.7, 0.6, 3, 3, 3),
        conv("c2", t2, left, 1),
        Pool("pool", t2, right, "max", Window((3, 3), pad=(1, 1, 1, 1)), 1.0, 3, 3),
        conv("c3", both, y, 3),
    )
    return DeviceSegment("chain", ops), {"x": rng.integers(-128, 128, shape).astype(np.int8)}


def random_convolutions(
    rng: np.random.Generator, side: int = 9, channels: int = 40
) -> tuple[DeviceSegment, dict[str, np.ndarray]]:
    """Draw convolutions that read each other's results, with additions of earlier ones, which may stay on chip.

    A result that no operator reads is an output.
    """
    n = draw(rng, 1, 2)
    values = [whole("x", (n, draw(rng, 2, side), draw(rng, 2, side), draw(rng, 1, channels)), "input")]
    ops: list[Conv] = []
    for index in range(draw(rng, 2, 5)):
        op = _follower(rng, f"v{index}", values[-1] if rng.random() < 0.8 else values[-2:][0], channels)
        alike = [value for value in values if value.shape == op.dst.shape]
        if alike and rng.random() < 0.7:
            earlier = alike[int(rng.integers(len(alike)))]
            middle = whole(f"m{index}", op.dst.shape, "temp")
            epilogue = Add("sum", middle, earlier, op.dst, 0.7, 0.6, op.y_zero, 3, -2)
            op = dataclasses.replace(op, epilogue=epilogue)
        ops.append(op)
        values.append(op.dst)
    read = {view.buffer.name for op in ops for view in op.sources}
    ops = [op if op.dst.buffer.name in read else _as_output(op) for op in ops]
    inputs = {"x": rng.integers(-128, 128, values[0].shape).astype(np.int8)}
    return DeviceSegment("convolutions", tuple(ops)), inputs


def random_mixture(
    rng: np.random.Generator, side: int = 9, channels: int = 40, *, products: bool, lookups: bool = True
) -> tuple[DeviceSegment, dict[str, np.ndarray]]:
    """Draw convolutions, poolings, sums, rescalings and padding that read each other's results, optionally with
    `products`, differences and look-up tables (`lookups`). A result that no operator reads is an output."""
    n = draw(rng, 1, 2)
    values = [whole("x", (n, draw(rng, 2, side), draw(rng, 2, side), draw(rng, 1, channels)), "input")]
    ops: list[DeviceOp] = []
    for index in range(draw(rng, 2, 6)):
        src = values[-1] if rng.random() < 0.8 else values[-2:][0]
        alike = [value for value in values if value.shape == src.shape and value is not src] or [src]
        other = alike[int(rng.integers(len(alike)))]
        op = _draw_operator(rng, f"v{index}", src, other, channels, products=products)
        ops.append(op.replace(lookup=random_lookup(rng)) if rng.random() < 0.1 and lookups else op)
        values.append(op.dst)
    read = {view.buffer.name for op in ops for view in op.sources}
    last = [op for op in ops if op.dst.buffer.name not in read]
    ops = [
        op.replace(dst=whole(op.dst.buffer.name, op.dst.shape, "output")) if op in last else op for op in ops
    ]
    inputs = {"x": rng.integers(-128, 128, values[0].shape).astype(np.int8)}
    return DeviceSegment("mixture", tuple(ops)), inputs


def _draw_operator(
    rng: np.random.Generator, name: str, src: View, other: View, channels: int, *, products: bool
) -> DeviceOp:
    """Draw an operator of `src`, or of it and `other`, which is as large."""
    n, h, w, c = src.shape
    zeros = [draw(rng, -128, 127) for _ in range(3)]
    kind = rng.choice(
        ["conv", "pool", "sum", "product", "rescale", "pad"], p=[0.35, 0.25, 0.15, 0.1, 0.1, 0.05]
    )
    if kind == "pool":
        window = Window((h, w)) if rng.random() < 0.3 else draw_window(rng, h, w, pad=1)
        reduction = "max" if rng.random() < 0.5 else "average"
        dst = whole(name, (n, *window.output(h, w), c), "temp")
        return Pool(name, src, dst, reduction, window, rng.uniform(0.3, 2), zeros[0], zeros[1])
    dst = whole(name, src.shape, "temp")
    if kind == "sum":
        sign = -1 if products and rng.random() < 0.3 else 1
        return Add(name, src, other, dst, rng.uniform(0.1, 2), sign * rng.uniform(0.1, 2), *zeros)
    if kind == "product" and products:
        return Multiply(name, src, other, dst, 0.01, *zeros)
    if kind == "rescale":
        return Rescale(name, src, dst, rng.uniform(0.1, 3), *zeros[:2])
    if kind == "pad":
        window = Window(pad=(draw(rng, 0, 2), draw(rng, 0, 2), draw(rng, 0, 2), draw(rng, 0, 2)))
        dst = whole(name, (n, *window.output(h, w), c), "temp")
        return Pad(name, src, dst, window, zeros[2], rng.uniform(0.1, 3), *zeros[:2])
    return _follower(rng, name, src, channels)


def _follower(rng: np.random.Generator, name: str, src: View, channels: int) -> Conv:
    """Draw a convolution of `src`: half of them keep its size, are depthwise, in groups, or followed by pooling."""
    n, h, w, c = src.shape
    kernel = (1, 1) if rng.random() < 0.3 else (draw(rng, 1, 3), draw(rng, 1, 3))
    same = rng.random() < 0.6
    window = Window(kernel, pad=(kernel[0] // 2, kernel[1] // 2, (kernel[0] - 1) // 2, (kernel[1] - 1) // 2))
    if not same:
        window = draw_window(rng, h, w, kernel=3, pad=2)
    groups = int(rng.choice([1, 1, c, 2 if c % 2 == 0 else 1]))
    out = c if same and rng.random() < 0.7 else groups * draw(rng, 1, max(1, channels // groups))
    oh, ow = window.output(h, w)
    pool = Window((2, 2)) if not same and min(oh, ow) > 1 and rng.random() < 0.3 else None
    limit = int(rng.choice([127, 127, 255]))
    weight = rng.integers(-limit, limit + 1, (out, *window.kernel, c // groups)).astype(np.int16)
    scale = rng.uniform(30, 90, out) / (math.sqrt(weight[0].size) * limit * 40)
    return Conv(
        name, src, whole(name, (n, *(pool.output(oh, ow) if pool else (oh, ow)), out), "temp"), weight,
        rng.integers(-999, 999, out).astype(np.int32), scale, window, groups, draw(rng, -128, 127),
        draw(rng, -128, 127), draw(rng, -128, 0), 127, pool,
    )  # fmt: skip


def _as_output(op: Conv) -> Conv:
    dst = whole(op.dst.buffer.name, op.dst.shape, "output")
    epilogue = dataclasses.replace(op.epilogue, dst=dst) if op.epilogue is not None else None
    return dataclasses.replace(op, dst=dst, epilogue=epilogue)
