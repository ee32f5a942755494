"""The scratchpad against a model of its rules: priorities, latency, and reads that follow writes."""

from __future__ import annotations

import random

import cocotb
import numpy as np
from cocotb.triggers import ReadOnly, RisingEdge
from support.unit_bench import start

from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.memory import Scratchpad
from weft.sim.rtl.bench import run_bench

CONFIG = PRESETS["tiny"].replace(scratchpad_depth=16)
READERS, WRITERS = 4, 2
CYCLES = 4000


def port(dut, kind, index, name):
    return getattr(dut, f"{kind}__{index}__{name}")


def expected_grants(wants, banks):
    """The first client that wants a bank gets it."""
    taken, granted = set(), []
    for want, bank in zip(wants, banks, strict=True):
        granted.append(want and bank not in taken)
        if want:
            taken.add(bank)
    return granted


@cocotb.test()
async def bench_random_clients(dut):
    """All clients at random on few addresses, so that banks and addresses collide often."""
    await start(dut)
    memory = np.zeros(CONFIG.scratchpad_size, dtype=object)
    due: list[dict[int, tuple[int, set[int]]]] = [{} for _ in range(READERS)]
    refused = [0] * READERS
    for cycle in range(CYCLES):
        await RisingEdge(dut.clk)
        asks = {}
        for kind, count in (("read", READERS), ("write", WRITERS)):
            for index in range(count):
                valid = random.random() < 0.6
                address = random.randrange(4) * CONFIG.scratchpad_depth + random.randrange(3)
                asks[kind, index] = (valid, address)
                port(dut, kind, index, "valid").value = valid
                port(dut, kind, index, "address").value = address
        data = [random.getrandbits(CONFIG.widths.vector) for _ in range(WRITERS)]
        for index in range(WRITERS):
            port(dut, "write", index, "data").value = data[index]
        await ReadOnly()

        after = {}
        for kind, count in (("write", WRITERS), ("read", READERS)):
            wants = [asks[kind, index][0] for index in range(count)]
            addresses = [asks[kind, index][1] for index in range(count)]
            granted = expected_grants(wants, [a // CONFIG.scratchpad_depth for a in addresses])
            for index in range(count):
                ready = bool(port(dut, kind, index, "ready").value)
                if wants[index]:
                    assert ready == granted[index], f"cycle {cycle}: {kind} {index} ready {ready}"
                if granted[index] and kind == "write":
                    after[addresses[index]] = data[index]
                if granted[index] and kind == "read":
                    old = int(memory[addresses[index]])
                    allowed = {old, after.get(addresses[index], old)}
                    due[index][cycle + READ_LATENCY] = (addresses[index], allowed)
                if kind == "read":
                    refused[index] += wants[index] and not granted[index]
        for index in range(READERS):
            if cycle in due[index]:
                address, allowed = due[index].pop(cycle)
                value = int(port(dut, "read", index, "data").value)
                assert value in allowed, f"cycle {cycle}: reader {index}, address {address}"
        for address, value in after.items():
            memory[address] = value
    assert refused[0] == 0
    assert all(refused[1:])


def test_scratchpad():
    run_bench(Scratchpad(CONFIG, readers=READERS, writers=WRITERS))
