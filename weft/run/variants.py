"""Choose between programs of one model, planned for different memories, by the counters of each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from weft.errors import InputError
from weft.run.options import RunKeywords, RunOptions
from weft.run.program import Program, Result

if TYPE_CHECKING:
    from weft.sim.device import Device

LOADS = 0.4
"""Share of cycles in which LOAD is busy. From this share on, a plan for a slower memory is tried, else for a faster."""


class Variants:
    """Programs of one model, each planned for a different memory. All compute the same bytes.

    The first program runs first. After each run, the next program is chosen. If LOAD was busy in at least `LOADS` of
    the cycles, the candidate is the program planned for the next slower memory, else for the next faster memory. If the
    candidate has run already, the program with the fewest cycles is chosen. Cycles on another device, or with another
    memory, do not count. On a device without time the choice does not change.

    Parameters
    ----------
    programs : sequence of Program
        Two or more programs with the same configuration, inputs, outputs and states. States carry over from run to run,
        whichever program runs.

    Attributes
    ----------
    programs : tuple of Program
    choice : int
        Index of the program that runs next.

    Raises
    ------
    InputError
        If there are fewer than two programs, two have different configurations, inputs, outputs or states, or two are
        planned for the same memory.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = tuple(programs)
        if len(self.programs) < 2:
            raise InputError(f"a choice is between two programs or more, not {len(self.programs)}")
        first = self.programs[0]
        for place, program in enumerate(self.programs[1:], 1):
            for noun, mine, other in (
                ("configuration", program.config, first.config),
                ("inputs", program.inputs, first.inputs),
                ("outputs", program.outputs, first.outputs),
                ("states", _shapes(program), _shapes(first)),
            ):
                if mine != other:
                    raise InputError(
                        f"program {place} has other {noun} than program 0: all are to be of one model"
                    )
        rates = [program.memory for program in self.programs]
        if len(set(rates)) < len(rates):
            raise InputError(
                f"the programs are planned for memories of {', '.join(f'{rate:g}' for rate in rates)} bytes a cycle: "
                "give each a memory of its own"
            )
        self.choice = 0
        self._last = first  # the program that ran last, which has the current states
        self._cycles: list[int | None] = [None] * len(self.programs)
        self._setting: object = None  # device and memory that `_cycles` belong to

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Copies of the current states, see `Program.states`."""
        return self._last.states

    def reset(self, states: Mapping[str, np.ndarray] | None = None) -> None:
        """Set states, see `Program.reset`. Cycles of earlier runs are still taken into account."""
        self._last.reset(states)

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        on: str | Device | RunOptions = "golden",
        *,
        memory: bool = True,
        **options: Unpack[RunKeywords],
    ) -> Result:
        """Run the chosen program, see `Program.run`. The default bandwidth is that of the first program.

        The report has ``variant``: ``ran`` and ``next``, the indices of this program and the next; ``memories``, the
        bandwidth in bytes a cycle that each program is planned for; ``cycles``, the last cycles of each program with
        this memory, or None; ``loads`` and ``waits``, the shares of this run's cycles in which LOAD was busy and waited
        for memory; and ``why``, the reason for the choice.
        """
        program = self.programs[self.choice]
        record = RunOptions.of(on, **options).planned_for(self.programs[0].memory)
        if program is not self._last:  # states are in the program that ran last
            program.reset(self._last.states)
        result = program.run(inputs, record, memory=memory)
        self._last = program
        device = record.on if isinstance(record.on, str) else id(record.on)
        setting = (device, record.latency, record.bandwidth, record.stall_seed is None)
        result.report["variant"] = self._learn(setting, result.report)
        return result

    def _learn(self, setting: object, report: Mapping[str, Any]) -> dict[str, Any]:
        """Record the cycles of a run, choose the next program, and return the report's ``variant``."""
        ran, cycles = self.choice, report["cycles"]
        loads, waits = (
            report["counters"][name] / cycles if cycles else None for name in ("load_busy", "load_memory")
        )
        if setting != self._setting:  # cycles with another memory or device do not compare
            self._cycles, self._setting = [None] * len(self.programs), setting
        if loads is None:
            why = "the device counts no cycles"
        else:
            self._cycles[ran] = cycles
            self.choice, why = self._choose(ran, loads)
        return {
            "ran": ran,
            "next": self.choice,
            "memories": [program.memory for program in self.programs],
            "cycles": list(self._cycles),
            "loads": loads,
            "waits": waits,
            "why": why,
        }

    def _choose(self, ran: int, loads: float) -> tuple[int, str]:
        order = sorted(range(len(self.programs)), key=lambda place: -self.programs[place].memory)
        at = order.index(ran)  # `order` is from the fastest memory to the slowest
        slower = loads >= LOADS
        neighbours = order[at + 1 : at + 2] if slower else order[at - 1 : at] if at else []
        if neighbours and self._cycles[neighbours[0]] is None:
            kind = "slower" if slower else "faster"
            return (
                neighbours[0],
                f"LOAD is busy in {loads:.0%} of the cycles: trying the program for a {kind} memory",
            )
        known = {place: cycles for place, cycles in enumerate(self._cycles) if cycles is not None}
        best = min(known, key=lambda place: known[place])
        return best, f"of those that ran it takes the fewest cycles: {known[best]:,}"


def _shapes(program: Program) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (value.dtype.name, value.shape) for name, value in program.states.items()}
