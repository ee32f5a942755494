"""What an FPGA family is to weft. Every family is one file in `weft.boards.families` that makes one `Family`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Resources:
    """What a part has, or a design needs: LUTs with 4 inputs, flip-flops, DSP blocks, block RAMs.

    DSP blocks and block RAMs count as the family's tools count them.
    """

    lut: int
    ff: int
    dsp: int
    ram: int

    NAMES = {"lut": "LUTs", "ff": "flip-flops", "dsp": "DSP blocks", "ram": "block RAMs"}  # noqa: RUF012

    def items(self) -> list[tuple[str, int]]:
        """(field, count) in the order of `NAMES`."""
        return [(name, getattr(self, name)) for name in self.NAMES]


Command = Callable[[tuple[str, ...], str, str], list[str]]
"""A command from options and the names of the file that is read and of the one that is written."""
Cells = Mapping[str, Mapping[str, int]]
"""For each of `Resources.NAMES` how many of them a cell takes. Multiplexers that join LUTs cost none; a LUT RAM takes
its LUTs, and those that write it."""


def counted(cells: Cells) -> Callable[[Mapping[str, int], Path], Resources]:
    """`Family.needs` for netlists whose cells take fixed numbers of resources."""

    def needs(counts: Mapping[str, int], netlist: Path) -> Resources:
        return Resources(
            **{
                name: sum(weight * counts.get(cell, 0) for cell, weight in kinds.items())
                for name, kinds in cells.items()
            }
        )

    return needs


@dataclass(frozen=True)
class Family:
    """A family of parts, and the open tools for it.

    Parameters
    ----------
    name : str
        Under which its estimates are kept, and by which it is shown.
    part : str
        The `part` of `weft.hdl.core.Core`: one of `weft.hdl.lib.parts.PARTS`.
    packages : tuple of str
        Distributions whose versions decide the result, beside those that all families use.
    modules : tuple of str
        Python modules that must be there.
    constraints, routed, bitstream : str
        Suffixes of the pin constraints, of nextpnr's result and of the bitstream.
    place : callable
        The command that places and routes ``top.json``, from nextpnr's options and the names of the pin constraints
        and of the result. It may leave ``placed.json`` as well.
    pack : callable
        The command that writes the bitstream, from the part's options and the names of nextpnr's result and of the
        bitstream.
    geometries : tuple of (int, int)
        (bits, words) that a block RAM can be with one port to read and one to write.
    needs : callable
        What a netlist needs, from its cells by type and the path of the netlist as JSON.
    placed : mapping of str to str
        What nextpnr calls the places of each of `Resources.NAMES`; kinds that have no place of their own, or several,
        are counted in the netlist.
    notes : tuple of str
        What a reader must know about the numbers of a build.
    derating : float
        What part of nextpnr's maximal clock to believe.
    unknown : float
        Seconds that a path may take longer than nextpnr says.
    clock_constraint : str
        A line for the constraints with a place for the clock in MHz, if nextpnr has to be told of it.
    falls_back : bool
        Whether Yosys may map with ABC where ABC9 fails.
    """

    name: str
    part: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    constraints: str
    routed: str
    bitstream: str
    place: Command
    pack: Command
    geometries: tuple[tuple[int, int], ...]
    needs: Callable[[Mapping[str, int], Path], Resources]
    placed: Mapping[str, str] = field(hash=False)
    notes: tuple[str, ...] = ()
    derating: float = 1.0
    unknown: float = 0.0
    clock_constraint: str = ""
    falls_back: bool = True

    def believed(self, reported: float) -> float:
        """The clock in Hz that a design is sure to reach if nextpnr reports `reported`."""
        return self.derating / (1 / reported + self.unknown)

    def wanted(self, clock: float) -> float:
        """What to ask nextpnr for, to get a clock in Hz."""
        return 1 / (self.derating / clock - self.unknown)

    def blocks(self, bits: int, words: int) -> int:
        """Block RAMs of a memory of `words` times `bits`."""
        return min(-(-bits // width) * -(-words // depth) for width, depth in self.geometries)
