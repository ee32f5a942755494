"""What a point takes: models compiled for it and run on the cycle model. This is what workers do."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from weft.api import without_garbage_collection
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import CompileError, DeviceOp, DeviceSegment
from weft.compiler.ir.model import Graph, dump
from weft.compiler.onnx.model import COMPLETE
from weft.compiler.onnx.patterns import has_plan
from weft.configurations import room_of
from weft.extras.search.explore import results
from weft.extras.search.explore.place import Place
from weft.extras.search.explore.point import Timing
from weft.extras.search.explore.workers import DIED, Workers
from weft.hdl import schema
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.board_run import board_model
from weft.run.estimate import memory_needs
from weft.run.runtime import Image, zeros
from weft.sim.timing import TimingDevice

_GRAPHS = 8
"""Models that a worker keeps, and graphs of each."""


@dataclasses.dataclass(frozen=True)
class Models:
    """The models, in files that all workers can read.

    Attributes
    ----------
    paths, digests : tuple of str
        Files, and hashes of what is in them.
    shapes : tuple of (str, int)
        Sizes of dimensions that models leave open.
    """

    paths: tuple[str, ...]
    digests: tuple[str, ...]
    shapes: tuple[tuple[str, int], ...] = ()

    def graphs(self, config: Config) -> list[Graph]:
        """As a device with `config` runs them. Raises `CompileError`."""
        return [_graph(path, self.shapes, config) for path in self.paths]


class _Noted:
    """A configuration that notes which fields are read, and which operators have to fit, with the answers."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.read: dict[str, object] = {}
        self.planned: list[tuple[DeviceOp, bool]] = []

    def __getattr__(self, name: str) -> object:
        return self.read.setdefault(name, getattr(self._config, name))

    def has_plan(self, op: DeviceOp) -> bool:
        """As `weft.compiler.onnx.patterns.has_plan`, which reads more fields than decide."""
        self.planned.append((op, has_plan(self._config, op)))
        return self.planned[-1][1]

    def is_like(self, config: Config) -> bool:
        """Whether another configuration gives all these answers."""
        same = all(getattr(config, name) == value for name, value in self.read.items())
        return same and all(has_plan(config, op) == planned for op, planned in self.planned)


def _graph(path: str, shapes: tuple[tuple[str, int], ...], config: Config) -> Graph:
    """As a device with `config` runs a model: a graph that was imported before, if all that was read of the other
    configuration is the same in this one."""
    known = _imported(path, shapes)
    for noted, graph in known:
        if noted.is_like(config):
            return graph
    noted = _Noted(config)
    graph = import_model(path, config=cast(Config, noted), shapes=dict(shapes))
    known.insert(0, (noted, graph))
    del known[_GRAPHS:]
    return graph


@lru_cache(maxsize=_GRAPHS)
def _imported(path: str, shapes: tuple[tuple[str, int], ...]) -> list[tuple[_Noted, Graph]]:
    """What `_graph` keeps of a model, the latest first."""
    return []


def unused(models: Models) -> frozenset[str]:
    """Fields of units that no model uses: without the unit its graph is the same."""
    whole = _shown(models, COMPLETE)
    units = {"probability_bits": 0, "kernel": 0, "lookup_tables": 0, "multiply": 0}
    found = {
        name for name, none in units.items() if _shown(models, COMPLETE.replace(**{name: none})) == whole
    }
    return frozenset(found)


def _shown(models: Models, config: Config) -> list[tuple[str, object]]:
    """What a device with `config` would run, without weights, and where each node runs."""
    return [(dump(graph), graph.assignment) for graph in models.graphs(config)]


def device_segments(graph: Graph) -> list[DeviceSegment]:
    return [segment for segment in graph.segments if isinstance(segment, DeviceSegment)]


def relevant(config: Config, without: frozenset[str], *, sequential: bool) -> Config:
    """The same configuration with one value in fields of units that are `unused`, on which no cycle depends. Look-up
    tables take time when they are not used, too, but not more if there are more of them; with probabilities the array
    takes wider activations. On the sequential core everything counts: its microprogram is another one."""
    if sequential:
        return config
    usual = Config()
    changes = dict.fromkeys(without & {"kernel", "multiply"}, 0)
    if "probability_bits" in without:
        changes |= {name: getattr(usual, name) for name in ("row_states", "alignments", "table_depth")}
    if "lookup_tables" in without:
        changes["lookup_tables"] = min(1, config.lookup_tables)
    return config.replace(**changes)


@dataclasses.dataclass(frozen=True)
class Job:
    """What a worker is given. `config` has usual values where it does not matter, see `relevant`; `clock` is in Hz."""

    models: Models
    config: Config
    place: Place
    clock: float
    folder: str
    """Where results are kept, for all workers."""

    @property
    def key(self) -> str:
        """A hash of all that the result depends on."""
        return results.key(
            __file__, self.models.digests, self.models.shapes, self.config.to_dict(),
            self.place.timing(self.clock),
        )  # fmt: skip

    @property
    def path(self) -> Path:
        """The file with its result."""
        return Path(self.folder) / f"point-{self.key}" / "timing.json"


def kept(job: Job) -> Timing | None:
    """The result of a job that some worker has done."""
    try:
        return results.read(job.path, Timing)
    except (OSError, schema.SchemaError):
        return None


def evaluate(job: Job) -> Timing:
    """Do the job, unless another worker has done it or is doing it; what is found is kept."""
    return results.once(job.path, Timing, lambda: timed(job))


def evaluators(count: int, scheduler: str | None = None) -> Workers[Job, Timing]:
    """Workers that `evaluate`."""
    return Workers(count, evaluate, Timing(refused=DIED), scheduler)


def timed(job: Job) -> Timing:
    """Compile and count. What the configuration cannot run is `Timing.refused`."""
    total = Timing()
    board = job.place.board
    for path, graph, whole in zip(
        job.models.paths, job.models.graphs(job.config), job.models.graphs(COMPLETE), strict=True
    ):
        if (count := len(_on_host(graph) - _on_host(whole))) > 0:
            return Timing(refused=f"{count} more nodes of {Path(path).name} would run on the host")
        try:
            parts = [_program(segment, job) for segment in device_segments(graph)]
        except CompileError:
            return Timing(refused=f"the memories on chip are too small for {Path(path).name}")
        needed, flash = (0, 0) if board is None else memory_needs(parts, board)
        if board is not None and needed > board.memory.size:
            return Timing(refused=f"the memory of {board.name} is too small")
        counted = [_counted(part, job, flash=flash > 0) for part in parts]
        total = Timing(
            [*total.cycles, sum(item[Counter.CYCLES] for item in counted)],
            total.moved + job.config.bus_bytes * sum(
                item[Counter.READ_BEATS] + item[Counter.WRITE_BEATS] for item in counted
            ),
            total.macs + sum(op.macs for segment in device_segments(graph) for op in segment.ops),
            total.active + sum(item[Counter.ARRAY_ACTIVE] for item in counted),
        )  # fmt: skip
    return total


def _on_host(graph: Graph) -> set[str]:
    return {name for name, _, place, _ in graph.assignment if place == "host"}


@without_garbage_collection()
def _program(segment: DeviceSegment, job: Job) -> DeviceProgram:
    board = job.place.board
    return compile_segment(
        segment,
        job.config,
        bandwidth=job.place.memory[1],
        room=None if board is None else room_of(board.name, job.config),
        sequential=job.place.sequential,
    )


def _counted(program: DeviceProgram, job: Job, *, flash: bool) -> dict[Counter, int]:
    """Counters of a run, with code and constants in memory or in the board's `flash`."""
    place, board = job.place, job.place.board
    image = Image(program)
    device: Any
    if board is None:
        device = TimingDevice(
            job.config, image.memory_bytes, latency=place.latency, bytes_per_cycle=place.bandwidth
        )
    else:
        size = max(image.memory_bytes, board.memory.size)
        device = board_model(board, job.config, job.clock, size, flash=flash)
        if flash:
            image = Image(program, flash_address=device.find_in_flash(image.read_only))
    image.run(device, zeros(program))
    return dict(device.counters())
