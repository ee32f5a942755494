"""The sequential core's forms of instructions: they do the same by the golden interpreter, and take no longer."""

from __future__ import annotations

import numpy as np
from support.random_programs import MEMORY, PROGRAM, Generator

from weft.compiler.machine.schedule import sequential_forms
from weft.hdl.isa import WORD_BYTES, End, Instruction, Load, Mm, Opcode, Store, Vec
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.timing import SequentialTimingDevice

CONFIG = PRESETS["tiny"].replace(depthwise_taps=0, int4=1)
N = CONFIG.n


def form(instruction: Instruction) -> Instruction:
    return Code(sequential_forms(Code.of([instruction]).words, N))[0]


def results(generator: Generator) -> bytes:
    """Memory behind a program, without the program."""
    held, size = generator.run(GoldenDevice(CONFIG, MEMORY)), len(generator.program) * WORD_BYTES
    return held[:PROGRAM] + held[PROGRAM + size :]


def test_programs_do_the_same() -> None:
    changed = set()
    for seed in range(15):
        generator = Generator(CONFIG, seed, serial=True)
        generator.build(25)
        expected = results(generator)
        found = list(Code(sequential_forms(Code.of(generator.program).words, N)))
        changed |= {new.OPCODE for old, new in zip(generator.program, found, strict=True) if old != new}
        generator.program = found
        assert results(generator) == expected, f"seed {seed}"
    assert changed == {Opcode.VEC, Opcode.LOAD}


def cycles(load: Load, rng: np.random.Generator) -> tuple[bytes, int]:
    """What a LOAD makes of the scratchpad, and how long it takes."""
    vectors = CONFIG.scratchpad_size
    whole = Store(offset=0x4000, pixels=vectors, length=N, pitch=N, src_pixel=1)
    program = b"".join(instruction.encode() for instruction in (load, whole, End()))
    given = rng.integers(0, 256, 0x1000, np.uint8).tobytes()
    golden, model = GoldenDevice(CONFIG, 1 << 16), SequentialTimingDevice(CONFIG, 1 << 16)
    for device in (golden, model):
        device.write(0, given)
        device.write(0x2000, program)
        device.start(0x2000)
        device.wait()
    held = golden.read(0x4000, N * vectors)
    assert model.computed[0x4000 : 0x4000 + N * vectors].tobytes() == held
    return held, model.counters()[Counter.LOAD_BUSY]


def test_a_vector_of_a_row_has_nothing_behind_it() -> None:
    plain = Load(rows=9, row_pitch=24, pixels=1, length=N - 1, pitch=24, run=N - 1, dst_row=2)
    found = form(plain)
    assert isinstance(found, Load)
    assert found.pitch == N - 1
    (held, long), (same, short) = (cycles(load, np.random.default_rng(5)) for load in (plain, found))
    assert held == same
    assert short < long


def test_what_stays_as_it_is() -> None:
    for load in (
        Load(pixels=2, length=N, pitch=9),
        Load(pixels=1, length=N, pitch=9, transpose=1),
        Load(pixels=1, length=N + 1, pitch=40),
        Mm(y=1, h=9),
    ):
        assert form(load) == load


def test_coordinates_in_range_stand_still() -> None:
    still = Vec(oy=3, ox=5)
    for vec in (
        Vec(oy=3, ox=5, y_oy=1, x_ox=2, h=3, w=9),
        Vec(oy=3, ox=5, y=2, y_oy=-1, x=8, x_ox=-2, h=3, w=9),
        Vec(oy=3, ox=5, y=4, x=7, h=5, w=8, y_ry=3),
    ):
        found = form(vec)
        assert isinstance(found, Vec)
        assert (found.y, found.y_oy, found.h, found.x, found.x_ox, found.w) == (0, 0, 1, 0, 0, 1)
        assert (found.oy, found.ox, found.y_ry) == (still.oy, still.ox, vec.y_ry)
    for vec in (
        Vec(oy=3, ox=5, y_oy=1, h=2),
        Vec(oy=3, ox=5, y=-1, y_oy=1, h=9),
        Vec(oy=3, ox=5, y=1, y_oy=-1, h=9),
        Vec(oy=1, ox=5, x_ox=2, w=8),
        Vec(ry=2, h=9, y_ry=1),
        Vec(rx=2, w=9, x_rx=0),
        Vec(oy=600, y_oy=127, h=(1 << 16) - 1),  # comes round to the first ones
        Vec(x=-(1 << 15) + 5, w=(1 << 16) - 1),
        Vec(oy=2, y=(1 << 15) - 1, y_oy=1, h=(1 << 16) - 1),
    ):
        assert form(vec) == vec
