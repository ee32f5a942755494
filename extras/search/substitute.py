"""Graph substitutions for one model and machine: `weft.extras.search.substitution`, judged by the cycle model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.arguments import integer
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.configurations import sequential_boards
from weft.extras.search.substitution.rule import Rule, builtin_rules, prove_rules, read
from weft.extras.search.substitution.search import Search, SearchResult, Used
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.options import RunOptions, open_device
from weft.run.runtime import Image, zeros

MAX_PARTS = 1_000_000
"""Limit for the parts that a search measures."""


@dataclass(frozen=True)
class Substitutions:
    """Result of a search for a program.

    `used` holds the chains of substitutions that were kept, `before` and `after` the cycles of all device programs by
    the cycle model. `complete` tells whether the search ended by itself. If the whole program does not become faster,
    nothing is used.
    """

    used: tuple[Used, ...]
    before: int
    after: int
    complete: bool

    @property
    def lines(self) -> tuple[str, ...]:
        """Report, line by line: each chain of substitutions with its saving, then the total."""
        end = "" if self.complete else "; the search was cut off: allow more parts"
        return (
            *(item.summary for item in self.used),
            f"{len(self.used)} substitutions: {self.after:,} cycles instead of {self.before:,} by the cycle model"
            + end,
        )


def load_proven_rules(path: str | os.PathLike[str]) -> tuple[Rule, ...]:
    """Read the rules of a file and prove each of them.

    Raises
    ------
    RuleError
        If the file cannot be read, or a rule does not hold.
    """
    return tuple(prove_rules(read(Path(path)), Path(path)))


def substitute_operators(
    segments: Sequence[DeviceSegment],
    config: Config,
    *,
    most: int,
    bandwidth: float | None = None,
    latency: int = RunOptions.latency,
    rules: Sequence[Rule] | str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[list[DeviceSegment], Substitutions]:
    """Replace operators of a model's device segments by equivalent ones that take fewer cycles.

    Parameters
    ----------
    segments : sequence of DeviceSegment
        From the front end.
    config : Config
    most : int
        Limit for parts of segments whose cycles are measured, in total.
    bandwidth, latency : float, int
        Of the memory, in bytes per cycle and cycles.
    rules : sequence of Rule, or path
        Rules of a file are proven first; by default weft's own rules.
    progress : callable
        Called with each substitution that is kept.

    Raises
    ------
    IrError
        If a rule changed a byte, which is a bug of weft.
    InputError
        If `most` is out of range.
    RuleError
        If the file of rules cannot be read, or a rule does not hold.
    """
    max_parts = integer("substitute", most, 1, MAX_PARTS)
    if isinstance(rules, str | os.PathLike):
        rules = load_proven_rules(rules)
    replaced, used, totals, complete = list[DeviceSegment](), list[Used](), [0, 0], True
    costs = Costs(config, bandwidth, latency)
    for segment in segments:
        search = Search(
            builtin_rules() if rules is None else rules, costs, config.mantissa_bits, config.n**2, max_parts
        )
        searched: SearchResult = search.run(segment, progress)
        max_parts, complete = max_parts - searched.measured_parts, complete and searched.complete
        before = costs(segment)
        after = costs(searched.segment) if searched.used else before
        is_faster = after < before
        replaced.append(searched.segment if is_faster else segment)
        used += searched.used if is_faster else []
        totals = [totals[0] + before, totals[1] + min(before, after)]
    return replaced, Substitutions(tuple(used), totals[0], totals[1], complete)


class Costs:
    """Cost function: cycles of a segment compiled on its own."""

    def __init__(self, config: Config, bandwidth: float | None, latency: int = RunOptions.latency) -> None:
        self._config = config
        self._options = RunOptions("timing", latency=latency, bandwidth=bandwidth)
        self._sequential = bool(sequential_boards(config))

    def __call__(self, segment: DeviceSegment) -> int:
        program = compile_segment(
            segment, self._config, bandwidth=self._options.bandwidth, sequential=self._sequential
        )
        image = Image(program)
        with open_device(self._options, self._config, image.memory_bytes) as device:
            image.run(device, zeros(program))
            return int(device.counters()[Counter.CYCLES])
