"""What a board finds out about its SDRAM when it starts: defined once for gateware and host.

The chip's clock goes through a number of phases, a step of the PLL apart, once around; `weft.boards.sdram.calibrator`
tries memory at each. Phases are counted from half a cycle before the calculated one, see `weft.boards.sdram.eye`.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

from amaranth.lib import data

FIELDS = {
    "state": 8, "capture": 8, "computed_capture": 8, "phases": 16, "computed_phase": 16, "last": 16, "count": 16,
    "chosen": 16,
}  # fmt: skip
"""Fields of a `Calibration` and their widths in bits, least significant byte first."""
_PACKED = struct.Struct("<" + "".join({8: "B", 16: "H"}[width] for width in FIELDS.values()))
CALIBRATION_BYTES = _PACKED.size
LEAST = 1.0
"""Nanoseconds that the phases that work must span: half of it is left on either side of the one in their middle."""


class CalibrationState(enum.IntEnum):
    """How far a board is with its SDRAM's clock."""

    NONE = 0
    """The board does not look for a phase, or has no SDRAM."""
    BUSY = 1
    FOUND = 2
    FAILED = 3
    """Too few phases work, or none: the clock has the calculated one, and memory cannot be relied upon."""


def calibration_layout() -> data.StructLayout:
    """A `Calibration` in hardware."""
    return data.StructLayout(FIELDS)


@dataclass(frozen=True)
class Sweep:
    """How a board looks for the phase of its SDRAM's clock.

    Parameters
    ----------
    phases : callable
        Phases in a cycle of a clock in Hz, an even number: as the PLL steps through them while it runs.
    blocks : int
        Blocks of memory that are written and read at each, a power of two from 2 to 32.
    """

    phases: Callable[[float], int]
    blocks: int = 16

    def least(self, clock: float) -> int:
        """Phases that must work at a clock in Hz: `LEAST`."""
        return math.ceil(LEAST * 1e-9 * clock * self.phases(clock))


@dataclass(frozen=True)
class Calibration:
    """What was found.

    Attributes
    ----------
    state : CalibrationState
    capture, computed_capture : int
        Cycles after the CAS latency in which words are taken, see `weft.boards.sdram.eye.Eye.capture`: found and
        calculated.
    phases : int
        Of a cycle.
    computed_phase : int
        The calculated one, counted from 0 degrees, in phases.
    last, count : int
        The last of the longest row of phases that work, and how many those are, at most all.
    chosen : int
        The one in their middle.
    """

    state: CalibrationState = CalibrationState.NONE
    capture: int = 0
    computed_capture: int = 0
    phases: int = 0
    computed_phase: int = 0
    last: int = 0
    count: int = 0
    chosen: int = 0

    def encode(self) -> bytes:
        """`CALIBRATION_BYTES` bytes. Raises `struct.error` for fields that do not fit."""
        return _PACKED.pack(*astuple(self))

    @classmethod
    def decode(cls, payload: bytes) -> Calibration:
        """Raises `ValueError` for bytes that are none."""
        state, *rest = _PACKED.unpack(payload)
        return cls(CalibrationState(state), *rest)

    def degrees(self, phase: int) -> int:
        """By how many degrees, 0 to 359, the clock is late in one of the phases, as they are counted here."""
        return round(360 * (phase + self.computed_phase - self.phases // 2) / self.phases) % 360

    @property
    def working(self) -> tuple[int, int] | None:
        """Degrees of the first and last phase that work, which may go through 0; None if none does."""
        return (self.degrees(self.last - self.count + 1), self.degrees(self.last)) if self.count else None

    def described(self) -> dict[str, Any] | None:
        """As plain values, phases in degrees; None if there is nothing to tell."""
        if self.state is CalibrationState.NONE:
            return None
        return {
            "state": self.state.name.lower(),
            "phases": self.phases,
            "working_degrees": self.working and list(self.working),
            "chosen_degrees": self.degrees(self.chosen),
            "computed_degrees": self.degrees(self.phases // 2),
            "capture_cycles": self.capture,
            "computed_capture_cycles": self.computed_capture,
        }

    def __str__(self) -> str:
        if self.state is not CalibrationState.FOUND or self.working is None:
            return f"no phase of its clock was found: {self.state.name}"
        first, last = self.working
        extent = "all phases" if self.count == self.phases else f"phases from {first} to {last} degrees"
        return (
            f"{extent} work, {self.degrees(self.chosen)} is chosen (calculated: {self.degrees(self.phases // 2)}), and "
            f"words are taken after CAS latency + {self.capture} (calculated: + {self.computed_capture})"
        )


NOT_CALIBRATED = Calibration()
"""Of a board that does not look for a phase."""
