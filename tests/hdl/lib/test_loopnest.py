# amaranth: UnusedElaboratable=no
"""LoopNest against the closed form of its contract."""

from __future__ import annotations

import itertools
import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge
from support.unit_bench import start

from weft.hdl.lib.loopnest import LoopNest
from weft.sim.rtl.bench import bench_parameters, run_bench

SHAPES = {
    "one": ({"i": 3}, {"a": (8, {"i": 4}), "still": (5, {})}),
    "mm": (
        {"nt": 4, "ky": 3, "kx": 3, "kc": 4, "oy": 5, "ox": 5},
        {
            "a": (16, dict.fromkeys(("nt", "ky", "kx", "kc", "oy", "ox"), 16)),
            "y": (16, {"ky": 8, "oy": 8}),
            "x": (16, {"kx": 8, "ox": 8}),
            "c": (16, {"nt": 16, "oy": 16, "ox": 16}),
        },
    ),
    "middle": (
        {"i": 3, "j": 3, "k": 3},
        {"outer": (12, {"i": 9}), "middle": (7, {"j": 7}), "inner": (9, {"k": 3})},
    ),
}


def pack(fields: list[tuple[int, int]]) -> int:
    """Pack (value, width) pairs from bit 0 on."""
    word = position = 0
    for value, width in fields:
        word |= (value & ((1 << width) - 1)) << position
        position += width
    return word


class Case:
    """Random inputs of one nest, and what it has to show at each iteration."""

    def __init__(self, loops: dict, trackers: dict) -> None:
        self.loops, self.trackers = loops, trackers
        most = random.choice([1, 2, 3, 4])
        self.counts = {loop: random.randint(1, min(most, (1 << width) - 1)) for loop, width in loops.items()}
        if random.random() < 0.2:
            longest = random.choice(list(loops))
            self.counts = dict.fromkeys(loops, 1) | {longest: (1 << loops[longest]) - 1}
        self.bases = {name: random.getrandbits(width) for name, (width, _) in trackers.items()}
        self.strides = {
            name: {loop: random.randint(-(1 << (w - 1)), (1 << (w - 1)) - 1) for loop, w in own.items()}
            for name, (_, own) in trackers.items()
        }

    def drive(self, dut) -> None:
        dut.counts.value = pack([(self.counts[loop], width) for loop, width in self.loops.items()])
        dut.bases.value = pack([(self.bases[name], width) for name, (width, _) in self.trackers.items()])
        widths = [
            (self.strides[t][loop], w) for t, (_, own) in self.trackers.items() for loop, w in own.items()
        ]
        dut.strides.value = pack(widths)

    def expected(self) -> list[tuple[int, int, int]]:
        """Return (values, first, last) per iteration, packed."""
        rows = []
        for index in itertools.product(*(range(self.counts[loop]) for loop in self.loops)):
            at = dict(zip(self.loops, index, strict=True))
            values = [
                (self.bases[name] + sum(at[loop] * s for loop, s in self.strides[name].items()), width)
                for name, (width, _) in self.trackers.items()
            ]
            first = pack([(int(at[loop] == 0), 1) for loop in self.loops])
            last = pack([(int(at[loop] == self.counts[loop] - 1), 1) for loop in self.loops])
            rows.append((pack(values), first, last))
        return rows


@cocotb.test()
async def bench_closed_form(dut):
    loops, trackers = SHAPES[bench_parameters()["shape"]]
    trackers = {
        name: (width, {k: own[k] for k in loops if k in own}) for name, (width, own) in trackers.items()
    }
    await start(dut, load=0, step=0)
    assert not dut.active.value
    cases = [Case(loops, trackers) for _ in range(80)]
    cases[0].drive(dut)
    dut.load.value = 1
    await FallingEdge(dut.clk)
    for case, following in itertools.pairwise([*cases, None]):
        dut.load.value, dut.counts.value, dut.bases.value, dut.strides.value = 0, 0, 0, 0
        rows = case.expected()
        stall, together = random.choice([0.0, 0.5]), random.random() < 0.7
        for number, (values, first, last) in enumerate(rows):
            end = number == len(rows) - 1
            while True:
                assert dut.active.value
                shown = (int(dut.values.value), int(dut.first.value), int(dut.last.value))
                assert shown == (values, first, last), f"iteration {number} of {case.counts}"
                assert int(dut.last_all.value) == int(end)
                if random.random() >= stall:
                    break
                await FallingEdge(dut.clk)
            dut.step.value = 1
            if end and together and following is not None:
                following.drive(dut)
                dut.load.value = 1
            await FallingEdge(dut.clk)
            dut.step.value = 0
        if not together or following is None:
            assert not dut.active.value
            if following is not None:
                await FallingEdge(dut.clk)
                following.drive(dut)
                dut.load.value = 1
                await FallingEdge(dut.clk)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_loopnest(shape):
    run_bench(LoopNest(*SHAPES[shape]), parameters={"shape": shape})


def test_unknown_loop():
    with pytest.raises(ValueError, match=r"^tracker 'a' has a stride for 'j', which is no loop of the nest$"):
        LoopNest({"i": 3}, {"a": (8, {"j": 4})})
