"""The widener with stalls on both sides: words of bytes and of values of 4 bits in any order."""

from __future__ import annotations

import random

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, ReadOnly
from support.unit_bench import start

from weft.hdl.isa.config import Config
from weft.hdl.load.widen import Widener
from weft.sim.rtl.bench import bench_parameters, run_bench


def widened(word: bytes, narrow: bool) -> list[bytes]:
    """What must come of a word: itself, or its values of 4 bits in two words."""
    if not narrow:
        return [word]
    pairs = np.frombuffer(word, np.int8)
    values = np.stack([pairs << 4 >> 4, pairs >> 4], axis=1).astype(np.int8).tobytes()
    return [values[: len(word)], values[len(word) :]]


async def run(dut, width: int, words: list[tuple[bytes, bool]], *, pause: float, refuse: float) -> int:
    """Send words, each with whether it is narrow, and check all that comes; returns the cycles that it takes."""
    expected = [part for word, narrow in words for part in widened(word, narrow)]
    waiting, cycles, offered = list(words), 0, False
    while expected:
        offered = bool(waiting) and (offered or random.random() >= pause)
        dut.beat__valid.value = int(offered)
        if offered:
            dut.beat__payload.value = int.from_bytes(waiting[0][0], "little")
            dut.narrow.value = int(waiting[0][1])
        dut.wide__ready.value = int(random.random() >= refuse)
        await ReadOnly()
        assert bool(dut.wide__valid.value) == offered
        if offered and dut.wide__ready.value:
            assert int(dut.wide__payload.value).to_bytes(width, "little") == expected.pop(0)
        if offered and dut.beat__ready.value:
            waiting.pop(0)
            offered = False
        cycles += 1
        await FallingEdge(dut.clk)
    assert not waiting
    return cycles


@cocotb.test()
async def bench_words(dut):
    width = Config.from_dict(bench_parameters()["config"]).bus_bytes
    await start(dut, beat__valid=0, wide__ready=0, narrow=0)
    await FallingEdge(dut.clk)
    for pause, refuse in ((0, 0), (0.3, 0), (0, 0.3), (0.6, 0.6)):
        words = [(random.randbytes(width), random.random() < 0.6) for _ in range(200)]
        cycles = await run(dut, width, words, pause=pause, refuse=refuse)
        if pause == refuse == 0:
            assert cycles == sum(1 + narrow for _, narrow in words)


def test_widener():
    config = Config(n=4, lanes=1, bus_bytes=16, int4=1)
    run_bench(Widener(config), parameters={"config": config.to_dict()})
