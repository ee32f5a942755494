"""Description of an FPGA family. Each file in `weft.boards.families` with tools and cells defines one `Family`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from amaranth.hdl import Instance, Module, Signal, Value
from amaranth.lib import io

from weft.boards.errors import PllError
from weft.boards.sdram.calibration import Sweep
from weft.hdl.lib.arithmetic import INFERRED, Multipliers


@dataclass(frozen=True)
class Resources:
    """Resources that an FPGA has or a design needs: 4-input LUTs, flip-flops, DSP blocks and block RAMs.

    DSP blocks and block RAMs are counted as the family's tools count them.
    """

    lut: int
    ff: int
    dsp: int
    ram: int

    NAMES = {"lut": "LUTs", "ff": "flip-flops", "dsp": "DSP blocks", "ram": "block RAMs"}  # noqa: RUF012

    def items(self) -> list[tuple[str, int]]:
        """Return (field, count) pairs in the order of `NAMES`."""
        return [(name, getattr(self, name)) for name in self.NAMES]


Command = Callable[[tuple[str, ...], str, str], list[str]]
"""Function that returns a tool's command, given options, the input file's name and the output file's name."""
Cells = Mapping[str, Mapping[str, int]]
"""Number of resources per cell type, for each of `Resources.NAMES`. Multiplexers that join LUTs count as 0. A LUT RAM
counts its LUTs, including the LUTs of its write port."""


def count_cells(cells: Cells) -> Callable[[Mapping[str, int], Path], Resources]:
    """Return a `Family.needs` for netlists in which each cell type takes a fixed number of resources."""

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
    """Port of a RAM with 16-bit words.

    If `chosen`, the RAM reads the word at `address`, which is at `output` in the next cycle. If `write` is also set, it
    writes the bytes of `word` that `strobe` selects, and `output` is undefined in the next cycle.
    """

    address: Value
    chosen: Value
    write: Value
    word: Value
    strobe: Value
    output: Signal


@dataclass(frozen=True)
class Fabric:
    """FPGA cells that a board's hardware instantiates where synthesis does not infer them.

    Parameters
    ----------
    multipliers : Multipliers
        Multipliers of the array.
    global_buffer : callable, optional
        ``global_buffer(signal, everywhere)`` returns a cell that drives `everywhere` with `signal` through the clock
        network, for signals of thousands of flip-flops.
    single_port_ram : callable, optional
        Returns a RAM of 16K words of 16 bits at a port.
    lut_ram : bool
        LUTs can be small memories.
    start_up : float
        Seconds after configuration until block RAM is readable.
    input_only_pads : bool
        Pads of a bidirectional port may have input buffers only.
    flash_clock : callable, optional
        ``flash_clock(level)`` returns the cell that drives the clock of the configuration flash, if its pad is a
        special one.
    sweep : Sweep, optional
        Calibration of the SDRAM's clock phase at start-up, if the PLL can move the phase.
    """

    multipliers: Multipliers = INFERRED
    global_buffer: Callable[[Signal, Signal], Instance] | None = None
    single_port_ram: Callable[[RamPort], Instance] | None = None
    lut_ram: bool = True
    start_up: float = 0.0
    input_only_pads: bool = True
    flash_clock: Callable[[Signal], Instance] | None = None
    sweep: Sweep | None = None

    @property
    def queue_depths(self) -> tuple[int, int]:
        """Outstanding pieces of the `weft.boards.bus.axi.AxiBridge`, and outstanding commands of the arbiter.
        They are fewer where queue_depths are made of flip-flops."""
        return (16, 16) if self.lut_ram else (4, 2)


GENERIC = Fabric()
"""Fabric in which everything is inferred, for simulation."""


@dataclass(frozen=True)
class Family:
    """FPGA family and the open-source tools for it.

    Parameters
    ----------
    name : str
        Also the name of its module and of its file of estimates.
    packages : tuple of str
        Distributions whose versions affect the result, in addition to the common ones.
    modules : tuple of str
        Python modules that must be installed.
    constraints, routed, bitstream : str
        Suffixes of the pin constraints, of nextpnr's result and of the bitstream.
    place : callable
        Returns the command that places and routes ``top.json``, given nextpnr's options and the names of the pin
        constraints and of the result. The command may also write ``placed.json``.
    pack : callable
        Returns the command that writes the bitstream, given the board's options and the names of nextpnr's result and
        of the bitstream.
    geometries : tuple of (int, int)
        Shapes (bits, words) of a block RAM with one read port and one write port.
    needs : callable
        Returns the resources of a netlist, given its cell counts by type and the path of the netlist (JSON).
    placed : mapping of str to str
        nextpnr's name of the sites for each of `Resources.NAMES`. Resources without sites of their own, or with several
        kinds of sites, are counted in the netlist.
    fabric : Fabric
    models : tuple of str or Path
        Verilog files with simulation models of the family's cells: paths, or names within Yosys's ``share`` folder. If
        two files define a cell, the last one applies.
    notes : tuple of str
        Notes for readers of a build's report.
    derating : float
        Share of nextpnr's maximum clock at which a design works reliably.
    extra_delay : float
        Seconds to add to each path's delay in nextpnr's report.
    clock_constraint : str
        Template of the constraint line for the clock in MHz, if nextpnr needs one.
    script : str
        ABC9's mapping script, one of those that Yosys names; empty for the default.
    falls_back : bool
        Yosys may map with ABC where ABC9 fails.
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
    script: str = ""
    falls_back: bool = True

    def safe_clock(self, reported: float) -> float:
        """Return the clock in Hz at which a design works reliably if nextpnr reports `reported`."""
        return self.derating / (1 / reported + self.extra_delay)

    def requested_clock(self, clock: float) -> float:
        """Return the clock in Hz to request from nextpnr so that a design works reliably at `clock`."""
        return 1 / (self.derating / clock - self.extra_delay)

    def blocks(self, bits: int, words: int) -> int:
        """Return the number of block RAMs for a memory of `words` words of `bits` bits."""
        return min(-(-bits // width) * -(-words // depth) for width, depth in self.geometries)


TOLERANCE = 0.02
"""Largest relative difference between the requested clock and the clock that the PLL makes."""


class Pll(Protocol):
    """PLL settings."""

    @property
    def output(self) -> float:
        """Clock in Hz that the PLL makes."""

    def cell(self, m: Module, port: io.SingleEndedPort, clock: Signal, locked: Signal) -> None:
        """Add the PLL to `m`, from the board's clock pad to `clock`; `locked` is asynchronous."""


@runtime_checkable
class ShiftedPll(Pll, Protocol):
    """PLL settings with a second output of the same frequency."""

    phase: float
    """Delay of the second output, in degrees."""

    @property
    def steps(self) -> int:
        """Phase steps per cycle."""

    def cell(
        self,
        m: Module,
        port: io.SingleEndedPort,
        clock: Signal,
        locked: Signal,
        shifted: Signal | None = None,
        step: Signal | None = None,
    ) -> None:
        """Add the PLL as `Pll.cell` does; `shifted` is the second output.

        Each falling edge of `step` delays `shifted` by one step. `step` must stay high, and low, for at least 10 ns.
        """


def choose_nearest(candidates: Iterator[tuple[float, Any]], wanted: float, kind: str) -> Any:
    """Return the candidate whose clock is nearest to `wanted`, the first of equals. Raises `PllError`.

    `candidates` yields pairs of clock in Hz and candidate.
    """
    best: tuple[float, Any] | None = None
    for output, candidate in candidates:
        if best is None or abs(output - wanted) < abs(best[0] - wanted):
            best = (output, candidate)
    if best is None or abs(best[0] - wanted) > TOLERANCE * wanted:
        nearest = f"; the nearest is {best[0] / 1e6:.3f} MHz" if best else ""
        raise PllError(f"the {kind} cannot make a clock of {wanted / 1e6:g} MHz{nearest}")
    return best[1]
