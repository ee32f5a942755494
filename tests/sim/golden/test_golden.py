"""The golden interpreter against `plain_interpreter` on random small instructions; then its scheduler and its errors.
`test_golden_softmax` has the instructions of softmax."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from support.plain_interpreter import Slow, signed
from support.repeated import repeated

from weft.hdl.isa import (
    INSTRUCTIONS,
    End,
    Instruction,
    Kernel,
    Load,
    Lookup,
    Microcode,
    Mm,
    Reduce,
    Store,
    Vec,
    encoding,
)
from weft.hdl.isa.config import LOOKUP_ENTRIES, PRESETS, Config
from weft.sim.device import Device, DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.golden.memories import round_half_even

MEMORY = 1 << 15
PROGRAM = 0x3000
CONFIGS = {
    "tiny": PRESETS["tiny"].replace(int4=2),
    "n2": Config(n=2, lanes=2, scratchpad_banks=2, scratchpad_depth=512,
                 accumulator_banks=2, accumulator_depth=64, bus_bytes=4, lookup_tables=2, int4=1),
    "small": PRESETS["small"].replace(mantissa_bits=16, lookup_tables=8, scratchpad_depth=256, accumulator_depth=64),
}  # fmt: skip


def fresh(config: Config, rng: random.Random) -> GoldenDevice:
    """A device whose every memory holds random values; parameter blocks (anywhere) have legal mantissas."""
    device = GoldenDevice(config, MEMORY)
    device.write(0, rng.randbytes(MEMORY))
    device.scratchpad[:] = np.frombuffer(rng.randbytes(device.scratchpad.size), np.int8).reshape(-1, config.n)
    words = np.frombuffer(rng.randbytes(4 * device.accumulator.size), np.int32)
    device.accumulator[:] = words.reshape(-1, config.n) >> rng.choice([0, 8, 16])
    lookup = device.memories.lookup
    lookup[:] = np.frombuffer(rng.randbytes(lookup.size), np.int8).reshape(lookup.shape)
    return device


def run(device: GoldenDevice, *instructions: Instruction) -> None:
    device.write(PROGRAM, b"".join(i.encode() for i in (*instructions, End())))
    device.start(PROGRAM)
    device.wait()


def parameters(device: GoldenDevice, at: int, rng: random.Random) -> None:
    """Random columns of a parameter block at scratchpad vector `at`."""
    for j in range(device.config.n):
        mantissa = rng.choice([rng.getrandbits(device.config.mantissa_bits), 1, 0, 1 << 14])
        word = rng.getrandbits(32) >> rng.choice([0, 20]) | mantissa << 32 | rng.randrange(64) << 56
        block = np.frombuffer((word | rng.randrange(4) << 62).to_bytes(8, "little"), np.int8)
        device.scratchpad[at : at + 8, j] = block


def random_load(rng: random.Random) -> Load:
    line = rng.randint(1, 3)
    return Load(
        base=rng.randrange(8), offset=rng.randrange(64), rows=line * rng.randint(1, 3), row_pitch=rng.randint(-40, 90),
        line=line, skip=rng.choice([0, rng.randint(-99, 99)]),
        pixels=rng.randint(1, 6), pitch=rng.randint(1, 12), length=rng.randint(1, 20), before=rng.choice([0, 0, 3, 99]),
        run=rng.choice([1, 7, 30, 1000]), fill=rng.randint(-128, 127), dst=rng.randrange(100, 150),
        dst_vector=rng.randint(-3, 3), dst_pixel=rng.randint(-4, 9), dst_row=rng.randint(-9, 40),
    )  # fmt: skip


def narrow(load: Load, bases: list[int], bus: int) -> Load:
    """The same of values of 4 bits, whose rows begin at multiples of the width of the bus."""
    start = (bases[load.base] + load.offset) // bus * bus
    pitches = {name: getattr(load, name) // bus * bus for name in ("row_pitch", "skip")}
    return dataclasses.replace(load, int4=1, offset=(start - bases[load.base]) % (1 << 32), **pitches)


def random_store(rng: random.Random) -> Store:
    length = rng.randint(1, 20)
    pixels = rng.randint(1, 6)
    return Store(
        base=rng.randrange(8), offset=rng.randrange(200), rows=rng.randint(1, 4), row_pitch=rng.randint(-40, 90),
        pixels=pixels, pitch=length + rng.choice([0, 0, 5]) if pixels > 1 else rng.randint(1, 30), length=length,
        src=rng.randrange(100, 150), src_vector=rng.randint(-3, 3), src_pixel=rng.randint(-4, 9),
        src_row=rng.randint(-9, 40),
    )  # fmt: skip


def random_mm(rng: random.Random) -> Mm:
    def small(size: int = 4) -> int:
        return rng.randint(-size, size)

    oy, ox, step = rng.randint(1, 4), rng.randint(1, 4), rng.choice([-2, -1, 1, 2])
    return Mm(
        accumulate=rng.randrange(2), nt=rng.randint(1, 3), ky=rng.randint(1, 3), kx=rng.randint(1, 3),
        kc=rng.randint(1, 3), oy=oy, ox=ox, a=rng.randrange(300, 350), a_nt=rng.choice([0, small()]), a_ky=small(9),
        a_kx=small(), a_kc=small(), a_oy=small(9), a_ox=small(),
        y=rng.choice([small(), small(), 32766]), x=small(), y_ky=small(2), y_oy=small(2),
        x_kx=small(2), x_ox=small(2), h=rng.choice([1, 4, 60000]), w=rng.choice([1, 4, 60000]),
        pad=rng.randint(-128, 127), b=rng.randrange(100, 150), b_nt=small(), b_ky=small(), b_kx=small(), b_kc=small(),
        b_row=small(), c=rng.randrange(40, 50), c_nt=rng.choice([0, 1, -3]), c_oy=step * ox, c_ox=step,
    )  # fmt: skip


def random_vec(rng: random.Random) -> Vec:
    def small(size: int = 4) -> int:
        return rng.randint(-size, size)

    multiply = int(rng.random() < 0.3)
    reduce = Reduce.NONE if multiply else rng.choice(list(Reduce))
    source = multiply or rng.randrange(2)
    reduction = (
        {}
        if reduce == Reduce.NONE and rng.random() < 0.8
        else {"ry": rng.randint(1, 3), "rx": rng.randint(1, 3)}
    )
    low = rng.randint(-128, 127)
    return Vec(
        source=source, reduce=reduce, add=multiply or rng.randrange(2), multiply=multiply,
        subtract=rng.randrange(2), ob=rng.randint(1, 3), oy=rng.randint(1, 3),
        ox=rng.randint(1, 3), **reduction, src=rng.randrange(300, 400) if source else rng.randrange(50, 60),
        src_ob=small(2), src_oy=small(2), src_ox=small(2), src_ry=small(2), src_rx=small(2),
        y=small(), x=rng.choice([small(), small(), 32766]),
        y_oy=small(2), y_ry=small(2), x_ox=small(2), x_rx=small(2), h=rng.choice([1, 4, 60000]),
        w=rng.choice([1, 4, 60000]), pad=small(128 - 1), dst=rng.randrange(300, 400), dst_ob=small(20),
        dst_oy=small(9), dst_ox=small(), b=rng.randrange(300, 400), b_ob=small(), b_oy=small(), b_ox=small(),
        b_mantissa=rng.getrandbits(16), b_zero=rng.randint(-128, 127), params=200, zero=rng.randint(-128, 127),
        low=low, high=rng.randint(low, 127), lookup=rng.randrange(2), table=rng.randrange(2),
    )  # fmt: skip


def random_lookup(rng: random.Random) -> Lookup:
    vectors = rng.randint(1, 9)
    last = LOOKUP_ENTRIES - vectors * max(config.n for config in CONFIGS.values())
    return Lookup(
        src=rng.randrange(300, 400), vectors=vectors, table=rng.randrange(2),
        entry=rng.choice([0, last, rng.randint(0, last)]),
    )  # fmt: skip


RANDOM = {
    "load": random_load, "store": random_store, "mm": random_mm, "vec": random_vec, "lookup": random_lookup,
}  # fmt: skip


@pytest.mark.drawn(12)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("opcode", RANDOM)
@repeated("seed", range(20))
def test_random_instructions_against_plain_loops(config: Config, opcode: str, seed: int) -> None:
    rng = random.Random(f"{opcode} {seed}")
    device = fresh(config, rng)
    bases = [rng.randrange(200, 4000) for _ in range(8)]
    for index, base in enumerate(bases):
        device.set_base(index, base)
    slow = Slow(device, bases)
    for _ in range(6):
        parameters(device, 200, rng)
        instruction = RANDOM[opcode](rng)
        if isinstance(instruction, Load) and config.int4 and rng.random() < 0.5:
            instruction = narrow(instruction, bases, config.bus_bytes)
            if config.blocks and rng.random() < 0.6:
                run_ = encoding.group_bytes(config.n) * rng.randint(1, 3)
                instruction = dataclasses.replace(instruction, blocks=1, run=run_)
        code = instruction.encode() + End().encode()
        slow.dram[PROGRAM : PROGRAM + len(code)] = code
        slow.scratchpad[200:208] = device.scratchpad[200:208].tolist()
        getattr(slow, opcode)(instruction)
        run(device, instruction)
        assert device.scratchpad.tolist() == slow.scratchpad, instruction
        assert device.accumulator.tolist() == slow.accumulator, instruction
        assert device.memories.lookup.tolist() == slow.lookups, instruction
        assert device.read(0, MEMORY) == bytes(slow.dram), instruction


def test_plain_loops_know_every_instruction() -> None:
    kinds = [kind for kind in INSTRUCTIONS.values() if kind.QUEUE is not None]
    others = (Kernel, Microcode)  # `support.kernel_model` executes kernels
    assert [kind for kind in kinds if kind not in others and not hasattr(Slow, kind.__name__.lower())] == []


def test_values_of_4_bits_begin_with_words_of_the_bus() -> None:
    device = GoldenDevice(PRESETS["small"], MEMORY)
    device.set_base(1, 4)
    with pytest.raises(
        DeviceError, match=r"address 0x14 does not begin at a multiple of the 8 bytes of the bus"
    ):
        run(device, Load(base=1, offset=16, int4=1, run=4, length=8, pitch=8))
    device.write(16, bytes([0x80, 0x7F, 0x01, 0xE9]))
    run(device, Load(base=1, offset=12, int4=1, run=4, length=8, pitch=8))
    assert device.scratchpad[0].tolist() == [0, -8, -1, 7, 1, 0, -7, -2]


def test_blocks_of_values_of_4_bits_have_factors() -> None:
    """A group is 32 words, of N rows in turn, after the rows' factors; eighths, rounded half up."""
    config = PRESETS["small"].replace(int4=2)
    device = GoldenDevice(config, MEMORY)
    values = np.tile(np.arange(-8, 8), (2, 16, 1)).reshape(2, 32, 8)
    factors = np.array([[8, -8, 4, 127, -128, 0, 1, 12], [2, 3, 5, 7, 11, 13, 17, 19]])
    device.write(64, encoding.pack_groups(values, factors))
    op = Load(offset=64, int4=1, blocks=1, run=256, pixels=64, pitch=8, length=8, dst_pixel=1)
    assert op.row_bytes == 272
    run(device, op)
    for group, word, lane in itertools.product(range(2), range(32), range(8)):
        exact = values[group, word, lane] * factors[group, word % 8] / 8
        assert device.scratchpad[32 * group + word, lane] == min(max(math.floor(exact + 0.5), -128), 127)
    with pytest.raises(
        DeviceError, match="run 192 is no multiple of the 128 bytes of values of 4 bits in a group"
    ):
        run(device, dataclasses.replace(op, run=192))
    with pytest.raises(
        DeviceError, match="'blocks' must be 0, because the configuration's LOAD has no block factors"
    ):
        run(GoldenDevice(PRESETS["small"], MEMORY), op)


@pytest.mark.parametrize("value", [-128, 127])
def test_sums_beyond_float_precision_are_exact(value: int) -> None:
    """The largest products over a contraction longer than float32 adds exactly, with wrapping on top."""
    config = PRESETS["small"]
    device = GoldenDevice(config, MEMORY)
    device.scratchpad[:] = value
    device.scratchpad[5, 0] = 125  # sums that are no multiple of a power of two
    device.accumulator[:] = (1 << 31) - 1
    run(device, Mm(kc=4095, a=0, b=5, ox=4, c_ox=1, accumulate=1))
    expected = signed((1 << 31) - 1 + 4095 * value * ((config.n - 1) * value + 125), 32)
    assert (device.accumulator[:4] == expected).all()
    assert (device.accumulator[4:] == (1 << 31) - 1).all()


@repeated("shift", range(64))
def test_round_half_even_is_exact(shift: int) -> None:
    rng = random.Random(shift)
    half = (1 << shift) >> 1
    values = [rng.randrange(-(1 << 56), 1 << 56) for _ in range(50)]
    values += [k * (1 << shift) + half + d for k in range(-3, 4) for d in (-1, 0, 1)]
    values = [value for value in values if abs(value) < 1 << 57] + [0, -1, 1]
    got = round_half_even(np.array(values, np.int64), np.full(len(values), shift, np.int64))
    assert got.tolist() == [round(Fraction(value, 1 << shift)) for value in values]


@pytest.mark.parametrize(
    ("instruction", "tables", "message"),
    [
        (Lookup(vectors=64, entry=1), 4, "256 entries from 1 on do not fit a look-up table"),
        (Lookup(table=4), 4, "look-up table 4 is outside the 4 of its memory"),
        (Vec(lookup=1, table=2), 2, "look-up table 2 is outside the 2 of its memory"),
        (Lookup(), 0, "the configuration has no look-up tables ('lookup_tables' is 0)"),
        (Vec(lookup=1), 0,
         "'lookup' must be 0, because the configuration has no look-up tables ('lookup_tables' is 0)"),
    ],
)  # fmt: skip
def test_look_up_tables_that_are_not_there(instruction: Instruction, tables: int, message: str) -> None:
    with pytest.raises(DeviceError) as caught:
        run(GoldenDevice(PRESETS["tiny"].replace(lookup_tables=tables), MEMORY), instruction)
    assert str(caught.value) == f"instruction 0 ({instruction.OPCODE.name}): {message}"


def test_queues_run_as_far_as_semaphores_allow() -> None:
    """A store first in program order waits for a later load; several signals may satisfy waits."""
    device = GoldenDevice(PRESETS["tiny"], MEMORY)
    device.write(0x100, bytes(range(1, 9)))
    run(
        device,
        Store(offset=0x200, length=8, src=3, src_vector=1, wait=0b101),
        Load(offset=0x104, length=4, run=4, dst=4, signal=0b001),
        Load(offset=0x100, length=4, run=4, dst=3, signal=0b100),
    )
    assert device.read(0x200, 9) == bytes([*range(1, 9), 0])
    assert device.instructions == 3
    assert device.counters() == {}
    assert isinstance(device, Device)


def test_memories_persist_and_semaphores_do_not() -> None:
    device = GoldenDevice(PRESETS["tiny"], MEMORY)
    device.write(0, b"\7")
    run(device, Load(dst=9, run=1, signal=1))
    run(device, Store(src=9, offset=16))
    assert device.read(16, 1) == b"\7"
    with pytest.raises(DeviceError, match="deadlock"):
        run(device, Store(src=9, offset=16, wait=1))


def test_base_registers_relocate() -> None:
    device = GoldenDevice(PRESETS["tiny"], MEMORY)
    device.write(0x800, b"weft")
    device.set_base(2, 0x900)
    device.set_base(7, 0xFFFF_FFF0)  # base + offset wraps modulo 2**32
    run(device, Load(base=2, offset=(1 << 32) - 0x100, length=4, run=4, signal=1),
        Store(base=7, offset=0x20, length=4, wait=1))  # fmt: skip
    assert device.read(0x10, 4) == b"weft"


ERRORS: list[tuple[tuple[Instruction, ...], str]] = [
    ((Load(dst=1024),), "instruction 0 (LOAD): scratchpad vector 1024 is outside the 1024 of its memory"),
    ((Load(), Load(dst=0, pixels=2, length=1, dst_pixel=-1)),
     "instruction 1 (LOAD): scratchpad vector 65535 is outside the 1024 of its memory"),
    ((Load(offset=MEMORY - 3, length=4, run=4),),
     "instruction 0 (LOAD): 4 bytes at DRAM address 0x7ffd leave the memory of 32768 bytes"),
    ((Store(offset=MEMORY),), "instruction 0 (STORE): 1 bytes at DRAM address 0x8000 leave the memory of 32768 bytes"),
    ((Store(pixels=2, pitch=3, length=4),),
     "instruction 0 (STORE): pitch 3 is less than length 4, so pixels overlap"),
    ((Mm(b=1022, b_row=1),), "instruction 0 (MM): scratchpad vector 1025 is outside the 1024 of its memory"),
    ((Mm(a=1023, kc=2, a_kc=1),), "instruction 0 (MM): scratchpad vector 1024 is outside the 1024 of its memory"),
    ((Mm(c=127, ox=2, c_ox=1),), "instruction 0 (MM): accumulator row 128 is outside the 128 of its memory"),
    ((Mm(ox=2),), "instruction 0 (MM): two rows of A in a tile add to one accumulator row"),
    ((Vec(src=128),), "instruction 0 (VEC): accumulator row 128 is outside the 128 of its memory"),
    ((Vec(src=128, source=1, dst=1024),),
     "instruction 0 (VEC): scratchpad vector 1024 is outside the 1024 of its memory"),
    ((Vec(params=1017),), "instruction 0 (VEC): scratchpad vector 1024 is outside the 1024 of its memory"),
    ((Vec(reduce=3),), "instruction 0 (VEC): unknown reduction 3; the reductions are 0 to 2"),
    *(((Vec(multiply=1, **fields),), "instruction 0 (VEC): 'multiply' needs a second operand, a source in the "
       "scratchpad, and no reduction")
      for fields in ({"source": 1}, {"add": 1}, {"add": 1, "source": 1, "reduce": 1})),
    ((Load(wait=2), Load(signal=2)),
     "deadlock: instruction 0 (LOAD) waits for semaphore 1, which no instruction that can run will signal"),
    (tuple(Load(signal=8) for _ in range(256)), "instruction 255: semaphore 3 passes 255"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "message"), ERRORS, ids=range(len(ERRORS)))
def test_programs_that_break_rules_are_refused(program: tuple[Instruction, ...], message: str) -> None:
    device = GoldenDevice(PRESETS["tiny"], MEMORY)
    with pytest.raises(DeviceError) as caught:
        run(device, *program)
    assert str(caught.value) == message


def test_out_of_range_rows_may_have_any_address() -> None:
    """Padding starts before the block, so addresses that coordinates rule out are not checked."""
    device = GoldenDevice(PRESETS["tiny"], MEMORY)
    device.scratchpad[:] = 1
    run(device, Mm(ox=3, a=65535, a_ox=1, x=-1, x_ox=1, w=1, pad=3, c_ox=1))
    assert device.accumulator[:3, 0].tolist() == [12, 4, 12]


def test_mantissa_wider_than_the_configuration_is_refused() -> None:
    device = GoldenDevice(PRESETS["tiny"].replace(mantissa_bits=16), MEMORY)
    with pytest.raises(DeviceError, match="b_mantissa 65536 has more than 16 bits"):
        run(device, Vec(b_mantissa=1 << 16))
    device.scratchpad[6] = 1
    with pytest.raises(DeviceError, match="mantissa 65536 has more than 16 bits"):
        run(device, Vec())


def test_words_that_are_no_instruction_are_named() -> None:
    device = GoldenDevice(PRESETS["tiny"], MEMORY)
    device.write(0, Load().encode() + b"\xff" * 64)
    device.start(0)
    with pytest.raises(DeviceError, match=r"^instruction 1: unknown opcode 255; the opcodes are 0 to 14$"):
        device.wait()
    device.start(MEMORY - 32)
    with pytest.raises(
        DeviceError, match=r"^instruction 0: 64 bytes at DRAM address 0x7fe0 leave the memory"
    ):
        device.wait()
    device.wait()  # nothing was started


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda d: d.write(MEMORY - 1, b"ab"),
            "2 bytes at DRAM address 0x7fff leave the memory of 32768 bytes",
        ),
        (lambda d: d.read(-1, 1), "1 bytes at DRAM address -0x1 leave the memory of 32768 bytes"),
        (lambda d: d.set_base(8, 0), "base register 8 does not exist; there are 8"),
        (lambda d: d.set_base(0, 1 << 32), "base register 0 cannot hold 4294967296: it is 32 bits"),
        (lambda d: d.start(2), "program address 0x2 is no multiple of 4 bytes"),
    ],
)
def test_host_errors(call, message: str) -> None:
    with pytest.raises(DeviceError) as caught:
        call(GoldenDevice(PRESETS["tiny"], MEMORY))
    assert str(caught.value) == message


def test_every_field_is_drawn() -> None:
    """The random instructions leave no field at one value, or the comparison above would prove nothing about it."""
    for name, draw in RANDOM.items():
        drawn = [draw(random.Random(seed)) for seed in range(60)]
        for field in dataclasses.fields(drawn[0]):
            values = {getattr(instruction, field.name) for instruction in drawn}
            if field.name not in ("wait", "signal", "params") and not field.metadata["requires"]:
                assert len(values) > 1, (name, field.name)
