"""The widener with stalls on both sides: words of bytes and of values of 4 bits in any order."""

from __future__ import annotations

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import FallingEdge, ReadOnly
from support.unit_bench import start

from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import GROUP_WORDS, unpack_groups
from weft.hdl.load.transpose import Widener
from weft.sim.rtl.bench import bench_parameters, run_bench


def widen(word: bytes, narrow: bool) -> list[bytes]:
    """Return the expected output of a word: itself, or its 4-bit values in two words."""
    if not narrow:
        return [word]
    pairs = np.frombuffer(word, np.int8)
    values = np.stack([pairs << 4 >> 4, pairs >> 4], axis=1).astype(np.int8).tobytes()
    return [values[: len(word)], values[len(word) :]]


async def run(dut, width: int, words: list[tuple[bytes, bool]], *, pause: float, refuse: float) -> int:
    """Send words, each with whether it is narrow, and check all that comes; returns the cycles that it takes."""
    expected = [part for word, narrow in words for part in widen(word, narrow)]
    return await exchange(dut, width, words, expected, pause=pause, refuse=refuse)


async def exchange(
    dut, width: int, words: list[tuple[bytes, bool]], expected: list[bytes], *, pause: float, refuse: float,
    group: bool = False,
) -> int:  # fmt: skip
    """Exchange a word, perhaps of a `group`, whose first word is factors, and check the output."""
    waiting, cycles, offered = list(words), 0, False
    while waiting or expected:
        offered = bool(waiting) and (offered or random.random() >= pause)
        factors = group and len(waiting) == len(words)
        dut.beat__valid.value = int(offered)
        if offered:
            dut.beat__payload.value = int.from_bytes(waiting[0][0], "little")
            dut.narrow.value = int(waiting[0][1])
        if group:
            # Between groups they are not wanted at once; inside of one that makes no difference.
            dut.wanted.value = int(not factors or refuse == 0 or random.random() < 0.5)
        dut.wide__ready.value = int(random.random() >= refuse)
        await ReadOnly()
        assert bool(dut.wide__valid.value) == (offered and not factors)
        if dut.wide__valid.value and dut.wide__ready.value:
            assert int(dut.wide__payload.value).to_bytes(width, "little") == expected.pop(0)
        if offered and dut.beat__ready.value:
            waiting.pop(0)
            offered = False
        cycles += 1
        await FallingEdge(dut.clk)
    return cycles


@cocotb.test()
async def bench_words(dut):
    config = Config.from_dict(bench_parameters()["config"])
    width = config.bus_bytes
    await start(
        dut, beat__valid=0, wide__ready=0, narrow=0, **({"blocks": 0, "wanted": 0} if config.blocks else {})
    )
    await FallingEdge(dut.clk)
    for pause, refuse in ((0, 0), (0.3, 0), (0, 0.3), (0.6, 0.6)):
        words = [(random.randbytes(width), random.random() < 0.6) for _ in range(200)]
        cycles = await run(dut, width, words, pause=pause, refuse=refuse)
        if pause == refuse == 0:
            assert cycles == sum(1 + narrow for _, narrow in words)


@cocotb.test()
async def bench_groups(dut):
    """Groups with factors among words without, and pauses before, within and after them."""
    config = Config.from_dict(bench_parameters()["config"])
    if not config.blocks:
        return
    n = config.n
    await start(dut, beat__valid=0, wide__ready=0, narrow=0, blocks=0, wanted=0)
    await FallingEdge(dut.clk)
    for pause, refuse in ((0, 0), (0.3, 0), (0, 0.3), (0.6, 0.6)):
        cycles, words = 0, 0
        for _ in range(12):
            if random.random() < 0.4:
                plain = [(random.randbytes(n), random.random() < 0.6) for _ in range(3)]
                dut.blocks.value = 0
                await run(dut, n, plain, pause=pause, refuse=refuse)
                continue
            dut.blocks.value = 1
            group = np.frombuffer(random.randbytes(17 * n), np.uint8)
            beats = [(bytes(group[at : at + n]), True) for at in range(0, len(group), n)]
            expected = [bytes(word) for word in unpack_groups(group, n)[0].view(np.uint8)]
            cycles += await exchange(dut, n, beats, expected, pause=pause, refuse=refuse, group=True)
            words += GROUP_WORDS + 1
        assert pause or refuse or cycles == words


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("n", "bus", "int4"), [(4, 16, 1), (8, 8, 2), (32, 32, 2)])
def test_widener(n, bus, int4):
    config = Config(n=n, lanes=1, bus_bytes=bus, int4=int4)
    run_bench(Widener(config), parameters={"config": config.to_dict()})
