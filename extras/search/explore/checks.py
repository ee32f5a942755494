"""Confirmation of Pareto-optimal points by workers, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from weft.boards.board import BoardError
from weft.boards.build.tools import ToolError
from weft.extras.search.explore import confirm, results
from weft.extras.search.explore.confirm import Run, Synthesis
from weft.extras.search.explore.evaluate import Models
from weft.extras.search.explore.explore import Exploration
from weft.extras.search.explore.point import Measured
from weft.extras.search.explore.workers import DIED, Workers
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError
from weft.sim.verilate import BuildError

VERIFIED, SYNTHESISED = "verified", "synthesised"
"""Kinds of checks: run a layer on the RTL, or synthesise the hardware."""
POLL_INTERVAL = 0.5
"""Seconds between polls for finished checks."""
Name = tuple[int, str]
"""Number of a point on the front, from 1 on, and kind of the check."""
Outcomes = dict[tuple[Config, str], dict[str, Any]]
"""Details of finished checks, by `Point.key` and kind."""


# Files call the fields "told" and "described".
class Outcome(msgspec.Struct, frozen=True, rename={"summary": "told", "details": "described"}):
    """Outcome of a check.

    Attributes
    ----------
    summary : str
        One line for the user.
    details : dict
        Plain values; ``good`` tells whether the check passed.
    """

    summary: str
    details: dict[str, Any]

    @classmethod
    def of(cls, result: Run | Synthesis) -> Outcome:
        return cls(result.summary, result.to_dict())

    @classmethod
    def failure(cls, reason: str) -> Outcome:
        return cls(reason, {"failed": reason, "good": False})


ABANDONED = Outcome.failure(DIED)


@dataclass(frozen=True)
class Check:
    """Check that a worker runs.

    Attributes
    ----------
    kind : str
        `VERIFIED` or `SYNTHESISED`.
    seed : int
        Seed of a layer's inputs.
    folder : str
        Folder for outcomes, shared by all workers.
    """

    kind: str
    item: Measured
    models: Models
    seed: int
    folder: str

    @property
    def key(self) -> str:
        """Hash of everything that the outcome of an RTL run depends on."""
        point = self.item.point
        return results.key(
            confirm.__file__, self.models.digests, self.models.shapes, point.config.to_dict(),
            point.place.name, point.place.memory, self.seed,
        )  # fmt: skip


def run_check(check: Check) -> Outcome:
    """Run a check and return its outcome.

    The check's folder keeps outcomes of RTL runs, and weft's cache keeps synthesis results. Failed checks run again the
    next time.
    """
    try:
        return _run(check) if check.kind == VERIFIED else Outcome.of(confirm.synthesise(check.item))
    except (BoardError, BuildError, DeviceError, ToolError) as error:
        return Outcome.failure(str(error))


def _run(check: Check) -> Outcome:
    path = Path(check.folder) / f"run-{check.key}" / "outcome.json"
    return results.run_once(
        path, Outcome, lambda: Outcome.of(confirm.run_layer(check.item, check.models, check.seed))
    )


def make_checks(
    exploration: Exploration, models: Models, seed: int, kinds: Sequence[str], folder: Path
) -> dict[Name, Check]:
    """Return the checks of the kinds in `kinds` for each point of the front."""
    return {
        (number, kind): Check(kind, item, models, seed, str(folder.resolve()))
        for number, item in enumerate(exploration.pareto_front, 1)
        for kind in kinds
    }


def confirm_all(
    checks: Mapping[Name, Check],
    workers: Workers[Check, Outcome],
    report: Callable[[Name, Check, Outcome, Outcomes], None],
    progress: Callable[[str], None] = lambda text: None,
) -> bool:
    """Run checks on workers; return whether all of them passed.

    Parameters
    ----------
    report : callable
        Called with each outcome, and with all outcomes so far.

    Raises
    ------
    weft.extras.search.explore.workers.WorkersError
        If the scheduler is lost.
    """
    outcomes: Outcomes = {}
    good, count = True, 0
    for name, check in checks.items():
        workers.add(name, check)
    try:
        while workers.running:
            progress(f"confirming points of the front: {count:,} of {len(checks):,} checks done")
            for name, outcome in workers.collect(POLL_INTERVAL):
                check, count = checks[name], count + 1
                outcomes.setdefault(check.item.point.key, {})[check.kind] = outcome.details
                good &= outcome.details["good"]
                report(name, check, outcome, outcomes)
    finally:
        workers.close()
    return good
