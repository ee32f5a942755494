# amaranth: UnusedElaboratable=no
"""The bridge between a master that was not written here and a memory that checks what it is asked for."""

from __future__ import annotations

import random

import cocotb
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiBus, AxiMaster
from support.axi_models import channels, pauses
from support.memory_driver import reset
from support.port_memory import BYTES, PortMemory

from weft.boards.bus.axi import AxiBridge, piece_beats
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.rtl.bench import bench_parameters, run_bench


async def start(dut, *, stall: float = 0.0, master_stall: float = 0.0):
    config = Config.from_dict(bench_parameters()["config"])
    width = config.bus_bytes
    memory = PortMemory(dut, width, stall, longest=piece_beats(config))
    dut.memory__command__ready.value = dut.memory__write__ready.value = 0
    dut.memory__read__valid.value = dut.memory__written.value = 0
    dut.rst.value = 1
    master = AxiMaster(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst)
    await reset(dut)
    await RisingEdge(dut.clk)
    if master_stall:
        for channel in channels(master):
            channel.set_pause_generator(pauses(master_stall))
    cocotb.start_soon(memory.run())
    return memory, master


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5], master_stall=[0.0, 0.5])
async def bench_random(dut, stall, master_stall):
    """Several users, each with a region, write and read back, under pauses of master and memory."""
    memory, master = await start(dut, stall=stall, master_stall=master_stall)
    size = BYTES // 4

    async def use(user):
        expected = bytearray(memory.contents[user * size : (user + 1) * size])
        for _ in range(8):
            at = random.randrange(size)
            data = random.randbytes(min(random.choice((1, random.randint(1, 100), 3000)), size - at))
            await master.write(user * size + at, data, awid=random.randrange(2))
            expected[at : at + len(data)] = data
            at = random.randrange(size // memory.width) * memory.width
            length = min(random.choice((memory.width, random.randint(1, 200), 3000)), size - at)
            read = await master.read(user * size + at, length, arid=random.randrange(2))
            assert read.data == expected[at : at + length]

    for task in [cocotb.start_soon(use(user)) for user in range(4)]:
        await task


class Pins:
    """Plays the core by hand."""

    def __init__(self, dut) -> None:
        self.dut = dut
        for name in ("awvalid", "wvalid", "arvalid", "rready", "bready"):
            getattr(dut, f"axi__{name}").value = 0

    async def cycles(self, count: int, counting: tuple[str, ...] = ()) -> dict[str, int]:
        """Wait; returns how many transfers each channel had."""
        seen = dict.fromkeys(counting, 0)
        for _ in range(count):
            await ReadOnly()
            for channel in counting:
                valid, ready = (getattr(self.dut, f"axi__{channel}{end}").value for end in ("valid", "ready"))
                seen[channel] += bool(valid and ready)
            await RisingEdge(self.dut.clk)
        return seen

    def ask(self, channel: str, address: int, beats: int) -> None:
        dut = self.dut
        getattr(dut, f"axi__{channel}addr").value = address
        getattr(dut, f"axi__{channel}len").value = beats - 1
        getattr(dut, f"axi__{channel}id").value = 0
        getattr(dut, f"axi__{channel}valid").value = 1


async def start_by_hand(dut):
    config = Config.from_dict(bench_parameters()["config"])
    width = config.bus_bytes
    memory = PortMemory(dut, width, 0.0, longest=piece_beats(config))
    dut.memory__read__valid.value = dut.memory__written.value = 0
    pins = Pins(dut)
    await reset(dut)
    cocotb.start_soon(memory.run())
    return memory, pins


@cocotb.test()
async def bench_stalled_reads(dut):
    """The core accepts no words; its writes continue."""
    memory, pins = await start_by_hand(dut)
    pins.ask("ar", 0, 256 // memory.width)
    await pins.cycles(300)
    reads = sum(not write for write, _, _ in memory.commands)
    assert reads == 2, "as many pieces as there is room for"
    dut.axi__wvalid.value, dut.axi__wstrb.value, dut.axi__bready.value = 1, 1, 1
    pins.ask("aw", 4096, 256 // memory.width)
    seen = await pins.cycles(2000, ("b",))
    assert seen["b"] > 5
    assert sum(not write for write, _, _ in memory.commands) == reads
    dut.axi__rready.value = 1
    seen = await pins.cycles(2000, ("b", "r"))
    assert seen["b"] > 5
    assert seen["r"] > 5 * 256 // memory.width


@cocotb.test()
async def bench_stalled_writes(dut):
    """The core requests writes but sends no words, or accepts no responses. Its reads continue."""
    memory, pins = await start_by_hand(dut)
    pins.ask("aw", 0, 16)
    pins.ask("ar", 4096, 16)
    dut.axi__rready.value = 1
    seen = await pins.cycles(1000, ("r",))
    assert seen["r"] > 300
    assert not any(write for write, _, _ in memory.commands)
    dut.axi__wvalid.value, dut.axi__wstrb.value = 1, 1
    await pins.cycles(3000)
    assert sum(write for write, _, _ in memory.commands) <= bench_parameters()["pieces"] + 1
    seen = await pins.cycles(1000, ("r",))
    assert seen["r"] > 300
    dut.axi__bready.value = 1
    seen = await pins.cycles(1000, ("r", "b"))
    assert seen["r"] > 100
    assert seen["b"] > 100 * 16 // max(16, piece_beats(Config.from_dict(bench_parameters()["config"]))) // 16


@cocotb.test()
async def bench_words_first(dut):
    """Words may come before their request."""
    memory, pins = await start_by_hand(dut)
    dut.axi__bready.value = 1
    dut.axi__wvalid.value, dut.axi__wstrb.value = 1, (1 << memory.width) - 1
    dut.axi__wdata.value = 0x11
    await RisingEdge(dut.clk)
    dut.axi__wvalid.value = 0
    await pins.cycles(20)
    pins.ask("aw", 64, 1)
    await RisingEdge(dut.clk)
    dut.axi__awvalid.value = 0
    assert (await pins.cycles(40, ("b",)))["b"] == 1
    assert memory.contents[64 : 64 + memory.width] == b"\x11" + bytes(memory.width - 1)


@cocotb.test()
async def bench_response_after_report(dut):
    """B comes after memory's report of the last piece, once a burst."""
    memory, pins = await start_by_hand(dut)
    pins.ask("aw", 0, 256)
    dut.axi__wvalid.value, dut.axi__wstrb.value, dut.axi__bready.value = 1, 1, 1
    pieces = max(1, 256 // piece_beats(Config.from_dict(bench_parameters()["config"])))
    responses = 0
    for _ in range(3000):
        await ReadOnly()
        responses += int(dut.axi__bvalid.value)
        assert responses * pieces <= memory.written
        await RisingEdge(dut.clk)
    assert responses >= 5


@cocotb.test()
@cocotb.parametrize(kinds=[("ar",), ("aw",), ("ar", "aw")])
async def bench_full_rate(dut, kinds):
    """A memory of bus speed is used in every cycle: by reads, by writes, and shared fairly by both."""
    memory, pins = await start_by_hand(dut)
    dut.axi__wstrb.value, dut.axi__rready.value, dut.axi__bready.value = 0, 1, 1
    for channel in kinds:
        pins.ask(channel, 4096, 64)
    dut.axi__wvalid.value = "aw" in kinds
    await pins.cycles(1500)
    first, words, before = memory.cycle, memory.words, len(memory.commands)
    await pins.cycles(1500)
    assert memory.words - words >= 0.97 * (memory.cycle - first), kinds
    if len(kinds) == 2:
        recent = memory.commands[before:]
        shares = [sum(beats for write, _, beats in recent if write == kind) for kind in (False, True)]
        assert abs(shares[0] - shares[1]) <= 0.1 * sum(shares)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("bus", "probability_bits", "pieces"), [(4, 8, 4), (16, 8, 16), (16, 0, 16)])
def test_axi_bridge(bus, probability_bits, pieces):
    config = PRESETS["tiny"].replace(bus_bytes=bus, probability_bits=probability_bits)
    run_bench(AxiBridge(config, pieces=pieces), parameters={"config": config.to_dict(), "pieces": pieces})
