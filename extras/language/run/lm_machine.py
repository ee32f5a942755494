"""Devices of a language model: a main device, and the golden interpreter for results or comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.language.run.decoder_run import DecoderMemory, DecoderRun, Row
from weft.hdl.isa.memmap import Counter
from weft.report import mismatches
from weft.run.devices import open_device
from weft.run.options import RunOptions


@dataclass(frozen=True)
class StepCost:
    """Cost of a step: tokens, cycles, and bytes between core and memory (None on devices without counters)."""

    tokens: int
    cycles: int | None
    bytes_moved: int | None


def min_prompt_tokens(memory: DecoderMemory, options: RunOptions) -> int:
    """Return the number of prompt tokens from which the prompt program is faster than steps side by side.

    The cycle model decides. Return 0 if the decoder has no prompt program.
    """
    if memory.prompts is None:
        return 0
    cycles, places = [], memory.decoder.places
    timing = RunOptions("timing", **options.memory)
    with open_device(timing, memory.decoder.config, memory.memory_bytes) as device:
        run, pages = DecoderRun(memory, device), range(memory.pages)
        # Cycles of a step with all rows, and of a step of the prompt program.
        for start, rows in ((run.step, places.rows), (run.prompt, memory.prompts.decoder.places.rows)):
            start([Row(0, at, pages) for at in range(min(rows, places.sizes.context))])
            cycles.append(device.counters()[Counter.CYCLES])
    return max(2, cycles[1] // cycles[0] * places.rows + 1)


class Machine:
    """Backend of `weft.extras.language.run.batch.Batch`: one or two devices that run the same steps.

    Parameters
    ----------
    memory : DecoderMemory
    options : RunOptions
        On "timing", and any other device without results, the golden interpreter computes the same steps.
    compare : bool
        Run the golden interpreter as well, and compare logits byte by byte.

    Attributes
    ----------
    step_costs : list of StepCost
        Costs of each step so far.
    mismatches : int
        Number of logit bytes that differ.

    Raises
    ------
    weft.errors.InputError
        If the device is unsuitable or has too little memory.
    """

    def __init__(
        self,
        memory: DecoderMemory,
        options: RunOptions,
        *,
        compare: bool = False,
    ) -> None:
        self._memory = memory
        self.step_costs: list[StepCost] = []
        self.mismatches = 0
        with contextlib.ExitStack() as stack:
            self._main = self._run(stack, options)
            computes = self._main.device.computes
            needs_golden = (compare or not computes) and options.on != "golden"
            self._golden = self._run(stack, RunOptions("golden")) if needs_golden else None
            self._computing = self._main if computes or self._golden is None else self._golden
            self._open = stack.pop_all()

    def _run(self, stack: contextlib.ExitStack, options: RunOptions) -> DecoderRun:
        memory = self._memory
        hint = "; fewer pages, or a shorter context, take less"
        device = stack.enter_context(open_device(options, memory.decoder.config, memory.memory_bytes, hint))
        return DecoderRun(memory, device)

    def close(self) -> None:
        """Free the devices that this object opened."""
        self._open.close()

    def prompt(self, rows: Sequence[Row]) -> None:
        self._main.prompt(rows)
        self._record_cost(len(rows))
        if self._golden is not None:
            self._golden.prompt(rows)

    def _record_cost(self, tokens: int) -> None:
        counters = self._main.device.counters()
        cycles = counters.get(Counter.CYCLES)
        beats = counters.get(Counter.READ_BEATS, 0) + counters.get(Counter.WRITE_BEATS, 0)
        bytes_moved = None if cycles is None else beats * self._memory.decoder.config.bus_bytes
        self.step_costs.append(StepCost(tokens, cycles, bytes_moved))

    def step(self, rows: Sequence[Row]) -> None:
        self._main.step(rows)
        self._record_cost(len(rows))
        if self._golden is not None:
            self._golden.step(rows)
            if self._main.device.computes:
                self._compare(len(rows))

    def _compare(self, count: int) -> None:
        assert self._golden is not None
        for row in range(count):
            self.mismatches += mismatches(self._golden.logit_bytes(row), self._main.logit_bytes(row))

    def compare_memory(self) -> int:
        """Return the number of memory bytes that differ from the golden interpreter's, or 0 without a comparison."""
        if self._golden is None or not self._main.device.computes:
            return 0
        golden, main = (run.device.read(0, self._memory.memory_bytes) for run in (self._golden, self._main))
        return mismatches(golden, main)

    def logits(self, row: int) -> np.ndarray:
        return self._computing.logits(row)

    def copy(self, page: int, to: int) -> None:
        for run in {self._main, self._golden} - {None}:
            assert run is not None
            run.copy(page, to)
