"""The search: points are proposed, bounded, measured and told."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from weft.boards.board import BoardError
from weft.errors import InputError
from weft.extras.search.explore.bounds import Roofline
from weft.extras.search.explore.evaluate import Job, Models, evaluators, kept, relevant, unused
from weft.extras.search.explore.front import dominates, front, values
from weft.extras.search.explore.place import Place
from weft.extras.search.explore.point import OBJECTIVES, Measured, Point, Timing
from weft.extras.search.explore.space import Space
from weft.extras.search.explore.study import Study
from weft.extras.search.explore.workers import Workers, WorkersError
from weft.hdl.isa.config import PRESETS, Config, ConfigError
from weft.hdl.sequential.core import check_config

SAMPLES = 2000
"""Points of a space that are looked at to tell whether any of them is feasible."""
IN_VAIN = 400
"""Proposals in a row without one to measure, after which a space counts as searched."""
WAIT = 0.5
"""Seconds between looks at the clock."""
RESULTS, JOURNAL = "results", "journal.log"
"""Below a search's folder: what workers have found, and Optuna's journal, which is there once a search has begun."""


class SpaceError(InputError):
    """A space without a solution; the sentence says what excludes how many of its points."""


@dataclass
class Exploration:
    """What a search has found.

    Attributes
    ----------
    objectives : tuple of str
        What was minimised: names of `weft.extras.search.explore.point.OBJECTIVES`.
    measured : list of Measured
        All points that were measured, and are solutions, in that order. Presets and boards' own configurations are
        among them where the places are theirs, whether or not they are in the space.
    excluded : Counter of str
        Points that are none, by reason.
    bounded : int
        Points whose roofline was no better than something measured.
    repeated : int
        Proposals of points that were known.
    interrupted : bool
        Whether the search was ended before its time.
    lost : str
        Why the workers are lost, in a sentence; empty if they are not.
    unfit : dict of str to str
        Presets and boards' own configurations that are no solutions, as ``preset small on icebreaker``, and why.
    """

    objectives: tuple[str, ...]
    measured: list[Measured] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)
    bounded: int = 0
    repeated: int = 0
    interrupted: bool = False
    lost: str = ""
    unfit: dict[str, str] = field(default_factory=dict)

    @property
    def front(self) -> list[Measured]:
        return front(self.measured, self.objectives)


@dataclass(frozen=True)
class Task:
    """What is searched, and for what.

    Attributes
    ----------
    limits : mapping of str to float
        The most that a solution may have of an objective, by name.
    """

    models: Models
    space: Space
    places: tuple[Place, ...]
    objectives: tuple[str, ...]
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.objectives, *self.limits):
            if name not in OBJECTIVES:
                raise InputError(f"an objective is one of {', '.join(OBJECTIVES)}, not {name!r}")
        if len(set(self.objectives)) != len(self.objectives) or not self.objectives:
            raise InputError("'objectives' are one or more names, each once")

    def excluded(self, point: Point) -> str:
        """Why a point is no solution, as far as that is known before it is measured; empty if it may be one."""
        board = point.place.board
        need = point.resources()
        for name, count in need.items():
            if board is not None and count > getattr(board.available, name):
                return f"{OBJECTIVES[name]} of {board.name}"
        if board is not None:
            try:
                point.place.timing(point.clock)
            except BoardError:
                return f"no clock for the memory of {board.name}"
        found = (name for name, most in self.limits.items() if getattr(need, name, 0) > most)
        return next((f"the limit of {OBJECTIVES[name]}" for name in found), "")

    def beyond(self, item: Measured) -> str:
        """Which limit something measured is beyond; empty if none."""
        found = (name for name, most in self.limits.items() if item.values[name] > most)
        return next((f"the limit of {OBJECTIVES[name]}" for name in found), "")

    def references(self) -> Iterator[tuple[str, Point]]:
        """Presets, and boards' own configurations, at the places."""
        for place in self.places:
            if place.board is not None:
                yield f"board {place.name}", Point.of(place.board.config, place)
            for name, config in PRESETS.items():
                if not lacking(config, place):
                    yield f"preset {name}", Point.of(config, place)

    def seeds(self, without: frozenset[str]) -> Iterator[tuple[Config, Place]]:
        """Configurations that a search begins with: the references; all of them without the units that no model uses,
        `without`, which are as quick with less; and without those that cost most, all or one of them."""
        units = ("kernel", "probability_bits", "depthwise_taps", "lookup_tables", "multiply")
        known = [point for _, point in self.references()]
        for names in ((), sorted(without), units, *((name,) for name in units)):
            for point in known:
                yield point.config.replace(**dict.fromkeys(names, 0)), point.place

    def feasible(self, seed: int) -> None:
        """Raises `SpaceError` if none of `SAMPLES` points of the space, drawn at random, can be a solution."""
        rng, reasons = np.random.default_rng(seed), Counter[str]()
        fields = self.space.fields
        points: Iterator[dict[str, int]] = (
            (dict(zip(fields, found, strict=True)) for found in itertools.product(*fields.values()))
            if self.space.size * len(self.places) <= SAMPLES
            else ({name: int(rng.choice(known)) for name, known in fields.items()} for _ in itertools.count())
        )
        for chosen in itertools.islice(points, SAMPLES):
            for place in self.places:
                reason = self.why(chosen, place)
                if not reason:
                    return
                reasons[reason] += 1
        raise SpaceError(no_solution(reasons))

    def why(self, chosen: Mapping[str, int], place: Place) -> str:
        """Why values of fields make no solution at a place, as far as that is known before it is measured."""
        try:
            config = self.space.config(chosen)
        except ConfigError:
            return "memories of more than 65,536 rows"
        return lacking(config, place) or self.excluded(Point.of(config, place))


def lacking(config: Config, place: Place) -> str:
    """What a configuration has that the core of a place does not; empty if nothing."""
    if place.sequential:
        try:
            check_config(config)
        except ConfigError:
            return "what the sequential core does not have"
    return ""


def no_solution(reasons: Counter[str]) -> str:
    """The sentence for a space in which nothing is a solution."""
    said = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
    return f"no point of the space is a solution; of {reasons.total():,} points, so many were excluded by: {said}"


Name = tuple[int | str, str, Point]
"""A point under way: the number of its proposal, if it is one, where it comes from, and the point."""
Told = Callable[[Exploration, int], None]
"""Told what was found so far, and how many proposals were looked at."""


class Search:
    """A search that can be ended and gone on with.

    Parameters
    ----------
    task : Task
    study : Study
    workers : Workers
    folder : Path
        Where results are kept.
    """

    def __init__(self, task: Task, study: Study, workers: Workers[Job, Timing], folder: Path) -> None:
        self.task, self.study, self.workers, self.folder = task, study, workers, folder
        self.found = Exploration(task.objectives)
        self._roofline = Roofline.of(task.models)
        self._unused = unused(task.models)
        self._known: dict[tuple[Config, str], Measured | None] = {}
        self._waiting: dict[tuple[Config, str], list[int]] = {}
        self._jobs: dict[str, list[Name]] = {}
        self._seen: set[tuple[tuple[int, ...], str]] = set()
        self._asked = 0

    def run(self, trials: int, seconds: float, told: Told = lambda found, asked: None) -> Exploration:
        """Go on until so many more points are measured. No point is begun after so much time, in seconds.

        An interrupt, or a scheduler that is gone, ends it early: what was found is whole.
        """
        end = time.monotonic() + seconds
        try:
            self._references(told)
            self._before(told)
            for number in list(self.study.abandoned()):
                self.study.again(number)
            for config, place in self.task.seeds(self._unused):
                self.study.prefer(config, place)
            self._search(trials, end, told)
        except KeyboardInterrupt:
            self.found.interrupted = True
        except WorkersError as error:
            self.found.lost = str(error)
        finally:
            self.workers.close()
        return self.found

    def _references(self, told: Told) -> None:
        """Measure presets and boards' own configurations."""
        for origin, point in self.task.references():
            own = point.place.board is not None and point.config == point.place.board.config
            if not own and (reason := self.task.excluded(point)):
                self.found.unfit[f"{origin} on {point.place.name}"] = reason
            elif point.key not in self._known:
                self._known[point.key] = None
                self._start(("", origin, point))
        while self.workers.running:
            self._collect(WAIT)
            told(self.found, self._asked)

    def _before(self, told: Told) -> None:
        """Take what a search before has measured."""
        for chosen, place in self.study.told():
            point = Point.of(self.task.space.config(chosen), place)
            if point.key not in self._known:
                self._known[point.key] = None
                self._start(("", "search", point))
        while self.workers.running:  # what was lost of the results
            self._collect(WAIT)
        told(self.found, self._asked)

    def _search(self, trials: int, end: float, told: Told) -> None:
        least, vain, all_ = len(self.found.measured), 0, self.task.space.size * len(self.task.places)

        def more() -> bool:
            enough = len(self.found.measured) - least + len(self._waiting) >= trials
            return not enough and vain <= IN_VAIN and len(self._seen) < all_ and time.monotonic() < end

        while more() or self.workers.running:
            while self.workers.room > 0 and more():
                vain = 0 if self._propose() else vain + 1
            self._collect(WAIT)
            told(self.found, self._asked)

    def _propose(self) -> bool:
        """Look at the next proposal; returns whether it is measured."""
        number, chosen, place = self.study.propose()
        self._asked += 1
        self._seen.add((tuple(chosen.values()), place.name))
        if reason := self.task.why(chosen, place):
            self.found.excluded[reason] += 1
            self.study.tell(number, None)
            return False
        point = Point.of(self.task.space.config(chosen), place)
        if point.key in self._waiting:
            self._waiting[point.key].append(number)
            self.found.repeated += 1
            return False
        if point.key in self._known:
            self.found.repeated += 1
            self.study.tell(number, None)  # once among what proposals are made from is enough
            return False
        self._known[point.key] = None
        if self._hopeless(point):
            self.found.bounded += 1
            self.study.tell(number, None)
            return False
        self._waiting[point.key] = [number]
        self._start((number, "search", point))
        return True

    def _hopeless(self, point: Point) -> bool:
        """Whether something measured is better than the best that a point may be."""
        best = values(self._roofline.bound(point), self.task.objectives)
        return any(dominates(values(item, self.task.objectives), best) for item in self.found.measured)

    def _start(self, name: Name) -> None:
        """Have a point measured, unless that is known or under way for another point with the same program."""
        point = name[2]
        job = Job(
            self.task.models,
            relevant(point.config, self._unused, sequential=point.place.sequential),
            point.place,
            point.clock,
            str(self.folder.resolve()),
        )
        if job.key in self._jobs:
            self._jobs[job.key].append(name)
        elif (done := kept(job)) is not None:
            self._end(name, done)
        else:
            self._jobs[job.key] = [name]
            self.workers.add(job.key, job)

    def _collect(self, seconds: float) -> None:
        for key, timing in self.workers.done(seconds):
            for name in self._jobs.pop(key):
                self._end(name, timing)

    def _end(self, name: Name, timing: Timing) -> None:
        _, origin, point = name
        item = None
        if timing.refused:
            self.found.excluded[timing.refused] += 1
            if origin != "search":
                self.found.unfit[f"{origin} on {point.place.name}"] = timing.refused
        else:
            item = Measured(point, point.resources(), timing, origin)
            if origin == "search" and (beyond := self.task.beyond(item)):
                self.found.excluded[beyond] += 1
                item = None
            else:
                self.found.measured.append(item)
        self._known[point.key] = item
        told = None if item is None else values(item, self.task.objectives)
        counted = [self.study.tell(number, told) for number in self._waiting.pop(point.key, [])]
        if told is not None and not any(counted):
            self.study.add(point.config, point.place, told)


def explore(
    task: Task,
    folder: Path,
    *,
    trials: int = 100,
    seconds: float = float("inf"),
    sampler: str = "nsga2",
    seed: int = 0,
    jobs: int = 1,
    scheduler: str | None = None,
    told: Told = lambda found, asked: None,
) -> Exploration:
    """Search for configurations that no other beats in all objectives.

    Points are proposed by Optuna, beginning with presets and boards' own configurations. One whose roofline is no
    better than something measured is left out. For the others the models are compiled and run on the cycle model, by
    workers. What was measured is kept in `folder`, and never measured twice: the same call goes on where it was, and
    several calls at a time share the work, on one machine or more.

    Parameters
    ----------
    task : Task
    folder : Path
        For results and Optuna's journal. It is made if it is missing.
    trials : int
        Points to measure, beside presets and boards' own configurations.
    seconds : float
        After which no point is begun.
    sampler, seed : str, int
        See `weft.extras.search.explore.study.Study`.
    jobs : int
        Processes; not used with a `scheduler`, see `weft.extras.search.explore.workers.Workers`.
    told : callable
        Told what was found so far, and how many proposals were looked at.

    Raises
    ------
    SpaceError
        If no point of the space is a solution.
    CompileError
        If a model cannot be compiled for any device.
    WorkersError
        If the scheduler does not answer. If it is lost later, `Exploration.lost` says so.
    FileError
        If Optuna or Dask is needed and not installed, or the folder is of another search.
    """
    task.feasible(seed)
    workers = evaluators(jobs, scheduler)
    study = Study(folder / JOURNAL, "weft", task.space, task.places, task.objectives, sampler, seed)
    search = Search(task, study, workers, folder / RESULTS)
    found = search.run(trials, seconds, told)
    if not found.measured and not found.interrupted and not found.lost and found.excluded:
        raise SpaceError(no_solution(found.excluded))
    return found
