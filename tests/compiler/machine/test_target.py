"""Bus and sequential-core cycles against the cycle models; limits and coordinates of instructions."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import convolution, draw, random_inputs, segment_of, whole

from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceSegment, Pad, Pool
from weft.compiler.ir.windows import Window
from weft.compiler.machine import target
from weft.compiler.machine.target import (
    RUN_CYCLES,
    STEP_MAX,
    SequentialCosts,
    Target,
    coordinates,
    has_coordinates,
    is_far,
)
from weft.compiler.planner import Planner
from weft.hdl.errors import IsaError
from weft.hdl.isa import End, Instruction, Load, Mm, Store, Vec
from weft.hdl.isa.config import PRESETS, parameter_block
from weft.hdl.isa.memmap import Counter
from weft.sim.timing import SequentialTimingDevice

DEFAULT = PRESETS["default"]


@pytest.mark.parametrize(
    ("bandwidth", "beat"), [(None, 1), (16, 1), (64, 1), (8, 2), (1.9, 16 / 1.9), (0.5, 32)]
)
def test_beats(bandwidth: float | None, beat: float) -> None:
    """A memory faster than the bus is limited by the bus."""
    target = Target(DEFAULT, bandwidth)
    assert target.beat == beat
    assert target.transfer_cycles(160) == 10 * beat
    assert target.run(1) == max(beat, 1 + RUN_CYCLES)
    assert target.run(33) == max(3 * beat, 3 + RUN_CYCLES)
    assert target.run(33, 0) == 3 * beat
    assert target.span(24) == max(1.5 * beat, 1.5 + RUN_CYCLES)


@pytest.mark.parametrize("bandwidth", [None, 3.0])
def test_arrays(bandwidth: float | None) -> None:
    target, sizes = Target(DEFAULT, bandwidth), np.arange(1, 100)
    assert target.runs(sizes).tolist() == [target.run(int(size)) for size in sizes]
    assert target.transfer_cycles(sizes).tolist() == [target.transfer_cycles(int(size)) for size in sizes]


CONFIGS = ("tiny", "small", "default")


def far_axis(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Kernel, stride, dilation and size of an axis, with a stride or a dilation of 120 to 700."""
    kernel, stride, dilation = draw(rng, 1, 5), draw(rng, 1, 3), draw(rng, 1, 2)
    if rng.random() < 0.7:
        stride = draw(rng, 120, 700)
        kernel = stride // draw(rng, 1, 3) if rng.random() < 0.3 else kernel
    else:
        dilation, kernel = draw(rng, 120, 400), draw(rng, 2, 3)
    reach = (kernel - 1) * dilation + 1
    return kernel, stride, dilation, reach + stride * draw(rng, 0, 4) + draw(rng, 0, stride - 1)


def far_window(rng: np.random.Generator) -> tuple[Window, tuple[int, int]]:
    """A window far along one axis and near along the other, maybe padded, and the size of its input."""
    far = far_axis(rng)
    size = draw(rng, 1, 4)
    near = (draw(rng, 1, size), draw(rng, 1, 2), 1, size)
    pads = (draw(rng, 0, 1), draw(rng, 0, 1))
    down = rng.random() < 0.4
    axes = (far, near) if down else (near, far)
    pad = (0, pads[0], 0, pads[1]) if down else (pads[0], 0, pads[1], 0)
    window = Window(*((axes[0][at], axes[1][at]) for at in range(3)), pad)
    return window, (axes[0][3], axes[1][3])


def far_segment(rng: np.random.Generator) -> DeviceSegment:
    """A convolution or a pool, the former also after padding along the far axis that may be fused."""
    window, (h, w) = far_window(rng)
    kind = rng.choice(["conv", "groups", "depthwise", "max", "average", "padded"])
    groups = 1 if kind != "groups" else 2
    channels = draw(rng, 1, 9) * groups
    src = whole("x", (1, h, w, channels), "input")
    if kind in ("max", "average"):
        dst = whole("y", (1, *window.output(h, w), channels), "output")
        return segment_of(Pool("pool", src, dst, str(kind), window, 1.0, 3, 3))
    pad, arguments = [], src
    if kind == "padded":
        around = tuple(draw(rng, 0, 300) if is_far(window, at % 2) else 0 for at in range(4))
        around = Window(pad=around)
        arguments = whole("padded", (1, *around.output(h, w), channels), "temp")
        pad = [Pad("pad", src, arguments, around, 5)]
    groups = channels if kind == "depthwise" else groups
    out = channels if kind == "depthwise" else draw(rng, 1, 20) * groups
    weight = rng.integers(-127, 128, (out, *window.kernel, channels // groups)).astype(np.int16)
    scale = np.full(out, 60 / (math.sqrt(weight[0].size) * 127 * 40))
    bias = rng.integers(-999, 999, out).astype(np.int32)
    dst = whole("y", (1, *window.output(*arguments.shape[1:3]), out), "output")
    return segment_of(*pad, Conv("conv", arguments, dst, weight, bias, scale, window, groups, 5, -3))


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segment, config = far_segment(rng), PRESETS[CONFIGS[seed % len(CONFIGS)]]
    inputs = random_inputs(rng, segment.ops[0])
    compare(compile_segment(segment, config), segment, inputs, config)


def test_far_windows() -> None:
    for seed in range(12):
        check(seed)


@pytest.mark.long
def test_many_far_windows() -> None:
    for seed in range(100, 700):
        check(seed)


def test_hops_cost_no_more_for_being_long() -> None:
    """Windows of few channels are interleaved, whatever the gap between them."""
    for config in (PRESETS["tiny"], PRESETS["default"]):
        planner = Planner(Target(config))
        near, far = (
            planner.cost(convolution(whole("x", (1, 1, 16000, 1), "input"), 64, Window((1, 400), (1, hop))))
            for hop in (STEP_MAX, 160)
        )
        assert near is not None
        assert far is not None
        assert far.cycles < 0.95 * near.cycles  # there are fewer of them


def test_coordinates_are_constant_where_steps_do_not_fit() -> None:
    near, far = Window((2, 2), (STEP_MAX, 1), (1, STEP_MAX)), Window((2, 2), (STEP_MAX + 1, 1))
    assert coordinates(near, 0, 7, 9) == (7, 9, STEP_MAX, 1)
    assert coordinates(near, 1, 7, 9) == (7, 9, 1, STEP_MAX)
    assert coordinates(far, 0, 7, 9) == (0, 1, 0, 0)
    assert coordinates(far, 1, 7, 9) == (7, 9, 1, 1)
    padded = dataclasses.replace(far, pad=(0, 1, 1, 0))
    assert (has_coordinates(padded, 0), has_coordinates(padded, 1)) == (False, True)


FITS = {
    "rows": (Load, "rows", target.COUNT_MAX), "line": (Load, "line", target.COUNT_MAX),
    "stored rows": (Store, "rows", target.COUNT_MAX), "loop of MM": (Mm, "kc", target.COUNT_MAX),
    "loop of VEC": (Vec, "ob", target.COUNT_MAX), "pixels": (Load, "pixels", target.PIXELS_MAX),
    "stride of MM": (Mm, "a_oy", target.STRIDE_MAX), "stride of VEC": (Vec, "dst_ox", target.STRIDE_MAX),
    "step of MM": (Mm, "x_kx", target.STEP_MAX), "step of VEC": (Vec, "y_oy", target.STEP_MAX),
    "length": (Load, "length", target.LENGTH_MAX), "pitch": (Store, "pitch", target.PITCH_MAX),
    "before": (Load, "before", target.BEFORE_MAX), "run": (Load, "run", target.RUN_MAX),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "field", "most"), FITS.values(), ids=FITS)
def test_field_limits_are_exact(kind: type, field: str, most: int) -> None:
    kind(**{field: most}).encode()
    with pytest.raises(IsaError):
        kind(**{field: most + 1}).encode()


SEQUENTIAL_CONFIGS = {
    name: board.config for name, board in BOARDS.items() if board.core is CoreKind.SEQUENTIAL
}
LATENCY = 3
CODE, PARAMETERS = 0x8000, 0x7000
Found = list[tuple[float, int]]
"""Pairs of (cycles by formula, cycles by model)."""


class Bench:
    """Cycles that an instruction adds to a program, on one configuration."""

    def __init__(self, name: str) -> None:
        self.config = SEQUENTIAL_CONFIGS[name]
        self.costs = Target(self.config, sequential=True).sequential_costs
        assert self.costs is not None
        self.n, self.pick = self.config.n, random.Random(name)
        self.empty = 0
        self.empty = self.cycles([])

    def cycles(self, program: list[Instruction]) -> int:
        """Cycles beyond those of an empty program."""
        n = self.n
        device = SequentialTimingDevice(self.config, 1 << 16, latency=LATENCY)
        device.write(PARAMETERS, parameter_block(*(np.full(n, value) for value in (0, 40_000, 26)), n))
        device.write(CODE, b"".join(item.encode() for item in (*program, End())))
        device.start(CODE)
        device.wait()
        return device.counters()[Counter.CYCLES] - self.empty

    def count(self, most: int) -> int:
        return self.pick.choice((1, 2, self.pick.randint(1, most)))

    def mm(self) -> Found:
        nt, ky, kx, kc, oy, ox = (self.count(most) for most in (2, 3, 3, 4, 6, 30))
        steps = nt * ky * kx * kc
        item = Mm(nt=nt, ky=ky, kx=kx, kc=kc, oy=oy, ox=ox)
        return [(self.costs.mm(1, steps, steps * oy, ox), self.cycles([item]))]

    def load(self) -> Found:
        rows, pixels, vectors = self.count(8), self.count(8), self.count(6)
        size = vectors * self.n
        item = Load(
            rows=rows, row_pitch=1 << 9, pixels=pixels, pitch=size, length=size, run=pixels * size,
            dst_vector=1, dst_pixel=vectors, dst_row=pixels * vectors,
        )  # fmt: skip
        counts = rows, rows * pixels, rows * pixels * vectors
        return [(self.costs.load(1, *counts), self.cycles([item]))]

    def store(self) -> Found:
        rows, pixels, vectors = self.count(8), self.count(8), self.count(6)
        size = vectors * self.n
        item = Store(
            rows=rows, row_pitch=1 << 9, pixels=pixels, pitch=size, length=size,
            src_vector=1, src_pixel=vectors, src_row=pixels * vectors,
        )  # fmt: skip
        counts = rows, rows * pixels, rows * pixels * vectors
        return [(self.costs.store(1, *counts), self.cycles([item]))]

    def vec(self) -> Found:
        load = Load(offset=PARAMETERS, pixels=8, pitch=self.n, length=self.n, run=8 * self.n, dst_pixel=1)
        ob, oy, ox = self.count(3), self.count(5), self.count(20)
        item = Vec(ob=ob, oy=oy, ox=ox, dst=64, dst_ox=1, dst_oy=ox, dst_ob=ox * oy)
        return [(self.costs.vec(1, ob * oy, ob * oy * ox), self.cycles([load, item]) - self.cycles([load]))]


@pytest.mark.parametrize("name", SEQUENTIAL_CONFIGS)
@pytest.mark.parametrize(("kind", "one", "all_"), [("mm", 0.25, 0.1), ("load", 0.25, 0.1), ("store", 0.2, 0.1),
                                                   ("vec", 0.15, 0.07)])  # fmt: skip
def test_costs(name: str, kind: str, one: float, all_: float) -> None:
    bench = Bench(name)
    actual = [pair for _ in range(10) for pair in getattr(bench, kind)()]
    wrong = [(guess, cycles) for guess, cycles in actual if not abs(guess / cycles - 1) <= one]
    assert not wrong
    total = sum(guess for guess, _ in actual) / sum(cycles for _, cycles in actual)
    assert abs(total - 1) <= all_


def test_only_the_sequential_core_serialises_units() -> None:
    config = SEQUENTIAL_CONFIGS["icebreaker"]
    assert Target(config).sequential_costs is None
    assert Target(config, sequential=True).sequential_costs == SequentialCosts(4, 16)
