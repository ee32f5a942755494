"""Depthwise convolutions as sums along lines, against the convolution itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.compiler.ir.graph import Window
from weft.compiler.plan.pieces import Lines
from weft.hdl.isa.config import Config


def line(lines: Lines, tiles: np.ndarray, row: np.ndarray, window: Window, width: int, n: int) -> np.ndarray:
    """What the array makes of one row of pixels (columns, N) by the words of one row of the kernel: (width, N)."""
    total = np.zeros((width + lines.more, n), np.int64)
    for part in range(lines.passes):
        words = tiles[part, 0, 1 - 2 * lines.taps :: 2].astype(np.int64)
        start = part * lines.step - window.pad[1] - lines.before
        places = start + window.stride[1] * np.arange(width + lines.more)
        inside = (places >= 0) & (places < len(row))
        rows = np.where(inside[:, None], row[np.clip(places, 0, len(row) - 1)], 0)
        for back in range(min(lines.taps, len(rows))):
            total[back:] += rows[: len(rows) - back] * words[lines.taps - 1 - back]
    return total[lines.more :]


@settings(max_examples=400, deadline=None)
@given(
    st.integers(2, 7), st.integers(1, 3), st.tuples(st.integers(0, 6), st.integers(0, 6)), st.integers(1, 30),
    st.integers(2, 8), st.integers(1, 16), st.randoms(use_true_random=False),
)  # fmt: skip
def test_sums(kernel, stride, pad, columns, taps, channels, random):
    """Any kernel, stride, padding and number of taps: each output is the sum over the kernel's columns."""
    window = Window((1, kernel), (1, stride), (1, 1), (0, pad[0], 0, pad[1]))
    width, n = window.output(1, columns)[1], 16
    config = Config(depthwise_taps=taps)
    lines = Lines.of(window, width, config) if width > 0 else None
    if lines is None:
        return
    rng = np.random.default_rng(random.getrandbits(32))
    weight, row = rng.integers(-128, 128, (channels, 1, kernel)), np.zeros((columns, n), np.int64)
    row[:, :channels] = rng.integers(-255, 256, (columns, channels))
    tiles = lines.words(weight, window, config)
    assert tiles.shape == (1, lines.passes, 1, 2 * taps - 1, n)
    padded = np.pad(row, (pad, (0, 0)))
    wanted = np.stack(
        [
            (padded[at * stride : at * stride + kernel, :channels].T * weight[:, 0]).sum(axis=1)
            for at in range(width)
        ]
    )
    assert np.array_equal(line(lines, tiles[0], row, window, width, n)[:, :channels], wanted)


def test_cycles() -> None:
    """Of three columns of the kernel in one pass, and of five in two if there are three taps."""
    wide = Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    assert Lines.of(wide, 20, Config(depthwise_taps=3)) == Lines(3, 1, 3, 0)
    assert Lines.of(wide, 20, Config(depthwise_taps=2)) == Lines(2, 2, 2, 1)
    assert Lines.of(Window((5, 5), (1, 1)), 20, Config(depthwise_taps=3)) == Lines(3, 2, 3, 1)
    assert Lines.of(Window((3, 3), (2, 2)), 20, Config(depthwise_taps=3)) == Lines(2, 2, 1, 0)


def test_where_it_is_no_use() -> None:
    config = Config(depthwise_taps=3)
    assert Lines.of(Window((3, 3)), 20, Config()) is None
    assert Lines.of(Window((3, 1)), 20, config) is None, "nothing to add up"
    assert Lines.of(Window((3, 3)), 1, config) is None, "a line of three rows for one output"
    assert Lines.of(Window((3, 3), (1, 1), (1, 2)), 20, config) is None
    assert Lines.of(Window((7, 7), (2, 2)), 20, config) is None, "four taps"
