"""Convolutions split at borders: equal bytes, and only kernel elements that see the image."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.compiler.ir.graph import Add, Conv, DeviceSegment
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window
from weft.compiler.verify import verify_segment
from weft.extras.search.substitution.borders import (
    Part,
    border_parts,
    find_splits,
    same_products,
    single_part,
    split,
    useful_products,
)
from weft.extras.search.substitution.moves import WITHOUT_PADDING, Moves
from weft.extras.search.substitution.search import Search
from weft.extras.search.tests.support.substitution_cases import RandomSegment, atrous, outputs


@st.composite
def draw_convolution(draw: st.DrawFn) -> tuple[Window, tuple[int, int]]:
    """Draw a window of any kind and an image that it fits."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    kernel, stride, dilation, pads = pair(1, 5), pair(1, 3), pair(1, 6), (*pair(0, 7), *pair(0, 7))
    window, size = Window(kernel, stride, dilation, pads), pair(1, 12)
    least = [
        max(1, (kernel[axis] - 1) * dilation[axis] + 1 - pads[axis] - pads[axis + 2]) for axis in range(2)
    ]
    return window, (max(size[0], least[0]), max(size[1], least[1]))


def convolution(window: Window, size: tuple[int, int], groups: bool = False) -> tuple[DeviceSegment, Conv]:
    builder = RandomSegment(3)
    builder.values = [builder.view((1, *size, 3), "input")]
    builder.conv(builder.values[0], window, 4, depth=groups)
    segment = builder.segment()
    (op,) = segment.ops
    assert isinstance(op, Conv)
    return segment, op.replace(x_zero=-7)


@given(draw_convolution(), st.booleans())
def test_parts_compute_equal_bytes(case: tuple[Window, tuple[int, int]], groups: bool) -> None:
    window, size = case
    segment, op = convolution(window, size, groups)
    wanted = outputs(dataclasses.replace(segment, ops=(op,)), 1)
    for parts in find_splits(op):
        after = dataclasses.replace(segment, ops=tuple(parts))
        verify_segment(after)
        for name, values in outputs(after, 1).items():
            np.testing.assert_array_equal(values, wanted[name])


@given(
    draw_convolution(),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_parts_of_strided_views(
    case: tuple[Window, tuple[int, int]], apart: tuple[int, int], step: tuple[int, int]
) -> None:
    """Inputs and outputs are rows and columns of larger images, some with gaps."""
    window, size = case
    _, op = convolution(window, size)

    def spread(view: View, by: tuple[int, int]) -> View:
        n, h, w, c = view.shape
        shape = n, 2 + h * by[0], 1 + w * by[1], c + 2
        return View(dataclasses.replace(view.buffer, shape=shape), view.shape, 1, 1, 2, by)

    op = op.replace(src=spread(op.src, apart), dst=spread(op.dst, step))
    wanted = outputs(DeviceSegment("one", (op,)), 1)
    for parts in find_splits(op):
        for name, values in outputs(DeviceSegment("parts", tuple(parts)), 1).items():
            np.testing.assert_array_equal(values, wanted[name])


@given(draw_convolution())
def test_each_output_of_a_part_sees_all_elements_of_its_kernel(case: tuple[Window, tuple[int, int]]) -> None:
    """Except for outputs that see only padding."""
    window, size = case
    for axis, outputs_ in enumerate(window.output(*size)):
        parts = border_parts(window, axis, size[axis], outputs_)
        assert [at for part in parts for at in part.outputs] == list(range(outputs_))
        assert all(part.before == 0 and part.after == 0 for part in parts)
        (one,) = single_part(window, axis, size[axis], outputs_)
        assert len(one.taps) >= max(len(part.taps) for part in parts)
        assert same_products(window, axis, size[axis], outputs_, parts)


@pytest.mark.parametrize(
    "change",
    [{"taps": range(1, 3)}, {"inputs": range(1, 6)}, {"before": 2}, {"outputs": range(6)}],
    ids=lambda change: next(iter(change)),
)
def test_another_part_has_other_products(change: dict[str, range | int]) -> None:
    window = Window((3, 3), (1, 1), (4, 4), (4, 4, 4, 4))
    first, *others = border_parts(window, 0, 10, 10)
    assert first == Part(range(4), range(1, 3), range(8), 0, 0)
    assert same_products(window, 0, 10, 10, [first, *others])
    changed = dataclasses.replace(first, **({"taps": range(2)} if "taps" in change else change))
    assert not same_products(window, 0, 10, 10, [changed, *others])


@pytest.mark.parametrize(("dilation", "taps"), [(1, 9), (3, 9), (6, 4), (12, 1)])
def test_unseen_kernel_elements_are_dropped(dilation: int, taps: int) -> None:
    """Of 12 rows, dilation 12 leaves the kernel's middle, and dilation 6 two kernel rows per half."""
    window = Window((3, 3), (1, 1), (dilation,) * 2, (dilation,) * 4)
    _, op = convolution(window, (12, 12))
    actual = split(op, border_parts, border_parts) or [op]
    assert max(part.weight[0, ..., 0].size for part in actual) == taps


def test_other_operators_are_not_split() -> None:
    window = Window((3, 3), (1, 1), (6, 6), (6, 6, 6, 6))
    segment, op = convolution(window, (12, 12))
    assert len(list(find_splits(op))) == 3
    assert not list(find_splits(op.replace(pool=Window((2, 2), (2, 2)))))
    assert not list(find_splits(op.replace(src=dataclasses.replace(op.src, step=(0, 0)))))
    assert not list(find_splits(convolution(Window((3, 3)), (12, 12))[1]))
    total = Add("total", op.dst, op.dst, op.dst, 1.0, 1.0)
    assert not list(find_splits(op.replace(epilogue=total)))
    assert not [move for move in Moves((), 24).find(segment, segment.ops[0]) if move.rule != WITHOUT_PADDING]


def test_an_output_that_sees_only_padding_is_kept() -> None:
    """It equals the bias, and a convolution needs a kernel."""
    window = Window((1, 1), (1, 1), (1, 1), (3, 3, 3, 3))
    _, op = convolution(window, (4, 4))
    assert not list(find_splits(op))


def test_a_search_splits_where_that_is_faster() -> None:
    segment = atrous()
    products = [0]

    def cost(part: DeviceSegment) -> int:
        products.append(sum(op.macs for op in part.ops))
        return products[-1]

    actual = Search((), cost, 24, 16, 100).run(segment)
    assert [item.rules for item in actual.used] == [(WITHOUT_PADDING,)]
    assert sum(op.macs for op in actual.segment.ops) < 0.6 * sum(op.macs for op in segment.ops)
    views = [op.dst for op in actual.segment.ops if isinstance(op.dst, View)]
    assert len(views) == len(segment.ops) + 3


@given(draw_convolution(), st.booleans())
def test_products_without_padding(case: tuple[Window, tuple[int, int]], groups: bool) -> None:
    """The count equals the sum of an all-ones window over an all-ones image."""
    window, size = case
    _, op = convolution(window, size, groups)
    top, left, bottom, right = window.pad
    image = np.pad(np.ones(size, int), ((top, bottom), (left, right)))
    outputs_, seen = window.output(*size), 0
    for y, x in np.ndindex(*outputs_):
        at = [place * stride for place, stride in zip((y, x), window.stride, strict=True)]
        rows, columns = (
            slice(
                at[axis],
                at[axis] + (window.kernel[axis] - 1) * window.dilation[axis] + 1,
                window.dilation[axis],
            )
            for axis in range(2)
        )
        seen += image[rows, columns].sum()
    channels = len(op.weight) * op.weight.shape[3]
    assert useful_products(op) == pytest.approx(seen * channels)
