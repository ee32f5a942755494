# amaranth: UnusedElaboratable=no
"""The queue in block memory against a list."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
from cocotb.triggers import FallingEdge, ReadOnly
from support.unit_bench import start

from weft.hdl.lib.queues import BlockFifo
from weft.sim.rtl.bench import bench_parameters, run_bench

WIDTH = 12


@cocotb.test()
async def bench_order(dut: Any) -> None:
    """Order and content at all levels; nothing lost, and no cycle lost where both sides are ready."""
    depth = bench_parameters()["depth"]
    await start(dut, i__valid=0, i__payload=0, o__ready=0)
    held: list[int] = []
    offered: int | None = None
    most = passed = 0
    for cycle in range(6000):
        await FallingEdge(dut.clk)
        in_rate, out_rate = ((0.9, 0.3), (0.3, 0.9), (1.0, 1.0))[cycle // 100 % 3]
        if offered is None and random.random() < in_rate:
            offered = random.randrange(1 << WIDTH)
        dut.i__valid.value, dut.i__payload.value = offered is not None, offered or 0
        dut.o__ready.value = random.random() < out_rate
        await ReadOnly()
        level = len(held)
        assert not int(dut.o__valid.value) or held
        if cycle // 100 % 3 == 2 and cycle % 100 > 2:
            assert int(dut.o__valid.value)
            assert int(dut.i__ready.value) or level > depth
        if int(dut.o__valid.value) and int(dut.o__ready.value):
            assert int(dut.o__payload.value) == held.pop(0)
            passed += 1
        if offered is not None and int(dut.i__ready.value):
            held.append(offered)
            offered = None
        else:
            assert offered is None or level >= depth, "refused with room left"
        most = max(most, len(held))
        assert len(held) <= depth + 1
    assert most == depth + 1
    assert passed > 2000


@pytest.mark.drawn(1)
@pytest.mark.parametrize("depth", [2, 16])
def test_block_fifo(depth: int) -> None:
    run_bench(BlockFifo(WIDTH, depth), parameters={"depth": depth})


@pytest.mark.parametrize("depth", [0, 1, 12])
def test_depth(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"a power of two, at least 2, not {depth}$"):
        BlockFifo(WIDTH, depth)
