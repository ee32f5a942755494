"""Groups that share vectors, and depthwise sums along lines: against brute force, the convolution, and known cycles."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden_compare import compare
from support.op_cases import convolution, random_inputs, segment_of, whole

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.plan.pieces import Lines, share_of, tiles_of
from weft.hdl.isa.config import PRESETS, Config

CONFIGS = {**PRESETS, **{name: board.config for name, board in BOARDS.items()}}


def grouped_conv(groups: int, cin: int, out: int, side: int = 14, kernel: int = 1, stride: int = 1) -> Conv:
    """A convolution of `groups`, each of `cin` channels to `out`."""
    window = Window((kernel, kernel), (stride, stride), pad=(kernel // 2,) * 4)
    op = convolution(whole("x", (1, side, side, cin * groups), "input"), out * groups, window)
    weight = np.random.default_rng(groups).integers(-127, 128, op.weight[..., :cin].shape).astype(np.int16)
    return dataclasses.replace(op, groups=groups, weight=weight)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(2, 40), st.integers(1, 50), st.integers(1, 50), st.integers(1, 40), st.sampled_from([4, 16])
)
def test_tiles_cover_all_groups(groups: int, cin: int, out: int, share: int, n: int) -> None:
    """Each output channel is in one tile, whose piece has all inputs of its group; pieces follow each other."""
    tiles = tiles_of(grouped_conv(groups, cin, out, 1), share, n)
    assert [tile.first + at for tile in tiles for at in range(tile.count)] == list(range(groups * out))
    for tile in tiles:
        assert 0 < tile.count <= n
        for channel in (tile.first, tile.first + tile.count - 1):
            assert tile.piece.first <= channel // out * cin
            assert (channel // out + 1) * cin <= tile.piece.first + tile.piece.count
    pieces = list(dict.fromkeys(tile.piece for tile in tiles))
    assert [piece.at for piece in pieces] == [sum(p.vectors for p in pieces[:k]) for k in range(len(pieces))]
    assert all((piece.vectors - 1) * n < piece.count <= piece.vectors * n for piece in pieces)


@pytest.mark.parametrize(
    ("config", "case", "share"),
    [
        (PRESETS["default"], (32, 4, 4, 14, 3), 4),  # ResNeXt: as many as fit a vector
        (PRESETS["default"], (64, 1, 1, 14, 3), 16),
        (PRESETS["default"], (2, 64, 64), 1),  # whole vectors: nothing to win
        (PRESETS["default"], (4, 66, 5, 32), 2),  # half as many vectors of outputs, and of inputs one fewer
        (PRESETS["large"], (4, 24, 20, 32), 4),  # all of them: no runs of 24 bytes for each pixel
        (PRESETS["small"].replace(lanes=1), (8, 14, 4, 50), 2),  # the vector unit takes 8 cycles a vector
        (PRESETS["tiny"], (4, 448, 67), 1),
        (PRESETS["large"], (4, 18, 49, 14), 4),  # no runs of 18 and of 17 bytes for each pixel
        (PRESETS["small"], (2, 12, 37, 14), 2),
        (PRESETS["default"], (2, 25, 47, 7), 1),  # too little to win
        (
            PRESETS["large"].replace(lanes=16),
            (4, 54, 9, 4),
            2,
        ),  # tiles of weights take longer to come in than few rows
        (PRESETS["default"].replace(lanes=1), (3, 10, 39, 14), 1),  # the vector unit sets the pace either way
    ],
)
def test_shares(config: Config, case: tuple[int, ...], share: int) -> None:
    assert share_of(grouped_conv(*case), Target(config)) == share


@pytest.mark.parametrize("name", CONFIGS)
def test_random_groups(name: str) -> None:
    """Golden equals the micro-ops where more groups are computed as one than fit a vector, on every configuration."""
    config, rng = CONFIGS[name], np.random.default_rng(len(name))
    done = 0
    while done < 3:
        groups, kernel, stride = int(rng.integers(2, 11)), int(rng.choice([1, 1, 3])), int(rng.integers(1, 3))
        cin, out = (int(rng.integers(1, 2 * config.n)) for _ in range(2))
        op = grouped_conv(groups, cin, out, int(rng.integers(3, 9)), kernel, stride)
        if share_of(op, Target(config)) > max(1, config.n // max(cin, out)) and op.weight.size < 1 << 17:
            segment = segment_of(op)
            compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)
            done += 1


def line(lines: Lines, tiles: np.ndarray, row: np.ndarray, window: Window, width: int, n: int) -> np.ndarray:
    """Multiply one row of pixels (columns, N) by one row of the kernel as the array does: (width, N)."""
    total = np.zeros((width + lines.lead_rows, n), np.int64)
    for part in range(lines.passes):
        words = tiles[part, 0, 1 - 2 * lines.taps :: 2].astype(np.int64)
        start = part * lines.step - window.pad[1] - lines.before
        places = start + window.stride[1] * np.arange(width + lines.lead_rows)
        inside = (places >= 0) & (places < len(row))
        rows = np.where(inside[:, None], row[np.clip(places, 0, len(row) - 1)], 0)
        for back in range(min(lines.taps, len(rows))):
            total[back:] += rows[: len(rows) - back] * words[lines.taps - 1 - back]
    return total[lines.lead_rows :]


@settings(max_examples=400, deadline=None)
@given(
    st.integers(2, 7), st.integers(1, 3), st.tuples(st.integers(0, 6), st.integers(0, 6)), st.integers(1, 30),
    st.integers(2, 8), st.integers(1, 16), st.randoms(use_true_random=False),
)  # fmt: skip
def test_sums(kernel, stride, pad, columns, taps, channels, random):
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
    expected = np.stack(
        [
            (padded[at * stride : at * stride + kernel, :channels].T * weight[:, 0]).sum(axis=1)
            for at in range(width)
        ]
    )
    assert np.array_equal(line(lines, tiles[0], row, window, width, n)[:, :channels], expected)


def test_cycles() -> None:
    """Three columns of the kernel take one pass, five take two if there are three taps."""
    wide = Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    assert Lines.of(wide, 20, Config(depthwise_taps=3)) == Lines(3, 1, 3, 0)
    assert Lines.of(wide, 20, Config(depthwise_taps=2)) == Lines(2, 2, 2, 1)
    assert Lines.of(Window((5, 5), (1, 1)), 20, Config(depthwise_taps=3)) == Lines(3, 2, 3, 1)
    assert Lines.of(Window((3, 3), (2, 2)), 20, Config(depthwise_taps=3)) == Lines(2, 2, 1, 0)


def test_shapes_without_a_benefit() -> None:
    config = Config(depthwise_taps=3)
    assert Lines.of(Window((3, 3)), 20, Config()) is None
    assert Lines.of(Window((3, 1)), 20, config) is None, "nothing to add up"
    assert Lines.of(Window((3, 3)), 1, config) is None, "a line of three rows for one output"
    assert Lines.of(Window((3, 3), (1, 1), (1, 2)), 20, config) is None
    assert Lines.of(Window((7, 7), (2, 2)), 20, config) is None, "four taps"
