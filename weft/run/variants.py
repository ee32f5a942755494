"""One model planned for several memories: which plan runs next follows from the counters of the run before."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import InputError
from weft.run.program import Program, Result

if TYPE_CHECKING:
    from weft.sim.device import Device
    from weft.sim.waves import Waves

LOADS = 0.4
"""Share of a run's cycles in which LOAD is busy, from which on a plan for a slower memory is tried; below it one for a
faster memory is."""


class Variants:
    """Programs of one model, each planned for another memory: whole device programs, which compute the same bytes.

    The first run is that of the first program. Behind each run the next one's is chosen. Where LOAD was busy in
    at least `LOADS` of the cycles, that is the one planned for the next slower memory, and otherwise that for the next
    faster one, as long as it has not run. Behind that it is the one which took the fewest cycles. What ran behind
    another memory, or on another device, does not count. On a device without time the choice stays.

    Parameters
    ----------
    programs : sequence of Program
        Two or more, with the same configuration, inputs, outputs and states. What the model keeps goes on from run to
        run, whichever runs.

    Attributes
    ----------
    programs : tuple of Program
    choice : int
        The place of the program that runs next.

    Raises
    ------
    InputError
        If there are fewer than two, or two that are not of the same model and configuration, as far as that can be
        seen, or planned for the same memory.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = tuple(programs)
        if len(self.programs) < 2:
            raise InputError(f"a choice is between two programs or more, not {len(self.programs)}")
        first = self.programs[0]
        for place, program in enumerate(self.programs[1:], 1):
            for what, mine, other in (
                ("configuration", program.config, first.config),
                ("inputs", program.inputs, first.inputs),
                ("outputs", program.outputs, first.outputs),
                ("states", _shapes(program), _shapes(first)),
            ):
                if mine != other:
                    raise InputError(
                        f"program {place} has other {what} than program 0: all are to be of one model"
                    )
        rates = [program.memory for program in self.programs]
        if len(set(rates)) < len(rates):
            raise InputError(
                f"the programs are planned for memories of {', '.join(f'{rate:g}' for rate in rates)} bytes a cycle: "
                "give each a memory of its own"
            )
        self.choice = 0
        self._last = first  # that ran
        self._cycles: list[int | None] = [None] * len(self.programs)
        self._where: object = None  # these cycles were counted

    @property
    def states(self) -> dict[str, np.ndarray]:
        """What the model keeps from run to run: see `Program.states`."""
        return self._last.states

    def reset(self, states: Mapping[str, np.ndarray] | None = None) -> None:
        """As `Program.reset`. What is known of cycles stays."""
        self._last.reset(states)

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        on: str | Device = "golden",
        *,
        latency: int = 30,
        bandwidth: float | None = None,
        stalls: int | None = None,
        trace: str | os.PathLike[str] | Waves | None = None,
        memory: bool = True,
    ) -> Result:
        """Run the program that is chosen, as `Program.run` does; the simulated memory is by default that of the first.

        The report has ``variant``: ``ran``, the place of the program, and ``next``, that of the one that runs next;
        ``memories``, what each is planned for in bytes a cycle, and ``cycles``, what each took last behind this memory,
        None if that is not known; ``loads`` and ``waits``, the shares of this run's cycles in which LOAD was busy, and
        waited for memory; and ``why``, the reason of the choice in words.
        """
        program = self.programs[self.choice]
        rate = self.programs[0].memory if bandwidth is None else bandwidth
        if program is not self._last:
            program.reset(self._last.states)
        result = program.run(
            inputs, on, latency=latency, bandwidth=rate, stalls=stalls, trace=trace, memory=memory
        )
        self._last = program
        where = (on if isinstance(on, str) else id(on), latency, rate, stalls is None)
        result.report["variant"] = self._learn(where, result.report)
        return result

    def _learn(self, where: object, report: Mapping[str, Any]) -> dict[str, Any]:
        """Choose the next one."""
        ran, cycles = self.choice, report["cycles"]
        loads, waits = (
            report["counters"][name] / cycles if cycles else None for name in ("load_busy", "load_memory")
        )
        if where != self._where:
            self._cycles, self._where = [None] * len(self.programs), where
        if loads is None:
            why = "the device counts no cycles"
        else:
            self._cycles[ran] = cycles
            self.choice, why = self._chosen(ran, loads)
        return {
            "ran": ran,
            "next": self.choice,
            "memories": [program.memory for program in self.programs],
            "cycles": list(self._cycles),
            "loads": loads,
            "waits": waits,
            "why": why,
        }

    def _chosen(self, ran: int, loads: float) -> tuple[int, str]:
        order = sorted(range(len(self.programs)), key=lambda place: -self.programs[place].memory)
        at = order.index(ran)
        slower = loads >= LOADS
        beside = order[at + 1 : at + 2] if slower else order[at - 1 : at] if at else []
        if beside and self._cycles[beside[0]] is None:
            kind = "slower" if slower else "faster"
            return beside[0], f"LOAD is busy in {loads:.0%} of the cycles: that for a {kind} memory is tried"
        known = {place: cycles for place, cycles in enumerate(self._cycles) if cycles is not None}
        best = min(known, key=lambda place: known[place])
        return best, f"of those that ran it takes the fewest cycles: {known[best]:,}"


def _shapes(program: Program) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (value.dtype.name, value.shape) for name, value in program.states.items()}
