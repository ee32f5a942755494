# amaranth: UnusedElaboratable=no
"""The matrix unit with the accumulator behind it, against the definition of `Mm` in numpy."""

from __future__ import annotations

import itertools
import random
from collections import deque

import cocotb
import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import FallingEdge, ReadOnly
from support.unit_bench import start

from weft.hdl.isa import Mm
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.operands import READ_LATENCY, rmw_latency
from weft.hdl.lib import ports
from weft.hdl.matrix.mm import Alignments, MmUnit
from weft.hdl.memory import Accumulator
from weft.sim.rtl.bench import bench_parameters, run_bench

LIMIT = 50_000
"""Cycles, more than any program here takes."""


class MmAndAccumulator(wiring.Component):
    """Matrix unit and accumulator, with softmax the alignments, too; the scratchpad ports left open."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.outside = {
            name: member
            for name, member in MmUnit(config).signature.members.items()
            if name not in ("c", "alignments")
        }
        members = {**self.outside, "read": In(ports.accumulator_read(config))}
        if config.softmax:
            members["write_alignment"] = In(ports.alignment_write(config))
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.mm = mm = MmUnit(self.config)
        m.submodules.accumulator = accumulator = Accumulator(self.config)
        wiring.connect(m, mm.c, accumulator.write)
        wiring.connect(m, wiring.flipped(self.read), accumulator.read)
        if self.config.softmax:
            m.submodules.alignments = alignments = Alignments(self.config)
            wiring.connect(m, mm.alignments, alignments.mm)
            wiring.connect(m, wiring.flipped(self.write_alignment), alignments.write)
        for name, member in self.outside.items():
            if member.is_signature:
                inner, outer = getattr(mm, name), wiring.flipped(getattr(self, name))
                wiring.connect(m, outer, inner)
            elif member.is_port:
                assert member.flow is Out
                m.d.comb += getattr(self, name).eq(getattr(mm, name))
        return m


def wrap(value: int) -> int:
    return value & 0xFFFF


def tiles(mm: Mm) -> itertools.product:
    return itertools.product(range(mm.nt), range(mm.ky), range(mm.kx), range(mm.kc))


def c_row(mm: Mm, config: Config, nt: int, oy: int, ox: int) -> int:
    return (mm.c + nt * mm.c_nt + oy * mm.c_oy + ox * mm.c_ox) % config.accumulator_size


def rsh(values: np.ndarray, shift: int) -> np.ndarray:
    return values if shift == 0 else (values.astype(np.int64) + (1 << shift - 1)) >> shift


def execute(
    mm: Mm, config: Config, scratchpad: np.ndarray, accumulator: np.ndarray, alignments: np.ndarray
) -> None:
    """`Mm` to the letter of its docstring; addresses wrap around the memories."""
    zero = mm.zero if config.wide_activations else 0
    for nt, ky, kx, kc in tiles(mm):
        if ky == kx == kc == 0:
            entry = mm.alignment
        b = mm.b + nt * mm.b_nt + ky * mm.b_ky + kx * mm.b_kx + kc * mm.b_kc
        weights = scratchpad[[wrap(b + j * mm.b_row) % len(scratchpad) for j in range(config.n)]].astype(
            np.int32
        )
        line: list[np.ndarray] = []
        for oy, ox in itertools.product(range(mm.oy), range(mm.ox)):
            a = mm.a + nt * mm.a_nt + ky * mm.a_ky + kx * mm.a_kx + kc * mm.a_kc + oy * mm.a_oy + ox * mm.a_ox
            y, x = wrap(mm.y + ky * mm.y_ky + oy * mm.y_oy), wrap(mm.x + kx * mm.x_kx + ox * mm.x_ox)
            row = np.full(config.n, mm.pad, np.int32)
            if y < mm.h and x < mm.w:
                row = scratchpad[wrap(a) % len(scratchpad)].astype(np.int32)
            c = c_row(mm, config, nt, oy, ox)
            if not mm.accumulate and ky == kx == kc == 0:
                accumulator[c] = 0
            shift = int(alignments[entry % config.alignments]) if mm.align else 0
            line = [row - zero] if not ox else [*line, row - zero]
            products = rsh(
                sum_taps(line, weights, config) if mm.depthwise else weights @ line[-1], max(-shift, 0)
            )
            accumulator[c] = (rsh(accumulator[c], max(shift, 0)) + products).astype(np.uint32).view(np.int32)
            entry += 1


def sum_taps(line: list[np.ndarray], weights: np.ndarray, config: Config) -> np.ndarray:
    """Sum the products of a line's last rows with the tap words, channel by channel."""
    taps = weights[config.n - 2 * config.depthwise_taps :: 2]
    return sum(row * tap for row, tap in zip(line[::-1], taps[::-1], strict=False))


def rows_of(mm: Mm, config: Config, nt: int) -> list[int]:
    return [c_row(mm, config, nt, oy, ox) for oy, ox in itertools.product(range(mm.oy), range(mm.ox))]


def address() -> int:
    return random.getrandbits(16)


def step() -> int:
    return random.randint(-0x8000, 0x7FFF)


def optional_fields(config: Config) -> dict[str, int]:
    fields = {}
    if config.depthwise_taps:
        fields["depthwise"] = random.getrandbits(1)
    if config.wide_activations:
        fields["zero"] = random.choice([-128, -128, 0, 127, random.randint(-128, 127)])
    if config.softmax and random.random() < 0.7:
        fields |= {"align": 1, "alignment": random.getrandbits(12)}
    return fields


def random_mm(config: Config) -> Mm:
    """Any instruction: all strides random, some rows out of range, rows of C different within a tile."""
    while True:
        mm = Mm(
            accumulate=random.getrandbits(1), signal=random.getrandbits(16) * (random.random() < 0.8),
            nt=random.randint(1, 2), ky=random.randint(1, 2), kx=random.randint(1, 3), kc=random.randint(1, 2),
            oy=random.randint(1, 4), ox=random.randint(1, 5),
            a=address(), a_nt=step(), a_ky=step(), a_kx=step(), a_kc=step(), a_oy=step(), a_ox=step(),
            y=random.randint(-4, 4), x=random.randint(-4, 4), h=random.randint(1, 6), w=random.randint(1, 6),
            y_ky=random.randint(-2, 2), y_oy=random.randint(-2, 2), x_kx=random.randint(-2, 2),
            x_ox=random.randint(-2, 2), pad=random.randint(-128, 127),
            b=address(), b_nt=step(), b_ky=step(), b_kx=step(), b_kc=step(), b_row=step(),
            c=address(), c_nt=step(), c_oy=step(), c_ox=step(), **optional_fields(config),
        )  # fmt: skip
        if all(len(set(rows_of(mm, config, nt))) == mm.oy * mm.ox for nt in range(mm.nt)):
            return mm


def convolution(config: Config) -> Mm:
    """A convolution as the compiler writes it: stride, dilation and padding over a height x width input."""
    kernel, stride, dilation, height, width = (random.randint(1, k) for k in (3, 2, 2, 5, 5))
    padding = random.randint(0, 2)
    span = dilation * (kernel - 1) + 1
    oy = max((height + 2 * padding - span) // stride + 1, 1)
    ox = max((width + 2 * padding - span) // stride + 1, 1)
    kc, nt = random.randint(1, 2), random.randint(1, 2)
    return Mm(
        nt=nt, ky=kernel, kx=kernel, kc=kc, oy=oy, ox=ox, signal=random.getrandbits(16),
        a=wrap(random.randrange(64) - padding * (width + 1) * kc),
        a_ky=dilation * width * kc, a_kx=dilation * kc, a_kc=1, a_oy=stride * width * kc, a_ox=stride * kc,
        y=-padding, x=-padding, h=height, w=width, pad=random.randint(-128, 127),
        y_ky=dilation, x_kx=dilation, y_oy=stride, x_ox=stride,
        b=random.randrange(64), b_nt=kernel * kernel * kc * config.n, b_ky=kernel * kc, b_kx=kc, b_kc=1,
        b_row=kernel * kernel * kc, **optional_fields(config),
        c=random.randrange(config.accumulator_size), c_nt=oy * ox, c_oy=ox, c_ox=1,
    )  # fmt: skip


def gemm(config: Config, rows: int, *, c: int, depth: int = 1, columns: int = 1, accumulate: int = 0) -> Mm:
    """``rows`` x ``depth*N`` times ``columns*N`` x ``depth*N`` transposed."""
    return Mm(
        accumulate=accumulate, nt=columns, kc=depth, ox=rows, signal=1 + random.getrandbits(15),
        a=random.randrange(64), a_kc=1, a_ox=depth, b=random.randrange(64), b_nt=config.n * depth, b_kc=1,
        b_row=depth, c=c, c_nt=rows, c_ox=1, **optional_fields(config),
    )  # fmt: skip


def back_and_forth(config: Config) -> list[Mm]:
    """The second instruction adds to the rows of the first one, beginning with the one written last."""
    rows, c = random.randint(1, 6), random.randrange(config.accumulator_size - 8)
    forth = gemm(config, rows, c=c)
    back = gemm(config, rows, c=c + rows - 1, accumulate=1)
    return [forth, Mm(**{**vars(back), "c_ox": -1})]


class Bench:
    """Drives instructions and scratchpad, watches signals; `run` returns what happened in which cycle."""

    def __init__(self, dut) -> None:
        self.dut = dut
        self.config = Config.from_dict(bench_parameters()["config"])
        generator = np.random.default_rng(random.getrandbits(32))
        shape = (self.config.scratchpad_size, self.config.n)
        self.scratchpad = generator.integers(-128, 128, shape).astype(np.int8)
        # Mostly small ones: the others leave little of what they shift.
        wide = generator.random(self.config.alignments) < 0.2
        small = generator.integers(-4, 5, self.config.alignments)
        self.alignments = np.where(wide, generator.integers(-31, 32, self.config.alignments), small)
        self.checks = 0

    async def reset(self) -> None:
        dut = self.dut
        await start(dut, instruction__valid=0, a__ready=0, read__valid=0, b__ready=1)
        self.accumulator = await self.contents()  # left over from the bench before
        if self.config.softmax:
            dut.write_alignment__valid.value = 1
            for entry, alignment in enumerate(self.alignments):
                dut.write_alignment__address.value = entry
                dut.write_alignment__data.value = int(alignment) & 63
                await FallingEdge(dut.clk)
            dut.write_alignment__valid.value = 0

    def fetch(self, name: str, ready: bool, flying: deque) -> None:
        """Run one cycle of a scratchpad port; `flying` holds the reads of the last cycles."""
        valid, at = getattr(self.dut, f"{name}__valid").value, getattr(self.dut, f"{name}__address").value
        word = self.scratchpad[int(at)] if valid and ready else None
        flying.append(int.from_bytes(word.tobytes(), "little") if valid and ready else None)
        due = flying.popleft()
        getattr(self.dut, f"{name}__data").value = (
            random.getrandbits(8 * self.config.n) if due is None else due
        )

    async def run(
        self, program: list[Mm], *, refuse: float = 0.0, pause: float = 0.0
    ) -> dict[str, list[int]]:
        """Run `program` and compare the signals, the last row at each signal, and the accumulator at the end."""
        dut, config = self.dut, self.config
        expected = deque()
        for mm, following in itertools.pairwise([*program, None]):
            execute(mm, config, self.scratchpad, self.accumulator, self.alignments)
            last = rows_of(mm, config, mm.nt - 1)[-1]
            ahead = (
                []
                if following is None
                else [r for t in range(following.nt) for r in rows_of(following, config, t)]
            )
            expected.append((mm.signal, last, None if last in ahead else self.accumulator[last].copy()))
        flying = {"a": deque([None] * READ_LATENCY), "b": deque([None] * READ_LATENCY)}
        events = {name: [] for name in ("row", "write", "stall_weights", "stall_port", "signal")}
        reads, waiting, cycle = {}, deque(program), 0
        while waiting or dut.busy.value:
            if cycle in reads:
                seen = np.frombuffer(int(dut.read__data.value).to_bytes(4 * config.n, "little"), np.int32)
                assert np.array_equal(seen, reads.pop(cycle)), (
                    f"the row written last before a signal, read in cycle {cycle}"
                )
                self.checks += 1
            ready = random.random() >= refuse
            dut.a__ready.value = int(ready)
            self.fetch("a", ready, flying["a"])
            self.fetch("b", True, flying["b"])
            dut.read__valid.value = 0
            if mask := int(dut.signal.value):
                events["signal"].append(mask)
                while not expected[0][0]:
                    expected.popleft()
                assert mask == expected[0][0]
                _, last, content = expected.popleft()
                dut.read__valid.value, dut.read__address.value = 1, last
            offered = bool(waiting) and random.random() >= pause
            dut.instruction__valid.value = int(offered)
            if offered:
                dut.instruction__payload.value = int.from_bytes(waiting[0].encode(), "little")
            await ReadOnly()
            if mask and dut.read__ready.value and content is not None:
                reads[cycle + READ_LATENCY] = content
            if offered and dut.instruction__ready.value:
                waiting.popleft()
            for name in ("row", "write", "stall_weights", "stall_port"):
                if getattr(dut, name).value:
                    events[name].append(cycle)
            await FallingEdge(dut.clk)
            cycle += 1
            assert cycle < LIMIT, "the unit hangs"
        dut.instruction__valid.value = 0
        assert not any(mask for mask, _, _ in expected), "a signal is missing"
        assert np.array_equal(await self.contents(), self.accumulator)
        return events

    async def contents(self) -> np.ndarray:
        """Read the whole accumulator."""
        rows = []
        self.dut.read__valid.value = 1
        for row in range(self.config.accumulator_size):
            self.dut.read__address.value = row
            for _ in range(READ_LATENCY):
                await FallingEdge(self.dut.clk)
            rows.append(int(self.dut.read__data.value).to_bytes(4 * self.config.n, "little"))
        self.dut.read__valid.value = 0
        return np.frombuffer(b"".join(rows), np.int32).reshape(-1, self.config.n).copy()


@cocotb.test()
async def bench_random(dut):
    bench = Bench(dut)
    await bench.reset()
    for _ in range(bench_parameters()["rounds"]):
        program = []
        for _ in range(12):
            kind = random.randrange(4)
            if kind == 0:
                program += back_and_forth(bench.config)
            elif kind == 1:
                program.append(convolution(bench.config))
            else:
                program.append(random_mm(bench.config))
        events = await bench.run(program, refuse=random.choice([0, 0.1, 0.6]), pause=random.choice([0, 0.5]))
        assert (
            len(events["row"])
            == len(events["write"])
            == sum(mm.oy * mm.ox * len(list(tiles(mm))) for mm in program)
        )
        assert events["write"][-1] - events["row"][-1] == 2 * bench.config.n + rmw_latency(bench.config)
    assert bench.checks > 0


@cocotb.test()
async def bench_no_bubble(dut):
    """Tiles of at least N rows follow each other without a gap, within an instruction and from one to the next."""
    bench = Bench(dut)
    await bench.reset()
    n, size = bench.config.n, bench.config.accumulator_size
    least = max(n, rmw_latency(bench.config))
    for _ in range(10):
        program, c = [], 0
        for rows in random.choices([least, least, least + 1, least + 3, 2 * n + 3], k=8):
            depth, columns = random.randint(1, 3), random.randint(1, 2)
            c = c if c + columns * rows <= size else 0
            program.append(gemm(bench.config, rows, c=c, depth=depth, columns=columns))
            if random.random() < 0.5:
                program.append(gemm(bench.config, rows, c=c, depth=depth, columns=columns, accumulate=1))
            c += columns * rows
        events = await bench.run(program)
        rows = events["row"]
        assert rows == list(range(rows[0], rows[0] + len(rows)))
        # Only the weights of the very first tile are waited for.
        assert len(events["stall_weights"]) < n
        assert not events["stall_port"]


@cocotb.test()
async def bench_short_tiles(dut):
    """Tiles of fewer than N rows take N cycles."""
    bench = Bench(dut)
    await bench.reset()
    n = bench.config.n
    for rows in range(1, n):
        program = [gemm(bench.config, rows, c=8 * i, depth=3) for i in range(5)]
        events = await bench.run(program)
        least = max(n, rmw_latency(bench.config))
        starts = events["row"][::rows]
        gaps = [after - before for before, after in itertools.pairwise(starts)]
        assert set(gaps) <= {n, least}
        assert n in gaps


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "config",
    [
        Config(n=2, lanes=1, accumulator_depth=64, alignments=16),
        PRESETS["tiny"],
        PRESETS["tiny"].replace(probability_bits=0, depthwise_taps=2),
        Config(n=8, accumulator_depth=32, probability_bits=7, alignments=4096, depthwise_taps=3),
    ],
    ids=lambda config: f"{config.n}-{config.probability_bits}",
)
def test_mm(config):
    run_bench(MmAndAccumulator(config), parameters={"config": config.to_dict(), "rounds": 16 // config.n * 2})
