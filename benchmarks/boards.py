"""Builds of the boards' own configurations: what they use, how fast they are, how long they take.

    python benchmarks/boards.py [--board NAME ...] [--most 5] [--met 3]
    python benchmarks/boards.py fit [--board NAME ...]

Each board's own configuration is built with seeds of place and route from 1 on, until `--met` of them reach its clock
or too many of `--most` do not. Every run is recorded in boards/build/builds.json as soon as it ends, and runs of the
same hardware are not repeated, so that a command that was ended goes on where it was. The table in docs/boards.md is
written from the records.

``fit`` synthesises a number of configurations for each family and core (about a minute each), on the first board that
has them, and each board's own configuration, fits the weights of `weft.boards.build.estimate` to what they need, and
writes those into ``boards/families``. With ``--board`` only those of that board's family.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pages import rewrite

from weft.boards.board import Board, CoreKind
from weft.boards.build import estimate
from weft.boards.build.build import build, elaborate, synthesised_resources
from weft.boards.build.records import Record, Run, read, write
from weft.boards.errors import ToolError
from weft.boards.families.family import Resources
from weft.boards.registry import BOARDS, FAMILIES, find, group_equal_boards, titles
from weft.hdl.cache import cache_root
from weft.hdl.isa.config import Config

PAGE = Path(__file__).parents[1] / "docs" / "boards.md"
BEGIN, END = "<!-- make boards -->\n", "<!-- end -->\n"
HEADER = (
    "| board | array | LUT | FF | DSP | block RAM | MHz wanted | MHz reached by seed | peak GOPS | build | hardware |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)
OWN = "its own"
BASE = Config(n=4, lanes=1, scratchpad_banks=4, scratchpad_depth=256, accumulator_banks=2, accumulator_depth=64,
              bus_bytes=4, mantissa_bits=16, queue_depth=2, probability_bits=0, row_states=64,
              alignments=256, lookup_tables=0, multiply=0)  # fmt: skip
SOFTMAX = {"probability_bits": 7}
EVERYTHING = {"lookup_tables": 4, "multiply": 1, "kernel": 64}
# One thing at a time, and some together.
PIPELINED: tuple[dict[str, int], ...] = (
    {},
    {"n": 2},
    {"n": 8, "bus_bytes": 8},
    {"n": 8, "bus_bytes": 8, "lanes": 4, "mantissa_bits": 24},
    {"lanes": 2},
    {"lanes": 4, "mantissa_bits": 24},
    {"bus_bytes": 8},
    {"bus_bytes": 16},
    {"queue_depth": 4},
    {"queue_depth": 8},
    {"scratchpad_banks": 8, "scratchpad_depth": 512},
    {"accumulator_banks": 4, "accumulator_depth": 256},
    {**SOFTMAX},
    {**SOFTMAX, "lanes": 4},
    {**SOFTMAX, "n": 8, "bus_bytes": 8, "lanes": 4, "mantissa_bits": 24},
    {"lookup_tables": 4},
    {"lookup_tables": 4, "lanes": 4},
    {"multiply": 1},
    {"multiply": 1, "lanes": 4},
    {"kernel": 64},
    {"kernel": 64, "lanes": 4},
    {"kernel": 64, "n": 8, "bus_bytes": 8},
    {"depthwise_taps": 3, "n": 8, "bus_bytes": 8},
    {**SOFTMAX, **EVERYTHING, "n": 8, "bus_bytes": 8, "lanes": 4, "mantissa_bits": 24},
    {"n": 16, "bus_bytes": 16},
    {**SOFTMAX, "n": 16, "bus_bytes": 16},
    {**SOFTMAX, **EVERYTHING, "n": 16, "bus_bytes": 16},
)
SEQUENTIAL: tuple[dict[str, int], ...] = (
    {},
    {"n": 2},
    {"n": 8, "bus_bytes": 8},
    {"bus_bytes": 8},
    {"scratchpad_depth": 1024},
    {"accumulator_depth": 256},
    {**SOFTMAX},
    {**SOFTMAX, "n": 2},
    {**SOFTMAX, "n": 8, "bus_bytes": 8},
    {"lookup_tables": 4, "multiply": 1},
    {**SOFTMAX, "lookup_tables": 4, "multiply": 1},
    {"kernel": 64},
    {**SOFTMAX, **EVERYTHING},
    {**SOFTMAX, **EVERYTHING, "n": 8, "bus_bytes": 8},
)
CHANGES = {CoreKind.PIPELINED: PIPELINED, CoreKind.SEQUENTIAL: SEQUENTIAL}
"""Configurations that are synthesised to fit estimates, as changes of `BASE`."""


def fit(names: list[str] | None) -> int:
    wanted = {find(name).family for name in names or BOARDS}
    chosen = {(board.family, board.core): board for board in reversed(BOARDS.values())}
    for family in (family for family in FAMILIES.values() if family in wanted):
        cores = {}
        for board in (board for (of, _), board in chosen.items() if of is family):
            samples = []
            for place, title, config in fitted_to(board):
                began = time.monotonic()
                samples.append((place, config, synthesised_resources(place, config)))
                print(f"{place.name} {title}: {samples[-1][2]}, {time.monotonic() - began:.0f} s", flush=True)
            cores[board.core.value] = fits = estimate.fit(samples)
            print(family.name, board.core, {kind: f"within {fit.error:.0%}" for kind, fit in fits.items()})
        estimate.weights_file(family).write_text(estimate.text(cores), encoding="utf-8")
    return 0


def fitted_to(board: Board) -> Iterator[tuple[Board, str, Config]]:
    """The configurations that a family's estimates are fitted to, from the board that has changes of `BASE`: where
    they are synthesised, and what they are."""
    for change in CHANGES[board.core]:
        yield board, str(change), BASE.replace(**change)
    for other in BOARDS.values():
        if other.family is board.family and other.core is board.core:
            yield other, OWN, other.config


def build_seeds(boards: list[Board], most: int, met: int) -> None:
    """Build the own configuration of `boards`, which are alike, and record each run."""
    board = boards[-1]
    hardware = elaborate(board, board.config, board.clock).hardware
    names = [board.name for board in boards]
    known = next(
        (record for record in read() if record.hardware == hardware and record.boards == names), None
    )
    runs = list(known.runs) if known else []
    resources = dict(known.resources) if known else {}
    for seed in range(1, most + 1):
        reached = sum(run.fmax_hz is not None and run.fmax_hz >= board.clock for run in runs)
        # Stop early once the clock is reached often enough, or cannot be any more.
        if reached >= met or len(runs) - reached > most - met:
            break
        if seed in (run.seed for run in runs):
            continue
        began = time.monotonic()
        try:
            report = build(
                board, board.config, cache_root() / "boards", seed=seed, allow_timing_fail=True
            ).report
        except ToolError as error:
            print(f"{board.name}, seed {seed}: {error}", flush=True)
            runs.append(Run(seed, None, time.monotonic() - began))
        else:
            resources = {kind: values["placed"] for kind, values in report["resources"].items()}
            runs.append(Run(seed, report["timing"]["fmax_hz"], report["seconds"]["total"]))
            print(f"{board.name}, seed {seed}: {report['timing']['fmax_hz'] / 1e6:.1f} MHz of {board.clock / 1e6:g}, "
                  f"{report['seconds']['total'] / 60:.0f} min", flush=True)  # fmt: skip
        others = [record for record in read() if not set(record.boards) & set(names)]
        records = [*others, Record(names, hardware, board.clock, resources, runs)]
        write(sorted(records, key=lambda record: list(BOARDS).index(record.boards[0])))


def row(record: Record) -> str:
    """Return a row of the table."""
    boards = [find(name) for name in record.boards]
    board = boards[-1]
    used = [
        f"{record.resources[kind]:,} ({record.resources[kind] / getattr(board.available, kind):.0%})"
        for kind in Resources.NAMES
        if kind in record.resources
    ]
    clocks = [
        f"{run.seed}: {run.fmax_hz / 1e6:.1f}" if run.fmax_hz else f"{run.seed}: failed"
        for run in record.runs
    ]
    n = board.config.n
    return (
        f"| {titles(boards)} | {n} x {n} | {' | '.join(used)} | {record.clock_hz / 1e6:g} | {', '.join(clocks)} "
        f"| {2 * n * n * record.clock_hz / 1e9:.1f} | {record.seconds / 60:.0f} min | `{record.hardware}` |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("table", "fit"), default="table")
    parser.add_argument("--board", action="append", help="only this one; may be given again")
    parser.add_argument("--most", type=int, default=5, help="seeds to try")
    parser.add_argument("--met", type=int, default=3, help="seeds that have to reach the clock")
    arguments = parser.parse_args()
    if arguments.what == "fit":
        return fit(arguments.board)
    for boards in group_equal_boards(map(find, arguments.board or BOARDS)):
        build_seeds(boards, arguments.most, arguments.met)
    rewrite(PAGE, BEGIN, END, "\n".join([HEADER, *map(row, read())]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
