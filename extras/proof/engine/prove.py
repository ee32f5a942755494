"""Proves properties, reaches their covers, and keeps what was found by the content that it depends on."""

from __future__ import annotations

import enum
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from weft.extras.proof.engine import engines, netlist
from weft.extras.proof.hardware.property import Bounded, Property
from weft.hdl.cache import cache_root, entry, is_whole

RESULT = "result.json"


class Outcome(enum.StrEnum):
    PROVEN = "proven"
    BOUNDED = "bounded"
    FAILED = "failed"
    VACUOUS = "vacuous"
    """The claims hold, but a cover is never reached."""
    UNDECIDED = "not proven"
    """Its time was up, or induction does not close."""


@dataclass(frozen=True)
class Result:
    """What became of a property.

    Attributes
    ----------
    title, claim : str
        Those of the property.
    outcome : Outcome
    how : str
        The proof in a few words, or what is lacking.
    claims : list of str
        What is claimed.
    covers : dict
        By the name of a cover the cycle, from 0, in which it can be reached first, or None if it was not.
    seconds : float
        Time that it took when it was found.
    folder : str
        Where netlists, logs and traces are; empty if they were not kept.
    """

    title: str
    claim: str
    outcome: Outcome
    how: str
    claims: list[str] = field(default_factory=list)
    covers: dict[str, int | None] = field(default_factory=dict)
    seconds: float = 0.0
    folder: str = ""

    @property
    def good(self) -> bool:
        return self.outcome in (Outcome.PROVEN, Outcome.BOUNDED)


def prove(item: Property, seconds: float = 120.0) -> Result:
    """The result of one property, from the cache if it was found before.

    Parameters
    ----------
    item : Property
    seconds : float
        After about this time it is `Outcome.UNDECIDED`, which is not kept.

    Raises
    ------
    weft.extras.proof.engine.netlist.NetlistError, weft.extras.proof.engine.engines.EngineError
        If a tool fails.
    """
    bench = item.bench()
    found = netlist.source(bench)
    named = f"proof-{digest(item, found)}"
    there = cache_root() / named
    if is_whole(there):
        return _read(there)
    with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
        folder = Path(temporary)
        result = _decide(item, found, sorted(bench.claims), folder, seconds)
        if result.outcome is Outcome.UNDECIDED:
            return result
        (folder / RESULT).write_text(json.dumps(asdict(result), indent=1))
        return _read(entry(named, lambda target: _copy(folder, target)))


def prove_all(
    items: Iterable[Property], seconds: float, jobs: int, told: Callable[[Result], None] = lambda result: None
) -> Iterator[Result]:
    """The results of many properties, `jobs` at once, in their order; `told` hears of each as soon as it is there."""

    def one(item: Property) -> Result:
        result = prove(item, seconds)
        told(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, items)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def _read(folder: Path) -> Result:
    stored = json.loads((folder / RESULT).read_text())
    return Result(**stored | {"outcome": Outcome(stored["outcome"]), "folder": str(folder)})


def digest(item: Property, found: netlist.Source) -> str:
    """A hash of what is proven, how, and with what."""
    made = hashlib.sha256(
        f"{version('pyosys')} {item.title} {item.claim} {item.method} {item.cover} {found}".encode()
    )
    for path in sorted(Path(__file__).parent.glob("*.py")):
        made.update(path.read_bytes())
    return made.hexdigest()[:24]


def _decide(item: Property, found: netlist.Source, claims: list[str], folder: Path, seconds: float) -> Result:
    begin = time.monotonic()
    netlist.prepare(found, folder)
    verdict = engines.decide(item.method, folder, seconds)
    outcome = Outcome.BOUNDED if isinstance(item.method, Bounded) else Outcome.PROVEN
    how, covers = verdict.how, {}
    if verdict.holds is None:
        outcome = Outcome.UNDECIDED
    elif verdict.holds is False:
        assert verdict.frame is not None
        outcome = Outcome.FAILED
        names = engines.failing(engines.trace(folder, verdict.frame))
        how = f"{' and '.join(names)} in cycle {verdict.frame}, see trace.vcd"
    else:
        covers = _covers(item, folder, seconds)
        missed = [name for name, frame in covers.items() if frame is None]
        if missed:
            outcome, how = Outcome.VACUOUS, f"not reached in {item.cover} cycles: {', '.join(missed)}"
    return Result(item.title, item.claim, outcome, how, claims, covers, round(time.monotonic() - begin, 2))


def _covers(item: Property, folder: Path, seconds: float) -> dict[str, int | None]:
    """When each cover is reached first."""
    inside = folder / "covers"
    inside.mkdir()
    bench = item.bench()
    found = netlist.source(bench, covering=True)
    if not bench.covers:
        return {}
    netlist.prepare(found, inside)
    frames = engines.reached(inside, item.cover, seconds)
    return {name: frames[signal.name] for name, signal in bench.covers.items()}
