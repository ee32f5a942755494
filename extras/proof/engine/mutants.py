"""Whether properties see faults: of units of which one bit is changed, how many are not proven any more."""

from __future__ import annotations

import enum
import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.extras.proof.engine import engines, netlist
from weft.extras.proof.engine.prove import RESULT, digest
from weft.extras.proof.hardware.property import Bounded, Method, Property
from weft.hdl.cache import cache_root, entry, is_whole


@dataclass(frozen=True)
class Mutants:
    """What became of the mutants of a property's unit.

    Attributes
    ----------
    title : str
        The property's.
    killed : int
        For so many there is a counterexample.
    others : int
        For so many more there is one to another property of the same unit.
    unproven : int
        For so many more induction, by which one of these properties is proven of the unit, does not close: there may be
        a counterexample that takes very many cycles.
    survivors : list of str
        Yosys' commands for those of which all these properties are proven all the same: they say nothing of what the
        mutants change.
    undecided : list of str
        The same for those that took too long.
    same : list of str
        The same for those that are no faults: it is proven that they change nothing.
    """

    title: str
    killed: int
    others: int
    unproven: int
    survivors: list[str]
    undecided: list[str]
    same: list[str]

    @property
    def count(self) -> int:
        """Those that change something, as far as is known."""
        return self.seen + len(self.survivors) + len(self.undecided)

    @property
    def seen(self) -> int:
        """For so many some property is not proven any more, however much time there is."""
        return self.killed + self.others + self.unproven


class _Verdict(enum.Enum):
    KILLED = enum.auto()
    OTHERS = enum.auto()
    UNPROVEN = enum.auto()
    SURVIVES = enum.auto()
    UNDECIDED = enum.auto()
    SAME = enum.auto()


class _Shown:
    """A property that mutants are shown to, and in a folder its netlist of one of them, once that is wanted."""

    def __init__(self, item: Property) -> None:
        self.item = item
        self.found = netlist.source(item.bench())

    def decide(self, command: str, method: Method, seconds: float, folder: Path) -> engines.Verdict:
        if not folder.exists():
            folder.mkdir()
            netlist.prepare(self.found, folder, command)
        return engines.decide(method, folder, seconds)


def mutants(
    item: Property, count: int, seed: int, seconds: float = 20.0, beside: Iterable[Property] = ()
) -> Mutants:
    """Prove `item` of `count` mutants of its unit, each in about `seconds` at most, or take what was found before.

    Of the properties `beside` it those of the same unit with the same parameters, of which each claims a part of what
    there is to claim, are shown the mutants that `item` does not see. What was found is not kept if some took too long.

    Raises what `weft.extras.proof.engine.prove.prove` does.
    """
    own = _Shown(item)
    others = [_Shown(other) for other in beside if other.unit == item.unit and other.title != item.title]
    logic = netlist.logic(own.found)
    shown = [own, *(other for other in others if netlist.logic(other.found) == logic)]

    digests = "-".join(digest(one.item, one.found) for one in shown)
    hashed = hashlib.sha256(digests.encode()).hexdigest()[:24]
    named = f"mutants-{hashed}-{count}-{seed}-{seconds:g}"
    if is_whole(there := cache_root() / named):
        return Mutants(**json.loads((there / RESULT).read_text()))
    verdicts = dict(_each(shown, count, seed, seconds))
    killed, beside_it, unproven, *rest = (
        [command for command, verdict in verdicts.items() if verdict is kind] for kind in _Verdict
    )
    made = Mutants(item.title, len(killed), len(beside_it), len(unproven), *rest)
    if not made.undecided:
        entry(named, lambda folder: _write(folder, made))
    return made


def _write(folder: Path, found: Mutants) -> None:
    (folder / RESULT).write_text(json.dumps(asdict(found), indent=1))


def _each(shown: list[_Shown], count: int, seed: int, seconds: float) -> Iterator[tuple[str, _Verdict]]:
    with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
        first = shown[0]
        commands = netlist.mutations(first.found, Path(temporary), count, seed, first.item.proven)
    for command in commands:
        with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
            yield command, _verdict(shown, command, seconds, Path(temporary))


def _verdict(shown: list[_Shown], command: str, seconds: float, folder: Path) -> _Verdict:
    """What becomes of one mutant.

    Most faults are seen within the cycles in which the covers are reached, and a search of these is quicker than the
    search for a proof that does not exist.
    """
    for number, one in enumerate(shown):
        method = one.item.method
        bounded = method if isinstance(method, Bounded) else Bounded(one.item.cover)
        if one.decide(command, bounded, seconds / 2, folder / str(number)).holds is False:
            return _Verdict.OTHERS if number else _Verdict.KILLED
    (folder / "same").mkdir()
    if netlist.changes_nothing(shown[0].found, folder / "same", command):
        return _Verdict.SAME
    end = _Verdict.SURVIVES
    for number, one in enumerate(shown):
        verdict = one.decide(command, one.item.method, seconds, folder / str(number))
        if verdict.holds is False:
            return _Verdict.OTHERS if number else _Verdict.KILLED
        if verdict.how.startswith(engines.NO_INDUCTION):
            return _Verdict.UNPROVEN
        if verdict.holds is None:
            end = _Verdict.UNDECIDED
    return end
