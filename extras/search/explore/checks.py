"""Points of a front confirmed by workers, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from weft.boards.board import BoardError
from weft.boards.build.tools import ToolError
from weft.extras.search.explore import confirm, results
from weft.extras.search.explore.confirm import Counted, Run
from weft.extras.search.explore.evaluate import Models
from weft.extras.search.explore.explore import Exploration
from weft.extras.search.explore.point import Measured
from weft.extras.search.explore.workers import DIED, Workers
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError
from weft.sim.verilate import BuildError

VERIFIED, SYNTHESISED = "verified", "synthesised"
"""What is done to a point: a layer of it is run on the RTL, or its hardware is synthesised."""
WAIT = 0.5
"""Seconds between looks at what has ended."""
Name = tuple[int, str]
"""The number of a point on the front, from 1 on, and what is done to it."""
Confirmed = dict[tuple[Config, str], dict[str, Any]]
"""By `Point.key` the outcomes of its checks, by what was done."""


class Outcome(msgspec.Struct, frozen=True):
    """What a check has found.

    Attributes
    ----------
    told : str
        A few words for people.
    described : dict
        As plain values; ``good`` is whether all is as it should be.
    """

    told: str
    described: dict[str, Any]

    @classmethod
    def of(cls, found: Run | Counted) -> Outcome:
        return cls(found.told, found.described())

    @classmethod
    def failed(cls, why: str) -> Outcome:
        return cls(why, {"failed": why, "good": False})


GIVEN_UP = Outcome.failed(DIED)


@dataclass(frozen=True)
class Check:
    """What a worker is given.

    Attributes
    ----------
    what : str
        `VERIFIED` or `SYNTHESISED`.
    seed : int
        Of the inputs of a layer.
    folder : str
        Where outcomes are kept, for all workers.
    """

    what: str
    item: Measured
    models: Models
    seed: int
    folder: str

    @property
    def key(self) -> str:
        """A hash of all that the outcome of a run depends on."""
        point = self.item.point
        return results.key(
            confirm.__file__, self.models.digests, self.models.shapes, point.config.to_dict(),
            point.place.name, point.place.memory, self.seed,
        )  # fmt: skip


def carry_out(check: Check) -> Outcome:
    """Do what a check asks for. Outcomes of runs on the RTL are kept in its folder, counts of synthesis in the cache of
    weft; what could not be done is tried again the next time."""
    try:
        return _run(check) if check.what == VERIFIED else Outcome.of(confirm.synthesised(check.item))
    except (BoardError, BuildError, DeviceError, ToolError) as error:
        return Outcome.failed(str(error))


def _run(check: Check) -> Outcome:
    path = Path(check.folder) / f"run-{check.key}" / "outcome.json"
    return results.once(path, Outcome, lambda: Outcome.of(confirm.run(check.item, check.models, check.seed)))


def checks_of(
    found: Exploration, models: Models, seed: int, wanted: Sequence[str], folder: Path
) -> dict[Name, Check]:
    """What is `wanted` of each point of the front: `VERIFIED`, `SYNTHESISED` or both."""
    return {
        (number, what): Check(what, item, models, seed, str(folder.resolve()))
        for number, item in enumerate(found.front, 1)
        for what in wanted
    }


def confirmed(
    wanted: Mapping[Name, Check],
    workers: Workers[Check, Outcome],
    told: Callable[[Name, Check, Outcome, Confirmed], None],
    progress: Callable[[str], None] = lambda text: None,
) -> bool:
    """Have workers do what is wanted; whether all is as it should be.

    Parameters
    ----------
    told : callable
        Told each outcome when it is known, with all that are known by then.

    Raises
    ------
    weft.extras.search.explore.workers.WorkersError
        If the scheduler is lost.
    """
    known: Confirmed = {}
    good, count = True, 0
    for name, check in wanted.items():
        workers.add(name, check)
    try:
        while workers.running:
            progress(f"confirming points of the front: {count:,} of {len(wanted):,} checks done")
            for name, outcome in workers.done(WAIT):
                check, count = wanted[name], count + 1
                known.setdefault(check.item.point.key, {})[check.what] = outcome.described
                good &= outcome.described["good"]
                told(name, check, outcome, known)
    finally:
        workers.close()
    return good
