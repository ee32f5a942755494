"""Design space exploration: points are proposed, bounded from below by the models' roofline, and measured."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from weft.boards.errors import BoardError
from weft.compiler.ir.graph import Conv
from weft.compiler.onnx.model import COMPLETE
from weft.errors import InputError
from weft.extras.search.explore.evaluate import (
    Job,
    Models,
    device_segments,
    evaluators,
    read_result,
    reduce_config,
    unused_units,
)
from weft.extras.search.explore.point import (
    OBJECTIVES,
    Measured,
    Place,
    Point,
    Timing,
    dominates,
    pareto_front,
    values,
)
from weft.extras.search.explore.space import Space, Study
from weft.extras.search.explore.workers import Workers, WorkersError
from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.core import check_config


@dataclass(frozen=True)
class Roofline:
    """Roofline of models on any configuration that runs as much on the device as the largest one does.

    Attributes
    ----------
    macs : tuple of int
        Multiplications of each model.
    moved : tuple of int
        Minimum of bytes over the bus: weights once, of which two may share a byte, and inputs and outputs.
    """

    macs: tuple[int, ...]
    moved: tuple[int, ...]

    @classmethod
    def of(cls, models: Models) -> Roofline:
        macs, moved = [], []
        for graph in models.graphs(COMPLETE):
            ops = [op for segment in device_segments(graph) for op in segment.ops]
            macs.append(sum(op.macs for op in ops))
            weights = sum(op.weight.size for op in ops if isinstance(op, Conv))
            buffers = {view.buffer.name: view.buffer for op in ops for view in (*op.sources, op.dst)}
            ends = sum(buffer.size for buffer in buffers.values() if buffer.kind in ("input", "output"))
            moved.append(weights // 2 + ends)
        return cls(tuple(macs), tuple(moved))

    def bound(self, point: Point) -> Measured:
        """Return the lower bound for a point: N * N products per cycle, and the memory's peak bandwidth."""
        board, n = point.place.board, point.config.n
        memory_peak = point.place.bandwidth if board is None else board.memory.peak_bytes_per_cycle
        width = min(point.config.bus_bytes, memory_peak or point.config.bus_bytes)
        # Without a board, reads and writes overlap.
        parallel_transfers = 2 if memory_peak is None or board is None else 1
        cycles = [
            max(-(-macs // (n * n)), int(moved / width / parallel_transfers))
            for macs, moved in zip(self.macs, self.moved, strict=True)
        ]
        active = sum(-(-macs // (n * n)) for macs in self.macs)
        return Measured(
            point, point.resources(), Timing(cycles, sum(self.moved), sum(self.macs), active), "bound"
        )


FEASIBILITY_SAMPLES = 2000
"""Number of random points that are checked for a feasible one."""
MAX_FRUITLESS = 400
"""Number of successive proposals without a measurement after which a space counts as exhausted."""
POLL_INTERVAL = 0.5
"""Seconds between checks of the clock."""
RESULTS, JOURNAL = "results", "journal.log"
"""Names in the folder of a search: results of workers, and Optuna's journal, which exists once a search has started."""


class SpaceError(InputError):
    """Space without a solution; the message tells what excludes its points."""


@dataclass
class Exploration:
    """Result of a search.

    Attributes
    ----------
    objectives : tuple of str
        Minimised objectives: names of `weft.extras.search.explore.point.OBJECTIVES`.
    measured : list of Measured
        All solutions that were measured, in order. They include presets and boards' own configurations at their places,
        even outside the space.
    excluded : Counter of str
        Number of excluded points, by reason.
    bounded : int
        Points whose roofline is no better than a measured point.
    repeated : int
        Proposals of known points.
    interrupted : bool
        Whether the search was interrupted.
    workers_error : str
        Why the workers were lost, as a sentence; empty otherwise.
    unsuitable : dict of str to str
        Presets and boards' own configurations that are not solutions, for example ``preset small on icebreaker``, with
        the reason.
    """

    objectives: tuple[str, ...]
    measured: list[Measured] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)
    bounded: int = 0
    repeated: int = 0
    interrupted: bool = False
    workers_error: str = ""
    unsuitable: dict[str, str] = field(default_factory=dict)

    @property
    def pareto_front(self) -> list[Measured]:
        return pareto_front(self.measured, self.objectives)


@dataclass(frozen=True)
class Task:
    """Task of a search.

    Attributes
    ----------
    limits : mapping of str to float
        Upper limits of objectives, by name.
    """

    models: Models
    space: Space
    places: tuple[Place, ...]
    objectives: tuple[str, ...]
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.objectives, *self.limits):
            if name not in OBJECTIVES:
                raise InputError(f"'objectives' are names of {', '.join(OBJECTIVES)}, not {name!r}")
        if len(set(self.objectives)) != len(self.objectives) or not self.objectives:
            raise InputError("'objectives' are one or more names, each once")

    def rejection_of_point(self, point: Point) -> str:
        """Return why a point is not a solution, as far as that is known without measuring it; empty if it may be
        one.
        """
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
        exceeded = (name for name, limit in self.limits.items() if getattr(need, name, 0) > limit)
        return next((f"the limit of {OBJECTIVES[name]}" for name in exceeded), "")

    def exceeded_limit(self, item: Measured) -> str:
        """Return the limit that a measured point exceeds; empty if none."""
        exceeded = (name for name, limit in self.limits.items() if item.values[name] > limit)
        return next((f"the limit of {OBJECTIVES[name]}" for name in exceeded), "")

    def references(self) -> Iterator[tuple[str, Point]]:
        """Yield presets, and boards' own configurations, at the task's places."""
        for place in self.places:
            if place.board is not None:
                yield f"board {place.name}", Point.of(place.board.config, place)
            for name, config in PRESETS.items():
                if not missing_feature(config, place):
                    yield f"preset {name}", Point.of(config, place)

    def seeds(self, without: frozenset[str]) -> Iterator[tuple[Config, Place]]:
        """Yield initial configurations.

        They are the references, the references without unused units (`without`), which are as fast with fewer
        resources, and the references without the most expensive units, all of them or one at a time.
        """
        units = ("kernel", "probability_bits", "depthwise_taps", "lookup_tables", "multiply")
        known = [point for _, point in self.references()]
        for names in ((), sorted(without), units, *((name,) for name in units)):
            for point in known:
                yield point.config.replace(**dict.fromkeys(names, 0)), point.place

    def check_feasible(self, seed: int) -> None:
        """Raise `SpaceError` if none of `FEASIBILITY_SAMPLES` random points of the space can be a solution."""
        rng, reasons = np.random.default_rng(seed), Counter[str]()
        fields = self.space.fields
        # Small spaces are checked completely.
        points: Iterator[dict[str, int]] = (
            (
                dict(zip(fields, combination, strict=True))
                for combination in itertools.product(*fields.values())
            )
            if self.space.size * len(self.places) <= FEASIBILITY_SAMPLES
            else (
                {name: int(rng.choice(choices)) for name, choices in fields.items()}
                for _ in itertools.count()
            )
        )
        for values_by_field in itertools.islice(points, FEASIBILITY_SAMPLES):
            for place in self.places:
                reason = self.rejection(values_by_field, place)
                if not reason:
                    return
                reasons[reason] += 1
        raise SpaceError(no_solution_message(reasons))

    def rejection(self, values_by_field: Mapping[str, int], place: Place) -> str:
        """Return why values of fields are not a solution at a place, as far as that is known without measuring them."""
        try:
            config = self.space.config(values_by_field)
        except ConfigError:
            return "memories of more than 65,536 rows"
        return missing_feature(config, place) or self.rejection_of_point(Point.of(config, place))


def missing_feature(config: Config, place: Place) -> str:
    """Return which feature of a configuration the core of a place lacks; empty if none."""
    if place.sequential:
        try:
            check_config(config)
        except ConfigError:
            return "what the sequential core does not have"
    return ""


def no_solution_message(reasons: Counter[str]) -> str:
    """Return the message for a space without a solution."""
    counts = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
    return f"no point of the space is a solution; reasons among {reasons.total():,} points: {counts}"


Name = tuple[int | str, str, Point]
"""Point being measured: number of its proposal if it has one, origin, and the point."""
ReportProgress = Callable[[Exploration, int], None]
"""Called with the exploration so far, and the number of proposals."""


class Search:
    """Search that can be interrupted and resumed.

    Parameters
    ----------
    task : Task
    study : Study
    workers : Workers
    folder : Path
        Folder for results.
    """

    def __init__(self, task: Task, study: Study, workers: Workers[Job, Timing], folder: Path) -> None:
        self.task, self.study, self.workers, self.folder = task, study, workers, folder
        self.exploration = Exploration(task.objectives)
        self._roofline = Roofline.of(task.models)
        self._unused = unused_units(task.models)
        # By `Point.key`: the measurement; None while it runs, and for a point that is not a solution.
        self._known: dict[tuple[Config, str], Measured | None] = {}
        # By `Point.key`: the proposals that wait for its measurement.
        self._waiting: dict[tuple[Config, str], list[int]] = {}
        # By `Job.key`: points that differ only in fields of unused units share one job.
        self._jobs: dict[str, list[Name]] = {}
        self._seen: set[tuple[tuple[int, ...], str]] = set()
        self._proposals = 0

    def run(
        self, trials: int, seconds: float, report: ReportProgress = lambda exploration, proposals: None
    ) -> Exploration:
        """Run until `trials` more points are measured. No point starts after `seconds`.

        An interrupt, or the loss of the scheduler, ends the search early with a valid result.
        """
        end = time.monotonic() + seconds
        try:
            # Known points come first: they cost little, and their measurements bound all others.
            self._measure_references(report)
            self._resume(report)
            for number in list(self.study.abandoned_trials()):
                self.study.retry(number)
            for config, place in self.task.seeds(self._unused):
                self.study.prefer(config, place)
            self._run_trials(trials, end, report)
        except KeyboardInterrupt:
            self.exploration.interrupted = True
        except WorkersError as error:
            self.exploration.workers_error = str(error)
        finally:
            self.workers.close()
        return self.exploration

    def _measure_references(self, report: ReportProgress) -> None:
        """Measure presets and boards' own configurations."""
        for origin, point in self.task.references():
            is_own = point.place.board is not None and point.config == point.place.board.config
            if not is_own and (reason := self.task.rejection_of_point(point)):
                self.exploration.unsuitable[f"{origin} on {point.place.name}"] = reason
            elif point.key not in self._known:
                self._known[point.key] = None
                self._start(("", origin, point))
        while self.workers.running:
            self._collect(POLL_INTERVAL)
            report(self.exploration, self._proposals)

    def _resume(self, report: ReportProgress) -> None:
        """Take over what an earlier search has measured."""
        for values_by_field, place in self.study.solutions():
            point = Point.of(self.task.space.config(values_by_field), place)
            if point.key not in self._known:
                self._known[point.key] = None
                self._start(("", "search", point))
        while self.workers.running:  # only results whose files are missing run again
            self._collect(POLL_INTERVAL)
        report(self.exploration, self._proposals)

    def _run_trials(self, trials: int, end: float, report: ReportProgress) -> None:
        initial, fruitless = len(self.exploration.measured), 0
        combinations = self.task.space.size * len(self.task.places)

        def may_continue() -> bool:
            # Points that are being measured count already, or the search would exceed `trials`.
            enough = len(self.exploration.measured) - initial + len(self._waiting) >= trials
            return (
                not enough
                and fruitless <= MAX_FRUITLESS
                and len(self._seen) < combinations
                and time.monotonic() < end
            )

        while may_continue() or self.workers.running:
            while self.workers.room > 0 and may_continue():
                fruitless = 0 if self._propose() else fruitless + 1
            self._collect(POLL_INTERVAL)
            report(self.exploration, self._proposals)

    def _propose(self) -> bool:
        """Examine the next proposal; return whether it is being measured."""
        number, values_by_field, place = self.study.propose()
        self._proposals += 1
        self._seen.add((tuple(values_by_field.values()), place.name))
        if reason := self.task.rejection(values_by_field, place):
            self.exploration.excluded[reason] += 1
            self.study.tell(number, None)
            return False
        point = Point.of(self.task.space.config(values_by_field), place)
        # Different values of fields can give the same configuration.
        if point.key in self._waiting:
            self._waiting[point.key].append(number)
            self.exploration.repeated += 1
            return False
        if point.key in self._known:
            self.exploration.repeated += 1
            self.study.tell(number, None)  # the sampler needs each point once only
            return False
        self._known[point.key] = None
        if self._is_bounded(point):
            self.exploration.bounded += 1
            self.study.tell(number, None)
            return False
        self._waiting[point.key] = [number]
        self._start((number, "search", point))
        return True

    def _is_bounded(self, point: Point) -> bool:
        """Return whether a measured point dominates a point's lower bound."""
        best = values(self._roofline.bound(point), self.task.objectives)
        return any(dominates(values(item, self.task.objectives), best) for item in self.exploration.measured)

    def _start(self, name: Name) -> None:
        """Measure a point, unless a result or a running job for the same program exists."""
        point = name[2]
        job = Job(
            self.task.models,
            reduce_config(point.config, self._unused, sequential=point.place.sequential),
            point.place,
            point.clock,
            str(self.folder.resolve()),
        )
        if job.key in self._jobs:
            self._jobs[job.key].append(name)
        elif (result := read_result(job)) is not None:
            self._end(name, result)
        else:
            self._jobs[job.key] = [name]
            self.workers.add(job.key, job)

    def _collect(self, seconds: float) -> None:
        for key, timing in self.workers.collect(seconds):
            for name in self._jobs.pop(key):
                self._end(name, timing)

    def _end(self, name: Name, timing: Timing) -> None:
        _, origin, point = name
        item = None
        if timing.refused:
            self.exploration.excluded[timing.refused] += 1
            if origin != "search":
                self.exploration.unsuitable[f"{origin} on {point.place.name}"] = timing.refused
        else:
            item = Measured(point, point.resources(), timing, origin)
            # References stay in the report even beyond the limits.
            if origin == "search" and (exceeded_limit := self.task.exceeded_limit(item)):
                self.exploration.excluded[exceeded_limit] += 1
                item = None
            else:
                self.exploration.measured.append(item)
        self._known[point.key] = item
        objective_values = None if item is None else values(item, self.task.objectives)
        accepted = [self.study.tell(number, objective_values) for number in self._waiting.pop(point.key, [])]
        # Without an accepted proposal, as for references, the sampler would not learn of the point.
        if objective_values is not None and not any(accepted):
            self.study.add(point.config, point.place, objective_values)


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
    report: ReportProgress = lambda exploration, proposals: None,
) -> Exploration:
    """Search for Pareto-optimal configurations.

    Optuna proposes points, beginning with presets and boards' own configurations. Points whose roofline is no better
    than a measured point are skipped. For others, workers compile the models and run them on the cycle model. Results
    are kept in `folder`, so that nothing is measured twice. The same call resumes a search, and several calls at a time
    share the work, on one machine or more.

    Parameters
    ----------
    task : Task
    folder : Path
        Folder for results and Optuna's journal; created if missing.
    trials : int
        Points to measure, besides presets and boards' own configurations.
    seconds : float
        Time after which no point starts.
    sampler, seed : str, int
        See `weft.extras.search.explore.space.Study`.
    jobs : int
        Number of processes, if there is no `scheduler`; see `weft.extras.search.explore.workers.Workers`.
    report : callable
        Called with the exploration so far, and the number of proposals.

    Raises
    ------
    SpaceError
        If no point of the space is a solution.
    CompileError
        If a model cannot be compiled for any device.
    WorkersError
        If the scheduler does not answer at the start; `Exploration.workers_error` tells of a later loss.
    FileError
        If Optuna or Dask is needed and not installed, or the folder belongs to another search.
    """
    task.check_feasible(seed)
    workers = evaluators(jobs, scheduler)
    study = Study(folder / JOURNAL, "weft", task.space, task.places, task.objectives, sampler, seed)
    search = Search(task, study, workers, folder / RESULTS)
    exploration = search.run(trials, seconds, report)
    if (
        not exploration.measured
        and not exploration.interrupted
        and not exploration.workers_error
        and exploration.excluded
    ):
        raise SpaceError(no_solution_message(exploration.excluded))
    return exploration
