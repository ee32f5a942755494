"""Measure points per hour of `weft explore`, with one worker and with two.

    python extras/search/benchmarks/exploring.py [--network mobilenet_v2] [--points 24] [--seed 1]

Measure random points of the default space, which may be solutions without a board, by one process and by two, each
with an empty cache. Small arrays take longest and come first, so that no worker idles for long at the end. An hour runs
from the first job's start to the last one's end; it excludes the start of processes, which a search does once.

Other programs that use the processors slow the workers down. Therefore the workers' own processor time is reported too:
points per hour by processor time are those of idle processors. If a point takes two concurrent workers as much of it as
one worker, they do not hinder each other.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.extras.search.explore.evaluate import Job, evaluators, reduce_config, unused_units
from weft.extras.search.explore.explore import Task
from weft.extras.search.explore.output import copy_models
from weft.extras.search.explore.point import Point, Timing, make_places
from weft.extras.search.explore.space import Space
from weft.extras.search.explore.workers import Workers

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

from zoo import NETWORKS, quantise_network


def draw_points(task: Task, count: int, seed: int) -> list[Point]:
    """Return random points that may be solutions."""
    rng, result = np.random.default_rng(seed), list[Point]()
    while len(result) < count:
        chosen = {name: int(rng.choice(known)) for name, known in task.space.fields.items()}
        if not task.rejection(chosen, task.places[0]):
            result.append(Point.of(task.space.config(chosen), task.places[0]))
    return result


class Spent(NamedTuple):
    """Wall time and processor time of some jobs, in seconds."""

    wall: float
    processor: float


def measure_workers(jobs: Sequence[Job], count: int) -> Spent:
    """Time jobs on warm processes: each first runs one job untimed, with its own cache."""
    workers = evaluators(count)
    for index in range(count):
        workers.add(("warm", index), dataclasses.replace(jobs[0], folder=f"{jobs[0].folder}-{index}"))
    _wait(workers)
    begin, before = time.monotonic(), _processor(workers)
    for index, job in enumerate(jobs[1:]):
        workers.add(index, job)
    _wait(workers)
    spent = Spent(time.monotonic() - begin, _processor(workers) - before)
    workers.close()
    return spent


def _processor(workers: Workers[Job, Timing]) -> float:
    """Return the workers' processor time in seconds, as reported by Linux."""
    ticks = 0
    for process in workers.processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _wait(workers: Workers[Job, Timing]) -> None:
    while workers.running:
        for name, timing in workers.collect(1.0):
            if timing.refused:
                print(f"{name}: {timing.refused}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=list(NETWORKS), default="mobilenet_v2")
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-") as name:
        folder = Path(name)
        path = folder / f"{options.network}.onnx"
        path.write_bytes(quantise_network(options.network).SerializeToString())
        models = copy_models(folder, [path], {})
        task = Task(models, Space(), make_places(None), ("ms", "lut"))
        first, *others = draw_points(task, options.points + 1, options.seed)
        points, without = [first, *sorted(others, key=lambda point: point.config.n)], unused_units(models)
        spent = {}
        for count in (1, 2):
            jobs = [
                Job(models, reduce_config(point.config, without, sequential=False), point.place, point.clock,
                    str(folder / f"results-{count}"))
                for point in points
            ]  # fmt: skip
            spent[count] = measure_workers(jobs, count)
            wall, processor = spent[count]
            print(
                f"{count} at a time: {options.points} points in {wall:.0f} s, {3600 * options.points / wall:,.0f} an "
                f"hour; {processor:.0f} s of processors, {3600 * options.points * count / processor:,.0f} an hour by "
                "that",
                flush=True,
            )
    print(f"two are {spent[1].wall / spent[2].wall:.2f} times one")
    print(f"by processor time {2 * spent[1].processor / spent[2].processor:.2f} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
