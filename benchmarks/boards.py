"""Configurations on boards: what they use, how fast they are, how long they take to build.

    python benchmarks/boards.py [--board NAME ...] [--own | --config NAME ...] [--seeds 1] [--write docs/boards.md]
    python benchmarks/boards.py fit [--board NAME ...]

The table has a row for every configuration that fits a board by estimate: its own default and, without ``--own``, all
presets. LUT and FF are what nextpnr placed; LUT/MAC and DSP/MAC are those of the whole design over N * N; peak is
2 * N * N operations in every cycle of the board's clock. ``--write`` puts the table in the place of the one between the
two comments in a file.
Of several seeds, from the board's own on, the fastest counts. Builds are kept, so that the second time takes no time.

``fit`` synthesises a number of configurations for each family and core (about a minute each), on the first board that
has them, and each board's own configuration, fits the weights of `weft.boards.estimate` to what they need, and writes
those into ``boards/families``. With ``--board`` only those of that board's family.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pages import rewrite

from weft.boards import estimate
from weft.boards.board import Board, BoardError, CoreKind
from weft.boards.build import Built, build
from weft.boards.needs import needs
from weft.boards.pll import PllError
from weft.boards.registry import BOARDS, FAMILIES, alike, find, titles
from weft.boards.tools import ToolCrash, ToolError
from weft.hdl.files.cache import cache_root
from weft.hdl.isa.config import PRESETS, Config, ConfigError

HEADER = (
    "| board | configuration | LUT | FF | DSP | block RAM | LUT/MAC | DSP/MAC | MHz wanted | MHz reached | peak GOPS "
    "| seed | build |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
BEGIN, END = "<!-- make boards -->\n", "<!-- end -->\n"
OWN = "its own"
SPARE = 2
"""Seeds to try beyond those that were asked for, if a tool crashes."""
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
            for where, what, config in fitted_to(board):
                began = time.monotonic()
                samples.append((where, config, needs(where, config)))
                print(f"{where.name} {what}: {samples[-1][2]}, {time.monotonic() - began:.0f} s", flush=True)
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


def fastest(board: Board, config: Config, seeds: int) -> Built:
    """The fastest build of some seeds; where a tool crashes with all of them, the first of `SPARE` more that works."""
    made: list[Built] = []
    crash: ToolCrash | None = None
    for index in range(seeds + SPARE):
        if made and index >= seeds:
            break
        try:
            made.append(
                build(board, config, cache_root() / "boards", seed=board.seed + index, allow_timing_fail=True)
            )
        except ToolCrash as error:
            crash = error
    if crash is not None and not made:
        raise crash
    return max(made, key=lambda built: built.report["timing"]["fmax_hz"])


def row(boards: list[Board], name: str, config: Config, seeds: int) -> str:
    """A row of the table for boards that are `alike`, from the fastest of some seeds; a sentence if there is none."""
    board = boards[-1]
    head = f"| {titles(boards)} | {config.n} x {config.n} ({name if name == OWN else f'`{name}`'})"
    try:
        report = fastest(board, config, seeds).report
    except (BoardError, ConfigError, PllError, ToolError) as error:
        return f"{head} | {error} |" + " |" * 10
    used = {kind: values["placed"] for kind, values in report["resources"].items()}
    percent = [f"{used[kind]:,} ({values['percent']:.0f} %)" for kind, values in report["resources"].items()]
    macs, minutes = config.n**2, report["seconds"]["total"] / 60
    return (
        f"{head} | {' | '.join(percent)} | {used['lut'] / macs:,.0f} | {used['dsp'] / macs:.2f} "
        f"| {report['clock_hz'] / 1e6:g} | {report['timing']['fmax_hz'] / 1e6:.1f} | {report['peak_gops']:.1f} "
        f"| {report['seed']} | {minutes:.0f} min |"
    )


def likely(board: Board, config: Config) -> bool:
    """Whether the estimate itself, not only what it may be wrong by, lets `config` fit."""
    need = estimate.estimate(board, config)
    return need is not None and all(count <= getattr(board.available, kind) for kind, count in need.items())


def configurations(board: Board, names: list[str] | None, own: bool) -> dict[str, Config]:
    """Those of `names`; else the board's own and, unless only that is wanted, the presets that are `likely` to fit."""
    if names:
        return {name: Config.load(name) for name in names}
    others = {} if own else PRESETS
    return {OWN: board.config} | {
        name: preset for name, preset in others.items() if preset != board.config and likely(board, preset)
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("table", "fit"), default="table")
    parser.add_argument("--board", action="append", help="only this one; may be given again")
    parser.add_argument("--config", action="append", help="only this one; may be given again")
    parser.add_argument("--own", action="store_true", help="only each board's own configuration")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--write", type=Path, help="also put the table into this file")
    arguments = parser.parse_args()
    if arguments.what == "fit":
        return fit(arguments.board)
    lines = [HEADER]
    print(HEADER)
    for boards in alike(map(find, arguments.board or BOARDS)):
        for name, config in configurations(boards[-1], arguments.config, arguments.own).items():
            lines.append(row(boards, name, config, arguments.seeds))
            print(lines[-1], flush=True)
    if arguments.write:
        rewrite(arguments.write, BEGIN, END, "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
