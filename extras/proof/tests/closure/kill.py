"""What kills mutants of a core: scenarios, each on a device of its own, in a process of its own for each mutant."""

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

from weft.extras.proof.mutants.mutated import MutatedCore, select_mutant
from weft.hdl.errors import WeftError
from weft.sim.rtl.coverage import HostedRtl

SECONDS = 240
"""After which a mutant is given up, and counts as one that no scenario tells from the core."""


OBSERVED = 30
"""Instructions of a program after each of which the scratchpad is stored; these run for one seed of four."""


class KillError(WeftError, RuntimeError):
    """The core as it was designed fails a scenario."""


@dataclass
class KillSet:
    """Scenarios, of which the core as it was designed passes all.

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
        """A device for `scenario`: the mutant that is chosen."""
        return HostedRtl(
            self.core.config,
            scenario.bench.size,
            verilog=self.verilog,
            sequential=self.core.sequential,
            **scenario.bench.memory,
        )

    def killer(self, number: int) -> str:
        """What tells mutant `number` from the core, in a few words; empty if nothing does."""
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
    """Scenarios of random programs of the `seeds`, with seed 0 the directed ones as well. Raises `KillError`."""
    fewer = seeds[: max(1, len(seeds) // 4)]
    made = [*scenarios(core, seeds, count), *observed_scenarios(core, fewer, OBSERVED)]
    if 0 in seeds:
        made += [*directed_scenarios(core), wild(core, 1), extremes(core, Benches(core).of({"latency": 1}))]
        made += special(core)
    return _checked(KillSet(core, found.verilog, made))


def long_set(core: Core, found: MutatedCore) -> KillSet:
    """Scenarios of millions of cycles. Raises `KillError`."""
    return _checked(KillSet(core, found.verilog, long(core)))


def _checked(result: KillSet) -> KillSet:
    if fault := result.killer(0):
        raise KillError(f"the core without a mutation fails: {fault}")
    # Its limits of time are known from here on. Most mutants die early, so short ones come first.
    result.scenarios.sort(key=lambda scenario: sum(step.cycles for step in scenario.steps))
    return result


def verdicts(kills: KillSet, numbers: list[int], jobs: int) -> Iterator[tuple[int, str]]:
    """By mutant what kills it, in the order in which they end. A simulation that ends its process is killed by that."""
    waiting, running = list(reversed(numbers)), dict[int, tuple[int, int]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            number = waiting.pop()
            reader, writer = os.pipe()
            sys.stdout.flush()
            child = os.fork()
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
    """The same numbers, neighbours apart, so that a part of them is of all units."""
    return [number for start in range(7) for number in numbers[start::7]]
