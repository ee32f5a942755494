"""Graph substitutions for one model and machine: the search of `weft.extras.search.substitution`, judged by the cycle
model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.arguments import integer
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.configurations import sequential_boards
from weft.extras.search.substitution.rule import Rule
from weft.extras.search.substitution.rule_file import carried, proven, read
from weft.extras.search.substitution.search import Search, Searched, Used
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.devices import Simulation, open_device
from weft.run.runtime import Image, zeros

MOST = 1_000_000
"""Parts that a search may measure, at most."""
LATENCY = 30
"""Cycles of the memory's latency, as in simulations that are told no other one."""


@dataclass(frozen=True)
class Substitutions:
    """What a search did for a program.

    `used` are the chains of uses that stayed, `before` and `behind` the cycles of all device programs by the cycle
    model, and `whole` says whether the search came to its end. Where the whole is not quicker, nothing is used.
    """

    used: tuple[Used, ...]
    before: int
    behind: int
    whole: bool

    @property
    def lines(self) -> tuple[str, ...]:
        """What was done, in lines: each chain of uses, and what it saved."""
        end = "" if self.whole else "; the search did not come to its end: allow more parts"
        return (
            *(item.told for item in self.used),
            f"{len(self.used)} substitutions: {self.behind:,} cycles instead of {self.before:,} by the cycle model"
            + end,
        )


def proven_rules(path: str | os.PathLike[str]) -> tuple[Rule, ...]:
    """The rules of a file, each of which is proven.

    Raises
    ------
    RuleError
        If it cannot be read, or one does not hold.
    """
    return tuple(proven(read(Path(path)), Path(path)))


def substituted(
    segments: Sequence[DeviceSegment],
    config: Config,
    *,
    most: int,
    bandwidth: float | None = None,
    latency: int = LATENCY,
    rules: Sequence[Rule] | str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[list[DeviceSegment], Substitutions]:
    """The device segments of a model with other operators, which compute the same bytes in fewer cycles.

    Parameters
    ----------
    segments : sequence of DeviceSegment
        As the front end makes them.
    config : Config
    most : int
        Parts of segments whose cycles are measured, at most, in all.
    bandwidth, latency : float, int
        Of the memory, in bytes a cycle and cycles.
    rules : sequence of Rule, or path
        A file's rules are proven first. Without, the rules that weft carries.
    progress : callable
        Told what stays.

    Raises
    ------
    IrError
        If a rule changed a byte: a bug, never the user's mistake.
    InputError
        If `most` is out of range.
    RuleError
        If the file of rules cannot be read, or a rule does not hold.
    """
    most = integer("substitute", most, 1, MOST)
    if isinstance(rules, str | os.PathLike):
        rules = proven_rules(rules)
    found, used, totals, whole = list[DeviceSegment](), list[Used](), [0, 0], True
    costs = Costs(config, bandwidth, latency)
    for segment in segments:
        search = Search(carried() if rules is None else rules, costs, config.mantissa_bits, config.n**2, most)
        searched: Searched = search.run(segment, progress)
        most, whole = most - searched.costs, whole and searched.whole
        before = costs(segment)
        behind = costs(searched.segment) if searched.used else before
        better = behind < before
        found.append(searched.segment if better else segment)
        used += searched.used if better else []
        totals = [totals[0] + before, totals[1] + min(before, behind)]
    return found, Substitutions(tuple(used), totals[0], totals[1], whole)


class Costs:
    """The cycles of segments, compiled by themselves."""

    def __init__(self, config: Config, bandwidth: float | None, latency: int) -> None:
        self._config, self._bandwidth = config, bandwidth
        self._memory = Simulation(latency, bandwidth)
        self._sequential = bool(sequential_boards(config))

    def __call__(self, segment: DeviceSegment) -> int:
        program = compile_segment(
            segment, self._config, bandwidth=self._bandwidth, sequential=self._sequential
        )
        image = Image(program)
        with open_device("timing", self._config, image.memory_bytes, self._memory) as device:
            image.run(device, zeros(program))
            return int(device.counters()[Counter.CYCLES])
