"""Scenarios that kill mutants of a core, each on its own device, in one process per mutant."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from closure.extremes import extremes
from support.core_cases import Benches, Core, Scenario, scenarios
from support.core_directed import directed_scenarios, wild
from support.core_long import long
from support.core_observed import observed_scenarios
from support.core_special import special
from support.forks import fork

from weft.extras.proof.mutants.mutated import MutatedCore, select_mutant
from weft.hdl.errors import WeftError
from weft.sim.rtl.coverage import HostedRtl

SECONDS = 240
"""Limit after which a mutant counts as not distinguished by any scenario."""


OBSERVED = 30
"""Instructions of a program that stores the scratchpad after each; run for one seed of four."""


class KillError(WeftError, RuntimeError):
    """Error for the original core failing a scenario."""


@dataclass
class KillSet:
    """Scenarios that the original core passes.

    Attributes
    ----------
    core : Core
    verilog : str
        With all mutants.
    scenarios : list of Scenario
        Short ones come first.
    """

    core: Core
    verilog: str
    scenarios: list[Scenario]

    def open(self, scenario: Scenario) -> HostedRtl:
        """Open a device of the selected mutant for `scenario`."""
        return HostedRtl(
            self.core.config,
            scenario.bench.size,
            verilog=self.verilog,
            sequential=self.core.sequential,
            **scenario.bench.memory,
        )

    def killer(self, number: int) -> str:
        """Return what distinguishes mutant `number` from the core, in a few words; empty if nothing does."""
        with select_mutant(number):
            for scenario in self.scenarios:
                try:
                    with self.open(scenario) as device:
                        for step in scenario.steps:
                            if fault := step.fault(device):
                                return fault
                except WeftError as error:
                    return f"{scenario.name}: {error}"
        return ""


def kill_set(core: Core, found: MutatedCore, seeds: range, count: int) -> KillSet:
    """Return scenarios of random programs of `seeds`; seed 0 adds the directed ones. Raises `KillError`."""
    fewer = seeds[: max(1, len(seeds) // 4)]
    all_scenarios = [*scenarios(core, seeds, count), *observed_scenarios(core, fewer, OBSERVED)]
    if 0 in seeds:
        all_scenarios += [
            *directed_scenarios(core),
            wild(core, 1),
            extremes(core, Benches(core).of({"latency": 1})),
        ]
        all_scenarios += special(core)
    return _check_core(KillSet(core, found.verilog, all_scenarios))


def long_set(core: Core, found: MutatedCore) -> KillSet:
    """Return scenarios of millions of cycles. Raises `KillError`."""
    return _check_core(KillSet(core, found.verilog, long(core)))


def _check_core(result: KillSet) -> KillSet:
    if fault := result.killer(0):
        raise KillError(f"the core without a mutation fails: {fault}")
    # Time limits are known from here on. Most mutants die early, so short scenarios come first.
    result.scenarios.sort(key=lambda scenario: sum(step.cycles for step in scenario.steps))
    return result


def verdicts(kills: KillSet, numbers: list[int], jobs: int) -> Iterator[tuple[int, str]]:
    """Yield the killer of each mutant as it completes. A simulation that crashes its process counts as killed."""
    waiting, running = list(reversed(numbers)), dict[int, tuple[int, int]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            number = waiting.pop()
            reader, writer = os.pipe()
            sys.stdout.flush()
            child = fork()
            if child == 0:
                os.close(reader)
                _child(kills, number, writer)
            os.close(writer)
            running[child] = number, reader
        child, status = os.wait()
        if child not in running:
            continue
        number, reader = running.pop(child)
        with os.fdopen(reader, "rb") as stream:
            said = stream.read().decode()
        yield number, _verdict(status, said)


def _verdict(status: int, said: str) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "" if number == signal.SIGALRM else f"the simulation ends with {signal.Signals(number).name}"
    return said


def _child(kills: KillSet, number: int, writer: int) -> None:
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(null, stream)
        signal.alarm(SECONDS)
        os.write(writer, kills.killer(number).encode()[:4000])
        code = 0
    finally:
        os._exit(code)


def spread(numbers: list[int]) -> list[int]:
    """Return the numbers with neighbours apart, so that any prefix covers all units."""
    return [number for start in range(7) for number in numbers[start::7]]
