"""Compare `weft estimate` with simulations of whole boards, network by network.

    python benchmarks/board_estimates.py [--board ulx3s-85f] [--seed 1] MODEL ...

A board is simulated with its core, SDRAM controller, SDRAM chip, arbiter and link; code, weights and inputs are written
to the chip at once rather than over the link, which does not count. *Cycles* is the board's own counter after a run on
random inputs, and *apart* is the excess of the estimate. Outputs are compared with the golden interpreter's; a
difference ends in an exit code of 1. A MODEL is a file, or a network of `benchmarks/zoo.py` (``resnet18``,
``mobilenet_v2``, ``vit_layer``, ``squeezenet`` and so on), quantised.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from zoo import NETWORKS, quantise_network

import weft
from weft.boards.registry import find
from weft.errors import FileError
from weft.run.estimate import estimate

sys.path.append(str(Path(__file__).parents[1] / "tests"))
HEADER = "| network | cycles | estimate | apart | ms | outputs that differ |"


def source(name: str) -> str | bytes:
    """Return the source for `weft.compile`."""
    return quantise_network(name).SerializeToString() if name in NETWORKS else name


def inputs(program: weft.Program, seed: int) -> dict[str, np.ndarray]:
    """Return random inputs."""
    rng, drawn = np.random.default_rng(seed), {}
    for name, (dtype, shape) in program.inputs.items():
        kind = np.dtype(dtype)
        if kind.kind == "f":
            drawn[name] = rng.normal(size=shape).astype(kind)
        else:
            info = np.iinfo(kind)
            drawn[name] = rng.integers(info.min, info.max, shape, kind, endpoint=True)
    return drawn


def main() -> int:
    from support.preloaded_board import preloaded_board

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--board", default="ulx3s-85f")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    board, wrong = find(options.board), 0
    print(HEADER)
    print("|---" * (HEADER.count("|") - 1) + "|")
    with preloaded_board(board, board.config) as device:
        for name in options.models:
            model = source(name)
            (predicted,) = estimate(model, [board.name])
            program = weft.compile(model, board.config, memory=board.name)
            feeds = inputs(program, options.seed)
            expected = program.run(feeds).outputs
            program.reset()
            measured = program.run(feeds, on=device, memory=False)
            cycles = measured.report["cycles"]
            differ = sum(int((measured.outputs[key] != value).sum()) for key, value in expected.items())
            wrong += differ > 0
            print(
                f"| {Path(name).stem} | {cycles:,} | {predicted.cycles:,} | {predicted.cycles / cycles - 1:+.2%} "
                f"| {cycles / board.clock * 1e3:.2f} | {differ} |",
                flush=True,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (weft.WeftError, FileError) as error:
        sys.exit(f"error: {error}")
