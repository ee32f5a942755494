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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.hdl.checker.conflicts import SCRATCHPAD
from weft.hdl.checker.extents import Extent, Extents, ProgramError, name
from weft.hdl.checker.forms import Forms
from weft.hdl.checker.loops import check_loops
from weft.hdl.checker.order import Order, check_races
from weft.hdl.checker.rules import check_kernels
from weft.hdl.isa import (
    BASES,
    PARAMETER_VECTORS,
    PROGRAM_REGISTERS,
    WORD_BYTES,
    Instruction,
    IsaError,
    Memory,
    Opcode,
    Queue,
    Source,
)
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config
from weft.hdl.isa.program_lists import Descriptor, check_list, pitch


def check_early(code: Code, forms: Forms, order: Order) -> None:
    """Raises `ProgramError` for a `Vec` whose parameter block is read early, as `weft.hdl.isa.Vec` tells, and written
    by the `Vec` just before it; unless it waits for what waits for the end of that one, as a LOAD of the block does."""
    queue = np.flatnonzero(code.queues == Queue.VEC)
    before, after = queue[:-1], queue[1:]
    both = (code.opcodes[before] == Opcode.VEC) & (code.opcodes[after] == Opcode.VEC)
    before, after = before[both], after[both]
    source, add = (code.field(field, Opcode.VEC, after) for field in ("source", "add"))
    known = np.zeros(len(code), np.int64)  # instructions of the queue that are done, as others tell
    known[order.visited] = np.array(order.clocks, np.int64).reshape(-1, len(Queue))[:, Queue.VEC]
    early = (source == Source.ACCUMULATOR) & (add == 0) & (known[after] <= order.positions[before])
    before, after = before[early], after[early]
    blocks = code.field("params", Opcode.VEC, after)
    # What lies between the first and the last vector that is written, and only if that meets a block what is written.
    low, high = _written(forms, len(code))
    meets = (low[before] < blocks + PARAMETER_VECTORS) & (blocks < high[before])
    for first, second, block in zip(before[meets], after[meets], blocks[meets], strict=True):
        _check(code, forms, int(first), int(second), int(block))


def _written(forms: Forms, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each instruction the first vector of the scratchpad that it writes, and one past the last."""
    uses = forms.uses
    rows = np.flatnonzero((uses.space == SCRATCHPAD) & (uses.kind & 1 == 1))
    low, high = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(low, uses.task[rows], uses.start[rows])
    np.maximum.at(high, uses.task[rows], uses.stop[rows])
    return low, high


def _check(code: Code, forms: Forms, first: int, second: int, block: int) -> None:
    vectors = set(range(block, block + PARAMETER_VECTORS))
    for access in forms.accesses(first)[0]:
        if not access.write or access.memory is not Memory.SCRATCHPAD:
            continue
        cells = access.cells
        found = vectors & set(range(cells.start, cells.stop) if isinstance(cells, slice) else cells.tolist())
        if found:
            raise ProgramError(
                f"{name(second, code[second])} reads parameters from scratchpad vector {min(found)}, which"
                f" {name(first, code[first])} may still be writing"
            )


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


@dataclass(frozen=True)
class ListedProgram:
    """One program of a list.

    Attributes
    ----------
    address : int
        DRAM byte address of its first instruction.
    instructions : sequence of Instruction
        All of it, END included.
    bases : mapping of int to int
        What base registers hold; the others hold 0.
    extents : Extents, optional
        What it may touch. Its addresses are ignored, and those in `bases` taken. Without it nothing is known of what it
        writes.
    """

    address: int
    instructions: Sequence[Instruction]
    bases: Mapping[int, int]
    extents: Extents | None = None

    def descriptor(self, *, last: bool = False) -> Descriptor:
        """Its descriptor."""
        return Descriptor(self.address, [self.bases.get(base, 0) for base in range(BASES)], last)

    @property
    def placed(self) -> Extents | None:
        """What it may touch, where its base registers say."""
        return None if self.extents is None else replace(self.extents, addresses=self.bases)

    def pieces(self) -> Iterator[tuple[Extent, int, int]]:
        """The pieces that it may touch, first byte and that behind the last, as far as base registers say."""
        for piece in self.extents.pieces if self.extents else ():
            if piece.size and piece.base in self.bases:
                first = self.bases[piece.base] + piece.offset
                yield piece, first, first + piece.size


def check_programs(
    address: int, programs: Sequence[ListedProgram], config: Config, memory_bytes: int
) -> None:
    """Check a list and each of its programs with `weft.hdl.checker.program.check`.

    Raises
    ------
    ProgramError
        As `check_places` does, and for the first program that is wrong by itself.
    """
    check_places(address, programs, config, memory_bytes)
    for index, program in enumerate(programs):
        try:
            check(program.instructions, config, extents=program.placed)
        except ProgramError as error:
            raise ProgramError(f"program {index} of the list: {error}") from None


def check_places(address: int, programs: Sequence[ListedProgram], config: Config, memory_bytes: int) -> None:
    """Check where the list and its programs lie. As programs run one after the other, they may share all but code and
    the list itself, which none of them may write.

    Parameters
    ----------
    address : int
        Of the first descriptor.
    programs : sequence of ListedProgram
    config : Config
    memory_bytes : int
        Size of the DRAM.

    Raises
    ------
    ProgramError
        With one sentence that names the first program at fault: a list that no device takes, or one of whose programs
        has memory where the list lies, or may write to code of one of them.
    """
    if not config.descriptors:
        raise ProgramError("the configuration runs no lists of programs ('descriptors' is 0)")
    try:
        check_list(address, len(programs), config, memory_bytes)
    except IsaError as error:
        raise ProgramError(str(error)) from None
    kept = [("the list", address, address + len(programs) * pitch(config))]
    for index, program in enumerate(programs):
        first, end = program.address, program.address + len(program.instructions) * WORD_BYTES
        if first % config.bus_bytes:
            raise ProgramError(
                f"program {index} of the list: address {first:#x} is no multiple of {config.bus_bytes} bytes"
            )
        try:
            program.descriptor().encode()
        except IsaError as error:
            raise ProgramError(f"program {index} of the list: {error}") from None
        if first < kept[0][2] and kept[0][1] < end:
            raise ProgramError(f"program {index} of the list lies in the list's own bytes")
        kept.append((f"the code of program {index}", first, end))
    for index, program in enumerate(programs):
        for piece, low, high in program.pieces():
            # What it only reads may be anything but the list, which the device and the host write.
            for what, first, end in kept if piece.write else kept[:1]:
                if low < end and first < high:
                    does = "may write to" if piece.write else "has memory in"
                    raise ProgramError(
                        f"program {index} of the list {does} {what}: bytes {low:#x} to {high - 1:#x} are {piece.name}"
                    )
