"""Evaluation of a point by a worker: compile the models and run them on the cycle model."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from weft.api import without_garbage_collection
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceOp, DeviceSegment
from weft.compiler.ir.model import Graph, dump
from weft.compiler.onnx.model import COMPLETE
from weft.compiler.onnx.patterns import can_plan
from weft.configurations import room_of
from weft.extras.search.explore import workers
from weft.extras.search.explore.point import Place, Timing
from weft.extras.search.explore.workers import DIED, Workers
from weft.hdl.errors import SchemaError
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.board_run import board_model
from weft.run.estimate import memory_needs
from weft.run.runtime import Image, zeros
from weft.sim.timing import TimingDevice

_GRAPHS = 8
"""Number of models that a worker caches, and of graphs of each."""


@dataclasses.dataclass(frozen=True)
class Models:
    """Models in files that all workers can read.

    Attributes
    ----------
    paths, digests : tuple of str
        Files, and hashes of their contents.
    shapes : tuple of (str, int)
        Sizes of dimensions that models leave open.
    """

    paths: tuple[str, ...]
    digests: tuple[str, ...]
    shapes: tuple[tuple[str, int], ...] = ()

    def graphs(self, config: Config) -> list[Graph]:
        """Return the graphs for a device with `config`; may raise `CompileError`."""
        return [_graph(path, self.shapes, config) for path in self.paths]


class _RecordingConfig:
    """Configuration that records which fields are read, and which operators are asked to have a plan, with the
    answers.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.read: dict[str, object] = {}
        self.plan_queries: list[tuple[DeviceOp, bool]] = []

    def __getattr__(self, name: str) -> object:
        return self.read.setdefault(name, getattr(self._config, name))

    def can_plan(self, op: DeviceOp) -> bool:
        """Record and answer `weft.compiler.onnx.patterns.can_plan`."""
        # `can_plan` reads more fields than its answer depends on, so that recording its reads would miss equal graphs.
        self.plan_queries.append((op, can_plan(self._config, op)))
        return self.plan_queries[-1][1]

    def is_like(self, config: Config) -> bool:
        """Return whether another configuration gives the same answers."""
        fields_match = all(getattr(config, name) == value for name, value in self.read.items())
        return fields_match and all(can_plan(config, op) == answer for op, answer in self.plan_queries)


def _graph(path: str, shapes: tuple[tuple[str, int], ...], config: Config) -> Graph:
    """Return a model's graph for `config`.

    A graph that was imported for another configuration is reused if all recorded answers are the same.
    """
    imported = _graph_cache(path, shapes)
    for recorder, graph in imported:
        if recorder.is_like(config):
            return graph
    recorder = _RecordingConfig(config)
    # The front end only reads fields, so that the recorder can stand for a configuration.
    graph = import_model(path, config=cast(Config, recorder), shapes=dict(shapes))
    imported.insert(0, (recorder, graph))
    del imported[_GRAPHS:]
    return graph


@lru_cache(maxsize=_GRAPHS)
def _graph_cache(path: str, shapes: tuple[tuple[str, int], ...]) -> list[tuple[_RecordingConfig, Graph]]:
    """Return the list in which `_graph` caches graphs of a model, latest first."""
    return []


def unused_units(models: Models) -> frozenset[str]:
    """Return the configuration's fields of units that no model uses: without the unit, all graphs stay the same."""
    reference = _describe_graphs(models, COMPLETE)
    units = {"probability_bits": 0, "kernel": 0, "lookup_tables": 0, "multiply": 0}
    unused_names = {
        name
        for name, disabled in units.items()
        if _describe_graphs(models, COMPLETE.replace(**{name: disabled})) == reference
    }
    return frozenset(unused_names)


def _describe_graphs(models: Models, config: Config) -> list[tuple[str, object]]:
    """Return the operators of a device with `config`, without weights, and the assignment of nodes."""
    return [(dump(graph), graph.assignment) for graph in models.graphs(config)]


def device_segments(graph: Graph) -> list[DeviceSegment]:
    return [segment for segment in graph.segments if isinstance(segment, DeviceSegment)]


def reduce_config(config: Config, without: frozenset[str], *, sequential: bool) -> Config:
    """Return a configuration with default values in fields of `without`, the unused units, if cycles do not depend on
    them.

    Look-up tables take time even if unused, but not more for a larger number. With probabilities, the array takes wider
    activations. On the sequential core every field counts, because the microprogram depends on all of them.
    """
    if sequential:
        return config
    default = Config()
    changes = dict.fromkeys(without & {"kernel", "multiply"}, 0)
    if "probability_bits" in without:
        changes |= {name: getattr(default, name) for name in ("row_states", "alignments", "table_depth")}
    if "lookup_tables" in without:
        changes["lookup_tables"] = min(1, config.lookup_tables)
    return config.replace(**changes)


@dataclasses.dataclass(frozen=True)
class Job:
    """Job of a worker. `config` has default values where they do not matter (`reduce_config`); `clock` is in Hz."""

    models: Models
    config: Config
    place: Place
    clock: float
    folder: str
    """Folder for results, shared by all workers."""

    @property
    def key(self) -> str:
        """Hash of everything that the result depends on."""
        return workers.result_key(
            __file__, self.models.digests, self.models.shapes, self.config.to_dict(),
            self.place.timing(self.clock),
        )  # fmt: skip

    @property
    def path(self) -> Path:
        """File of the result."""
        return Path(self.folder) / f"point-{self.key}" / "timing.json"


def read_result(job: Job) -> Timing | None:
    """Return the result of a finished job, or None."""
    try:
        return workers.read_result(job.path, Timing)
    except (OSError, SchemaError):
        return None


def evaluate(job: Job) -> Timing:
    """Run a job, unless another worker has finished it or is running it, and store the result."""
    return workers.run_once(job.path, Timing, lambda: measure(job))


def evaluators(count: int, scheduler: str | None = None) -> Workers[Job, Timing]:
    """Return workers for `evaluate`."""
    return Workers(count, evaluate, Timing(refused=DIED), scheduler)


def measure(job: Job) -> Timing:
    """Compile the models and count cycles; `Timing.refused` tells why a configuration cannot run them."""
    total = Timing()
    board = job.place.board
    for path, graph, full_graph in zip(
        job.models.paths, job.models.graphs(job.config), job.models.graphs(COMPLETE), strict=True
    ):
        # Nodes that run on the host with every configuration do not count.
        if (count := len(_on_host(graph) - _on_host(full_graph))) > 0:
            return Timing(refused=f"{count} more nodes of {Path(path).name} would run on the host")
        try:
            parts = [_program(segment, job) for segment in device_segments(graph)]
        except CompileError:
            return Timing(refused=f"the memories on chip are too small for {Path(path).name}")
        memory_needed, flash = (0, 0) if board is None else memory_needs(parts, board)
        if board is not None and memory_needed > board.memory.size:
            return Timing(refused=f"the memory of {board.name} is too small")
        counters = [_run_counters(part, job, flash=flash > 0) for part in parts]
        total = Timing(
            [*total.cycles, sum(item[Counter.CYCLES] for item in counters)],
            total.moved + job.config.bus_bytes * sum(
                item[Counter.READ_BEATS] + item[Counter.WRITE_BEATS] for item in counters
            ),
            total.macs + sum(op.macs for segment in device_segments(graph) for op in segment.ops),
            total.active + sum(item[Counter.ARRAY_ACTIVE] for item in counters),
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


def _run_counters(program: DeviceProgram, job: Job, *, flash: bool) -> dict[Counter, int]:
    """Return the counters of a run, with code and constants in memory or in the board's `flash`."""
    place, board = job.place, job.place.board
    image = Image(program)
    device: Any
    if board is None:
        device = TimingDevice(
            job.config, image.memory_bytes, latency=place.latency, bandwidth=place.bandwidth
        )
    else:
        size = max(image.memory_bytes, board.memory.size)
        device = board_model(board, job.config, job.clock, size, flash=flash)
        if flash:
            image = Image(program, flash_address=device.find_in_flash(image.read_only))
    image.run(device, zeros(program))
    return dict(device.counters())
