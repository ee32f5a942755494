"""A device that caches results of instructions returns current values, whatever it has executed before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from weft.extras.language.certificate.recalled import RecallingDevice
from weft.extras.proof.programs.value_device import Unproven
from weft.extras.proof.programs.values import Values
from weft.hdl.isa import (
    End,
    Instruction,
    Load,
    LoopNext,
    LoopStart,
    Mode,
    SetRegisters,
    Source,
    Store,
    Vec,
    config,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.loops import slots

CONFIG = Config.load("tiny").replace(loops=1)
N = CONFIG.n
PROGRAM, INPUT, OUTPUT, MEMORY = 0x1000, 0x100, 0x200, 0x3000
TURN = 8
COPY = [Load(offset=INPUT, length=N, run=N, dst=5), Store(offset=OUTPUT, length=N, src=5)]


def device_of(items: Sequence[Instruction]) -> RecallingDevice:
    device = RecallingDevice(CONFIG, MEMORY, Values(1))
    device.write(PROGRAM, b"".join(item.encode() for item in [*items, End()]))
    return device


def run(device: RecallingDevice, content: np.ndarray) -> np.ndarray:
    """Run a program on inputs and return its values."""
    device.forget()
    device.set_values(INPUT, content)
    device.start(PROGRAM)
    device.wait()
    return device.get_values(OUTPUT, N)


def test_repeated_reads_are_not_executed_again() -> None:
    device = device_of(COPY)
    first, second = (device.values.new_inputs(N) for _ in range(2))
    assert np.array_equal(run(device, first), first)
    assert device.executed == 2
    assert np.array_equal(run(device, first), first)
    assert device.executed == 3  # STORE
    assert np.array_equal(run(device, second), second)
    assert device.executed == 5


def test_parameters_and_operands_are_read_again() -> None:
    """VEC with equal words and other vectors is another instruction."""
    block = config.parameter_block(np.zeros(N), np.ones(N), np.zeros(N), N)
    size = len(block) // N
    items = [
        Load(offset=INPUT, length=N, run=N, dst=5),
        Load(offset=0x300, pixels=size, pitch=N, length=N, run=len(block), dst=8, dst_pixel=1, signal=1),
        Vec(source=Source.SCRATCHPAD, src=5, dst=6, params=8, wait=1, signal=2),
        Store(offset=OUTPUT, length=N, src=6, wait=2),
    ]
    device = device_of(items)
    device.write(0x300, block)
    inputs = device.values.new_inputs(N)
    residues = device.values.residues
    assert np.array_equal(residues(run(device, inputs)), residues(inputs))
    doubled = config.parameter_block(np.zeros(N), np.full(N, 2), np.zeros(N), N)
    device.write(0x300, doubled)
    assert not np.array_equal(residues(run(device, inputs)), residues(inputs))


def test_unwritten_memory_stays_untouched() -> None:
    device = device_of(COPY)
    device.fix([(OUTPUT + N - 1, OUTPUT + N)])
    with pytest.raises(Unproven, match=f"it writes to {OUTPUT:#x}, which holds the program or constants"):
        run(device, device.values.new_inputs(N))


def turns() -> list[Instruction]:
    """Return a loop whose second iteration stores what the first has loaded."""
    body: list[Instruction] = [
        Load(offset=INPUT, length=N, run=N, dst=5, signal=1),
        Store(offset=OUTPUT, length=N, src=6, wait=1, signal=2),
        Load(offset=INPUT, length=N, run=N, dst=6, wait=2),
    ]
    return [
        SetRegisters(**slots((TURN, Mode.SET, 2))),
        LoopStart(register=TURN, skip=len(body) + 1),
        *body,
        LoopNext(back=len(body) + 1, **slots((TURN, Mode.ADD, -1))),
    ]


def test_an_iteration_starts_with_unknown_contents() -> None:
    device = device_of(turns())
    inputs = device.values.new_inputs(N)
    assert np.array_equal(run(device, inputs), inputs)
    device.turn_register = TURN
    actual = run(device, inputs)
    assert not np.isin(actual, inputs).any()
    assert np.array_equal(run(device, inputs), actual)
