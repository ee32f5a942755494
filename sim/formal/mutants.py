"""Whether properties see faults: of units of which one bit is changed, how many are not proven any more."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.hdl.files.cache import entry
from weft.hdl.formal.property import Method, Property
from weft.sim.formal import engines, netlist
from weft.sim.formal.prove import RESULT, digest


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
    """Prove `item` of `count` mutants of its unit, each in about `seconds` at most, or take what was found before.

    Raises what `weft.sim.formal.prove.prove` does.
    """
    found = netlist.source(item.bench())

    def fill(folder: Path) -> None:
        verdicts = dict(_each(item.method, found, count, seed, seconds))
        made = Mutants(
            item.title,
            sum(holds is False for holds in verdicts.values()),
            [command for command, holds in verdicts.items() if holds],
            [command for command, holds in verdicts.items() if holds is None],
        )
        (folder / RESULT).write_text(json.dumps(asdict(made), indent=1))

    folder = entry(f"mutants-{digest(item, found)}-{count}-{seed}-{seconds:g}", fill)
    return Mutants(**json.loads((folder / RESULT).read_text()))


def _each(
    method: Method, found: netlist.Source, count: int, seed: int, seconds: float
) -> Iterator[tuple[str, bool | None]]:
    with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
        commands = netlist.mutations(found, Path(temporary), count, seed)
    for command in commands:
        with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
            netlist.prepare(found, Path(temporary), command)
            yield command, engines.decide(method, Path(temporary), seconds).holds
