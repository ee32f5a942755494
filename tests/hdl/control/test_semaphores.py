"""Semaphores and dispatchers against plain counts and lists."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import cocotb
import pytest
from cocotb.triggers import FallingEdge, ReadOnly
from support.unit_bench import start

from weft.hdl.control.semaphores import Dispatcher, Semaphores
from weft.hdl.isa import (
    INSTRUCTIONS,
    SEMAPHORE_MAX,
    SEMAPHORES,
    Instruction,
    Load,
    Mm,
    Normalise,
    Opcode,
    Queue,
    Softmax,
    Store,
    Table,
    Vec,
    decode,
    limits,
)
from weft.hdl.isa.config import PRESETS
from weft.sim.rtl.bench import bench_parameters, run_bench


@cocotb.test()
async def bench_semaphores(dut: Any) -> None:
    """Random gives and takes, of many semaphores at once; the model is a list of integers."""
    names = [f"{kind}__{queue.value}" for kind in ("give", "take") for queue in Queue]
    await start(dut, clear=0, **dict.fromkeys(names, 0))
    counts, most = [0] * SEMAPHORES, 0
    for cycle in range(4000):
        await FallingEdge(dut.clk)
        available = int(dut.available.value)
        assert available == sum((count > 0) << index for index, count in enumerate(counts))
        rate = 1.0 if cycle % 1200 < 600 else 0.2
        takers = [random.randrange(len(Queue)) for _ in range(SEMAPHORES)]
        masks = dict.fromkeys(names, 0)
        for index, count in enumerate(counts):
            taken = count > 0 and random.random() < 0.5
            given = (count < SEMAPHORE_MAX or taken) and random.random() < rate
            masks[f"give__{random.choice(list(Queue)).value}"] |= given << index
            masks[f"take__{takers[index]}"] |= taken << index
            counts[index] += given - taken
        most = max(most, *counts)
        clear = random.random() < 0.0005
        if clear:
            counts = [0] * SEMAPHORES
        dut.clear.value = clear
        for name, mask in masks.items():
            getattr(dut, name).value = mask
    assert most == SEMAPHORE_MAX


@cocotb.test()
async def bench_dispatcher(dut: Any) -> None:
    """Order, content, and that an instruction passes exactly when its semaphores are there."""
    opcodes, part, depth = (bench_parameters()[name] for name in ("opcodes", "part", "depth"))
    await start(dut, fetched__valid=0, fetched__payload=0, instruction__ready=0, available=0)
    sent: list[bytes] = []
    received: list[bytes] = []
    offered: bytes | None = None
    index = seen_waiting = most = 0
    held = False  # whether the next instruction stands in the register behind the memory
    granted = False  # whether that has had its semaphores, which stay
    head = None
    for cycle in range(bench_parameters()["cycles"]):
        await FallingEdge(dut.clk)
        starts = offered is None and random.random() < 0.6
        if starts:
            wait = random.choice(
                [0, 1 << random.randrange(16), random.randrange(1 << 16) & random.randrange(1 << 16)]
            )
            kind = INSTRUCTIONS[Opcode(random.choice(opcodes))]
            last = dataclasses.fields(kind)[-1]  # with every bit set, its value is legal
            given = {last.name: -1 if last.metadata["signed"] else limits(last)[1]}
            offered = kind(wait=wait, signal=random.randrange(1 << 16), **given).encode()
        valid = offered is not None and (starts or random.random() < 0.9)
        data = (offered or bytes(64))[index * part : (index + 1) * part]
        dut.fetched__valid.value = valid
        dut.fetched__payload.value = int.from_bytes(data, "little") | index << 8 * part
        available = random.randrange(1 << 16) | random.randrange(1 << 16) | (head.wait if granted else 0)
        dut.available.value = available
        dut.instruction__ready.value = random.random() < (0.02 if cycle % 1200 < 300 else 0.7)
        await ReadOnly()
        assert int(dut.empty.value) == (len(sent) == len(received))
        held = held if depth > 1 else len(sent) > len(received)
        head = decode(sent[len(received)]) if held else None
        satisfied = head is not None and not head.wait & ~available
        assert int(dut.instruction__valid.value) == granted
        assert int(dut.waiting.value) == (head is not None and not granted and not satisfied)
        seen_waiting += int(dut.waiting.value)
        moved = granted and int(dut.instruction__ready.value)
        granted = satisfied and not moved
        held = len(sent) - len(received) > held if moved or not held else True
        assert int(dut.take.value) == (head.wait if moved else 0)
        if offered is not None and valid and int(dut.fetched__ready.value):
            index += 1
            if index == 64 // part:
                sent.append(offered)
                offered, index = None, 0
        if moved:
            received.append(int(dut.instruction__payload.value).to_bytes(64, "little"))
            assert received[-1] == sent[len(received) - 1]
        most = max(most, len(sent) - len(received))
    assert most == depth + (depth > 1)  # as the unit accepts little for many cycles together
    assert len(received) > 400
    assert seen_waiting > 500


def test_semaphores() -> None:
    run_bench(Semaphores(), only="bench_semaphores")


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("kinds", "bus_bytes", "depth"),
    [((Mm,), 4, 4), ((Mm,), 64, 1), ((Vec, Softmax, Normalise, Table), 16, 4), ((Load, Store), 128, 2)],
)
def test_dispatcher(kinds: tuple[type[Instruction], ...], bus_bytes: int, depth: int) -> None:
    config = PRESETS["tiny"].replace(bus_bytes=bus_bytes, queue_depth=depth)
    parameters = {
        "opcodes": [int(kind.OPCODE) for kind in kinds],
        "part": min(bus_bytes, 64),
        "depth": depth,
        "cycles": 6000 if bus_bytes >= 64 else 20000,
    }
    run_bench(Dispatcher(config, kinds), parameters=parameters, only="bench_dispatcher")
