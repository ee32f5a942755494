"""The instructions and fields of softmax and attention on the golden interpreter, against `plain_interpreter`; then
their errors."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from support.plain_interpreter import Slow
from support.repeated import repeated

from weft.hdl.isa import End, Instruction, Load, Mm, Normalise, Softmax, Table
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.golden.vector import _int16

MEMORY = 1 << 15
PROGRAM, PAGES, PARAMS = 0x7000, 0x6000, 200
TINY = PRESETS["tiny"]
CONFIGS = {
    "tiny": TINY.replace(depthwise_taps=2),
    "n2": Config(n=2, lanes=2, scratchpad_banks=2, scratchpad_depth=512, accumulator_banks=2, accumulator_depth=64,
                 bus_bytes=4, probability_bits=7, table_depth=256),
    "small": PRESETS["small"].replace(mantissa_bits=16, table_depth=1024, depthwise_taps=3, scratchpad_depth=256,
                                     accumulator_depth=64),
}  # fmt: skip


def fresh(config: Config, rng: random.Random) -> GoldenDevice:
    """Random content everywhere: alignments of all sizes, sums of all numbers of bits, exponents near each other."""
    device = GoldenDevice(config, MEMORY)
    memories = device.memories
    device.write(0, rng.randbytes(MEMORY))
    device.scratchpad[:] = np.frombuffer(rng.randbytes(device.scratchpad.size), np.int8).reshape(-1, config.n)
    words = np.frombuffer(rng.randbytes(4 * device.accumulator.size), np.int32)
    device.accumulator[:] = words.reshape(-1, config.n) >> rng.choice([0, 8, 16])
    memories.maxima[:] = [rng.choice([-256, 256, rng.randrange(-12, 20)]) for _ in memories.maxima]
    memories.sums[:] = [rng.getrandbits(32) >> rng.randrange(33) for _ in memories.sums]
    memories.alignments[:] = [
        rng.choice([0, rng.randrange(-3, 4), rng.randrange(-31, 32)]) for _ in memories.alignments
    ]
    table = np.frombuffer(config.exp2_table, np.uint8)
    memories.table[:] = (
        table if rng.random() < 0.7 else rng.choices(range(1 << config.probability_bits), k=table.size)
    )
    for j in range(config.n):
        mantissa = rng.choice([rng.getrandbits(config.mantissa_bits), 1, 1 << 14])
        shift = rng.choice([rng.randrange(64), config.mantissa_bits + rng.randrange(-6, 14)])
        word = rng.choice([rng.getrandbits(32), rng.randrange(2000)]) | mantissa << 32 | shift << 56
        device.scratchpad[PARAMS : PARAMS + 8, j] = np.frombuffer(word.to_bytes(8, "little"), np.int8)
    return device


def run(device: GoldenDevice, *instructions: Instruction) -> None:
    device.write(PROGRAM, b"".join(i.encode() for i in (*instructions, End())))
    device.start(PROGRAM)
    device.wait()


def outputs(rng: random.Random) -> dict[str, int]:
    source = rng.randrange(2)
    return {
        "source": source, "ob": rng.randint(1, 3), "oy": rng.randint(1, 3), "ox": rng.randint(1, 3),
        "src": rng.randrange(300, 400) if source else rng.randrange(50, 60), "src_ob": rng.randint(-9, 9),
        "src_oy": rng.randint(-4, 4), "src_ox": rng.randint(-2, 2), "dst": rng.randrange(300, 400),
        "dst_ob": rng.randint(-20, 20), "dst_oy": rng.randint(-9, 9), "dst_ox": rng.randint(-4, 4),
        "alignment": rng.randrange(60, 80), "alignment_ob": rng.randint(-9, 9), "alignment_oy": rng.randint(-4, 4),
        "alignment_ox": rng.randint(-2, 2), "state": rng.randrange(20, 40),
    }  # fmt: skip


def random_softmax(rng: random.Random, config: Config) -> Softmax:
    width = 3 * config.n
    bound = [-5, rng.randint(-2, width + 2), 32767, -32768]
    stage = rng.choice(["first", "final", "wait"])
    return Softmax(
        params=PARAMS, first=int(stage == "first"), final=int(stage == "final"), causal=rng.randrange(2),
        relative=rng.randrange(2), register=rng.randrange(8), length=rng.choice(bound), diagonal=rng.choice(bound),
        state_oy=rng.choice([3, -3]), state_ox=rng.choice([1, -1]), **outputs(rng),
    )  # fmt: skip


def random_normalise(rng: random.Random, config: Config) -> Normalise:
    low = rng.choice([-128, rng.randint(-128, 127)])
    return Normalise(
        scaled=rng.randrange(2), scale=rng.choice([1 << 15, 65535, rng.randrange(1 << 15, 1 << 16)]),
        exponent=rng.choice([rng.randrange(-64, 64), rng.randrange(-8, 8)]),
        v_zero=rng.choice([0, rng.randint(-128, 127)]),
        zero=rng.randint(-128, 127), low=low, high=rng.randint(low, 127), state_ob=rng.randint(-3, 3),
        state_oy=rng.randint(-3, 3), **outputs(rng),
    )  # fmt: skip


def random_table(rng: random.Random, config: Config) -> Table:
    return Table(src=rng.randrange(200), vectors=rng.randint(1, 30))


def random_load(rng: random.Random, config: Config) -> Load:
    """Transposed, paged, or both."""
    transpose, paged = rng.choice([(0, 1), (1, 0), (1, 1)])
    line = rng.choice([1, rng.randint(1, 3)])
    length = rng.randint(1, config.transposed_vectors * config.n if transpose else 20)
    pitch = rng.randint(length if transpose and length > config.n else 1, max(length, 12))
    return Load(
        base=rng.randrange(7), offset=rng.randrange(64), rows=line * rng.randint(1, 3), row_pitch=rng.randint(-40, 90),
        line=line, skip=rng.randint(-30, 60),
        pixels=rng.randint(1, 9), pitch=pitch, length=length,
        before=rng.choice([0, 0, 3]), run=rng.choice([1, 7, 30, 1000]), fill=rng.randint(-128, 127),
        transpose=transpose, dst=rng.randrange(100, 150), dst_vector=rng.choice([1, 2, -1, 3]),
        dst_pixel=rng.randint(-4, 9), dst_row=rng.randint(-3, 25), paged=paged, table=7, page=rng.randrange(64),
    )  # fmt: skip


def random_mm(rng: random.Random, config: Config) -> Mm:
    def small(size: int = 4) -> int:
        return rng.randint(-size, size)

    oy, ox = rng.randint(1, 4), rng.randint(1, 4)
    zero = rng.choice([0, -128, 127, small(128 - 1)]) if config.wide_activations else 0
    return Mm(
        accumulate=rng.randrange(2), nt=rng.randint(1, 3), ky=rng.randint(1, 2), kx=rng.randint(1, 2),
        kc=rng.randint(1, 3), oy=oy, ox=ox, a=rng.randrange(300, 350), a_nt=rng.choice([0, small()]), a_ky=small(9),
        a_kx=small(), a_kc=small(),
        a_oy=small(9), a_ox=small(), y=small(), x=small(), y_ky=small(2), y_oy=small(2), x_kx=small(2), x_ox=small(2),
        h=rng.choice([1, 4, 60000]), w=rng.choice([1, 4, 60000]), pad=rng.randint(-128, 127), b=rng.randrange(100, 150),
        b_nt=small(), b_ky=small(), b_kx=small(), b_kc=small(), b_row=small(), c=rng.randrange(40, 50),
        c_nt=rng.choice([0, 1, -3]), c_oy=ox, c_ox=1, zero=zero, align=rng.choice([0, 1, 1]),
        alignment=rng.randrange(20), depthwise=rng.randrange(2) if config.depthwise_taps else 0,
    )  # fmt: skip


RANDOM = {
    "softmax": random_softmax, "normalise": random_normalise, "table": random_table,
    "load": random_load, "mm": random_mm,
}  # fmt: skip


@pytest.mark.drawn(12)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("opcode", RANDOM)
@repeated("seed", range(20))
def test_random_instructions_against_plain_loops(config: Config, opcode: str, seed: int) -> None:
    rng = random.Random(f"{opcode} {seed}")
    device = fresh(config, rng)
    bases = [rng.randrange(400, 4000) for _ in range(7)] + [PAGES]
    device.write(PAGES, np.array([rng.randrange(9000) for _ in range(64)], "<u4").tobytes())
    if opcode == "softmax":  # bounds are int32, then int16
        bases[:3] = 0xFFFF_FFFF, 0x8000_0000, 40000
    for index, base in enumerate(bases):
        device.set_base(index, base)
    slow = Slow(device, bases)
    for _ in range(6):
        instruction = RANDOM[opcode](rng, config)
        code = instruction.encode() + End().encode()
        slow.dram[PROGRAM : PROGRAM + len(code)] = code
        getattr(slow, opcode)(instruction)
        run(device, instruction)
        memories = device.memories
        assert memories.scratchpad.tolist() == slow.scratchpad, instruction
        assert memories.accumulator.tolist() == slow.accumulator, instruction
        assert memories.maxima.tolist() == slow.m, instruction
        assert memories.sums.tolist() == slow.l, instruction
        assert memories.alignments.tolist() == slow.alignments, instruction
        assert memories.table.tolist() == slow.entries, instruction


def test_every_field_is_drawn() -> None:
    constant = {"wait", "signal", "params", "table", "c_ox", "base", "int4", "blocks"}
    for name, draw in RANDOM.items():
        drawn = [draw(random.Random(seed), CONFIGS["tiny"]) for seed in range(80)]
        for field in dataclasses.fields(drawn[0]):
            values = {getattr(instruction, field.name) for instruction in drawn}
            assert len(values) > 1 or field.name in constant, (name, field.name)


@pytest.mark.parametrize("value", [-128, 127])
def test_sums_of_9_bit_activations_are_exact(value: int) -> None:
    """A zero point doubles the largest products, and a contraction is longer than float32 adds exactly."""
    config = PRESETS["small"]
    device = GoldenDevice(config, MEMORY)
    device.scratchpad[:] = value
    device.scratchpad[5, 0] = 125
    zero = -1 - value
    run(device, Mm(kc=4095, b=5, zero=zero))
    expected = 4095 * (value - zero) * ((config.n - 1) * value + 125)
    assert (device.accumulator[0] == (expected + (1 << 31)) % (1 << 32) - (1 << 31)).all()


ERRORS: list[tuple[Instruction, str]] = [
    (Softmax(state=64), "row state 64 is outside the 64 of its memory"),
    (Softmax(state=63, ox=2, state_ox=1), "row state 64 is outside the 64 of its memory"),
    (Softmax(oy=2, ox=2, state_oy=1, state_ox=1), "two rows of scores have one row state"),
    (Softmax(alignment=256), "alignment 256 is outside the 256 of its memory"),
    (Softmax(first=1, final=1), "'first' starts row states anew, which 'final' only reads"),
    (Normalise(state=65535), "row state 65535 is outside the 64 of its memory"),
    (
        Normalise(scaled=1, alignment=255, ox=2, alignment_ox=1),
        "alignment 256 is outside the 256 of its memory",
    ),
    (Table(vectors=513), "2052 entries do not fit the table of 2048"),
    (Table(src=1023, vectors=2), "scratchpad vector 1024 is outside the 1024 of its memory"),
    (Mm(align=1, kc=3, ox=2, c_ox=1, alignment=251), "alignment 256 is outside the 256 of its memory"),
    (Load(transpose=1, length=17), "length 17 is more than the 16 bytes of pixels that can be transposed"),
    (
        Load(transpose=1, length=9, pixels=2, pitch=8),
        "pitch 8 is less than length 9, so pixels that are transposed overlap",
    ),
    (Load(paged=1, table=1), "page table 0x102 of base register 1 is no multiple of 4 bytes"),
    (Load(paged=1, table=2), "4 bytes at DRAM address 0x8000 leave the memory of 32768 bytes"),
]


@pytest.mark.parametrize(("instruction", "message"), ERRORS, ids=range(len(ERRORS)))
def test_rules(instruction: Instruction, message: str) -> None:
    device = GoldenDevice(TINY, MEMORY)
    device.set_base(1, 0x102)
    device.set_base(2, MEMORY)
    with pytest.raises(DeviceError) as caught:
        run(device, instruction)
    assert str(caught.value) == f"instruction 0 ({instruction.OPCODE.name}): {message}"


def test_one_transposed_pixel_has_any_pitch() -> None:
    """It has no neighbour to overlap."""
    device = GoldenDevice(TINY, MEMORY)
    device.write(0, bytes(range(1, 10)))
    run(device, Load(transpose=1, length=9, run=9, pitch=1, dst_vector=4, dst_pixel=1))
    assert device.scratchpad.sum() == sum(range(1, 10))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-32769, -32768),
        (-32768, -32768),
        (32767, 32767),
        (32768, 32767),
        (1 << 31, -32768),
        ((1 << 31) - 1, 32767),
    ],
)
def test_bounds_of_rows_are_clamped(value: int, expected: int) -> None:
    assert _int16(value) == expected


@pytest.mark.parametrize(
    "instruction",
    [Softmax(), Normalise(), Table(), Mm(zero=1), Mm(align=1), Load(transpose=1), Load(paged=1)],
    ids=str,
)
def test_softmax_is_an_option(instruction: Instruction) -> None:
    run(GoldenDevice(TINY, MEMORY), instruction)
    with pytest.raises(DeviceError, match=r"the configuration has no softmax \('probability_bits' is 0\)$"):
        run(GoldenDevice(TINY.replace(probability_bits=0), MEMORY), instruction)


def test_zero_points_need_9_bit_activations() -> None:
    with pytest.raises(
        DeviceError,
        match=r"^instruction 0 \(MM\): 'zero' must be 0, because 'probability_bits' is 7 and not 8$",
    ):
        run(GoldenDevice(TINY.replace(probability_bits=7), MEMORY), Mm(zero=-128))
