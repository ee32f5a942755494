"""The first products and the last outputs of convolutions in finer parts: what they compute, and how quickly."""

from __future__ import annotations

from collections import Counter as Tally
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import convolution, random_conv, random_inputs, segment_of, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv
from weft.compiler.lower import conv as lowering
from weft.compiler.machine.target import Target
from weft.compiler.plan.conv_parts import first_parts, last_parts, split_evenly
from weft.compiler.plan.conv_plan import ConvPlan, candidates
from weft.compiler.plan.conv_plan import plan as best
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.conv_weights import Chunk
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

USED = {"weights": 4, "rows": 4, "kernel rows": 4, "last rows": 4, "last tiles": 4}
"""Minimum number of cases that use each kind of cut."""


def product(rng: np.random.Generator) -> Conv:
    """Rows, contraction and columns large enough to be cut."""
    rows, depth, columns = (int(rng.integers(1, most)) for most in (90, 200, 80))
    return convolution(whole("x", (1, 1, rows, depth), "input"), columns)


class Spy:
    """Counts the kinds of cuts that the lowering uses."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.tally: Tally[str] = Tally()
        for name, tells in (
            (
                "first_parts",
                lambda found, chunk, *_: (
                    "kernel rows" if chunk.ky[1] > 1 else "weights" if len(found) > 1 else None
                ),
            ),
            ("row_parts", lambda found, *_: "rows" if found > 1 else None),
            ("last_rows", lambda found, rows, *_: "last rows" if found < rows else None),
            ("last_parts", lambda found, *_: "last tiles" if len(found) > 1 else None),
        ):
            patch.setattr(lowering, name, self._wrap(getattr(lowering, name), tells))

    def _wrap(self, function: Any, tells: Any) -> Any:
        def count_call(*given: Any) -> Any:
            actual = function(*given)
            if (what := tells(actual, *given)) is not None:
                self.tally[what] += 1
            return actual

        return count_call


def test_parts_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random convolutions and products by random plans: the golden interpreter's bytes are those of the micro-ops, and
    the checker takes the program."""
    spy, rng = Spy(monkeypatch), np.random.default_rng(20)
    monkeypatch.setattr("weft.compiler.plan.conv_parts._DEAR", 1)
    for case in range(90):
        config = PRESETS[("tiny", "small", "default")[case % 3]]
        op = product(rng) if case % 2 else random_conv(rng)

        def choose(shape: ConvShape) -> ConvPlan | None:
            known = candidates(shape)
            return known[int(rng.integers(len(known)))] if known and rng.random() < 0.7 else best(shape)

        segment = segment_of(op)
        bandwidth = float(rng.choice([1, 4, 16]))
        program = compile_segment(segment, config, bandwidth=bandwidth, choose=choose)
        compare(program, segment, random_inputs(rng, op), config)
    assert {name: spy.tally[name] for name, least in USED.items() if spy.tally[name] < least} == {}


@pytest.mark.parametrize(
    "chunk", [((0, 3), (0, 3), (0, 4)), ((1, 1), (0, 7), (2, 5)), ((0, 1), (2, 1), (3, 9))]
)
@pytest.mark.parametrize("cycles", [1, 5_000, 10**6])
def test_first_parts_are_all_of_a_chunk(chunk: tuple[tuple[int, int], ...], cycles: int) -> None:
    """In the order of its weights, one behind the other; the more the longer the array works."""
    whole, columns = Chunk(*chunk), 48
    parts = first_parts(whole, columns, cycles, Target(PRESETS["default"]))
    steps = [
        (ky, kx, kc)
        for part in parts
        for ky in range(part.chunk.ky[0], sum(part.chunk.ky))
        for kx in range(part.chunk.kx[0], sum(part.chunk.kx))
        for kc in range(part.chunk.kc[0], sum(part.chunk.kc))
    ]
    assert steps == sorted(set(steps))
    assert len(steps) == whole.steps
    assert [part.vectors for part in parts] == [part.chunk.steps * columns for part in parts]
    assert all(part.first + part.vectors == following.first for part, following in pairwise(parts))
    assert parts[0].first == 0
    assert (len(parts) > 1) == (cycles > 1)


def test_parts_are_even_and_halves() -> None:
    assert list(split_evenly(10, 3)) == [(0, 4), (4, 3), (7, 3)]
    assert last_parts(14) == [7, 4, 2, 1]
    assert last_parts(1) == [1]
    assert all(sum(last_parts(tiles)) == tiles for tiles in range(40))


@pytest.mark.parametrize(("side", "least"), [(64, 0.66), (128, 0.92)])
def test_small_products_on_default(side: int, least: float) -> None:
    """The share of the array's multiplications in all cycles from start to done."""
    config = PRESETS["default"]
    op = convolution(whole("x", (1, 1, side, side), "input"), side)
    image = Image(compile_segment(segment_of(op), config))
    device = TimingDevice(config, image.memory_bytes, latency=30, bandwidth=16)
    image.run(device, {})
    assert op.macs / config.n**2 >= least * device.counters()[Counter.CYCLES]
