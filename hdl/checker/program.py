"""The program checker: what the hardware does not check, because the compiler decides all overlap.

A program that passes computes the same whatever the timing of memory and units:

- every field fits, every address lies inside its memory, and the configuration has what an instruction needs;
- each semaphore has one producer queue and one consumer queue, so that the k-th wait takes the k-th signal; no
  wait is for ever, with instruction queues of the configured depth; no semaphore passes `SEMAPHORE_MAX`;
- every access lies within a piece of memory (a buffer, the constants) that the instruction may read or write: none
  reads or writes code, none writes constants or inputs;
- any two instructions of different queues that touch the same vector, row, alignment or DRAM byte, one of them
  writing, are ordered by semaphores; what paged loads read, nobody writes;
- no `Vec` writes the parameter block of the next one, if that may be read before the end of the first;
- loops nest, and all that is so whatever registers hold (`weft.hdl.checker.loops`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.hdl.checker.accesses import ProgramError, name
from weft.hdl.checker.early import check_early
from weft.hdl.checker.extents import Extent, Extents
from weft.hdl.checker.forms import Forms
from weft.hdl.checker.kernels import check_kernels
from weft.hdl.checker.loops import check_loops
from weft.hdl.checker.order import Order
from weft.hdl.checker.races import check_races
from weft.hdl.isa import BASES, PROGRAM_REGISTERS, Instruction, IsaError, Opcode
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config

__all__ = ["Extent", "Extents", "ProgramError", "check"]


def check(instructions: Sequence[Instruction], config: Config, *, extents: Extents | None = None) -> None:
    """Check a whole program, END included.

    Parameters
    ----------
    instructions : sequence of Instruction
        The program in order of fetching.
    config : Config
        The accelerator it is for.
    extents : Extents, optional
        What memory holds, the code included. Without it offsets are only checked to be within 32 bits, and different
        base registers are taken to address different memory, none of them the code.

    Raises
    ------
    ProgramError
        With one sentence that names the first instruction found at fault and the reason.
    """
    try:
        code = Code.of(instructions)
    except IsaError as error:
        raise ProgramError(str(error)) from None
    _check_end(code)
    if extents is not None:
        extents.check(PROGRAM_REGISTERS if config.loops else BASES)
    body = code[:-1]
    if (body.queues < 0).any():
        check_loops(body, config, extents, _check_straight)
    else:
        _check_straight(body, config, extents)


def _check_straight(body: Code, config: Config, extents: Extents | None) -> None:
    """Check a program without loops, and without END."""
    forms = Forms(body, config, extents)
    _check_pages(body)
    check_kernels(body, config)
    order = Order(body, config.queue_depth)
    check_races(body, config, forms, order)
    check_early(body, forms, order)


def _check_end(code: Code) -> None:
    ends = np.flatnonzero(code.opcodes == int(Opcode.END)).tolist()
    if not ends:
        raise ProgramError("the program has no END")
    if ends[0] != len(code) - 1:
        raise ProgramError(f"instruction {ends[0]} (END) is not the last: {len(code)} instructions")
    if code[-1].wait or code[-1].signal:
        raise ProgramError(f"instruction {ends[0]} (END) has semaphores, but it belongs to no queue")


def _check_pages(body: Code) -> None:
    """Nobody knows where paged LOADs read, so no STORE may write to what they are relative to."""
    loads, stores = (np.flatnonzero(body.opcodes == int(opcode)) for opcode in (Opcode.LOAD, Opcode.STORE))
    loads = loads[body.field("paged", Opcode.LOAD, loads) == 1]
    pages: dict[int, tuple[str, int]] = {}
    for what, field in (("the page table", "table"), ("pages", "base")):
        bases, first = np.unique(body.field(field, Opcode.LOAD, loads), return_index=True)
        pages |= {
            base: (what, index) for base, index in zip(bases.tolist(), loads[first].tolist(), strict=True)
        }
    written = body.field("base", Opcode.STORE, stores)
    wrong = np.flatnonzero(np.isin(written, list(pages)))
    if wrong.size:
        base, index = int(written[wrong[0]]), int(stores[wrong[0]])
        what, who = pages[base]
        raise ProgramError(
            f"{name(index, body[index])} writes to base register {base}, from which {name(who, body[who])}"
            f" reads {what}: no order of the two can be checked"
        )
