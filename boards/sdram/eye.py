"""Set-up and hold margins at SDRAM and FPGA, and the clock phase and capture cycle that maximise them.

All signals between FPGA and chip leave and enter through registers in the pads. Times count from the edge of the FPGA's
clock, of period T, at which a command leaves. The chip's clock leaves a pad of the same kind `late` = phase / 360 * T
later. Delays of pads and wires to the chip are equal for both and cancel there. They do not cancel for words read::

    the chip takes the command at    late + output
    a word is at the register        from late + output + (cas_latency - 1) T + access + input
                                     to   late + output + cas_latency T + output_hold + input
    the register takes it at         (cas_latency - 1 + capture) T

A good phase depends on the clock, because the same delays are another part of the cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from weft.boards.errors import BoardError
from weft.boards.sdram.chip import SdramTiming

CAS_LATENCY = 3
"""CAS latency on all boards."""
MIN_MARGIN_NS = 1.0
"""Smallest margin in nanoseconds, for jitter and for errors of `PadDelays`."""
CAPTURES = range(1, 4)
TURN = 2
"""Cycles between the last word that the chip sends and the first word written to it; see `Scheduler`."""


@dataclass(frozen=True)
class PadDelays:
    """Delays of the FPGA's pads and of the wires to the chip, in ns.

    Lattice's data sheet (FPGA-DS-02012) does not list this path alone, and nextpnr does not model it. These values are
    the controller author's estimates, not measurements. `MIN_MARGIN_NS` allows for their errors.

    Parameters
    ----------
    output : float
        From a register's clock to the chip, for an LVCMOS33 driver with fast edges.
    input : float
        From the chip to a register, including its set-up time.
    """

    output: float = 3.0
    input: float = 1.0


@dataclass(frozen=True)
class Eye:
    """Set-up and hold margins in ns for a clock in Hz, whose copy for the chip is delayed by `phase`.

    Attributes
    ----------
    clock : float
    phase : float
        Degrees, 0 to 360.
    capture : int
        Cycles that registers and phase add to the CAS latency, as `weft.boards.sdram.controller.SdramController` takes
        it.
    write_setup, write_hold : float
        Margins at the chip, of commands, addresses, masks and data.
    read_setup, read_hold : float
        Margins at the FPGA, of words read.
    turnaround : float
        Time between the chip's release of the data pads after a read and the controller's first drive.
    """

    clock: float
    phase: float
    capture: int
    write_setup: float
    write_hold: float
    read_setup: float
    read_hold: float
    turnaround: float

    MARGINS = ("write_setup", "write_hold", "read_setup", "read_hold", "turnaround")

    @property
    def min_margin(self) -> float:
        """Smallest of all margins. Below 0 the memory does not work."""
        return min(getattr(self, name) for name in self.MARGINS)

    def report(self) -> dict[str, Any]:
        """Return phase, capture and all margins for JSON."""
        margins = {name: round(getattr(self, name), 2) for name in self.MARGINS}
        return {"phase_degrees": round(self.phase, 2), "capture_cycles": self.capture, "margins_ns": margins}


def eye_at(
    clock: float,
    phase: float,
    capture: int,
    timing: SdramTiming | None = None,
    pads: PadDelays | None = None,
    cas_latency: int = CAS_LATENCY,
) -> Eye:
    """Return the margins for a phase in degrees and a capture cycle. They may be negative."""
    timing, pads = timing or SdramTiming(), pads or PadDelays()
    period = 1e9 / clock
    late = phase / 360 * period
    loop = pads.output + pads.input
    return Eye(
        clock,
        phase,
        capture,
        write_setup=late - timing.setup,
        write_hold=period - late - timing.hold,
        read_setup=capture * period - late - loop - timing.access_time(cas_latency),
        read_hold=late + loop + timing.output_hold - (capture - 1) * period,
        turnaround=TURN * period - late - timing.release,
    )


def best_eye(clock: float, timing: SdramTiming | None = None, pads: PadDelays | None = None) -> Eye:
    """Return the eye with the largest minimum margin at a clock in Hz, over all phases in whole degrees and capture
    cycles.

    Raises
    ------
    BoardError
        If the margin is below `MIN_MARGIN_NS`, or if the chip does not run at that clock. The message names the nearest
        usable clock in whole MHz.
    """
    timing, pads = timing or SdramTiming(), pads or PadDelays()
    eye = _widest(clock, timing, pads)
    if not _usable(eye, timing):
        raise BoardError(_refusal_message(eye, timing, pads))
    return eye


@lru_cache(maxsize=1024)
def _widest(clock: float, timing: SdramTiming, pads: PadDelays) -> Eye:
    # All combinations of capture cycle and whole degrees.
    eyes = (eye_at(clock, phase, capture, timing, pads) for capture in CAPTURES for phase in range(360))
    return max(eyes, key=lambda eye: eye.min_margin)


def _usable(eye: Eye, timing: SdramTiming) -> bool:
    return eye.min_margin >= MIN_MARGIN_NS and timing.fits(eye.clock, CAS_LATENCY)


def _refusal_message(eye: Eye, timing: SdramTiming, pads: PadDelays) -> str:
    why = (
        f"its smallest margin is {eye.min_margin:.1f} ns, and at least {MIN_MARGIN_NS:g} ns are necessary"
        if timing.fits(eye.clock, CAS_LATENCY)
        else f"its clock cycle is at least {timing.shortest_cycle(CAS_LATENCY):g} ns"
    )
    # With a longer cycle no margin shrinks, if the chip's clock keeps its distance from the next command.
    slower = range(int(eye.clock / 1e6), 0, -1)
    usable = (number for number in slower if _usable(_widest(number * 1e6, timing, pads), timing))
    highest = next(usable, None)
    hint = (
        "it cannot be used at all"
        if highest is None
        else f"the nearest clock that can be used is {highest} MHz"
    )
    return f"the SDRAM cannot run at {eye.clock / 1e6:g} MHz: {why}; {hint}"


def phase_of(clock: float, phases: int) -> int:
    """Return the phase of `best_eye` at a clock in Hz as the nearest of `phases` per cycle, counted from 0 degrees.

    Raises `BoardError`.
    """
    return round(best_eye(clock).phase * phases / 360) % phases


def arrival(clock: float, phase: float, cas_latency: int = CAS_LATENCY) -> int:
    """Return the cycles from the edge at which a read leaves to the first edge that finds its word at the register in
    the pad.

    This equals `cas_latency` - 1 + `Eye.capture`, but is computed from the delays, for a simulation of pads and chip.
    """
    timing, pads = SdramTiming(), PadDelays()
    period = 1e9 / clock
    valid = phase / 360 * period + pads.output + (cas_latency - 1) * period
    valid += timing.access_time(cas_latency) + pads.input
    return int(-(-valid // period))
