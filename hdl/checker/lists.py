"""Whether a list of programs may run: its descriptors, each program, and what programs do to each other's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.hdl.checker.accesses import ProgramError
from weft.hdl.checker.extents import Extent, Extents
from weft.hdl.checker.program import check
from weft.hdl.isa import BASES, WORD_BYTES, Instruction, IsaError
from weft.hdl.isa.config import Config
from weft.hdl.isa.program_lists import Descriptor, check_list, pitch


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
