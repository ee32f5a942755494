"""Estimates of products of two activations, against the cycle model."""

from __future__ import annotations

import numpy as np
import pytest
from support.op_cases import random_inputs, segment_of, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.products import Counts, Product
from weft.compiler.machine.target import Target
from weft.compiler.plan.product_plan import a_parts, b_parts, count_passes, plan
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice


def product(
    sizes: tuple[int, int, int], counts: Counts = (1, 1), *, transposed: bool = True, zeros: tuple[int, int] = (0, 0),
    first: bool = False,
) -> Product:  # fmt: skip
    """Rows, depth and columns of matrices that lie as images."""
    (rows, depth, columns), number = sizes, counts[0] * counts[1]
    b = (number, 1, columns, depth) if transposed else (number, 1, depth, columns)
    a = (number, 1, depth, rows) if first else (number, 1, rows, depth)
    views = [
        whole(name, shape, kind)
        for name, shape, kind in (
            ("a", a, "input"),
            ("b", b, "input"),
            ("y", (number, 1, rows, columns), "output"),
        )
    ]
    return Product("p", *views, counts, counts, counts, transposed, 0.001, *zeros, a_transposed=first)


@pytest.mark.parametrize(
    ("preset", "op"),
    [
        pytest.param("default", product((197, 64, 197), (1, 3)), id="scores of attention"),
        pytest.param(
            "default", product((197, 197, 64), (1, 3), transposed=False), id="transposed on the way"
        ),
        pytest.param("tiny", product((3, 342, 296)), id="rows that add to the same sums"),
        pytest.param("tiny", product((3, 342, 296), zeros=(0, 127)), id="and a zero point of B"),
        pytest.param("tiny", product((2, 9, 111), (2, 1), transposed=False), id="instructions"),
        pytest.param("default", product((1671, 1, 2), (3, 1)), id="rows of one byte that lie together"),
        pytest.param("default", product((64, 2000, 64)), id="a long contraction"),
        pytest.param(
            "default", product((64, 2048, 288), transposed=False, first=True), id="gradients of weights"
        ),
        pytest.param("tiny", product((30, 400, 17), first=True), id="rows that are transposed"),
    ],
)
def test_estimate(preset: str, op: Product) -> None:
    """At most a quarter off."""
    config = PRESETS[preset]
    chosen = plan(op, Target(config))
    assert chosen is not None
    image = Image(compile_segment(segment_of(op), config))
    model = TimingDevice(config, image.memory_bytes, bandwidth=config.bus_bytes)
    image.run(model, random_inputs(np.random.default_rng(0), op))
    assert 0.8 < model.counters()[Counter.CYCLES] / chosen.cycles < 1.25


@pytest.mark.parametrize(
    ("zero", "parts"), [(0, []), (5, [-5]), (-127, [127]), (127, [-127]), (-128, [64, 64])]
)
@pytest.mark.parametrize("wide", [False, True])
def test_zero_points_take_further_products(zero: int, parts: list[int], wide: bool) -> None:
    """Either matrix needs them, but A only if the array does not subtract its zero point."""
    config = PRESETS["default"].replace(probability_bits=8 if wide else 7)
    a, b = (product((3, 4, 5), zeros=zeros) for zeros in ((zero, 0), (0, zero)))
    mine = [] if wide else parts
    assert (a_parts(a, config), b_parts(a), count_passes(a, config)) == (mine, [], 1 + len(mine))
    assert (a_parts(b, config), b_parts(b), count_passes(b, config)) == ([], parts, 1 + len(parts))


@pytest.mark.parametrize("preset", ["tiny", "small", "default", "large"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 342, 296), (197, 64, 197), (64, 2000, 64), (1671, 1, 2)])
@pytest.mark.parametrize("transposed", [False, True])
def test_plans_keep_within_the_memories(preset: str, sizes: tuple[int, int, int], transposed: bool) -> None:
    """Rows, results, parameters and stand-ins for zero points lie in this order, then B."""
    config = PRESETS[preset]
    chosen = plan(product(sizes, (1, 2), transposed=transposed, zeros=(3, -128)), Target(config))
    assert chosen is not None
    a, b, out, sums = chosen.a, chosen.b, chosen.out, chosen.sums
    assert sums[0] + sums[1] * sums[2] <= config.accumulator_size
    assert a[0] + a[1] * a[2] <= chosen.params < chosen.constants < out[0]
    assert out[0] + out[1] * out[2] <= b[0]
    assert b[0] + b[1] * b[2] <= config.scratchpad_size
    assert min(a[2], b[2], out[2], sums[2]) >= 1
    assert 0 < chosen.traffic <= chosen.cycles
