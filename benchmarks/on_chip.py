"""A matrix product whose operands are all on chip before the array starts: the machine's own limit.

The program is written by hand: two LOADs, one MM that waits for both, VECs and a STORE that wait for it.
"""

from __future__ import annotations

import numpy as np

from weft.hdl.isa import PARAMETER_VECTORS, End, Instruction, Load, Mm, Store, Vec
from weft.hdl.isa import config as parameters
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.sim.device import Device
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

_PAGE = 4096
_LOADED, _MULTIPLIED, _DRAINED = 1, 2, 4


def fits(side: int, config: Config) -> bool:
    """Return whether both operands, the parameters and the result fit, the operands in separate banks."""
    blocks = side // config.n
    per_operand = -(-side * blocks // config.scratchpad_depth)
    return side * blocks <= config.accumulator_size and 3 * per_operand + 1 <= config.scratchpad_banks


def program(side: int, config: Config) -> tuple[list[Instruction], int]:
    """Return instructions for C = A B^T with side x side operands, and the DRAM address of C (int8)."""
    n, depth = config.n, config.scratchpad_depth
    blocks, size = side // n, side * side
    banks = -(-side * blocks // depth)
    a, b, out, params = 0, banks * depth, 2 * banks * depth, 3 * banks * depth
    vectors = dict(pitch=n, length=n, dst_vector=1, dst_pixel=1)  # noqa: C408
    instructions: list[Instruction] = [
        Load(offset=0, pixels=side * blocks, run=size, dst=a, **vectors),
        Load(offset=size, pixels=side * blocks, run=size, dst=b, **vectors),
        Load(offset=2 * size, pixels=PARAMETER_VECTORS, run=PARAMETER_VECTORS * n, dst=params, signal=_LOADED,
             **vectors),
        Mm(wait=_LOADED, signal=_MULTIPLIED, nt=blocks, kc=blocks, ox=side, a=a, a_kc=1, a_ox=blocks,
           b=b, b_nt=n * blocks, b_kc=1, b_row=blocks, c_nt=side, c_ox=1),
    ]  # fmt: skip
    for block in range(blocks):
        instructions.append(
            Vec(wait=_MULTIPLIED if block == 0 else 0, signal=_DRAINED if block == blocks - 1 else 0, ox=side,
                src=block * side, src_ox=1, dst=out + block, dst_ox=blocks, params=params)
        )  # fmt: skip
    result = 2 * size + _PAGE
    instructions += [
        Store(wait=_DRAINED, offset=result, pixels=side, pitch=side, length=side,
              src=out, src_vector=1, src_pixel=blocks),
        End(),
    ]  # fmt: skip
    return instructions, result


def image(side: int, config: Config) -> tuple[bytes, int]:
    """Return the encoded program, and its DRAM address, after operands and result."""
    instructions, result = program(side, config)
    start = result + side * side + _PAGE
    return b"".join(instruction.encode() for instruction in instructions), start - start % _PAGE


def execute(device: Device, code: bytes, start: int) -> None:
    """Run what `image` made on a device that has the operands, or needs none."""
    device.write(start, code)
    device.set_base(0, 0)
    device.start(start)
    device.wait(10_000_000)


def utilisation(side: int, config: Config) -> tuple[dict[Counter, int], bool]:
    """Run on the RTL; return its counters, and whether its memory equals the golden interpreter's."""
    rng = np.random.default_rng(side)
    code, start = image(side, config)
    operands = rng.integers(-127, 128, 2 * side * side).astype(np.int8).tobytes()
    scale = parameters.parameter_block(
        np.zeros(config.n), np.full(config.n, 1 << 22), np.full(config.n, 36), config.n
    )
    size = start + len(code) + _PAGE

    def memory_of(device: Device) -> bytes:
        device.write(0, operands + scale)
        execute(device, code, start)
        return device.read(0, size)

    with RtlDevice(config, size) as rtl:
        memory, counters = memory_of(rtl), rtl.counters()
    return counters, memory == memory_of(GoldenDevice(config, size))
