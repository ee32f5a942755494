"""The golden interpreter against ONNX Runtime: seconds of processor time for one image, each on one thread.

    python benchmarks/golden.py [--only TEXT] [--config default]

Networks are those of `zoo.py`. Columns: multiplications; seconds of the specification (`weft.sim.golden`), of the
compiled interpreter (`weft.sim.compiled`), and of ONNX Runtime on the same quantised model, each the least of several
runs, all that `Program.run` does counted; how many times as long as ONNX Runtime the compiled interpreter takes, and
its multiplications a second. It fails if a byte of memory differs between the two interpreters.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported

import onnxruntime
import zoo
from models import image

import weft
from weft.hdl.isa.config import Config
from weft.sim.compiled.device import CompiledDevice
from weft.sim.golden.interpreter import GoldenDevice

HEADER = (
    "| network | MACs | specification | compiled | ONNX Runtime | times ONNX Runtime's | GMAC/s |\n"
    "|---|---|---|---|---|---|---|"
)


def least(function: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """Return the least processor time of some runs in seconds, and the result of the last run."""
    shortest, result = float("inf"), None
    for _ in range(runs):
        begin = time.process_time()
        result = function()
        shortest = min(shortest, time.process_time() - begin)
    return shortest, result


def row(name: str, config: Config) -> str:
    """Return a line of the table."""
    model = zoo.quantise_network(name)
    program = weft.compile(model, config)
    feeds = image(program)
    size = max(part.areas.memory_bytes for part in program.segments if hasattr(part, "areas"))
    seconds, memories = [], []
    for kind, runs in ((GoldenDevice, 2), (CompiledDevice, 7)):
        spent, result = least(lambda kind=kind: program.run(feeds, on=kind(config, size)), runs)
        seconds.append(spent)
        memories.append(result.memory)
    assert memories[0] == memories[1], f"{name}: memory differs"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    reference, _ = least(lambda: session.run(None, feeds), 15)
    macs = program.run(feeds, on="timing", bandwidth=config.bus_bytes).report["macs"]
    return (
        f"| {name} | {macs / 1e6:,.0f} M | {seconds[0]:.2f} s | {seconds[1]:.3f} s | {reference:.4f} s "
        f"| {seconds[1] / reference:.1f} | {macs / seconds[1] / 1e9:.1f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--config", default="default")
    options = parser.parse_args()
    print(HEADER)
    for name in zoo.NETWORKS:
        if options.only in name:
            print(row(name, Config.load(options.config)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
