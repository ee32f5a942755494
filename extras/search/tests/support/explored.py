"""Searches over small spaces for a small network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from support import qdq_models

from weft.extras.search.explore.evaluate import Job, measure
from weft.extras.search.explore.explore import Task
from weft.extras.search.explore.output import copy_models
from weft.extras.search.explore.point import Measured, Place, Point, make_places
from weft.extras.search.explore.space import Space
from weft.hdl.isa.config import Config

VALUES: dict[str, Sequence[int]] = {
    "n": (2, 4, 8), "lanes": (1, 2, 4), "scratchpad_banks": (2, 4), "scratchpad_depth": (64, 128, 256),
    "accumulator_banks": (2,), "accumulator_depth": (32, 64), "bus_bytes": (4, 8), "queue_depth": (2, 4),
    "probability_bits": (8,), "row_states": (64,), "alignments": (256,), "table_depth": (256,),
    "lookup_tables": (0,), "multiply": (0,), "kernel": (0, 64), "depthwise_taps": (0, 2), "int4": (0,),
}  # fmt: skip
OBJECTIVES = ("ms", "lut", "ram")


def model(folder: Path, side: int = 12) -> Path:
    """Write a network of two convolutions."""
    builder = qdq_models.Builder(np.random.default_rng(3))
    value = builder.conv(builder.input((1, 4, side, side)), 8, pads=(1, 1, 1, 1))
    onnx.save(builder.finish(builder.conv(value, 12, (1, 1))), folder / "model.onnx")
    return folder / "model.onnx"


def task(
    folder: Path,
    *,
    boards: Sequence[str] = (),
    objectives: tuple[str, ...] = OBJECTIVES,
    space: Space | None = None,
    limits: dict[str, float] | None = None,
) -> Task:
    """Return a search with models in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    models = copy_models(folder, [model(folder)], {})
    places = make_places(list(boards))
    return Task(models, space or Space(VALUES), places, objectives, limits or {})


def draw_points(rng: np.random.Generator, space: Space) -> Config:
    return space.config({name: int(rng.choice(known)) for name, known in space.fields.items()})


def job(search: Task, config: Config, place: Place, folder: Path) -> Job:
    return Job(search.models, config, place, Point.of(config, place).clock, str(folder))


def measure_config(search: Task, config: Config, folder: Path) -> Measured:
    """Evaluate `config` at the search's only place."""
    (place,) = search.places
    point = Point.of(config, place)
    return Measured(point, point.resources(), measure(job(search, config, place, folder)))


def entries(folder: Path) -> dict[str, float]:
    """Return the modification time of each result below a search's folder, by name."""
    return {item.name: item.stat().st_mtime for item in (folder / "results").glob("point-*")}


def numbers(points: Sequence[Measured]) -> list[tuple[float, ...]]:
    return sorted(tuple(item.values[name] for name in OBJECTIVES) for item in points)
