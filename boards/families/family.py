"""What weft must know of an FPGA family. Every family is one file in `weft.boards.families` that makes one `Family`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from amaranth.hdl import Instance, Module, Signal, Value
from amaranth.lib import io

from weft.boards.sdram.calibration import Sweep
from weft.hdl.errors import WeftError
from weft.hdl.lib.arithmetic import INFERRED, Multipliers


@dataclass(frozen=True)
class Resources:
    """What an FPGA has, or a design needs: LUTs with 4 inputs, flip-flops, DSP blocks, block RAMs.

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
class RamPort:
    """The port of a RAM of 16-bit words: if `chosen`, it reads the word at `address` to `output`, in the next cycle, or
    with `write`, it writes the bytes of `word` that `strobe` says; `output` is unknown after that."""

    address: Value
    chosen: Value
    write: Value
    word: Value
    strobe: Value
    output: Signal


@dataclass(frozen=True)
class Fabric:
    """What a board's hardware is made of where synthesis does not infer it.

    Parameters
    ----------
    multipliers : Multipliers
        Blocks of the array.
    global_buffer : callable, optional
        ``global_buffer(signal, everywhere)`` makes a cell that drives `everywhere` with `signal` through the network
        that clocks have, for signals of thousands of flip-flops.
    single_port_ram : callable, optional
        Makes a RAM of 16K words of 16 bits at a port.
    lut_ram : bool
        Whether LUTs can be small memories.
    start_up : float
        Seconds after configuration until block RAM can be read.
    reads_alone : bool
        Whether a pad of a bidirectional port may be one that is only read.
    flash_clock : callable, optional
        ``flash_clock(level)`` makes the cell through which the clock of the flash chip goes that holds the bitstream,
        where that is no pad like others.
    sweep : Sweep, optional
        How boards with SDRAM find the phase of its clock when they start, where the PLL can move it.
    """

    multipliers: Multipliers = INFERRED
    global_buffer: Callable[[Signal, Signal], Instance] | None = None
    single_port_ram: Callable[[RamPort], Instance] | None = None
    lut_ram: bool = True
    start_up: float = 0.0
    reads_alone: bool = True
    flash_clock: Callable[[Signal], Instance] | None = None
    sweep: Sweep | None = None

    @property
    def queues(self) -> tuple[int, int]:
        """Pieces that a board's `weft.boards.bus.axi_bridge.AxiBridge` has under way, and commands that its arbiter
        has: fewer where queues are made of flip-flops."""
        return (16, 16) if self.lut_ram else (4, 2)


GENERIC = Fabric()
"""Everything is inferred, as in simulation."""


@dataclass(frozen=True)
class Family:
    """An FPGA family, and the open tools for it.

    Parameters
    ----------
    name : str
        Also the name of its file, and of the one with its estimates.
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
        The command that writes the bitstream, from the board's options and the names of nextpnr's result and of the
        bitstream.
    geometries : tuple of (int, int)
        (bits, words) that a block RAM can be with one port to read and one to write.
    needs : callable
        What a netlist needs, from its cells by type and the path of the netlist as JSON.
    placed : mapping of str to str
        What nextpnr calls the places of each of `Resources.NAMES`; kinds that have no place of their own, or several,
        are counted in the netlist.
    fabric : Fabric
    models : tuple of str or Path
        Verilog files with models of the family's cells for simulation: paths, or names within Yosys's ``share`` folder.
        Of a cell that is in two of them, the last is taken.
    notes : tuple of str
        What a reader must know about the numbers of a build.
    derating : float
        The share of nextpnr's maximal clock that a design is sure to reach.
    extra_delay : float
        Seconds that a path may take beyond what nextpnr says.
    clock_constraint : str
        A line for the constraints with a place for the clock in MHz, if nextpnr has to be told of it.
    falls_back : bool
        Whether Yosys may map with ABC where ABC9 fails.
    """

    name: str
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
    fabric: Fabric = GENERIC
    models: tuple[str | Path, ...] = ()
    notes: tuple[str, ...] = ()
    derating: float = 1.0
    extra_delay: float = 0.0
    clock_constraint: str = ""
    falls_back: bool = True

    def safe_clock(self, reported: float) -> float:
        """The clock in Hz that a design is sure to reach if nextpnr reports `reported`."""
        return self.derating / (1 / reported + self.extra_delay)

    def requested_clock(self, clock: float) -> float:
        """The clock in Hz to ask nextpnr for, so that a design is sure to reach `clock`."""
        return 1 / (self.derating / clock - self.extra_delay)

    def blocks(self, bits: int, words: int) -> int:
        """Block RAMs of a memory of `words` times `bits`."""
        return min(-(-bits // width) * -(-words // depth) for width, depth in self.geometries)


TOLERANCE = 0.02
"""How far the nearest clock may be from the wanted one, as a share."""


class PllError(WeftError, ValueError):
    """A clock that no dividers make; the message names it and the nearest one that works."""


class Pll(Protocol):
    """Dividers of one loop."""

    @property
    def output(self) -> float:
        """The clock it makes."""

    def cell(self, m: Module, port: io.SingleEndedPort, clock: Signal, locked: Signal) -> None:
        """Add the loop to `m`, from the board's clock pad to `clock`; `locked` is asynchronous."""


@runtime_checkable
class ShiftedPll(Pll, Protocol):
    """A loop with a second output of the same rate."""

    phase: float
    """Degrees by which the second output is late."""

    @property
    def steps(self) -> int:
        """Steps of the phase in a cycle."""

    def cell(
        self,
        m: Module,
        port: io.SingleEndedPort,
        clock: Signal,
        locked: Signal,
        shifted: Signal | None = None,
        step: Signal | None = None,
    ) -> None:
        """As `Pll.cell`; `shifted` is the second output. It gets later by a step each time that `step` falls, which
        must be high, and low, for 10 ns and more."""


def nearest(found: Iterator[tuple[float, Any]], wanted: float, kind: str) -> Any:
    """The candidate (its clock, itself) nearest to `wanted`, the first of equals. Raises `PllError`."""
    best: tuple[float, Any] | None = None
    for output, candidate in found:
        if best is None or abs(output - wanted) < abs(best[0] - wanted):
            best = (output, candidate)
    if best is None or abs(best[0] - wanted) > TOLERANCE * wanted:
        nearest = f"; the nearest is {best[0] / 1e6:.3f} MHz" if best else ""
        raise PllError(f"the {kind} cannot make a clock of {wanted / 1e6:g} MHz{nearest}")
    return best[1]
