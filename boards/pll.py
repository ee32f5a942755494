"""Phase-locked loops: dividers for a wanted clock, and the cell with them. All frequencies are in Hz.

The loops themselves are with their families, in `weft.boards.families`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from amaranth.hdl import Module, Signal
from amaranth.lib import io

from weft.hdl.errors import WeftError

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
