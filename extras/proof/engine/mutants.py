"""Mutation tests of properties: whether the properties of a unit detect single changed bits."""

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
    """Results of the mutants of a property's unit.

    Attributes
    ----------
    title : str
        The property's.
    killed : int
        Number of mutants with a counterexample.
    others : int
        Number of further mutants with a counterexample to another property of the unit.
    unproven : int
        Number of further mutants for which a step of induction fails: a counterexample may take very many cycles.
    survivors : list of str
        Yosys' commands of mutants for which all these properties are proven.
    undecided : list of str
        Commands of mutants that took too long.
    same : list of str
        Commands of mutants that are proven to change nothing.
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
        """Number of mutants that may change something."""
        return self.seen + len(self.survivors) + len(self.undecided)

    @property
    def seen(self) -> int:
        """Number of mutants for which a proof fails, whatever the time limit."""
        return self.killed + self.others + self.unproven


class _Verdict(enum.Enum):
    KILLED = enum.auto()
    OTHERS = enum.auto()
    UNPROVEN = enum.auto()
    SURVIVES = enum.auto()
    UNDECIDED = enum.auto()
    SAME = enum.auto()


class _Candidate:
    """Property that is checked against mutants, with its netlist of one mutant in a folder."""

    def __init__(self, item: Property) -> None:
        self.item = item
        self.source = netlist.source(item.bench())

    def decide(self, command: str, method: Method, seconds: float, folder: Path) -> engines.Verdict:
        if not folder.exists():
            folder.mkdir()
            netlist.prepare(self.source, folder, command)
        return engines.decide(method, folder, seconds)


def mutants(
    item: Property, count: int, seed: int, seconds: float = 20.0, beside: Iterable[Property] = ()
) -> Mutants:
    """Check `count` mutants of a property's unit, each in about `seconds`, or return the results from the cache.

    Mutants that `item` does not detect are tried with those properties of `beside` that have an equal unit with equal
    parameters. Results with undecided mutants are not cached. Raises the errors of
    `weft.extras.proof.engine.prove.prove`.
    """
    first = _Candidate(item)
    others = [_Candidate(other) for other in beside if other.unit == item.unit and other.title != item.title]
    logic = netlist.logic(first.source)
    candidates = [first, *(other for other in others if netlist.logic(other.source) == logic)]

    digests = "-".join(digest(candidate.item, candidate.source) for candidate in candidates)
    hashed = hashlib.sha256(digests.encode()).hexdigest()[:24]
    key = f"mutants-{hashed}-{count}-{seed}-{seconds:g}"
    if is_whole(folder := cache_root() / key):
        return Mutants(**json.loads((folder / RESULT).read_text()))
    verdicts = dict(_decide_each(candidates, count, seed, seconds))
    killed, others_killed, unproven, *rest = (
        [command for command, verdict in verdicts.items() if verdict is kind] for kind in _Verdict
    )
    result = Mutants(item.title, len(killed), len(others_killed), len(unproven), *rest)
    if not result.undecided:
        entry(key, lambda folder: _write(folder, result))
    return result


def _write(folder: Path, result: Mutants) -> None:
    (folder / RESULT).write_text(json.dumps(asdict(result), indent=1))


def _decide_each(
    candidates: list[_Candidate], count: int, seed: int, seconds: float
) -> Iterator[tuple[str, _Verdict]]:
    with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
        first = candidates[0]
        commands = netlist.mutations(first.source, Path(temporary), count, seed, first.item.proven)
    for command in commands:
        with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
            yield command, _verdict(candidates, command, seconds, Path(temporary))


def _verdict(candidates: list[_Candidate], command: str, seconds: float, folder: Path) -> _Verdict:
    """Return the verdict on one mutant.

    Most faults show within the cycles of the covers, and a search there is faster than a search for a proof that does
    not exist.
    """
    for number, candidate in enumerate(candidates):
        method = candidate.item.method
        bounded = method if isinstance(method, Bounded) else Bounded(candidate.item.cover)
        if candidate.decide(command, bounded, seconds / 2, folder / str(number)).holds is False:
            return _Verdict.OTHERS if number else _Verdict.KILLED
    (folder / "same").mkdir()
    if netlist.changes_nothing(candidates[0].source, folder / "same", command):
        return _Verdict.SAME
    end = _Verdict.SURVIVES
    for number, candidate in enumerate(candidates):
        verdict = candidate.decide(command, candidate.item.method, seconds, folder / str(number))
        if verdict.holds is False:
            return _Verdict.OTHERS if number else _Verdict.KILLED
        if verdict.how.startswith(engines.NO_INDUCTION):
            return _Verdict.UNPROVEN
        if verdict.holds is None:
            end = _Verdict.UNDECIDED
    return end
