"""Semaphores and dispatchers against plain counts and lists."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import cocotb
import pytest
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

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
from weft.hdl.semaphores import Dispatcher, Semaphores
from weft.sim.bench import bench_parameters, run_bench


async def reset(dut: Any, **inputs: int) -> None:
    cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
    for name, value in inputs.items():
        getattr(dut, name).value = value
    dut.rst.value = 1
    await FallingEdge(dut.clk)
    await FallingEdge(dut.clk)
    dut.rst.value = 0


@cocotb.test()
async def bench_semaphores(dut: Any) -> None:
    """Random gives and takes, of many semaphores at once; the model is a list of integers."""
    names = [f"{kind}__{queue.value}" for kind in ("give", "take") for queue in Queue]
    await reset(dut, clear=0, **dict.fromkeys(names, 0))
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
    opcodes = bench_parameters()["opcodes"]
    await reset(dut, fetched__valid=0, fetched__payload=0, instruction__ready=0, available=0)
    sent: list[bytes] = []
    received: list[bytes] = []
    offered: bytes | None = None
    seen_waiting = 0
    for _ in range(6000):
        await FallingEdge(dut.clk)
        if offered is None and random.random() < 0.6:
            wait = random.choice(
                [0, 1 << random.randrange(16), random.randrange(1 << 16) & random.randrange(1 << 16)]
            )
            kind = INSTRUCTIONS[Opcode(random.choice(opcodes))]
            last = dataclasses.fields(kind)[-1]  # with every bit set, its value is legal
            given = {last.name: -1 if last.metadata["signed"] else limits(last)[1]}
            offered = kind(wait=wait, signal=random.randrange(1 << 16), **given).encode()
        dut.fetched__valid.value = offered is not None
        dut.fetched__payload.value = int.from_bytes(offered or bytes(64), "little")
        available = random.randrange(1 << 16) | random.randrange(1 << 16)
        dut.available.value = available
        dut.instruction__ready.value = random.random() < 0.7
        await ReadOnly()
        assert int(dut.empty.value) == (len(sent) == len(received))
        head = decode(sent[len(received)]) if len(received) < len(sent) else None
        satisfied = head is not None and not head.wait & ~available
        assert int(dut.instruction__valid.value) == satisfied
        assert int(dut.waiting.value) == (head is not None and not satisfied)
        seen_waiting += int(dut.waiting.value)
        moved = satisfied and int(dut.instruction__ready.value)
        assert int(dut.take.value) == (head.wait if moved else 0)
        if offered is not None and int(dut.fetched__ready.value):
            sent.append(offered)
            offered = None
        if moved:
            received.append(int(dut.instruction__payload.value).to_bytes(64, "little"))
            assert received[-1] == sent[len(received) - 1]
        assert len(sent) - len(received) <= 4
    assert len(received) > 500
    assert seen_waiting > 500


def test_semaphores() -> None:
    run_bench(Semaphores(), only="bench_semaphores")


@pytest.mark.parametrize("kinds", [(Mm,), (Vec, Softmax, Normalise, Table), (Load, Store)])
def test_dispatcher(kinds: tuple[type[Instruction], ...]) -> None:
    opcodes = [int(kind.OPCODE) for kind in kinds]
    run_bench(Dispatcher(kinds, depth=4), parameters={"opcodes": opcodes}, only="bench_dispatcher")
