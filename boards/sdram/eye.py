"""When the SDRAM's clock has to come, and in which cycle its words are taken: set-up and hold at both ends.

Everything between FPGA and chip leaves and enters registers in the pads. Times count from the edge of the FPGA's
clock, of period T, at which a command leaves. The chip's clock leaves a pad of the same kind `late` = phase / 360 * T
later, so the delay of pads and wires is the same for both and cancels there. It does not where a word comes back::

    the chip takes the command at    late + output
    a word stands at the register    from late + output + (cas_latency - 1) T + access + input
                                     to   late + output + cas_latency T + output_hold + input
    the register takes it at         (cas_latency - 1 + capture) T

A phase that is good for one clock is not for another: the delays are a part of the cycle that changes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from weft.boards.board import BoardError
from weft.boards.sdram.chip import SdramTiming

CAS_LATENCY = 3
"""Of all boards."""
LEAST = 1.0
"""Nanoseconds that must be left everywhere, for jitter and for what pads and wires differ from `PadDelays`."""
CAPTURES = range(1, 4)
TURN = 2
"""Cycles between the last word that the chip sends and the first one that is written to it; see `Scheduler`."""


@dataclass(frozen=True)
class PadDelays:
    """Delays of the FPGA's pads and of the wires to the chip, in ns.

    Lattice's data sheet (FPGA-DS-02012) has none for this path alone, and nextpnr none at all. These are estimates of
    whoever wrote the controller, not measurements: `LEAST` is there for what they are wrong by.

    Parameters
    ----------
    output : float
        From a register's clock to the chip, with a driver for LVCMOS33 and fast edges.
    input : float
        From the chip to a register, its set-up time included.
    """

    output: float = 3.0
    input: float = 1.0


@dataclass(frozen=True)
class Eye:
    """What is left of set-up and hold times, in ns, with a clock in Hz whose copy for the chip is late by `phase`.

    Attributes
    ----------
    clock : float
    phase : float
        Degrees, 0 to 360.
    capture : int
        Cycles that registers and phase add to the CAS latency, as `weft.boards.sdram.controller.SdramController`
        wants to know.
    write_setup, write_hold : float
        Of commands, addresses, masks and words to write, at the chip.
    read_setup, read_hold : float
        Of words read, at the FPGA.
    turnaround : float
        From when the chip lets go of the data pads after a read to when the controller drives them.
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
    def least(self) -> float:
        """The smallest of all margins: below 0 the memory does not work."""
        return min(getattr(self, name) for name in self.MARGINS)

    def report(self) -> dict[str, Any]:
        """For JSON: phase, capture, and all margins."""
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
    """The margins for one phase in degrees and one capture cycle; they may be negative."""
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
        read_setup=capture * period - late - loop - timing.access(cas_latency),
        read_hold=late + loop + timing.output_hold - (capture - 1) * period,
        turnaround=TURN * period - late - timing.release,
    )


def best_eye(clock: float, timing: SdramTiming | None = None, pads: PadDelays | None = None) -> Eye:
    """The phase, in whole degrees, and the capture cycle with the greatest least margin at a clock in Hz.

    Raises
    ------
    BoardError
        If less than `LEAST` would be left, or the chip does not run at that clock; it names the nearest that can be
        used, in whole MHz.
    """
    timing, pads = timing or SdramTiming(), pads or PadDelays()
    eye = _widest(clock, timing, pads)
    if not _usable(eye, timing):
        raise BoardError(_refusal(eye, timing, pads))
    return eye


@lru_cache(maxsize=1024)
def _widest(clock: float, timing: SdramTiming, pads: PadDelays) -> Eye:
    eyes = (eye_at(clock, phase, capture, timing, pads) for capture in CAPTURES for phase in range(360))
    return max(eyes, key=lambda eye: eye.least)


def _usable(eye: Eye, timing: SdramTiming) -> bool:
    return eye.least >= LEAST and timing.fits(eye.clock, CAS_LATENCY)


def _refusal(eye: Eye, timing: SdramTiming, pads: PadDelays) -> str:
    why = (
        f"only {eye.least:.1f} ns of set-up or hold are left, and {LEAST:g} must be"
        if timing.fits(eye.clock, CAS_LATENCY)
        else f"its clock cycle is at least {timing.shortest(CAS_LATENCY):g} ns"
    )
    # With a longer cycle no margin gets smaller, if the clock for the chip stays as far from the next command.
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
    """The phase of `best_eye` at a clock in Hz, as the nearest of so many in a cycle, counted from 0 degrees. Raises
    `BoardError`."""
    return round(best_eye(clock).phase * phases / 360) % phases


def arrival(clock: float, phase: float, cas_latency: int = CAS_LATENCY) -> int:
    """Cycles from the edge at which a read leaves to the first one that finds its word at the register in the pad: the
    same as `cas_latency` - 1 + `Eye.capture`, counted from the other end, for a simulation of pads and chip."""
    timing, pads = SdramTiming(), PadDelays()
    period = 1e9 / clock
    stands = phase / 360 * period + pads.output + (cas_latency - 1) * period
    stands += timing.access(cas_latency) + pads.input
    return int(-(-stands // period))
