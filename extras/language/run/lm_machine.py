"""The devices that a language model runs on: one that computes, and one beside it that is compared or counts cycles."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.language.run.decoder_run import DecoderMemory, DecoderRun, Row
from weft.hdl.isa.memmap import Counter
from weft.report import mismatches
from weft.run.devices import Opening, Simulation, open_device
from weft.sim.device import Device


@dataclass(frozen=True)
class Counted:
    """What a step took: its tokens, cycles, and bytes between core and memory; None where nobody counts."""

    tokens: int
    cycles: int | None
    moved: int | None


def prompt_least(memory: DecoderMemory, simulation: Simulation) -> int:
    """From how many tokens of a prompt on a decoder takes less time for them together than side by side, by the cycle
    model; 0 if it has no program for that."""
    if memory.prompts is None:
        return 0
    cycles, places = [], memory.decoder.places
    plain = Simulation(simulation.latency, simulation.bandwidth)
    with open_device("timing", memory.decoder.config, memory.memory_bytes, plain) as device:
        run, pages = DecoderRun(memory, device), range(memory.pages)
        for start, rows in ((run.step, places.rows), (run.prompt, memory.prompts.decoder.places.rows)):
            start([Row(0, at, pages) for at in range(min(rows, places.sizes.context))])
            cycles.append(device.counters()[Counter.CYCLES])
    return max(2, cycles[1] // cycles[0] * places.rows + 1)


class Machine:
    """Computes steps of a decoder; see `weft.extras.language.run.batch.Steps`.

    Parameters
    ----------
    memory : DecoderMemory
    on : "golden", "rtl", "timing", Device or Opening
        On "timing", and any other device that computes nothing, the golden interpreter computes beside it.
    simulation : Simulation
    compare : bool
        Have the golden interpreter compute beside a device that computes, and compare logits byte by byte.

    Attributes
    ----------
    counted : list of Counted
        Of each step so far.
    mismatches : int
        Bytes of logits that differed.

    Raises
    ------
    weft.errors.InputError
        If it does not run on such a device, or the device has too little memory.
    """

    def __init__(
        self,
        memory: DecoderMemory,
        on: str | Device | Opening,
        simulation: Simulation,
        *,
        compare: bool = False,
    ) -> None:
        self._memory = memory
        self.counted: list[Counted] = []
        self.mismatches = 0
        with contextlib.ExitStack() as stack:
            self._main = self._run(stack, on, simulation)
            computes = self._main.device.computes
            beside = compare if computes else True
            self._golden = self._run(stack, "golden", simulation) if beside and on != "golden" else None
            self._first = self._main if computes or self._golden is None else self._golden
            self._open = stack.pop_all()

    def _run(
        self, stack: contextlib.ExitStack, on: str | Device | Opening, simulation: Simulation
    ) -> DecoderRun:
        memory = self._memory
        less = "; fewer pages, or a shorter context, take less"
        device = stack.enter_context(
            open_device(on, memory.decoder.config, memory.memory_bytes, simulation, less)
        )
        return DecoderRun(memory, device)

    def close(self) -> None:
        """Free devices that were made here."""
        self._open.close()

    def prompt(self, rows: Sequence[Row]) -> None:
        self._main.prompt(rows)
        self._count(len(rows))
        if self._golden is not None:
            self._golden.prompt(rows)

    def _count(self, tokens: int) -> None:
        """Note what the last step took."""
        counters = self._main.device.counters()
        cycles = counters.get(Counter.CYCLES)
        beats = counters.get(Counter.READ_BEATS, 0) + counters.get(Counter.WRITE_BEATS, 0)
        moved = None if cycles is None else beats * self._memory.decoder.config.bus_bytes
        self.counted.append(Counted(tokens, cycles, moved))

    def step(self, rows: Sequence[Row]) -> None:
        self._main.step(rows)
        self._count(len(rows))
        if self._golden is not None:
            self._golden.step(rows)
            if self._main.device.computes:
                self._compare(len(rows))

    def _compare(self, count: int) -> None:
        assert self._golden is not None
        for row in range(count):
            self.mismatches += mismatches(self._golden.raw(row), self._main.raw(row))

    def compare_memory(self) -> int:
        """How many bytes of all memory differ from those of the golden interpreter beside a device that computes."""
        if self._golden is None or not self._main.device.computes:
            return 0
        golden, main = (run.device.read(0, self._memory.memory_bytes) for run in (self._golden, self._main))
        return mismatches(golden, main)

    def logits(self, row: int) -> np.ndarray:
        return self._first.logits(row)

    def copy(self, page: int, to: int) -> None:
        for run in {self._main, self._golden} - {None}:
            assert run is not None
            run.copy(page, to)
