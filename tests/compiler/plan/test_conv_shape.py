"""Figures of convolutions that plans use: reads of the vector unit, repeats of weights, and transposed columns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.op_cases import convolution, whole

from weft.compiler.ir.graph import Add, Conv, Rescale
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS, Config

DEFAULT = PRESETS["default"]


def shape_of(op: Conv, config: Config = DEFAULT) -> ConvShape:
    return ConvShape(op, Planner(Target(config)).site(op))


def square(channels: int = 16, side: int = 12) -> Conv:
    return convolution(whole("x", (1, side, side, channels), "input"), channels)


@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (3, 2), (1, 4)])
def test_pooling_reads_all_of_its_window(kernel: tuple[int, int]) -> None:
    """The vector unit reads a group of lanes of N channels a cycle."""
    pool = Window(kernel, kernel)
    op = square().replace(dst=whole("y", (1, 12 // kernel[0], 12 // kernel[1], 16), "output"), pool=pool)
    assert shape_of(op).vector_reads(7) == 7 * kernel[0] * kernel[1] * DEFAULT.groups


def test_epilogues_read_their_operands() -> None:
    """A second operand takes a cycle more to come."""
    op, groups = square(), DEFAULT.groups
    middle, other = whole("m", op.dst.shape, "temp"), whole("r", op.dst.shape, "input")
    added = op.replace(epilogue=Add("sum", middle, other, op.dst, 0.7, 0.6, 5, 5, 5))
    again = op.replace(epilogue=Rescale("again", middle, op.dst, 0.7, 5, 5))
    assert [shape_of(item).vector_reads(10) for item in (op, added, again)] == [
        10 * groups, 10 * (2 * groups + 1), 10 * 2 * groups,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "parts", "passes"),
    [
        ((-128, 127), 1, 1.0),
        ((128,), 2, 1.25),  # of two tiles, each of two vectors, one vector
        ((-129,), 2, 1.25),
        ((254, -256), 2, 1.25),
        ((255,), 3, 1.5),  # in both parts beyond the first
        ((-257,), 3, 1.5),
    ],
)
def test_large_weights_are_multiplied_again(weights: tuple[int, ...], parts: int, passes: float) -> None:
    """Vectors with such a weight, that is; they lie in one here."""
    op = square(32)
    values = np.ones_like(op.weight)
    values[17, 0, 0, 3 : 3 + len(weights)] = weights
    shape = shape_of(op.replace(weight=values))
    assert (shape.parts, shape.weight_passes) == (parts, passes)
    assert shape.weight_values == passes * 32 * 32


def test_most_large_weights_are_all_multiplied_again() -> None:
    """The threshold is 0.6 of the vectors."""
    op = square(32)
    for vectors, passes in ((2, 1.5), (3, 2.0)):
        values = np.ones_like(op.weight)
        for at in range(vectors):
            values[at // 2 * 16, 0, 0, at % 2 * 16] = 200
        assert shape_of(op.replace(weight=values)).weight_passes == passes


@pytest.mark.parametrize(
    ("groups", "cin", "out", "side", "sizes"),
    [
        (1, 64, 64, 9, [4, 2, 1]),  # four tiles of the same inputs
        (4, 16, 16, 9, [4, 2, 1]),  # four tiles of inputs side by side
        (3, 8, 8, 9, [2, 1]),  # one for two groups, and a shorter one for the third
        (2, 64, 32, 9, [2, 1]),  # two tiles of the same inputs, and two of others
        (3, 66, 8, 32, [1]),  # 9 vectors of inputs, and 5
        (2, 64, 24, 9, [1]),  # tiles of 16 and 8 channels in turn
    ],
)
def test_tiles_of_an_instruction(groups: int, cin: int, out: int, side: int, sizes: list[int]) -> None:
    op = convolution(whole("x", (1, side, side, cin * groups), "input"), out * groups)
    weight = np.ascontiguousarray(op.weight[..., :cin])
    shape = shape_of(dataclasses.replace(op, groups=groups, weight=weight))
    assert shape.block_sizes(2048) == sizes
    assert shape.block_sizes(1) == [1]


@pytest.mark.parametrize(
    ("channels", "bandwidth", "parts"),
    [
        (32, None, True),
        (32, 4.0, True),
        (24, None, False),
        (40, None, True),
        (40, 8.0, False),
        (33, 4.0, False),
    ],
)
def test_channels_leave_in_parts(channels: int, bandwidth: float | None, parts: bool) -> None:
    """Parts are whole beats of 16 bytes; others need three or more vectors and memory as fast as the bus."""
    op = convolution(whole("x", (1, 5, 5, 16), "input"), channels)
    site = Planner(Target(DEFAULT, bandwidth)).site(op)
    assert ConvShape(op, site).leaves_in_parts == parts
    there = Planner(Target(DEFAULT, bandwidth)).site(op, {op.dst.buffer.name: 0})
    assert not ConvShape(op, there).leaves_in_parts


def column(kernel: int, length: int = 20, width: int = 1) -> Conv:
    window = Window((kernel, 1), (2, 1), (1, 1), (1, 0, 0, 0))
    return convolution(whole("x", (1, length, width, 16), "input"), 16, window)


def test_columns_lie_down() -> None:
    """A convolution along a single column is the same along a row, whose pixels follow each other."""
    op = column(4)
    shape = shape_of(op)
    assert shape.window == Window((1, 4), (1, 2), (1, 1), (0, 1, 0, 0))
    assert (shape.src.h, shape.src.w, *shape.outputs) == (1, 20, 1, op.dst.shape[1])
    assert np.array_equal(shape.op.weight[:, 0], op.weight[:, :, 0])


@pytest.mark.parametrize(
    "op", [column(1), column(4, width=2), column(4, 2 << 16)], ids=["no kernel", "two", "long"]
)
def test_other_columns_stay(op: Conv) -> None:
    assert shape_of(op).op is op


def test_pooled_columns_stay() -> None:
    op = column(4)
    pooled = op.replace(
        dst=whole("y", (1, op.dst.shape[1] // 2, 1, 16), "output"), pool=Window((2, 1), (2, 1))
    )
    assert shape_of(pooled).op is pooled
