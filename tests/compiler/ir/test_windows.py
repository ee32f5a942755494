"""Windows against their definition, element by element."""

from __future__ import annotations

import numpy as np
from support.repeated import repeated

from weft.compiler.ir.windows import Axis, axes


def elements(axis: Axis) -> list[list[int]]:
    """Input positions that each window reads; some lie outside the input."""
    return [
        [window * axis.stride - axis.before + tap * axis.dilation for tap in range(axis.kernel)]
        for window in range(axis.count)
    ]


@repeated("seed", range(200))
def test_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, count, kernel, stride, dilation = (int(value) for value in rng.integers(1, 7, 5))
    before, after = (int(value) for value in rng.integers(0, 9, 2))
    axis = Axis(size, count, kernel, stride, dilation, before, after)
    read = elements(axis)
    assert axis.count_inside().tolist() == [sum(0 <= at < size for at in window) for window in read]
    assert axis.count_padded().tolist() == [sum(at < size + after for at in window) for window in read]
    for tap in range(kernel):
        first, stop, start = axis.tap(tap)
        met = [index for index, window in enumerate(read) if 0 <= window[tap] < size]
        assert list(range(first, stop)) == met
        assert not met or read[first][tap] == start


@repeated("seed", range(100))
def test_windows_of_attributes(seed: int) -> None:
    """As many as fit; ceil_mode adds one that starts in the input; SAME has one per stride begun."""
    rng = np.random.default_rng(seed)
    size, kernel, stride, dilation = (int(value) for value in rng.integers(1, 6, 4))
    size += kernel * dilation
    pads = [int(value) for value in rng.integers(0, 3, 2)]
    arguments = {"kernel_shape": [kernel], "strides": [stride], "dilations": [dilation], "pads": pads}
    span = (kernel - 1) * dilation + 1
    starts = np.arange(-pads[0], size + pads[1], stride)
    (down,) = axes((size,), arguments)
    assert down.count == int((starts + span <= size + pads[1]).sum())
    (up,) = axes((size,), arguments | {"ceil_mode": 1})
    whole = down.count == 1 + (size + sum(pads) - span) / stride
    last = down.count - whole  # windows that start before the padding ends
    assert up.count == last + (last * stride - pads[0] < size)
    for auto in ("SAME_UPPER", "SAME_LOWER"):
        (same,) = axes((size,), arguments | {"auto_pad": auto, "pads": None})
        assert same.count == len(range(0, size, stride))
        assert same.before + same.after == max((same.count - 1) * stride + span - size, 0)
        assert (same.after - same.before) * (1 if auto == "SAME_UPPER" else -1) in (0, 1)
    for axis in (down, up, same):
        assert (size + axis.before + axis.padding_after - axis.span) // stride + 1 == axis.count
    assert (down.padding_after, same.padding_after) == (down.after, same.after)
