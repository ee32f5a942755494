"""`Kernel` on the golden interpreter against a model in plain Python."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from support.kernel_model import (
    KernelModel,
    inverse_root,
    microcode,
    random_kernel,
    reciprocal,
    vectors_of,
)

from weft.hdl.isa import End, Instruction, Kernel, MicroOp
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.kernel import Op
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.golden.kernel import inverse_root as _inverse_root
from weft.sim.golden.kernel import reciprocal as _reciprocal

MEMORY = 1 << 15
CONFIGS = {
    "tiny": PRESETS["tiny"].replace(kernel=64),
    "n2": PRESETS["tiny"].replace(n=2, lanes=1, kernel=128, lookup_tables=1),
    "default": PRESETS["default"].replace(kernel=256, scratchpad_depth=256),
}


def run(device: GoldenDevice, *instructions: Instruction) -> None:
    device.write(0, b"".join(i.encode() for i in (*instructions, End())))
    device.start(0)
    device.wait()


def fresh(config: Config, rng: random.Random) -> GoldenDevice:
    device = GoldenDevice(config, MEMORY)
    device.scratchpad[:] = np.frombuffer(rng.randbytes(device.scratchpad.size), np.int8).reshape(-1, config.n)
    words = np.frombuffer(rng.randbytes(4 * device.accumulator.size), np.int32)
    device.accumulator[:] = words.reshape(-1, config.n) >> rng.choice([0, 8, 16])
    lookup = device.memories.lookup
    lookup[:] = np.frombuffer(rng.randbytes(lookup.size), np.int8).reshape(lookup.shape)
    return device


def model_of(device: GoldenDevice, instruction: Kernel) -> KernelModel:
    memory = SimpleNamespace(
        config=device.config, scratchpad=device.scratchpad.copy(), accumulator=device.accumulator,
        lookups=device.memories.lookup.tolist(), kernel=device.memories.kernel, reserved=0,
    )  # fmt: skip
    return KernelModel(memory, instruction)


@pytest.mark.parametrize("name", CONFIGS)
def test_bytes(name: str) -> None:
    """All of the scratchpad after a kernel; addresses that are in memory and overlap with nothing that is read."""
    config, rng = CONFIGS[name], random.Random(6)
    size = config.scratchpad_size
    for _ in range(60):
        device = fresh(config, rng)
        reads, writes = range(rng.randrange(1, 9)), range(rng.randrange(1, 5))
        ops = random_kernel(rng, config, reads, writes)
        start = rng.randrange(config.kernel - len(ops) + 1)
        run(device, *microcode(ops, start))
        fields = {"source": rng.randrange(2), "start": start, "tail": rng.randrange(config.n + 1)}
        fields |= {"ob": rng.randrange(1, 3), "oy": rng.randrange(1, 20), "ox": rng.randrange(1, 4)}
        vectors = vectors_of(reads, writes)
        for index, operand in enumerate(vectors):
            # Reads in the first half, writes in the second, with strides of any order and sign.
            low = size // 2 if index >= 4 else 0
            limit = config.accumulator_size if operand == "src" and not fields["source"] else size // 2
            steps = [rng.randrange(-2, 3) for _ in range(3)]
            reach = [step * (fields[loop] - 1) for step, loop in zip(steps, ("ob", "oy", "ox"), strict=True)]
            least, most = sum(min(0, at) for at in reach), sum(max(0, at) for at in reach)
            fields |= {operand: low + rng.randrange(-least, limit - most - 1)}
            fields |= {f"{operand}_vectors": max(1, vectors[operand])}
            fields |= dict(zip((f"{operand}_{loop}" for loop in ("ob", "oy", "ox")), steps, strict=True))
            if operand not in ("src", "dst"):
                fields[f"with_{operand}"] = 1
        instruction = Kernel(**fields)
        model = model_of(device, instruction)
        model.apply()
        run(device, instruction)
        assert (device.scratchpad == model.memory.scratchpad).all(), (instruction, ops)


def test_reciprocals() -> None:
    """All sizes of numbers, and what they stand for: f * 2**-(15+e)."""
    rng = random.Random(7)
    values = [0, 1, -1, 2, 3, (1 << 31) - 1, -(1 << 31), 65535, 65536, 65537]
    values += [rng.getrandbits(rng.randrange(1, 32)) * rng.choice([1, -1]) for _ in range(2000)]
    column = np.array(values, np.int64)[:, None]
    for function, model in ((_reciprocal, reciprocal), (_inverse_root, inverse_root)):
        found = function(column)[:, 0].tolist()
        assert found == [f & 0x3FFFF | e << 18 for f, e in map(model, values)]
    for value in values:
        if value:
            f, e = reciprocal(value)
            assert abs(f * 2.0 ** -(15 + e) * value - 1) < 2**-14.9
        if value > 0:
            f, e = inverse_root(value)
            assert abs(f * 2.0 ** -(15 + e) * value**0.5 - 1) < 2**-14


def test_errors() -> None:
    config = CONFIGS["tiny"]
    add = MicroOp(op=Op.ADD, a_memory=1, d_memory=1)
    end = MicroOp(op=Op.ADD, end=1)
    cases = {
        "has no micro-operation with 'end'": [add],
        "operation 15": [MicroOp(op=15), end],
        "reads operand 1, which the instruction does not have": [MicroOp(a_memory=1, a=1), end],
        "writes to destination 1": [MicroOp(d_memory=1, d=1), end],
        "distance 4, but vectors have 4": [MicroOp(swap=3), end],
        "looks up table 4": [MicroOp(op=Op.TABLE, immediate=4), end],
        "result of LT": [MicroOp(op=Op.LT, d_memory=1), end],
        "has target 1: a loop must start after the previous loop, from 0 to 0": [
            MicroOp(again=1, target=1),
            end,
        ],
        "has target 0: a loop must start after the previous loop, from 1 to 1": [
            MicroOp(again=1),
            MicroOp(again=1),
            end,
        ],
        "ends with RSQRT": [MicroOp(op=Op.RSQRT, end=1)],
    }
    for message, ops in cases.items():
        device = GoldenDevice(config, MEMORY)
        run(device, *microcode(ops, 0))
        with pytest.raises(DeviceError, match=message):
            run(device, Kernel(dst=100))
    device = GoldenDevice(config, MEMORY)
    run(device, *microcode([add, end], 62))
    with pytest.raises(DeviceError, match="'tail' is 5, more than the 4"):
        run(device, Kernel(start=62, tail=5))
    with pytest.raises(DeviceError, match="micro-operation 64 is outside"):
        run(device, *microcode([add, end], 63))
    with pytest.raises(DeviceError, match="no kernel engine"):
        run(GoldenDevice(PRESETS["tiny"], MEMORY), Kernel())
