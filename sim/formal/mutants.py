"""Whether properties see faults: of units of which one bit is changed, how many are not proven any more."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.hdl.formal.property import Property
from weft.sim.formal import engines, netlist


@dataclass(frozen=True)
class Mutants:
    """What became of the mutants of a property's unit.

    Attributes
    ----------
    title : str
        The property's.
    killed : int
        For so many there is a counterexample.
    survivors : list of str
        Yosys' commands for those of which the property is proven all the same: it says nothing of what they change, or
        they change nothing.
    undecided : list of str
        The same for those that took too long.
    """

    title: str
    killed: int
    survivors: list[str]
    undecided: list[str]

    @property
    def count(self) -> int:
        return self.killed + len(self.survivors) + len(self.undecided)


def mutants(item: Property, count: int, seed: int, seconds: float = 20.0) -> Mutants:
    """Prove `item` of `count` mutants of its unit, each in about `seconds` at most.

    Raises what `weft.sim.formal.prove.prove` does.
    """
    killed, survivors, undecided = 0, [], []
    for command, holds in _each(item, count, seed, seconds):
        if holds is False:
            killed += 1
        elif holds:
            survivors.append(command)
        else:
            undecided.append(command)
    return Mutants(item.title, killed, survivors, undecided)


def _each(item: Property, count: int, seed: int, seconds: float) -> Iterator[tuple[str, bool | None]]:
    found = netlist.source(item.bench())
    with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
        commands = netlist.mutations(found, Path(temporary), count, seed)
    for command in commands:
        with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
            netlist.prepare(found, Path(temporary), command)
            yield command, engines.decide(item.method, Path(temporary), seconds).holds
