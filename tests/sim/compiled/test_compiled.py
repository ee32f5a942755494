"""The compiled interpreter against the specification: random programs, and products larger than it takes at once.

`tests/sim/golden` runs on both as well, against interpreters in plain Python.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.random_programs import MEMORY, Generator

from weft.hdl.isa import (
    End,
    Instruction,
    Kernel,
    Load,
    Lookup,
    Microcode,
    MicroOp,
    Mm,
    Normalise,
    Softmax,
    Table,
    Vec,
    encoding,
)
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.kernel import Op
from weft.sim.compiled import device as compiled
from weft.sim.compiled.device import CompiledDevice, golden_device
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.verilate import BuildError

CONFIGS = {
    "n2": Config(n=2, lanes=1, scratchpad_banks=2, scratchpad_depth=128, accumulator_banks=2, accumulator_depth=16,
                 bus_bytes=4, row_states=4, alignments=16, table_depth=256, lookup_tables=1, kernel=64,
                 int4=1),
    "tiny": PRESETS["tiny"].replace(kernel=64, depthwise_taps=2, int4=2),
    "7 bits": PRESETS["tiny"].replace(probability_bits=7, table_depth=512, mantissa_bits=16),
    "small": PRESETS["small"].replace(lookup_tables=0, depthwise_taps=3),
    "default": PRESETS["default"].replace(scratchpad_depth=512, int4=2),
    "large": PRESETS["large"].replace(scratchpad_depth=256),
    "xlarge": PRESETS["xlarge"].replace(scratchpad_depth=128),
    "huge": PRESETS["huge"].replace(scratchpad_depth=64),
}  # fmt: skip
STATE = ("dram", "scratchpad", "accumulator", "maxima", "sums", "alignments", "table", "lookup", "kernel")


def equal(one: GoldenDevice, other: GoldenDevice) -> None:
    """All that outlives an instruction."""
    for name in STATE:
        found, expected = (np.asarray(getattr(device.memories, name)) for device in (one, other))
        assert np.array_equal(found, expected), name


def compare(name: str, seeds: range, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random programs of some seeds; what is to be compiled is not left to the specification."""
    left: list[Instruction] = []
    config, execute = CONFIGS[name], GoldenDevice._execute

    def record_calls(self: GoldenDevice, index: int, instruction: Instruction) -> None:
        left.append(instruction)
        execute(self, index, instruction)

    for seed in seeds:
        generator = Generator(config, seed, serial=seed % 4 == 0)
        generator.build(count)
        golden, device = GoldenDevice(config, MEMORY), CompiledDevice(config, MEMORY)
        generator.run(golden)
        with monkeypatch.context() as patch:
            patch.setattr(GoldenDevice, "_execute", record_calls)
            generator.run(device)
        equal(device, golden)
        assert device.instructions == golden.instructions == len(generator.program), seed
    others = [item for item in left if not isinstance(item, Table | Lookup | Microcode)]
    assert all(_rare(item, config.n) for item in others), others


def _rare(item: Instruction, n: int) -> bool:
    """Return whether the specification runs it, because it has rare features."""
    if isinstance(item, Load):
        return bool(item.paged or (item.transpose and item.length > n))
    return bool(getattr(item, "depthwise", 0))


@pytest.mark.parametrize("name", CONFIGS)
def test_random_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(name, range(1), 25, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_random_programs_long(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(name, range(100, 140), 60, monkeypatch)


def large_product(rng: random.Random, config: Config) -> Mm:
    """More columns, terms and rows than are multiplied at once, and tiles that share rows of C."""
    n, rows = config.n, rng.choice([1, 2, 7, 9, 30])
    tiles = rng.choice([1, 3, 128 // n + 1, 300 // n])
    return Mm(
        accumulate=rng.randrange(2), nt=tiles, kc=rng.choice([1, 1024 // n, 1024 // n + 1, 2500 // n]),
        ky=rng.randint(1, 2), ox=rows, a=rng.randrange(90), a_nt=rng.choice([0, 0, 1]), a_kc=1, a_ky=rng.randrange(9),
        a_ox=rng.choice([1, 3]), x=rng.choice([0, -2]), x_ox=1, w=rng.choice([4, 60000]), h=60000, pad=rng.randrange(9),
        b=rng.randrange(90), b_nt=rng.choice([1, n]), b_kc=rng.choice([1, 3]), b_row=1, zero=rng.choice([0, -128, 127]),
        c=rng.randrange(20), c_nt=rng.choice([0, 1, rows, rows + 1]), c_ox=1,
    )  # fmt: skip


@pytest.mark.parametrize("preset", ["tiny", "default", "large"])
@pytest.mark.parametrize("seed", range(12))
def test_large_products(preset: str, seed: int) -> None:
    config, rng = PRESETS[preset], random.Random(seed)
    config = config.replace(accumulator_depth=2048, scratchpad_depth=2048)
    golden, device = GoldenDevice(config, MEMORY), CompiledDevice(config, MEMORY)
    instruction = large_product(rng, config)
    for one in (golden, device):
        numbers = np.random.default_rng(seed)
        one.scratchpad[:] = numbers.integers(-128, 128, one.scratchpad.shape)
        one.accumulator[:] = numbers.integers(-(1 << 31), 1 << 31, one.accumulator.shape)
        one.write(0, instruction.encode() + End().encode())
        one.start(0)
        one.wait()
    equal(device, golden)


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_blocks_of_values_of_4_bits(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of several rows, whose first bytes pixels take; the compiled interpreter runs all of it."""
    config = Config(n=n, lanes=1, bus_bytes=n, int4=2)
    rng = np.random.default_rng(n)
    load = Load(
        int4=1, blocks=1, offset=1024, rows=2, row_pitch=64 * n, run=3 * encoding.group_bytes(n), pixels=5, pitch=7 * n,
        length=3 * n, dst_vector=1, dst_pixel=3, dst_row=15,
    )  # fmt: skip
    golden, device = GoldenDevice(config, MEMORY), CompiledDevice(config, MEMORY)
    content = rng.bytes(MEMORY - 1024)
    for one in (golden, device):
        one.write(1024, content)
        one.write(0, load.encode() + End().encode())
        one.start(0)
        one.wait()
        monkeypatch.setattr(GoldenDevice, "_execute", None)  # the first one needs it, the second one must not
    assert golden.scratchpad[:30].any(axis=1).all()
    equal(device, golden)


HALVES: dict[str, tuple[Instruction, ...]] = {
    "vec": (Vec(oy=64, src_oy=1, dst=200, dst_oy=1, params=100),),
    # 2**15 times the source is divided by 2**16.
    "normalise": (Normalise(oy=64, src_oy=1, dst=200, dst_oy=1, exponent=7),),
    "kernel": (
        Microcode(op0=MicroOp(op=Op.MUL, a_memory=1, b_immediate=1, immediate=1, shift=2, d_memory=1, end=1).encode()),
        Kernel(oy=64, src_oy=1, dst=200, dst_oy=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
def test_halves_go_to_the_even(name: str) -> None:
    config = PRESETS["tiny"].replace(kernel=16)
    golden, device = GoldenDevice(config, MEMORY), CompiledDevice(config, MEMORY)
    for one in (golden, device):
        one.accumulator[:] = np.random.default_rng(1).integers(-200, 200, one.accumulator.shape)
        one.memories.sums[:] = 256
        words = [1 << 32 | shift << 56 for shift in range(config.n)]  # mantissa 1
        one.scratchpad[100:108] = np.array(words, "<u8").view(np.int8).reshape(config.n, 8).T
        one.write(0, b"".join(item.encode() for item in (*HALVES[name], End())))
        one.start(0)
        one.wait()
    equal(device, golden)
    assert np.unique(golden.scratchpad[200:264]).size > 50


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        ((Vec(), Vec(dst=1024)), "scratchpad vector 1024 is outside the 1024"),
        ((Softmax(), Softmax(state=64)), "row state 64 is outside the 64"),
        ((Load(), Kernel()), "the configuration has no kernel engine"),
    ],
)
def test_results_before_an_error_are_kept(instructions: tuple[Instruction, ...], message: str) -> None:
    golden, device = (kind(PRESETS["tiny"], MEMORY) for kind in (GoldenDevice, CompiledDevice))
    for one in (golden, device):
        one.scratchpad[:] = 3
        one.write(0, b"".join(item.encode() for item in (*instructions, End())))
        one.start(0)
        with pytest.raises(DeviceError, match=f"^instruction 1 .*{message}"):
            one.wait()
    equal(device, golden)
    assert device.instructions == golden.instructions == 1


def test_without_a_compiler_the_specification_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(golden_device(PRESETS["tiny"], MEMORY)) is CompiledDevice

    def fail() -> None:
        raise BuildError("no C++ compiler found")

    monkeypatch.setattr(compiled, "library", fail)
    assert type(golden_device(PRESETS["tiny"], MEMORY)) is GoldenDevice


def test_too_little_memory_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def weft_compiled_run(self, state: object) -> int:
            return -2

    monkeypatch.setattr(compiled, "library", Full)
    device = CompiledDevice(PRESETS["tiny"], MEMORY)
    device.write(0, Load().encode() + End().encode())
    device.start(0)
    with pytest.raises(MemoryError, match="needs more memory"):
        device.wait()
