"""Calibration of the SDRAM's clock phase at start-up: definitions shared by hardware and host.

The chip's clock steps through all phases of the PLL, once around, and `weft.boards.sdram.calibrator` tests memory at
each. Phases are numbered from half a cycle before the calculated phase, see `weft.boards.sdram.eye`.
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
    "state": 8,
    "capture": 8,
    "computed_capture": 8,
    "phases": 16,
    "computed_phase": 16,
    "last": 16,
    "count": 16,
    "chosen": 16,
}
"""Fields of a `Calibration` and their widths in bits, least significant byte first."""
_PACKED = struct.Struct("<" + "".join({8: "B", 16: "H"}[width] for width in FIELDS.values()))
CALIBRATION_BYTES = _PACKED.size
MIN_WORKING_NS = 1.0
"""Nanoseconds that the working phases must span at least. Half of it is the margin on either side of the middle
phase."""


class CalibrationState(enum.IntEnum):
    """State of a board's calibration."""

    NONE = 0
    """The board does not calibrate, or has no SDRAM."""
    BUSY = 1
    FOUND = 2
    FAILED = 3
    """Too few phases work. The clock has the calculated phase, and memory is unreliable."""


def calibration_layout() -> data.StructLayout:
    """Return the layout of a `Calibration` in hardware."""
    return data.StructLayout(FIELDS)


@dataclass(frozen=True)
class Sweep:
    """Parameters of calibration.

    Parameters
    ----------
    phases : callable
        Returns the number of PLL phases per cycle of a clock in Hz, an even number.
    blocks : int
        Blocks of memory that are tested at each phase, a power of two from 2 to 32.
    """

    phases: Callable[[float], int]
    blocks: int = 16

    def min_phases(self, clock: float) -> int:
        """Return the number of consecutive phases that must work at a clock in Hz, to span `MIN_WORKING_NS`."""
        return math.ceil(MIN_WORKING_NS * 1e-9 * clock * self.phases(clock))


@dataclass(frozen=True)
class Calibration:
    """Result of calibration.

    Attributes
    ----------
    state : CalibrationState
    capture, computed_capture : int
        Chosen and calculated capture cycle: cycles after the CAS latency when words are captured, see
        `weft.boards.sdram.eye.Eye.capture`.
    phases : int
        Phases per cycle.
    computed_phase : int
        Calculated phase, counted from 0 degrees, in phases.
    last, count : int
        Last phase and length of the longest run of working phases; the length is at most `phases`.
    chosen : int
        Middle of that run.
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
        """Return `CALIBRATION_BYTES` bytes. Raises `struct.error` for fields that do not fit."""
        return _PACKED.pack(*astuple(self))

    @classmethod
    def decode(cls, payload: bytes) -> Calibration:
        """Return the calibration in `payload`. Raises `ValueError` for an invalid state."""
        state, *fields = _PACKED.unpack(payload)
        return cls(CalibrationState(state), *fields)

    def degrees(self, phase: int) -> int:
        """Return the clock's delay in degrees, 0 to 359, at a phase number."""
        return round(360 * (phase + self.computed_phase - self.phases // 2) / self.phases) % 360

    @property
    def working(self) -> tuple[int, int] | None:
        """Delays in degrees of the first and last working phase, which may span 0; None if no phase works."""
        return (self.degrees(self.last - self.count + 1), self.degrees(self.last)) if self.count else None

    def as_dict(self) -> dict[str, Any] | None:
        """Return plain values for JSON, with phases in degrees; None without calibration."""
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
            return f"no working phase of its clock is known: {self.state.name}"
        first, last = self.working
        extent = "all phases" if self.count == self.phases else f"phases from {first} to {last} degrees"
        return (
            f"{extent} work, {self.degrees(self.chosen)} is chosen (calculated: {self.degrees(self.phases // 2)}), and "
            f"words are taken after CAS latency + {self.capture} (calculated: + {self.computed_capture})"
        )


NOT_CALIBRATED = Calibration()
"""Calibration of a board that does not calibrate."""
