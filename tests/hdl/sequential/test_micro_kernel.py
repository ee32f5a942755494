"""Every operation of kernels on the sequential core, on numbers at the ends of their ranges: all 32 bits of each result
are those of the golden interpreter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.kernel_model import microcode

from weft.boards.registry import BOARDS
from weft.hdl.isa import End, Instruction, Kernel, Load, Lookup, MicroOp, Source, Store
from weft.hdl.isa.config import LOOKUP_ENTRIES, PRESETS, Config
from weft.hdl.isa.kernel import Op
from weft.sim.device import Device
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

CONFIGS = {
    "icebreaker": BOARDS["icebreaker"].config.replace(kernel=32),
    "tang-primer-20k": BOARDS["tang-primer-20k"].config,
}
MORE = {
    "tang-nano-9k": BOARDS["tang-nano-9k"].config.replace(kernel=64),
    "n2": PRESETS["tiny"].replace(
        n=2, lanes=1, kernel=32, lookup_tables=2, mantissa_bits=16, probability_bits=0
    ),
    "n16": PRESETS["default"].replace(scratchpad_depth=256, kernel=256, depthwise_taps=0),
}
MEMORY, TABLES, PROGRAM, DUMP = 1 << 17, 0x3000, 0x4000, 0x8000
ROWS = 11
"""More than a strip."""
BYTES = ((0, 24, 0), (1, 16, 1), (2, 8, 1), (3, 0, 1))
"""Bytes of a number from memory: operand, left shift, whether it is unsigned."""
EXTREMES = (
    0,
    1,
    -1,
    -(1 << 31),
    (1 << 31) - 1,
    1 - (1 << 31),
    1 << 30,
    -(1 << 30),
    65535,
    65536,
    -65536,
    127,
    -128,
)
VECTORS = 2 * len(BYTES)
"""Vectors that two numbers take, and two results."""


def numbers(rng: random.Random, count: int) -> np.ndarray:
    def one() -> int:
        power = 1 << rng.randrange(31)
        small, any_of = rng.randrange(-300, 300), rng.randrange(-(1 << 31), 1 << 31)
        return rng.choice((rng.choice(EXTREMES), any_of, power, power - 1, -power, small))

    return np.array([one() for _ in range(count)], "<i4")


def variants(rng: random.Random, config: Config) -> Iterator[MicroOp]:
    """Operations on registers 0 and 1, with the result in register 2."""
    swaps = range(config.n.bit_length())
    both = {"a": 0, "b": 1, "d": 2}
    for op in (Op.ADD, Op.SUB, Op.RSUB, Op.MIN, Op.MAX, Op.LT, Op.EQ, Op.SELECT, Op.INDEX):
        yield MicroOp(op=op, **both)
        yield MicroOp(op=op, **both, swap=rng.choice(swaps), shift=rng.choice((1, 7, 8, 15, 31, 32, 63)))
        yield MicroOp(op=op, a=0, d=0, b_immediate=1, immediate=rng.choice((0, -1, 1 << 22, -(1 << 23))))
    for floor in range(2):
        for shift in (0, 3, rng.randrange(8, 40), 63):
            yield MicroOp(op=Op.MUL, **both, shift=shift, floor=floor, scaled=int(rng.random() < 0.5))
        yield MicroOp(
            op=Op.MUL, **both, shift=rng.randrange(9), floor=floor, scaled=1, swap=rng.choice(swaps)
        )
        yield MicroOp(op=Op.MUL, a=0, d=2, b_immediate=1, immediate=-(1 << 17), shift=16, floor=floor)
    for op in (Op.RECIPROCAL, Op.RSQRT):
        for uniform in range(2):
            yield MicroOp(op=op, a=0, d=2, unsigned=uniform, shift=5)
    for table in range(config.lookup_tables):
        yield MicroOp(op=Op.TABLE, a=0, d=2, immediate=table, shift=3)


def whole(op: MicroOp) -> list[MicroOp]:
    """A kernel that reads both numbers, and writes all bytes of the results in registers 0 and 2."""
    ops = [MicroOp(op=Op.SUB, a=d, b=d, d=d) for d in range(3)]  # whatever they held: 0
    for number in range(2):
        for operand, shift, unsigned in BYTES:
            read = {"a_memory": 1, "a": operand + 4 * number, "shift": shift, "unsigned": unsigned}
            ops.append(MicroOp(op=Op.ADD, **read, b=number, d=number))
    ops.append(MicroOp(op=Op.LT, a=1, b=0))
    ops.append(op)
    if op.op in (Op.LT, Op.EQ):
        ops.append(MicroOp(op=Op.SELECT, a=1, b=0, d=2))
    result = 0 if op.d == 0 and op.op not in (Op.LT, Op.EQ) else 2
    ops += write_register(result)
    return [*ops[:-1], replace(ops[-1], end=1)]


def write_register(register: int) -> list[MicroOp]:
    """Write all bytes of a register to the four result vectors."""
    made = []
    for byte in range(4):
        made.append(MicroOp(op=Op.ADD, a=register, shift=8 * byte, b_immediate=1, d=3))
        made.append(
            MicroOp(op=Op.MUL, a=3, b_immediate=1, immediate=1, shift=24, floor=1, d_memory=1, d=byte)
        )
    return made


def program(rng: random.Random, config: Config) -> list[Instruction]:
    """All kernels, each of which has its results in vectors of its own."""
    made: list[Instruction] = [Load(length=config.n, run=config.n * VECTORS * ROWS, pixels=VECTORS * ROWS,
                                    pitch=config.n, dst=0, dst_pixel=1)]  # fmt: skip
    at = VECTORS * ROWS
    for table in range(config.lookup_tables):
        whole_table = {"length": LOOKUP_ENTRIES, "run": LOOKUP_ENTRIES, "pitch": LOOKUP_ENTRIES}
        made.append(Load(offset=TABLES + table * LOOKUP_ENTRIES, **whole_table, dst=at, dst_vector=1))
        made.append(Lookup(src=at, vectors=LOOKUP_ENTRIES // config.n, table=table))
    operands = {"src": 0, "b": 2, "c": 4, "d": 6}
    for number, op in enumerate(variants(rng, config)):
        made += microcode(whole(op), 0)
        places = {**operands, "dst": at, "dst2": at + 2}
        strides = {f"{name}_oy": VECTORS if name in operands else 4 for name in places}
        vectors = {f"{name}_vectors": 2 for name in places}
        made.append(Kernel(source=Source.SCRATCHPAD, oy=ROWS, with_b=1, with_c=1, with_d=1, with_dst2=1,
                           **places, **strides, **vectors))  # fmt: skip
        length = 4 * ROWS * config.n
        made.append(Store(offset=DUMP + number * length, length=length, pitch=length, src=at, src_vector=1))
    return [*made, End()]


def run(device: Device, config: Config, seed: int) -> np.ndarray:
    """All results (operations, rows, lanes) as int32."""
    rng = random.Random(seed)
    values = numbers(rng, 2 * ROWS * config.n).reshape(ROWS, 2, config.n, 1).view(np.uint8)
    # By row, byte from the upper one on, and number: vectors of lanes.
    device.write(0, values[..., ::-1].transpose(0, 3, 1, 2).tobytes())
    device.write(TABLES, rng.randbytes(config.lookup_tables * LOOKUP_ENTRIES))
    words = program(rng, config)
    device.write(PROGRAM, b"".join(word.encode() for word in words))
    device.start(PROGRAM)
    device.wait(50_000_000)
    count = sum(isinstance(word, Kernel) for word in words)
    found = np.frombuffer(device.read(DUMP, count * 4 * ROWS * config.n), np.uint8)
    # Operand dst has the upper byte and the third one, dst2 the other two: numbers of destinations are so.
    stored = found.reshape(count, ROWS, 2, 2, config.n).transpose(0, 1, 4, 3, 2)[..., ::-1, ::-1]
    return np.ascontiguousarray(stored.reshape(count, ROWS, config.n, 4)).view("<i4")[..., 0]


def compare(config: Config, seeds: range) -> None:
    for seed in seeds:
        expected = run(GoldenDevice(config, MEMORY), config, seed)
        assert len(np.unique(expected)) > expected.size // 8
        with RtlDevice(config, MEMORY, sequential=True) as device:
            found = run(device, config, seed)
        wrong = np.argwhere(found != expected)
        ops = list(variants(random.Random(seed), config))
        assert not wrong.size, f"seed {seed}: {len(wrong)} wrong, the first of {ops[wrong[0][0]]}"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", CONFIGS)
def test_all_bits_of_every_operation(name: str) -> None:
    compare(CONFIGS[name], range(2))


@pytest.mark.parametrize("name", CONFIGS)
def test_elements_after_the_end_of_rows(name: str) -> None:
    config = CONFIGS[name]
    n, rows, columns = config.n, 3, 2
    vectors = rows * columns
    made: list[Instruction] = [Load(length=n * vectors, run=n * vectors, pitch=n * vectors, dst_vector=1)]
    at = vectors
    given = {
        "source": Source.SCRATCHPAD,
        "with_dst2": 1,
        "dst_vectors": 2,
        "dst2_vectors": 2,
        "oy": rows,
        "ox": columns,
    }
    given |= {
        "src_oy": columns,
        "src_ox": 1,
        "dst_oy": 4 * columns,
        "dst2_oy": 4 * columns,
        "dst_ox": 4,
        "dst2_ox": 4,
    }
    for fill in range(2):
        read = MicroOp(op=Op.ADD, a_memory=1, unsigned=1, fill=fill, b_immediate=1, immediate=-3, d=0)
        ops = [read, *write_register(0)]
        made += microcode([*ops[:-1], replace(ops[-1], again=1, end=1)], 0)
        for tail in {0, 1, n - 1, n}:
            made.append(Kernel(tail=tail, dst=at, dst2=at + 2, **given))
            at += 4 * vectors
    length = n * (at - vectors)
    made += [Store(offset=DUMP, length=length, pitch=length, src=vectors, src_vector=1), End()]
    golden, rtl = GoldenDevice(config, MEMORY), RtlDevice(config, MEMORY, sequential=True)
    with rtl:
        found, expected = (results(device, made, length) for device in (rtl, golden))
    assert found == expected


def results(device: Device, made: list[Instruction], length: int) -> bytes:
    device.write(0, random.Random(1).randbytes(TABLES))
    device.write(PROGRAM, b"".join(word.encode() for word in made))
    device.start(PROGRAM)
    device.wait(1_000_000)
    return device.read(DUMP, length)


@pytest.mark.long
@pytest.mark.parametrize("name", [*CONFIGS, *MORE])
def test_all_bits_of_every_operation_long(name: str) -> None:
    compare((CONFIGS | MORE)[name], range(100, 110))
