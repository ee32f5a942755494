"""What instructions take on the sequential core, by the planner's formulas and by its cycle model."""

from __future__ import annotations

import random

import numpy as np
import pytest

from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.compiler.machine.target import SequentialCosts, Target
from weft.hdl.isa import End, Instruction, Load, Mm, Store, Vec
from weft.hdl.isa.config import parameter_block
from weft.hdl.isa.memmap import Counter
from weft.sim.timing import SequentialTimingDevice

CONFIGS = {name: board.config for name, board in BOARDS.items() if board.core is CoreKind.SEQUENTIAL}
LATENCY = 3
CODE, PARAMETERS = 0x8000, 0x7000
Found = list[tuple[float, int]]
"""By the formula, and by the model."""


class Bench:
    """One configuration: how many cycles an instruction adds to a program."""

    def __init__(self, name: str) -> None:
        self.config, self.costs = CONFIGS[name], Target(CONFIGS[name], sequential=True).sequential_costs
        assert self.costs is not None
        self.n, self.pick = CONFIGS[name].n, random.Random(name)
        self.empty = 0
        self.empty = self.cycles([])

    def cycles(self, program: list[Instruction]) -> int:
        """Beyond those of an empty program."""
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


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("kind", "one", "all_"), [("mm", 0.25, 0.1), ("load", 0.25, 0.1), ("store", 0.2, 0.1),
                                                   ("vec", 0.15, 0.07)])  # fmt: skip
def test_costs(name: str, kind: str, one: float, all_: float) -> None:
    bench = Bench(name)
    found = [pair for _ in range(10) for pair in getattr(bench, kind)()]
    wrong = [(guess, cycles) for guess, cycles in found if not abs(guess / cycles - 1) <= one]
    assert not wrong
    total = sum(guess for guess, _ in found) / sum(cycles for _, cycles in found)
    assert abs(total - 1) <= all_


def test_only_the_sequential_core_takes_turns() -> None:
    config = CONFIGS["icebreaker"]
    assert Target(config).sequential_costs is None
    assert Target(config, sequential=True).sequential_costs == SequentialCosts(4, 16)
