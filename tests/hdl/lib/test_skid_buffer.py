"""The skid buffer against a list of at most two entries."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly
from support.unit_bench import start

from weft.hdl.lib.queues import SkidBuffer
from weft.sim.rtl.bench import run_bench

WIDTH = 12


@cocotb.test()
async def bench_stream(dut: Any) -> None:
    """Order and content; ready while fewer than two wait, valid a cycle after the first, whatever the other side says
    in the same cycle; so nothing is lost, and no cycle where both sides are ready."""
    await start(dut, i__valid=0, i__payload=0, o__ready=0)
    held: list[int] = []
    passed = refused = 0
    for cycle in range(4000):
        await FallingEdge(dut.clk)
        in_rate, out_rate = ((0.9, 0.3), (0.3, 0.9), (1.0, 1.0))[cycle // 100 % 3]
        offered = random.randrange(1 << WIDTH) if random.random() < in_rate else None
        dut.i__valid.value, dut.i__payload.value = offered is not None, offered or 0
        dut.o__ready.value = taken = random.random() < out_rate
        await ReadOnly()
        assert int(dut.i__ready.value) == (len(held) < 2)
        assert int(dut.o__valid.value) == bool(held)
        if held:
            assert int(dut.o__payload.value) == held[0]
        accepted = offered is not None and len(held) < 2
        refused += offered is not None and not accepted
        if held and taken:
            held.pop(0)
            passed += 1
        if accepted and offered is not None:
            held.append(offered)
    assert refused > 100
    assert passed > 1500


def test_slice() -> None:
    run_bench(SkidBuffer(WIDTH))
