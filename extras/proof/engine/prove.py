"""Proofs of properties and searches for covers, with a cache by content."""

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
    """The claims hold, but a cover is not reached."""
    UNDECIDED = "not proven"
    """Time was up, or the step of induction fails."""


@dataclass(frozen=True)
class Result:
    """Result of a proof.

    Attributes
    ----------
    title, claim : str
        Title and claim of the property.
    outcome : Outcome
    how : str
        The proof in a few words, or the reason of its failure.
    claims : list of str
        Names of the claims.
    covers : dict
        By cover the first cycle, from 0, in which it can be reached; None if it was not.
    seconds : float
        Duration of the proof.
    folder : str
        Folder of netlists, logs and traces; empty if they were not kept.
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
    """Prove one property, or return its result from the cache.

    Parameters
    ----------
    item : Property
    seconds : float
        Time limit, approximately. After it the outcome is `Outcome.UNDECIDED`, which is not cached.

    Raises
    ------
    weft.extras.proof.engine.netlist.NetlistError, weft.extras.proof.engine.engines.EngineError
        If a tool fails.
    """
    bench = item.bench()
    source = netlist.source(bench)
    key = f"proof-{digest(item, source)}"
    folder = cache_root() / key
    if is_whole(folder):
        return _read_result(folder)
    with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
        folder = Path(temporary)
        result = _decide(item, source, sorted(bench.claims), folder, seconds)
        if result.outcome is Outcome.UNDECIDED:
            return result
        (folder / RESULT).write_text(json.dumps(asdict(result), indent=1))
        return _read_result(entry(key, lambda target: _copy(folder, target)))


def prove_all(
    items: Iterable[Property],
    seconds: float,
    jobs: int,
    report: Callable[[Result], None] = lambda result: None,
) -> Iterator[Result]:
    """Yield the results of properties in their order, with `jobs` proofs in parallel.

    `report` is called with each result at once.
    """

    def prove_one(item: Property) -> Result:
        result = prove(item, seconds)
        report(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(prove_one, items)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def _read_result(folder: Path) -> Result:
    stored = json.loads((folder / RESULT).read_text())
    return Result(**stored | {"outcome": Outcome(stored["outcome"]), "folder": str(folder)})


def digest(item: Property, source: netlist.Source) -> str:
    """Return a hash of the property, its bench, its method and the proof engine."""
    state = hashlib.sha256(
        f"{version('pyosys')} {item.title} {item.claim} {item.method} {item.cover} {source}".encode()
    )
    for path in sorted(Path(__file__).parent.glob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()[:24]


def _decide(
    item: Property, source: netlist.Source, claims: list[str], folder: Path, seconds: float
) -> Result:
    begin = time.monotonic()
    netlist.prepare(source, folder)
    verdict = engines.decide(item.method, folder, seconds)
    outcome = Outcome.BOUNDED if isinstance(item.method, Bounded) else Outcome.PROVEN
    how, covers = verdict.how, {}
    if verdict.holds is None:
        outcome = Outcome.UNDECIDED
    elif verdict.holds is False:
        assert verdict.frame is not None
        outcome = Outcome.FAILED
        names = engines.failing_claims(engines.trace(folder, verdict.frame))
        how = f"{' and '.join(names)} in cycle {verdict.frame}, see trace.vcd"
    else:
        covers = _reach_covers(item, folder, seconds)
        missed = [name for name, frame in covers.items() if frame is None]
        if missed:
            outcome, how = Outcome.VACUOUS, f"not reached in {item.cover} cycles: {', '.join(missed)}"
    return Result(item.title, item.claim, outcome, how, claims, covers, round(time.monotonic() - begin, 2))


def _reach_covers(item: Property, folder: Path, seconds: float) -> dict[str, int | None]:
    """Return the first cycle in which each cover is reached."""
    folder_of_covers = folder / "covers"
    folder_of_covers.mkdir()
    bench = item.bench()
    source = netlist.source(bench, covering=True)
    if not bench.covers:
        return {}
    netlist.prepare(source, folder_of_covers)
    frames = engines.find_covers(folder_of_covers, item.cover, seconds)
    return {name: frames[signal.name] for name, signal in bench.covers.items()}
