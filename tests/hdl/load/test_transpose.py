"""The transposer with stalls on both sides: instructions that transpose and others, in any order."""

from __future__ import annotations

import dataclasses
import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge, ReadOnly
from support.unit_bench import start

from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.load.transpose import Transposer
from weft.hdl.load.unpack import vector_layout
from weft.sim.rtl.bench import bench_parameters, run_bench


@dataclasses.dataclass
class Operation:
    """The vectors of an instruction, the address of each (of the first, where they are transposed)."""

    vectors: list[bytes]
    addresses: list[int]
    pixel: int  # its vectors
    transpose: bool
    fill: int
    dst_group: int
    dst_pixel: int
    dst_vector: int
    signal: int


def random_operation(config: Config) -> Operation:
    n = config.n
    pixel = random.randint(1, config.transposed_vectors)
    count = pixel * random.choice([1, n - 1, n, n + 1, 2 * n, random.randint(1, 5 * n)])
    dst_group, dst_pixel, dst_vector = (random.randrange(config.scratchpad_size) for _ in range(3))
    return Operation(
        vectors=[random.randbytes(n) for _ in range(count)],
        addresses=[random.randrange(config.scratchpad_size) for _ in range(count)],
        pixel=pixel, transpose=random.random() < 0.7, fill=random.randrange(256),
        dst_group=dst_group, dst_pixel=dst_pixel, dst_vector=dst_vector,
        signal=random.getrandbits(16) * (random.random() < 0.8),
    )  # fmt: skip


def beats(operation: Operation) -> list[dict[str, int]]:
    """Return the transposer's input, field by field of `vector_layout`."""
    last = len(operation.vectors) - 1
    return [
        {
            "address": address, "data": int.from_bytes(vector, "little"), "last": int(index == last),
            "pixel_end": int(index % operation.pixel == operation.pixel - 1), "dst_pixel": operation.dst_pixel,
            "signal": operation.signal if index == last else 0, "fill": operation.fill,
            "transpose": int(operation.transpose), "dst_group": operation.dst_group,
            "dst_vector": operation.dst_vector,
        }
        for index, (vector, address) in enumerate(zip(operation.vectors, operation.addresses, strict=True))
    ]  # fmt: skip


def expected_writes(operation: Operation, config: Config) -> list[tuple[int, bytes]]:
    """Return the expected output, in order."""
    if not operation.transpose:
        return list(zip(operation.addresses, operation.vectors, strict=True))
    n, size, out = config.n, operation.pixel, []
    for group in range(-(-len(operation.vectors) // (n * size))):
        vectors = operation.vectors[group * n * size : (group + 1) * n * size]
        vectors += [bytes([operation.fill] * n)] * (n * size - len(vectors))
        first = operation.addresses[0] + group * operation.dst_group
        for v in range(size):
            for i in range(n):
                address = first + v * operation.dst_pixel + i * operation.dst_vector
                out.append(
                    (address % config.scratchpad_size, bytes(vector[i] for vector in vectors[v::size]))
                )
    return out


async def run(dut, config: Config, operations: list[Operation], *, pause: float, refuse: float) -> list[int]:
    """Run `operations`, check every write and signal; returns the cycles of the writes."""
    layout = vector_layout(config)
    waiting = [beat for operation in operations for beat in beats(operation)]
    expected = [write for operation in operations for write in expected_writes(operation, config)]
    signals, written_before = [], 0
    for operation in operations:
        written_before += len(expected_writes(operation, config))
        if operation.signal:
            signals.append((written_before, operation.signal))
    cycles: list[int] = []
    cycle, offered = 0, False
    while waiting or dut.busy.value:
        if mask := int(dut.signal.value):
            assert (len(cycles), mask) == signals.pop(0)
            assert cycles[-1] == cycle - 1, "a signal comes right behind the write"
        offered = bool(waiting) and (offered or random.random() >= pause)
        dut.vector__valid.value = int(offered)
        if offered:
            dut.vector__payload.value = sum(
                value << layout[name].offset for name, value in waiting[0].items()
            )
        dut.scratchpad__ready.value = int(random.random() >= refuse)
        await ReadOnly()
        if offered and dut.vector__ready.value:
            waiting.pop(0)
            offered = False
        if dut.scratchpad__valid.value and dut.scratchpad__ready.value:
            vector = int(dut.scratchpad__data.value).to_bytes(config.n, "little")
            assert (int(dut.scratchpad__address.value), vector) == expected[len(cycles)], (
                f"write {len(cycles)}, cycle {cycle}"
            )
            cycles.append(cycle)
        await FallingEdge(dut.clk)
        cycle += 1
        assert cycle < 100_000, "the transposer hangs"
    assert len(cycles) == len(expected)
    assert not signals
    return cycles


@cocotb.test()
async def bench_random(dut):
    config = Config.from_dict(bench_parameters()["config"])
    await start(dut, vector__valid=0, scratchpad__ready=0)
    for _ in range(20):
        pause, refuse = random.choice([0, 0.3, 0.8]), random.choice([0, 0.3, 0.8])
        operations = [random_operation(config) for _ in range(10)]
        await run(dut, config, operations, pause=pause, refuse=refuse)


@cocotb.test()
async def bench_full_rate(dut):
    """A vector a cycle, from one group and from one instruction to the next; others leave a cycle after they come."""
    config = Config.from_dict(bench_parameters()["config"])
    await start(dut, vector__valid=0, scratchpad__ready=0)
    n = config.n
    most = config.transposed_vectors
    for transpose, pixel in ((True, 1), (True, most), (False, 1)):
        operations = [random_operation(config) for _ in range(8)]
        for operation in operations:
            operation.vectors = [random.randbytes(n) for _ in range(3 * n * pixel)]
            operation.addresses = list(range(3 * n * pixel))
            operation.transpose, operation.pixel = transpose, pixel
        cycles = await run(dut, config, operations, pause=0, refuse=0)
        assert cycles == list(range(cycles[0], cycles[0] + 8 * 3 * n * pixel))
        assert cycles[0] == (n * pixel + 3 if transpose else 1)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("n", [2, 4, 8])
def test_transpose(n):
    config = PRESETS["tiny"].replace(n=n, lanes=2, bus_bytes=8)
    run_bench(Transposer(config), parameters={"config": config.to_dict()})
