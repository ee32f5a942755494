"""The processor against an interpreter of its words: random programs, with units and others that take their time."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
from cocotb.triggers import FallingEdge, ReadOnly
from support.processor_model import (
    CONSTANTS,
    EXTREMES,
    MASK,
    OTHERS,
    RATE,
    SETTINGS,
    Interpreter,
    RandomProgram,
    Units,
    lanes_start,
)
from support.unit_bench import start

from weft.hdl.sequential.assembler import CONDITIONS, PORTS, Condition, MemoryOut, Out, Port
from weft.hdl.sequential.processor import Processor
from weft.sim.rtl.bench import bench_parameters, run_bench

RUNS = 5
PATIENCE = 400
"""Cycles in which something must happen."""


class Others:
    """A writer and a reader of data memory.

    Parameters
    ----------
    memory : list of int
        Contents of data memory.
    end : int
        End of the words that can be read while the program runs.
    """

    def __init__(self, dut: Any, memory: list[int], end: int) -> None:
        self.dut, self.memory, self.end = dut, memory, end
        self.rate = 0.2
        self.writes: list[tuple[int, int, int]] = []  # address, data, strobe: to come
        self.reads: list[int] = []
        self.known: set[int] | None = None  # what the word may be that is read in this cycle
        self.waited = 0

    def drive(self) -> None:
        dut = self.dut
        if not self.writes and random.random() < self.rate:
            self.writes.append((random.choice(OTHERS), random.getrandbits(32), random.getrandbits(4)))
        if not self.reads and random.random() < self.rate:
            self.reads.append(random.choice((*OTHERS, *SETTINGS, *range(CONSTANTS, self.end))))
        dut.write_valid.value, dut.read_valid.value = bool(self.writes), bool(self.reads)
        if self.writes:
            dut.write_address.value, dut.write_data.value, dut.write_strobe.value = self.writes[0]
        dut.read_address.value = self.reads[0] if self.reads else random.randrange(len(self.memory))

    def sample(self) -> None:
        dut = self.dut
        if self.known is not None:
            assert int(dut.read_data.value) in self.known
        self.known = None
        self.waited += 1
        if self.reads and dut.read_ready.value:
            self.known = {self.memory[self.reads[0]]}
        if self.writes and dut.write_ready.value:
            address, value, strobe = self.writes.pop(0)
            mask = sum(0xFF << 8 * lane for lane in range(4) if strobe >> lane & 1)
            self.memory[address] = self.memory[address] & ~mask | value & mask
            self.waited = 0
        if self.known is not None:
            self.known.add(self.memory[self.reads.pop(0)])
            self.waited = 0
        assert self.waited < PATIENCE or not (self.writes or self.reads)


class Bench:
    """Units that answer as those of the interpreter do, when they are ready."""

    def __init__(self, dut: Any) -> None:
        parameters = bench_parameters()
        self.dut, self.stall = dut, 0.0
        self.memory: list[int] = parameters["memory"]
        depth, self.lanes = len(self.memory), parameters["lanes"]
        self.others = Others(dut, self.memory, lanes_start(self.lanes, depth))
        self.units = Units(0)
        self.model = Interpreter(
            parameters["program"], parameters["bits"], self.memory, Units(0), lanes=self.lanes
        )
        self.expected: list[tuple[int, int | None, int]] = []
        self.times: list[int] = []
        self.started = self.valid = False
        self.busy = {"multiplier": 0, "rows": 0}  # cycles until they are done
        self.cycles = 0

    async def reset(self) -> None:
        names = ("ready", "word_valid", "flag", "round", "write_valid", "read_valid")
        await start(self.dut, **dict.fromkeys(names, 0))

    async def cycle(self) -> None:
        self.drive()
        self.others.drive()
        await ReadOnly()
        self.others.sample()
        self.sample()
        await FallingEdge(self.dut.clk)
        self.cycles += 1

    def drive(self) -> None:
        dut, units = self.dut, self.units
        ready, done = not self.busy["multiplier"], not self.busy["rows"]
        more = units.taken < self.model.units.taken  # the memory unit has no words that are not taken
        self.valid = more and (self.valid or random.random() >= self.stall)
        product = Port.RAW if dut.odd.value else Port.PRODUCT
        ports = {port: units.port(port) for port in (Port.ELEMENT, Port.BYTE, Port.TABLE)}
        ports[Port.WORD] = units.port(Port.WORD) if self.valid else random.getrandbits(32)
        ports[Port.PRODUCT] = ports[Port.RAW] = units.port(product) if ready else random.getrandbits(32)
        ports[Port.SUM] = units.port(Port.SUM) if done else random.getrandbits(32)
        for port in range(PORTS + bool(self.lanes)):
            # Those of the processor itself are anything.
            getattr(dut, f"port__{int(port)}").value = ports.get(port, random.getrandbits(32))
        flags = {condition: units.flag(condition) for condition in range(Condition.STARTED, CONDITIONS)}
        flags |= {Condition.STARTED: int(self.started), Condition.ROWS_DONE: int(done)}
        own = random.getrandbits(Condition.STARTED)
        if self.lanes:
            own |= random.getrandbits(1) << Condition.LANES_ZERO
        dut.flag.value = own | sum(value << condition for condition, value in flags.items())
        dut.ready.value, dut.word_valid.value = ready, self.valid
        dut.round.value = units.round() if ready else random.getrandbits(1)

    def sample(self) -> None:
        """Apply the inputs that a unit was given a cycle before."""
        dut = self.dut
        for name, left in self.busy.items():
            self.busy[name] = max(left - 1, 0)
        if dut.word_taken.value:
            assert self.valid
            self.units.taken += 1
            self.valid = False
        out = int(dut.out.value)
        if not out:
            return
        operand, result = int(dut.operand.value), int(dut.result.value)
        assert self.expected, "all was given already"
        unit, its_operand, its_result = self.expected.pop(0)
        assert (out, result) == (unit, its_result), (
            f"{Out(out).name}, not {Out(unit).name}, {len(self.times)} in"
        )
        assert its_operand is None or operand == its_operand
        self.times.append(self.cycles)
        self.units.give(out, operand, result)
        if out in (Out.MULTIPLY, Out.MULTIPLY_ADD):
            self.busy["multiplier"] = random.choice((0, 1, 2, 10))
        if out == Out.ROWS:
            self.busy["rows"] = random.choice((0, 1, 2, 10))
        if (out, operand) == (Out.MEMORY, MemoryOut.FINISH):
            self.started = False

    async def run(self) -> None:
        """Once through the program."""
        seed = random.getrandbits(32)
        self.units, self.model.units = Units(seed), Units(seed)
        self.expected = self.model.run()
        self.times.clear()
        self.started = True
        quiet = 0
        while self.expected:
            left = len(self.expected)
            await self.cycle()
            quiet = quiet + 1 if len(self.expected) == left else 0
            assert quiet < PATIENCE, f"nothing comes after {len(self.times)}"
        assert self.units.taken == self.model.units.taken

    async def settle(self) -> None:
        """Until others have done what they wanted; the program waits to be started."""
        while self.others.writes or self.others.reads or self.others.known:
            await self.cycle()


@cocotb.test()
async def bench_random_programs(dut: Any) -> None:
    """Everything given to units, and all of data memory in the end."""
    bench = Bench(dut)
    await bench.reset()
    for _ in range(20):
        await bench.cycle()
    for run in range(RUNS):
        bench.stall = random.choice((0.0, 0.3, 0.8))
        for address in SETTINGS:
            value = random.choice(
                (random.getrandbits(32), random.choice(EXTREMES) & MASK, random.randrange(9))
            )
            bench.others.writes.append((address, value, 15))
        await bench.settle()
        bench.others.rate = random.choice((0.0, 0.2, 0.8))
        await bench.run()
        first = [time - bench.times[0] for time in bench.times[: RATE + 1]]
        assert first == [*range(RATE), RATE + 1], "a word a cycle, jumps included"
        bench.others.rate = 0.0
        bench.others.reads.extend(range(len(bench.memory)))
        await bench.settle()
        print(f"run {run}: {len(bench.times)} results in {bench.times[-1] - bench.times[0]} cycles")


def run(seed: int, operand_bits: int, depth: int, lanes: int = 0) -> None:
    words = RandomProgram(seed, operand_bits, lanes, depth).words
    memory = [random.Random(seed + address).getrandbits(32) for address in range(depth)]
    run_bench(
        Processor(words, operand_bits, memory, depth, lanes),
        parameters={"program": words, "memory": memory, "bits": operand_bits, "lanes": lanes},
    )


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("seed", "operand_bits", "depth", "lanes"), [(1, 11, 64, 0), (2, 12, 128, 0), (3, 11, 512, 4)]
)
def test_processor(seed: int, operand_bits: int, depth: int, lanes: int) -> None:
    """The program is fixed, so that its simulator is built once; all else varies."""
    run(seed, operand_bits, depth, lanes)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.parametrize(("depth", "lanes"), [(64, 0), (256, 2), (1024, 4), (1024, 8)])
def test_more_programs(seed: int, depth: int, lanes: int) -> None:
    run(seed, 11, depth, lanes)
