"""How many points `weft explore` measures in an hour, and how much two workers are quicker than one.

    python benchmarks/exploring.py [--network mobilenet_v2] [--points 24] [--seed 1]

The same random points of the default space, which are solutions without a board, are measured by one process and by
two, each time with nothing kept. *An hour* is by the time from the first job's start to the last one's end; starting
processes is not in it, as a search does that once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from zoo import NETWORKS, quantised

from weft.explore.evaluate import Job, relevant, unused
from weft.explore.explore import Task
from weft.explore.output import models_of
from weft.explore.place import places
from weft.explore.point import Point
from weft.explore.space import Space
from weft.explore.workers import Workers


def drawn(task: Task, count: int, seed: int) -> list[Point]:
    """Random points that may be solutions."""
    rng, found = np.random.default_rng(seed), list[Point]()
    while len(found) < count:
        chosen = {name: int(rng.choice(known)) for name, known in task.space.fields.items()}
        if not task.why(chosen, task.places[0]):
            found.append(Point.of(task.space.config(chosen), task.places[0]))
    return found


def seconds(jobs: Sequence[Job], count: int) -> float:
    """Of so many processes for these jobs, all of which are warm: each has done the first of them."""
    workers = Workers(count)
    for index in range(count):
        workers.add(("warm", index), jobs[0])
    _wait(workers)
    begin = time.monotonic()
    for index, job in enumerate(jobs[1:]):
        workers.add(index, job)
    _wait(workers)
    spent = time.monotonic() - begin
    workers.close()
    return spent


def _wait(workers: Workers) -> None:
    while workers.running:
        for name, timing in workers.done(1.0):
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
        path.write_bytes(quantised(options.network).SerializeToString())
        models = models_of(folder, [path], {})
        task = Task(models, Space(), places(None, 30, None, None), ("ms", "lut"))
        points, without = drawn(task, options.points + 1, options.seed), unused(models)
        spent = {}
        for count in (1, 2):
            jobs = [
                Job(models, relevant(point.config, without, sequential=False), point.place, point.clock,
                    str(folder / f"results-{count}"))
                for point in points
            ]  # fmt: skip
            spent[count] = seconds(jobs, count)
            print(
                f"{count} at a time: {options.points} points in {spent[count]:.0f} s, "
                f"{3600 * options.points / spent[count]:,.0f} an hour",
                flush=True,
            )
    print(f"two are {spent[1] / spent[2]:.2f} times one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
