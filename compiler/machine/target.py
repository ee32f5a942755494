"""What a program is planned for: a configuration, and the memory behind its bus."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from weft.compiler.machine import overheads
from weft.compiler.machine.sequential_costs import SequentialCosts
from weft.hdl.isa.config import Config
from weft.hdl.isa.latencies import VEC_EARLY, vec_overhead


@dataclass(frozen=True)
class Target:
    """A configuration, and the memory that programs are planned for.

    Parameters
    ----------
    config : Config
    bandwidth : float
        Bytes that the memory moves in a cycle; as many as the bus is wide if None.
    sequential : bool
        Whether the core is the sequential one, on which nothing overlaps.
    """

    config: Config
    bandwidth: float | None = None
    sequential: bool = False

    @cached_property
    def in_turn(self) -> SequentialCosts | None:
        """What instructions take where they are carried out one after the other; None where they overlap."""
        return SequentialCosts(self.config.n, self.config.mantissa_bits) if self.sequential else None

    @cached_property
    def beat(self) -> float:
        """Cycles from one beat of the bus to the next: 1, or more if the memory is slower than the bus."""
        return max(1.0, self.config.bus_bytes / self.bandwidth) if self.bandwidth else 1.0

    def vec_start(self, *, early: bool = False) -> float:
        """From a VEC to the next one, beside its elements, and one for its semaphores; `early`: this reads sums, and
        adds nothing to them."""
        overlaps = early and not self.sequential
        return (VEC_EARLY if overlaps else vec_overhead(self.config)) + 1.0

    def moved(self, size: Any) -> Any:
        """Cycles of the bus for `size` bytes, by their number alone."""
        return size * self.beat / self.config.bus_bytes

    def run(self, size: int, beside: int = overheads.RUN) -> float:
        """Cycles of the bus for a run of `size` bytes, an estimate: whole beats, and what it takes `beside` them, which
        a slow memory hides."""
        beats = -(-size // self.config.bus_bytes)
        return max(beats * self.beat, beats + beside)

    def runs(self, size: np.ndarray) -> np.ndarray:
        """The same for an array of sizes."""
        beats = np.ceil(size / self.config.bus_bytes)
        return np.maximum(beats * self.beat, beats + overheads.RUN)

    def span(self, size: Any) -> Any:
        """The same where runs begin and end anywhere: parts of beats count as such."""
        return np.maximum(self.moved(size), size / self.config.bus_bytes + overheads.RUN)
