"""Products of two activations: programs on golden and RTL against their micro-ops."""

from __future__ import annotations

import numpy as np
import pytest
from support.configurations import every
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import draw, random_inputs, random_view, segment_of, whole

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.products import Counts, Product
from weft.compiler.ir.views import View
from weft.compiler.machine.target import Target
from weft.compiler.plan.product_plan import plan
from weft.compiler.verify import run_ops, verify_op
from weft.hdl.isa.config import PRESETS, Config

CONFIGS = every()


def matrices(rng: np.random.Generator, name: str, counts: Counts, rows: int, size: int, kind: str) -> View:
    """Matrices as images or as channels, in their own buffer or in a larger one."""
    images, heads = counts
    beside = rng.random() < 0.5
    shape = (images, 1, rows, heads * size) if beside else (images * heads, 1, rows, size)
    return random_view(rng, name, shape, kind)


def random_product(rng: np.random.Generator, most: int, *, transposed: bool | None = None) -> Product:
    counts = draw(rng, 1, 2), int(rng.choice([1, 2, 4]))
    own = [
        (1 if rng.random() < 0.3 else counts[0], int(rng.choice([1, counts[1]])) if rng.random() < 0.4 else counts[1])
        for _ in range(2)
    ]  # fmt: skip
    rows, depth, columns = (draw(rng, 1, most if rng.random() < 0.5 else 20) for _ in range(3))
    turned = bool(rng.integers(2)) if transposed is None else transposed
    first = bool(rng.integers(2)) if transposed is None else False
    zeros = [int(rng.choice([0, -128, 127, draw(rng, -128, 127)])) for _ in range(3)]
    clamp = (draw(rng, -128, 0), draw(rng, 0, 127)) if rng.random() < 0.3 else (-128, 127)
    op = Product(
        "product",
        matrices(rng, "a", own[0], *((depth, rows) if first else (rows, depth)), "input"),
        matrices(rng, "b", own[1], *((columns, depth) if turned else (depth, columns)), "input"),
        matrices(rng, "y", counts, rows, columns, "output"),
        counts, own[0], own[1], turned, rng.uniform(20, 90) / (np.sqrt(depth) * 90 * 90), *zeros, *clamp,
        a_transposed=first,
    )  # fmt: skip
    verify_op(op)
    return op


def reference(op: Product, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Compute in float64 with numpy's product."""

    def operand(view: View, counts: Counts, zero: int) -> np.ndarray:
        n, _, w, c = view.shape
        rows, columns = (slice(at, at + (size - 1) * step + 1, step) for at, size, step in
                         ((view.y, 1, view.step[0]), (view.x, w, view.step[1])))  # fmt: skip
        given = inputs[view.buffer.name][:, rows, columns, view.c : view.c + c].astype(np.float64) - zero
        split = (counts[0], w, counts[1], -1) if n == counts[0] else (*counts, w, -1)
        actual = given.reshape(split)
        actual = actual.swapaxes(1, 2) if n == counts[0] else actual
        actual = np.repeat(actual, op.counts[1] // counts[1], axis=1)
        return np.broadcast_to(actual, (op.counts[0], *actual.shape[1:]))

    a, b = operand(op.a, op.a_counts, op.a_zero), operand(op.b, op.b_counts, op.b_zero)
    exact = (
        (a.swapaxes(2, 3) if op.a_transposed else a) @ (b.swapaxes(2, 3) if op.transposed else b) * op.scale
    )
    result = np.clip(np.rint(exact) + op.y_zero, op.low, op.high)
    return result.swapaxes(1, 2) if op.dst.shape[0] == op.counts[0] else result


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(11)
    for _ in range(10):
        op = random_product(rng, 90, transposed=None if config.softmax else True)
        segment, inputs = segment_of(op), random_inputs(rng, op)
        compare(compile_segment(segment, config), segment, inputs, config)


def test_results_are_near_numpy() -> None:
    """At most one step off numpy: the scale is rounded to a mantissa."""
    rng = np.random.default_rng(12)
    for _ in range(60):
        op = random_product(rng, 60)
        inputs = random_inputs(rng, op)
        got = run_ops(segment_of(op), inputs, 24)["y"].reshape(op.dst.buffer.shape)
        view, (_, _, w, c) = op.dst, op.dst.shape
        inner = got[
            :, view.y, view.x : view.x + (w - 1) * view.step[1] + 1 : view.step[1], view.c : view.c + c
        ]
        expected = reference(op, inputs).reshape(inner.shape)
        assert np.abs(inner - expected).max() <= 1
        assert (inner != expected).mean() < 0.02


@pytest.mark.parametrize(
    ("config", "rows", "depth", "columns"),
    [
        pytest.param(PRESETS["tiny"], 700, 9, 70, id="more rows than a tile"),
        pytest.param(PRESETS["tiny"], 5, 6000, 9, id="a contraction in chunks"),
        pytest.param(PRESETS["small"], 3, 20, 2000, id="more columns than a tile"),
        pytest.param(PRESETS["tiny"].replace(scratchpad_depth=32), 40, 200, 40, id="little memory"),
    ],
)
@pytest.mark.parametrize(
    ("first", "transposed"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_large(config: Config, rows: int, depth: int, columns: int, first: bool, transposed: bool) -> None:
    """Products that do not fit on chip."""
    rng = np.random.default_rng(13)
    a = (1, 1, depth, rows) if first else (1, 1, rows, depth)
    b = (1, 1, columns, depth) if transposed else (1, 1, depth, columns)
    views = [
        random_view(np.random.default_rng(0), name, shape, kind)
        for name, shape, kind in (
            ("a", a, "input"), ("b", b, "input"), ("y", (1, 1, rows, columns), "output")
        )
    ]  # fmt: skip
    op = Product(
        "p", *views, (1, 1), (1, 1), (1, 1), transposed, 0.3 / (np.sqrt(depth) * 90), 7, -9, 3, a_transposed=first
    )  # fmt: skip
    chosen = plan(op, Target(config))
    assert chosen is not None
    parts = (rows, chosen.rows), (depth, chosen.depth), (columns, chosen.columns)
    assert any(all_ > part for all_, part in parts)
    segment = segment_of(op)
    compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)


def test_no_transposing() -> None:
    """A configuration without softmax has no transposition, and the message says so."""
    config = PRESETS["tiny"].replace(probability_bits=0)
    for first, transposed in ((False, False), (True, True)):
        views = [
            whole(name, shape, kind)
            for name, shape, kind in (
                ("a", (1, 1, 9, 9), "input"), ("b", (1, 1, 9, 9), "input"), ("y", (1, 1, 9, 9), "output")
            )
        ]  # fmt: skip
        op = Product("p", *views, (1, 1), (1, 1), (1, 1), transposed, 0.01, a_transposed=first)
        with pytest.raises(CompileError, match="cannot transpose matrices"):
            compile_segment(segment_of(op), config)


@pytest.mark.parametrize("name", ["tiny", pytest.param("default", marks=pytest.mark.long)])
def test_rtl(name: str) -> None:
    """Memories agree under stalls."""
    config, rng = PRESETS[name], np.random.default_rng(14)
    for case in range(6):
        op = random_product(rng, 50)
        compare_on_rtl(segment_of(op), random_inputs(rng, op), config, case)
