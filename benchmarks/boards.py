"""Configurations on boards: what they use, how fast they are, how long they take to build.

    python benchmarks/boards.py [--board NAME ...] [--config NAME ...] [--seeds 1] [--write docs/boards.md]
    python benchmarks/boards.py fit

The table has a row for every configuration that fits a board by estimate: its own default and all presets. LUT/MAC and
DSP/MAC are those of the whole design over N * N; peak is 2 * N * N operations in every cycle of the board's clock.
Of several seeds the fastest counts. Builds are kept, so that the second time takes no time.

``fit`` synthesises a number of configurations for each family and core (about a minute each) and fits the weights of
`weft.boards.estimate` to what they need; it writes ``boards/estimates.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from weft.boards import estimate, flow
from weft.boards.board import Board, BoardError, Resources
from weft.boards.build import Built, build, elaborate, key
from weft.boards.pll import PllError
from weft.boards.registry import BOARDS, find
from weft.boards.tools import ToolError
from weft.hdl.config import PRESETS, Config, ConfigError
from weft.report import write_json
from weft.sim.verilate import cache_root

HEADER = (
    "| board | configuration | LUT | FF | DSP | block RAM | LUT/MAC | DSP/MAC | MHz wanted | MHz reached | peak GOPS "
    "| build |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)
BASE = Config(n=4, lanes=1, scratchpad_banks=4, scratchpad_depth=256, accumulator_banks=2, accumulator_depth=64,
              bus_bytes=4, mantissa_bits=16, queue_depth=2, probability_bits=0, row_states=64,
              alignments=256)  # fmt: skip
SOFTMAX = {"probability_bits": 7}
# One thing at a time, and some together.
CHANGES: tuple[dict[str, int], ...] = (
    {},
    {"n": 2},
    {"n": 8, "bus_bytes": 8},
    {"n": 8, "bus_bytes": 8, "lanes": 4, "mantissa_bits": 24},
    {"lanes": 2},
    {"lanes": 4, "mantissa_bits": 24},
    {"bus_bytes": 16},
    {"queue_depth": 8},
    {"scratchpad_banks": 8, "scratchpad_depth": 512},
    {"accumulator_banks": 4, "accumulator_depth": 256},
    {**SOFTMAX},
    {**SOFTMAX, "lanes": 4},
    {**SOFTMAX, "n": 8, "bus_bytes": 8, "lanes": 4, "mantissa_bits": 24},
)
SEQUENTIAL_CHANGES: tuple[dict[str, int], ...] = (
    {},
    {"n": 2},
    {"n": 8, "bus_bytes": 8},
    {"bus_bytes": 8},
    {"scratchpad_depth": 1024},
    {"accumulator_depth": 256},
    {**SOFTMAX},
    {**SOFTMAX, "n": 2},
    {**SOFTMAX, "n": 8, "bus_bytes": 8},
)
FIT = {"ulx3s-85f": CHANGES, "icebreaker": SEQUENTIAL_CHANGES, "tang-nano-9k": SEQUENTIAL_CHANGES}
"""A board for each family and core, and the configurations that are synthesised for it, as changes of `BASE`."""


def synthesise(board: Board, config: Config) -> Resources:
    """What synthesis says that `config` needs; kept, so that a long run can be taken up again."""
    design = elaborate(board, config, board.clock)
    known = cache_root() / "boards" / f"needs-{key(board, design, 0)}.json"
    if known.exists():
        return Resources(**json.loads(known.read_text()))
    with tempfile.TemporaryDirectory(prefix="weft-") as name:
        folder = Path(name)
        for file, text in design.files.items():
            (folder / file).write_text(text)
        flow.synthesise(board, folder, lambda text: None)
        need = flow.synthesised(board.family, folder)
    write_json(known, dict(need.items()))
    return need


def fit() -> int:
    samples = []
    for name, changes in FIT.items():
        board = find(name)
        for change in changes:
            config, began = BASE.replace(**change), time.monotonic()
            samples.append((board, config, synthesise(board, config)))
            print(f"{board.name} {change}: {samples[-1][2]}, {time.monotonic() - began:.0f} s", flush=True)
    weights = estimate.fit(samples)
    write_json(estimate.WEIGHTS, weights)
    for machine, kinds in weights.items():
        print(machine, {kind: f"within {values['error']:.0%}" for kind, values in kinds.items()})
    return 0


def row(board: Board, name: str, config: Config, seeds: int) -> str:
    """A row of the table, from the fastest of some seeds; a sentence if there is none."""
    best: Built | None = None
    for seed in range(1, seeds + 1):
        try:
            built = build(board, config, cache_root() / "boards", seed=seed, allow_timing_fail=True)
        except (BoardError, ConfigError, PllError, ToolError) as error:
            return f"| {board.name} | {name} | {error} |" + " |" * 9
        if best is None or built.report["timing"]["fmax_hz"] > best.report["timing"]["fmax_hz"]:
            best = built
    assert best is not None
    report = best.report
    used = {kind: values["synthesised"] for kind, values in report["resources"].items()}
    percent = {kind: f"{used[kind]:,} ({used[kind] / values['available']:.0%})"
               for kind, values in report["resources"].items()}  # fmt: skip
    macs = config.n**2
    return (
        f"| {board.name} | {name} ({config.n} x {config.n}) | {percent['lut']} | {percent['ff']} | {percent['dsp']} "
        f"| {percent['ram']} | {used['lut'] / macs:.1f} | {used['dsp'] / macs:.2f} | {report['clock_hz'] / 1e6:g} "
        f"| {report['timing']['fmax_hz'] / 1e6:.1f} | {report['peak_gops']:.2f} | {report['seconds']['total']:.0f} s |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("table", "fit"), default="table")
    parser.add_argument("--board", action="append", help="only this one; may be given again")
    parser.add_argument("--config", action="append", help="only this one; may be given again")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--write", type=Path, help="also write the table there")
    arguments = parser.parse_args()
    if arguments.what == "fit":
        return fit()
    lines = [HEADER]
    print(HEADER)
    for board in map(find, arguments.board or BOARDS):
        configs = {"default of the board": board.config, **PRESETS}
        if arguments.config:
            configs = {name: Config.load(name) for name in arguments.config}
        for name, config in configs.items():
            if arguments.config or estimate.fits(board, config):
                lines.append(row(board, name, config, arguments.seeds))
                print(lines[-1], flush=True)
    if arguments.write:
        arguments.write.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
