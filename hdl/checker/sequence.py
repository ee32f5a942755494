"""Whether a program may run one instruction after the other: the sequential core does so, and looks at no semaphore."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.hdl.checker.accesses import ProgramError, name
from weft.hdl.isa import SEMAPHORES, Instruction
from weft.hdl.isa.code import Code


def check_sequence(instructions: Sequence[Instruction]) -> None:
    """Check that every signal that an instruction waits for is of an instruction in front of it.

    `weft.hdl.checker.program.check` finds that some order of a program is right, and that all orders that its
    semaphores allow have the same results. The order in which the program is fetched is one of these exactly if this
    holds.

    Parameters
    ----------
    instructions : sequence of Instruction
        A program without loops, which the sequential core does not have.

    Raises
    ------
    ProgramError
        With one sentence that names the first instruction that comes too early.
    """
    code = Code.of(instructions)
    waits, signals = code.field("wait"), code.field("signal")
    early: list[tuple[int, int]] = []
    for semaphore in range(SEMAPHORES):
        given, taken = signals >> semaphore & 1, waits >> semaphore & 1
        # What is left behind each wait; what an instruction gives comes behind its own wait.
        left = np.cumsum(given) - given - np.cumsum(taken)
        wrong = np.flatnonzero(taken & (left < 0))
        if wrong.size:
            early.append((int(wrong[0]), semaphore))
    if early:
        index, semaphore = min(early)
        raise ProgramError(
            f"{name(index, code[index])} waits for semaphore {semaphore}, which no instruction in front of it has"
            " signalled: the sequential core carries out instructions in the order of the program"
        )
