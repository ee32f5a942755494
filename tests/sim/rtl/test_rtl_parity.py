"""Memories with parity: equal results, and bit flips are noticed before results are used."""

from __future__ import annotations

import pytest
from support.bit_flips import flip_bits
from support.faulty_runs import CONFIG, PARITY, flips
from support.random_programs import MEMORY, Generator

from weft.hdl.isa.memmap import ParityMemory, Reg
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

CORES = pytest.mark.parametrize("sequential", [False, True], ids=["pipelined", "sequential"])
LONG = [range(3), pytest.param(range(100, 160), marks=pytest.mark.long)]


@CORES
@pytest.mark.parametrize("seeds", LONG, ids=str)
def test_programs(seeds: range, sequential: bool) -> None:
    for seed in seeds:
        generator = Generator(PARITY, seed, serial=False)
        generator.build(15)
        with RtlDevice(PARITY, MEMORY, stall_probability=0.3, sequential=sequential) as device:
            assert generator.run(device) == generator.run(GoldenDevice(PARITY, MEMORY))
            assert device._read_register(Reg.PARITY) == 0


@CORES
def test_changed_bits_are_reported(sequential: bool) -> None:
    found, _ = flips(PARITY, range(3), sequential, 256)
    assert found["wrong"] == 0
    assert found["told"] >= 3


@pytest.mark.long
@CORES
def test_few_changed_bits_are_reported(sequential: bool) -> None:
    """Some of them are never read. All memories have some."""
    found, counted = flips(PARITY, range(100, 160), sequential, 4096)
    assert found["wrong"] == 0
    assert found["told"] >= 60
    assert found["right"] >= 5
    memories = set(ParityMemory) - ({ParityMemory.FETCH} if sequential else set())
    assert {memory for memory in ParityMemory if counted >> 8 * memory & 0xFF} == memories


def test_without_parity_results_are_wrong() -> None:
    """Bit flips as above, so that the tests above can fail."""
    found, counted = flips(CONFIG, range(3), sequential=False, one_in=256)
    assert found["wrong"] >= 6
    assert counted == 0


def test_nothing_to_change() -> None:
    with pytest.raises(ValueError, match="no memory was found"):
        flip_bits("module other;\nendmodule\n", 256)
