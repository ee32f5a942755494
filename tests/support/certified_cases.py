"""Random programs of kernels, softmax and attention for certificates, small enough for quick proofs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from support import attention_cases, op_cases, wide_cases
from support.op_cases import (
    draw,
    random_chain,
    random_mixture,
    random_op,
    random_source,
    random_view,
    segment_of,
    split_operators,
)
from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError, KernelError
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment
from weft.compiler.ir.products import Embedding, Product
from weft.compiler.kernel.evaluate import WideElements
from weft.compiler.kernel.expressions import Expression, Rows
from weft.compiler.kernel.operators import GroupNorm, LayerNorm, RowFunction
from weft.compiler.kernel.products import RowNorm
from weft.compiler.kernel.rows import RowLogSoftmax, RowPair, RowPlace, RowTotal
from weft.compiler.kernel.wide import WideConv, WideLayerNorm
from weft.compiler.operators.record import operator_of
from weft.hdl.isa.config import PRESETS, Config

Rng = np.random.Generator
Shape = tuple[int, int, int, int]
CONFIGS: dict[str, Config] = {
    name: PRESETS[name].replace(kernel=64, lookup_tables=max(4, PRESETS[name].lookup_tables))
    for name in ("tiny", "small", "default")
}
"""Presets with kernels; probabilities of "tiny" have 7 bits."""
EVERY_CONFIG = {**PRESETS, **{f"board {name}": board.config for name, board in BOARDS.items()}}
"""Every preset, and every board's own."""
STEPS = 14
"""Expressions in a kernel of `random_function`."""


def compile_random(kind: str, seed: int) -> tuple[DeviceSegment, Config]:
    """Draw a program of a kind, and compile it."""
    rng = np.random.default_rng((seed, *kind.encode()))
    config = CONFIGS[sorted(CONFIGS)[seed % len(CONFIGS)]]
    while True:
        segment = segment_of(*KINDS[kind](rng, config))
        if any(operator_of(op).unsupported(op, config) for op in segment.ops):
            continue
        try:
            compile_segment(segment, config)
        except CompileError:  # a kernel of too many registers, or rows that do not fit
            continue
        return segment, config


def _shape(rng: Rng, most: int = 40) -> Shape:
    return draw(rng, 1, 2), draw(rng, 1, 3), draw(rng, 1, 12), draw(rng, 1, most)


def _zeros(rng: Rng, *names: str) -> dict[str, Any]:
    clamp: dict[str, Any] = (
        {"low": draw(rng, -128, 0), "high": draw(rng, 0, 127)} if rng.random() < 0.3 else {}
    )
    return {name: draw(rng, -128, 127) for name in names} | clamp


def function(rng: Rng, config: Config) -> tuple[DeviceOp, ...]:
    """Draw a kernel of random expressions on one or two tensors and a constant."""
    shape, seed = _shape(rng), draw(rng, 0, 1 << 30)
    inputs = tuple(random_source(rng, name, shape) for name in "ab"[: draw(rng, 1, 2)])
    constants = (rng.integers(-(1 << 15), 1 << 15, shape[3]).astype(np.int16),)

    def build(rows: Rows) -> None:
        rows.store(_expression(np.random.default_rng(seed), rows, len(inputs)).minimum(120))

    return (RowFunction("kernel", inputs, random_view(rng, "y", shape, "output"), build, constants),)


def _expression(rng: Rng, rows: Rows, inputs: int) -> Expression:
    """Draw an expression that depends on a tensor through the newest expression."""
    pool = [rows.read(tensor) for tensor in range(inputs)] + [rows.wide(inputs), rows.index()]
    last = pool[0]
    for _ in range(STEPS):
        a = last if rng.random() < 0.7 else pool[draw(rng, 0, len(pool) - 1)]
        b = pool[draw(rng, 0, len(pool) - 1)]
        try:
            last = MAKERS[draw(rng, 0, len(MAKERS) - 1)](rng, rows, a, b)
        except KernelError:
            continue
        pool.append(last)
    return last


def _divide(rng: Rng, rows: Rows, a: Expression, b: Expression) -> Expression:
    number = b.maximum(1)
    by = number.rsqrt() if rng.random() < 0.5 else number.reciprocal()
    return a.over(by, draw(rng, 0, 8), 1 << draw(rng, 17, 30))


def _look_up(rng: Rng, rows: Rows, a: Expression, b: Expression) -> Expression:
    return a.look_up(np.random.default_rng(3).integers(-128, 128, 256).astype(np.int8))


MAKERS: tuple[Callable[[Rng, Rows, Expression, Expression], Expression], ...] = (
    lambda rng, rows, a, b: a + b,
    lambda rng, rows, a, b: a - b,
    lambda rng, rows, a, b: a.times(b, draw(rng, 0, 9)),
    lambda rng, rows, a, b: a.scale(float(rng.uniform(-3, 3))),
    lambda rng, rows, a, b: a.minimum(b),
    lambda rng, rows, a, b: a.maximum(b),
    lambda rng, rows, a, b: (a < b).choose(a + 3, b),
    lambda rng, rows, a, b: a.shift_right(draw(rng, 0, 6)),
    lambda rng, rows, a, b: a << draw(rng, 0, 6),
    lambda rng, rows, a, b: rows.sum(a),
    lambda rng, rows, a, b: rows.largest(a),
    lambda rng, rows, a, b: a.neighbour(),
    lambda rng, rows, a, b: a.low_byte(),
    _divide,
    _look_up,
)


def norm(rng: Rng, config: Config) -> tuple[DeviceOp, ...]:
    shape, wide = _shape(rng), bool(rng.integers(2))
    weight, bias = rng.normal(1, 0.4, shape[3]), rng.normal(0, 1, shape[3])
    if rng.random() < 0.3:
        views = wide_cases.source(rng, "x", shape, wide=True), wide_cases.target(rng, shape, wide=wide)
        given: dict[str, Any] = {
            "x_zero": draw(rng, -128, 127),
            "centre": bool(rng.integers(2)),
            "wide": wide,
        }
        scale = 4000.0 if wide else 20.0
        return (WideLayerNorm("norm", *views, weight, bias, 3.0, scale, **given),)
    fields: dict[str, Any] = {"epsilon": 0.3, "scale": 25.0, "centre": bool(rng.integers(2))} | _zeros(
        rng, "x_zero", "y_zero"
    )
    if rng.random() < 0.3:
        group = 1 << draw(rng, 0, config.n.bit_length() - 1)
        shape = (*shape[:3], group * draw(rng, 1, 4))
        weight, bias = rng.normal(1, 0.4, shape[3]), rng.normal(0, 1, shape[3])
        views = random_source(rng, "x", shape), random_view(rng, "y", shape, "output")
        return (GroupNorm("norm", *views, weight, bias, group=group, **fields),)
    views = random_source(rng, "x", shape), random_view(rng, "y", shape, "output")
    return (LayerNorm("norm", *views, weight, bias, **fields),)


def rows(rng: Rng, config: Config) -> tuple[DeviceOp, ...]:
    """Draw totals, positions, quotients or logarithms of rows."""
    shape = _shape(rng)
    x, r = (random_source(rng, name, shape) for name in "xr")
    y, number = (random_view(rng, "y", (*shape[:3], size), "output") for size in (shape[3], 1))
    kind = draw(rng, 0, 4)
    if kind == 0:
        total = str(rng.choice(["sum", "magnitudes", "squares", "spread", "largest", "smallest"]))
        root = (
            str(rng.choice(["", "root", "inverse"])) if total in ("magnitudes", "squares", "spread") else ""
        )
        return (
            RowTotal("total", x, number, total, 0.02, 3.0, root, 0.0, 5.0, **_zeros(rng, "x_zero", "y_zero")),
        )
    if kind == 1:
        return (RowPlace("place", x, number, bool(rng.integers(2)), bool(rng.integers(2))),)
    if kind == 2:
        pair = str(rng.choice(["minimum", "maximum", "quotient", "ratio"]))
        return (RowPair("pair", x, r, y, pair, 30.0, 1.0, **_zeros(rng, "a_zero", "b_zero", "y_zero")),)
    if kind == 3:
        return (RowLogSoftmax("log", x, y, 0.05, 9.0, **_zeros(rng, "y_zero")),)
    zeros = _zeros(rng, "x_zero", "y_zero", "of_zero")
    return (
        RowNorm(
            name="norm", src=x, dst=y, of=r, total="squares", factor=1e-4, offset=0.1, root="root", **zeros
        ),
    )


def wide(rng: Rng, config: Config) -> tuple[DeviceOp, ...]:
    """Draw operators on 16-bit elements, convolutions among them."""
    if rng.random() < 0.5:
        conv = op_cases.random_matmul(rng)
        src = wide_cases.with_planes(conv.src, wide=True)
        return (
            WideConv(
                name="conv", src=src, dst=conv.dst, weight=conv.weight, bias=conv.bias.astype(np.int64) * 100,
                scale=conv.scale / 256, window=conv.window, x_zero=draw(rng, -99, 99), x_wide=True,
            ),
        )  # fmt: skip
    shape = _shape(rng)
    kind = str(rng.choice(["requantise", "sum", "product", "minimum", "maximum"]))
    a, b = (wide_cases.source(rng, name, shape, wide=True) for name in "ab")
    scales: dict[str, Any] = {"a_scale": 2e-6} if kind == "product" else {"a_scale": 0.7, "b_scale": -0.4}
    more: dict[str, Any] = (
        {} if kind == "requantise" else {"b": b, "b_wide": True, "b_zero": draw(rng, -999, 999)}
    )
    dst = wide_cases.target(rng, shape, wide=True)
    return (WideElements(name="elements", kind=kind, a=a, dst=dst, a_wide=True, wide=True, **scales, **more),)


def softmax(rng: Rng, config: Config) -> tuple[DeviceOp, ...]:
    while True:
        op = attention_cases.random_softmax(rng)
        if math.prod(op.src.shape) < 700:
            return (op,)


def attention(rng: Rng, config: Config) -> tuple[DeviceOp, ...]:
    while True:
        op = attention_cases.random_attention(rng, config)
        if op.macs < 50_000:
            return (op,)


def product(rng: Rng, config: Config) -> tuple[DeviceOp, ...]:
    """Draw a matrix product, with heads in groups, or one image for all."""
    counts = draw(rng, 1, 2), int(rng.choice([1, 2]))
    rows, depth, columns = (draw(rng, 1, 24) for _ in range(3))
    first, turned = rng.integers(2, size=2).astype(bool).tolist()

    def matrices(name: str, height: int, width: int, kind: str) -> op_cases.View:
        beside = (counts[0], 1, height, counts[1] * width)
        shape = beside if rng.random() < 0.5 else (counts[0] * counts[1], 1, height, width)
        return random_view(rng, name, shape, kind)

    operands = (
        matrices("a", *((depth, rows) if first else (rows, depth)), "input"),
        matrices("b", *((columns, depth) if turned else (depth, columns)), "input"),
    )
    y = matrices("y", rows, columns, "output")
    return (
        Product(
            "product",
            *operands,
            y,
            counts,
            counts,
            counts,
            turned,
            0.01,
            **_zeros(rng, "a_zero", "b_zero"),
            a_transposed=first,
        ),
    )


def embedding(rng: Rng, config: Config) -> tuple[DeviceOp, ...]:
    """Draw a look-up of table rows by indices."""
    count, rows, columns = draw(rng, 1, 20), draw(rng, 1, 40), draw(rng, 1, 60)
    indices = op_cases.whole("indices", (1, 1, count, 4), "table")
    y = random_view(rng, "y", (1, 1, count, columns), "output")
    scale = rng.uniform(0.5, 40, columns)
    return (Embedding("rows", indices, y, rng.normal(0, 3, (rows, columns)), scale, **_zeros(rng, "y_zero")),)


KINDS: dict[str, Callable[[Rng, Config], tuple[DeviceOp, ...]]] = {
    "function": function, "norm": norm, "rows": rows, "wide": wide, "softmax": softmax, "attention": attention,
    "product": product, "embedding": embedding,
}  # fmt: skip


def draw_network(seed: int) -> tuple[DeviceSegment, Config]:
    """Draw a small network of convolutions with other operators, or one operator, for each configuration in turn."""
    rng = np.random.default_rng(seed)
    names = sorted(EVERY_CONFIG)
    config = EVERY_CONFIG[names[seed % len(names)]]
    while True:
        if seed % 4 == 0:
            segment = random_chain(rng, 8, 20)[0]
        elif seed % 4 == 1:
            segment = random_mixture(rng, products=bool(config.multiply))[0]
        else:
            segment = segment_of(random_op(rng))
        ops = [
            item for op in segment.ops for item in (split_operators(op) if isinstance(op, Conv) else (op,))
        ]
        tables = config.lookup_tables or all(op.lookup is None for op in ops)
        if tables and not any(operator_of(op).unsupported(op, config) for op in ops):
            return segment, config
