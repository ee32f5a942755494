"""The reference networks of MLPerf Tiny, as TFLite files of one folder: cycles of the whole networks.

    python benchmarks/mlperf_tiny.py FOLDER [--config default] [--clock 100] [--on timing] [--samples 0]

The files are those of github.com/mlcommons/tiny, below ``benchmark/training``, by their names there. Cycles are from
start to done behind a memory of 30 cycles' latency that moves as many bytes a cycle as the bus is wide: those of the
cycle model, or with ``--on rtl`` of the Verilog, whose memory is compared with the golden interpreter's. *ms* is that
at a clock of so many MHz. With ``--samples`` so many random inputs, smooth ones and noise in turn, run on the golden
interpreter and on LiteRT's reference kernels: *same class* counts those whose largest output is the same, *apart* is
the share of output bytes that differ, and by how much at most.

    python benchmarks/mlperf_tiny.py FOLDER --boards

prints milliseconds by network and board instead, with the demonstration's network ahead of the others. Each board has
its own configuration, its clock, and its memory as the cycle model has it; where a network does not fit, the table says
how much memory it needs. A share of the nodes stands behind networks of which the host runs a part.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import litert
from weft.boards.board import Board
from weft.boards.registry import BOARDS, titles
from weft.errors import FileError
from weft.examples import digits
from weft.hdl.isa.config import Config
from weft.run.estimate import Estimate, estimate

NETWORKS = {
    "anomaly detection": "ad01_int8.tflite",
    "keyword spotting": "kws_ref_model.tflite",
    "image classification": "pretrainedResnet_quant.tflite",
    "visual wake words": "vww_96_int8.tflite",
    "streaming wake word": "str_ww_ref_model.tflite",
}
"""The files by what they are for."""
OPTIONAL = "streaming wake word"
"""Is left out if it is not there."""
LANGUAGE = "ulx3s-85f-lm"
"""Is left out: a board that is there without it, with a configuration for other models."""
HEADER = "| network | device | MACs | cycles | utilisation | ms | MB moved |"


@dataclass(frozen=True)
class Agreement:
    """LiteRT's agreement on random samples."""

    samples: int
    same: int
    differ: float
    most: int

    def __str__(self) -> str:
        return f" {self.same} of {self.samples} | {self.differ:.2%}, {self.most} |"


def measure(program: weft.Program, on: str) -> tuple[dict[str, Any], bool]:
    """Return the report of a run, and whether the RTL's memory equals the golden interpreter's."""
    rng = np.random.default_rng(1)
    inputs = {name: noise(rng, dtype, shape) for name, (dtype, shape) in program.inputs.items()}
    result = program.run(inputs, on=on)
    program.reset()
    return result.report, on == "timing" or result.memory == program.run(inputs).memory


def noise(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def smooth(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return waves along the axes, as images and spectrograms have."""
    info = np.iinfo(dtype)
    total = np.zeros(shape)
    for axis, size in enumerate(shape):
        turns, start = rng.uniform(0, 4), rng.uniform(0, 2 * np.pi)
        wave = np.sin(np.arange(size) / size * turns * 2 * np.pi + start)
        total = total + rng.normal() * wave.reshape([-1 if at == axis else 1 for at in range(len(shape))])
    total = total / max(np.abs(total).max(), 1e-9) * rng.uniform(0.2, 1) * 127 + (info.max + info.min) / 2
    return np.clip(np.rint(total), info.min, info.max).astype(dtype)


def agreement(model: Path, program: weft.Program, samples: int) -> Agreement:
    """Compare golden interpreter and LiteRT on equal inputs."""
    rng, same, apart = np.random.default_rng(2), 0, []
    for index in range(samples):
        draw = (smooth, noise)[index % 2]
        inputs = {name: draw(rng, dtype, shape) for name, (dtype, shape) in program.inputs.items()}
        program.reset()
        ours = program.run(inputs).outputs
        theirs = litert.run(model, [inputs], program.inputs, program.outputs)[0]
        same += all(int(value.argmax()) == int(theirs[name].argmax()) for name, value in ours.items())
        apart += [np.abs(value.astype(int) - theirs[name]).ravel() for name, value in ours.items()]
    every = np.concatenate(apart)
    return Agreement(samples, same, float((every > 0).mean()), int(every.max()))


def row(name: str, program: weft.Program, report: dict[str, Any], clock: float) -> str:
    """Return a row of the table."""
    on_device = sum(place == "device" for _, _, place, _ in program.assignment)
    cycles = report["cycles"]
    return (
        f"| {name} | {on_device} of {len(program.assignment)} nodes | {report['macs']:,} | {cycles:,} "
        f"| {report['utilisation']:.1%} | {cycles / clock / 1e3:.3f} | {report['dram_bytes'] / 1e6:.2f} |"
    )


def boards_alike() -> list[list[Board]]:
    """Group boards on which a program is identical and equally fast."""
    groups: dict[object, list[Board]] = {}
    for board in BOARDS.values():
        if board.name != LANGUAGE:
            groups.setdefault((board.config, board.clock, board.memory, board.core), []).append(board)
    return list(groups.values())


def cell_text(item: Estimate) -> str:
    """Return the table's cell of a network on a board."""
    if not item.fits:
        return f"needs {item.needed / 1024:,.0f} KB"
    share = "" if item.on_device == item.nodes else f" ({item.on_device} of {item.nodes})"
    return f"{item.seconds * 1e3:.2f} ms{share}"


def boards_table(folder: Path) -> None:
    """Print the table of networks and boards."""
    groups = boards_alike()
    print(f"| network | {' | '.join(titles(group) for group in groups)} |")
    print("|---" * (len(groups) + 1) + "|")
    for name, model in {"handwritten digits": digits.model(), **models(folder)}.items():
        estimates = estimate(model, [group[0].name for group in groups])
        print(f"| {name} | {' | '.join(map(cell_text, estimates))} |", flush=True)


def models(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by title."""
    paths = {name: folder / file for name, file in NETWORKS.items()}
    return {name: path for name, path in paths.items() if path.exists() or name != OPTIONAL}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--config", default="default")
    parser.add_argument("--clock", type=float, default=100.0, help="MHz")
    parser.add_argument("--on", choices=["timing", "rtl"], default="timing")
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--boards", action="store_true", help="milliseconds on the boards instead")
    options = parser.parse_args()
    if options.boards:
        boards_table(options.folder)
        return 0
    config, wrong = Config.load(options.config), 0
    more = " same class | apart |" if options.samples else ""
    print(HEADER + more)
    print("|---" * ((HEADER + more).count("|") - 1) + "|")
    for name, path in models(options.folder).items():
        program = weft.compile(path, config)
        report, same = measure(program, options.on)
        wrong += not same
        agreed = str(agreement(path, program, options.samples)) if options.samples else ""
        print(
            row(name, program, report, options.clock) + agreed + ("" if same else " **differs**"), flush=True
        )
    if options.on == "rtl":
        print(f"networks whose memory differs from the golden interpreter's: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (weft.WeftError, FileError) as error:
        sys.exit(f"error: {error}")
