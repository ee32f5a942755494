"""Check of whole programs and of lists of programs.

The hardware has no interlocks besides semaphores. The results of a program that passes do not depend on the timing of
memory and units:

- every field fits, every address is inside its memory, and the configuration has the features of every instruction;
- each semaphore has one producer queue and one consumer queue, so that the k-th wait takes the k-th signal; there is no
  deadlock with instruction queues of the configured depth; no semaphore exceeds `SEMAPHORE_MAX`;
- every access is within an extent of memory (a buffer, the constants) that the instruction may read or write: none
  reads or writes code, and none writes constants or inputs;
- if two instructions of different queues access one vector, row, alignment or DRAM byte, and one of them writes it,
  semaphores order them; no instruction writes memory that paged LOADs read;
- no `Vec` writes the parameter block of the next `Vec` if that may be read before the end of the first;
- loops nest, and all these rules hold for all values of registers (`weft.hdl.checker.loops`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.hdl.checker.conflicts import SCRATCHPAD
from weft.hdl.checker.extents import Extent, Extents, describe
from weft.hdl.checker.forms import Forms
from weft.hdl.checker.loops import check_loops
from weft.hdl.checker.order import Order, check_races
from weft.hdl.checker.rules import check_kernels
from weft.hdl.errors import IsaError, ProgramError
from weft.hdl.isa import (
    BASES,
    PARAMETER_VECTORS,
    PROGRAM_REGISTERS,
    WORD_BYTES,
    Instruction,
    Memory,
    Opcode,
    Queue,
    Source,
)
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config
from weft.hdl.isa.program_lists import Descriptor, check_list, pitch


def check_early(code: Code, forms: Forms, order: Order) -> None:
    """Check that no `Vec` writes a parameter block that the next `Vec` reads early (see `weft.hdl.isa.Vec`).

    Semaphores may order the two, for example if a LOAD of the block waits for the first and the second for the LOAD.
    """
    queue = np.flatnonzero(code.queues == Queue.VEC)
    before, after = queue[:-1], queue[1:]
    both = (code.opcodes[before] == Opcode.VEC) & (code.opcodes[after] == Opcode.VEC)
    before, after = before[both], after[both]
    source, add = (code.field(field, Opcode.VEC, after) for field in ("source", "add"))
    done = np.zeros(len(code), np.int64)  # VEC instructions known to be done, through other queues
    done[order.visited] = np.array(order.clocks, np.int64).reshape(-1, len(Queue))[:, Queue.VEC]
    early = (source == Source.ACCUMULATOR) & (add == 0) & (done[after] <= order.positions[before])
    before, after = before[early], after[early]
    blocks = code.field("params", Opcode.VEC, after)
    # Compare ranges of addresses first, and exact addresses only where these overlap.
    low, high = _written_spans(forms, len(code))
    overlap = (low[before] < blocks + PARAMETER_VECTORS) & (blocks < high[before])
    for first, second, block in zip(before[overlap], after[overlap], blocks[overlap], strict=True):
        _check_block(code, forms, int(first), int(second), int(block))


def _written_spans(forms: Forms, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each instruction the first scratchpad vector that it writes, and the last + 1."""
    uses = forms.uses
    rows = np.flatnonzero((uses.space == SCRATCHPAD) & (uses.kind & 1 == 1))
    low, high = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(low, uses.task[rows], uses.start[rows])
    np.maximum.at(high, uses.task[rows], uses.stop[rows])
    return low, high


def _check_block(code: Code, forms: Forms, first: int, second: int, block: int) -> None:
    vectors = set(range(block, block + PARAMETER_VECTORS))
    for access in forms.accesses(first)[0]:
        if not access.write or access.memory is not Memory.SCRATCHPAD:
            continue
        cells = access.cells
        written = set(range(cells.start, cells.stop) if isinstance(cells, slice) else cells.tolist())
        if vectors & written:
            raise ProgramError(
                f"{describe(second, code[second])} reads parameters from scratchpad vector"
                f" {min(vectors & written)}, which {describe(first, code[first])} may still be writing"
            )


__all__ = ["Extent", "Extents", "ProgramError", "check"]


def check(instructions: Sequence[Instruction], config: Config, *, extents: Extents | None = None) -> None:
    """Check a whole program, END included.

    Parameters
    ----------
    instructions : sequence of Instruction
        The program in the order of fetching.
    config : Config
    extents : Extents, optional
        Memory that the program may access. Without it, offsets only have to fit 32 bits, and base registers are taken
        to address separate memories without the code.

    Raises
    ------
    ProgramError
        With the first faulty instruction and the reason.
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
    """Check a straight-line program without its END."""
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
    """Check that no STORE writes to base registers of paged LOADs, because their addresses are unknown."""
    loads, stores = (np.flatnonzero(body.opcodes == int(opcode)) for opcode in (Opcode.LOAD, Opcode.STORE))
    loads = loads[body.field("paged", Opcode.LOAD, loads) == 1]
    pages: dict[int, tuple[str, int]] = {}
    for kind, field in (("the page table", "table"), ("pages", "base")):
        bases, first = np.unique(body.field(field, Opcode.LOAD, loads), return_index=True)
        pages |= {
            base: (kind, index) for base, index in zip(bases.tolist(), loads[first].tolist(), strict=True)
        }
    written = body.field("base", Opcode.STORE, stores)
    conflicting = np.flatnonzero(np.isin(written, list(pages)))
    if conflicting.size:
        base, index = int(written[conflicting[0]]), int(stores[conflicting[0]])
        kind, load = pages[base]
        raise ProgramError(
            f"{describe(index, body[index])} writes to base register {base}, from which {describe(load, body[load])}"
            f" reads {kind}: no order of the two can be checked"
        )


@dataclass(frozen=True)
class ListedProgram:
    """Program of a list.

    Attributes
    ----------
    address : int
        DRAM byte address of the first instruction.
    instructions : sequence of Instruction
        The program, END included.
    bases : mapping of int to int
        Values of base registers; missing ones are 0.
    extents : Extents, optional
        Memory that the program may access, with `bases` instead of its own addresses. Without it, the addresses that
        the program writes are unknown.
    """

    address: int
    instructions: Sequence[Instruction]
    bases: Mapping[int, int]
    extents: Extents | None = None

    def descriptor(self, *, last: bool = False) -> Descriptor:
        """Return the program's descriptor."""
        return Descriptor(self.address, [self.bases.get(base, 0) for base in range(BASES)], last)

    @property
    def placed_extents(self) -> Extents | None:
        """Extents with the addresses of `bases`."""
        return None if self.extents is None else replace(self.extents, addresses=self.bases)

    def pieces(self) -> Iterator[tuple[Extent, int, int]]:
        """Yield the extents' pieces at known base registers, with first address and last address + 1."""
        for piece in self.extents.pieces if self.extents else ():
            if piece.size and piece.base in self.bases:
                first = self.bases[piece.base] + piece.offset
                yield piece, first, first + piece.size


def check_programs(
    address: int, programs: Sequence[ListedProgram], config: Config, memory_bytes: int
) -> None:
    """Check a list of programs: its memory with `check_places`, and each program with `check`.

    Raises
    ------
    ProgramError
        As `check_places` does, or for the first faulty program.
    """
    check_places(address, programs, config, memory_bytes)
    for index, program in enumerate(programs):
        try:
            check(program.instructions, config, extents=program.placed_extents)
        except ProgramError as error:
            raise ProgramError(f"program {index} of the list: {error}") from None


def check_places(address: int, programs: Sequence[ListedProgram], config: Config, memory_bytes: int) -> None:
    """Check the memory of a list of programs.

    The programs run one after the other, so they may share memory, except that none may write the code of any program
    or access the list itself.

    Parameters
    ----------
    address : int
        Address of the first descriptor.
    programs : sequence of ListedProgram
    config : Config
    memory_bytes : int
        Size of the DRAM in bytes.

    Raises
    ------
    ProgramError
        With the first faulty program, or for a list that the device rejects.
    """
    if not config.descriptors:
        raise ProgramError("the configuration runs no lists of programs ('descriptors' is 0)")
    try:
        check_list(address, len(programs), config, memory_bytes)
    except IsaError as error:
        raise ProgramError(str(error)) from None
    protected = [("the list", address, address + len(programs) * pitch(config))]
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
        if first < protected[0][2] and protected[0][1] < end:
            raise ProgramError(f"program {index} of the list lies in the list's own bytes")
        protected.append((f"the code of program {index}", first, end))
    for index, program in enumerate(programs):
        for piece, low, high in program.pieces():
            # A program may read code, but not the list, which device and host write.
            for name, first, end in protected if piece.write else protected[:1]:
                if low < end and first < high:
                    verb = "may write to" if piece.write else "has memory in"
                    raise ProgramError(
                        f"program {index} of the list {verb} {name}: bytes {low:#x} to {high - 1:#x} are {piece.name}"
                    )
