"""What graph substitutions are worth: networks with and without, by the cycle model.

    python benchmarks/substitutions.py [NETWORK[:CONFIG[:BYTES]] ...] [--most 400] [--write docs/substitutions.md]

Networks are those of `zoo.py`, none of which rules were made for. Columns: cycles of all device programs by the cycle
model, behind a memory of 30 cycles' latency, without and with substitutions; uses of rules that stayed; seconds of the
search; and whether the outputs of one image on the golden interpreter are equal on every byte.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from pages import rewrite
from zoo import quantised

import weft

CASES = (
    "squeezenet:default:16", "squeezenet:default:4", "squeezenet:small:2", "squeezenet:large:16",
    "squeezenet_1_1:default:16", "squeezenet_1_1:small:2", "yolov4_tiny:default:16", "vit_layer:default:2",
)  # fmt: skip
HEADER = (
    "| network | configuration, bytes a cycle | without | with | fewer | uses | seconds | outputs |\n"
    + "|---" * 8
    + "|\n"
)
BEGIN, END = "<!-- benchmarks/substitutions.py -->\n", "<!-- end -->\n"


def row(case: str, most: int) -> str:
    """A line of the table."""
    name, config, bandwidth = case.split(":")
    model = quantised(name).SerializeToString()
    plain = weft.compile(model, config, memory=float(bandwidth))
    begin = time.monotonic()
    program = weft.compile(model, config, memory=float(bandwidth), substitute=most)
    seconds = time.monotonic() - begin
    done = program.substitutions
    assert done is not None
    for line in done.told:
        print(f"  {line}", flush=True)
    inputs = {
        value: np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)
        for value, (_, shape) in program.inputs.items()
    }
    wanted, given = plain.run(inputs).outputs, program.run(inputs).outputs
    same = all(np.array_equal(given[value], values) for value, values in wanted.items())
    fewer, end = 1 - done.behind / done.before, "" if done.whole else ", not to its end"
    cells = (
        name, f"{config}, {bandwidth}", f"{done.before:,}", f"{done.behind:,}", f"{fewer:.1%}",
        f"{len(done.used)}{end}", f"{seconds:.0f}", "equal" if same else "DIFFER",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--most", type=int, default=400)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows = []
    for case in options.cases:
        given = case.split(":")
        rows.append(row(":".join([*given, *("default", "16")[len(given) - 1 :]]), options.most))
        print(rows[-1], end="", flush=True)
    if options.write is not None:
        rewrite(options.write, BEGIN, END, HEADER + "".join(rows))
    return int(any("DIFFER" in item for item in rows))


if __name__ == "__main__":
    sys.exit(main())
