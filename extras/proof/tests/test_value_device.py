"""Execution of instructions on values: no instruction of a queue is unknown to certificates."""

from __future__ import annotations

import pytest

from weft.extras.proof.programs.value_device import Unproven, ValueDevice
from weft.extras.proof.programs.values import Values
from weft.hdl.isa import INSTRUCTIONS, Instruction
from weft.hdl.isa.config import PRESETS
from weft.sim.device import DeviceError

QUEUED = [kind for kind in INSTRUCTIONS.values() if kind.QUEUE is not None]


@pytest.mark.parametrize("kind", QUEUED, ids=lambda kind: kind.OPCODE.name)
def test_every_instruction_is_known(kind: type[Instruction]) -> None:
    device = ValueDevice(PRESETS["default"], 1 << 12, Values(1))
    reason = ""
    try:
        device._execute(0, kind())
    except (Unproven, DeviceError) as error:  # parameters, tables and kernels were not written
        reason = str(error)
    assert "none of those that proofs know" not in reason
