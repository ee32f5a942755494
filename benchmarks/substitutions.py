"""Measure the gain of graph substitutions and of rewrites within a budget, by the cycle model.

    python benchmarks/substitutions.py [NETWORK[:CONFIG[:BYTES]] ...] [--most 400] [--write PAGE]
    python benchmarks/substitutions.py NETWORK[:CONFIG[:BYTES]] ... --budget 2 [--samples 4] [--write ...]

Networks are those of `zoo.py`, none of which rules were made for. Columns: cycles of all device programs by the cycle
model, behind a memory of 30 cycles' latency, without and with substitutions; uses of rules that stayed; seconds of the
search; and whether the outputs of one image on the golden interpreter are equal on every byte. With a budget: rewrites;
how far what leaves the device is from what it was, and maxima of outputs that are elsewhere, on random samples.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from pages import rewrite
from zoo import quantise_network

import weft

CASES = (
    "squeezenet:default:16", "squeezenet:default:4", "squeezenet:small:2", "squeezenet:large:16",
    "squeezenet_1_1:default:16", "squeezenet_1_1:small:2", "yolov4_tiny:default:16", "vit_layer:default:2",
    "deeplab_v3:default:16", "deeplab_v3:large:16", "resnet18:default:16",
)  # fmt: skip
BUDGETS = (
    "densenet121:default:16",
    "densenet121:small:2",
    "shufflenet_v2:default:16",
    "inception_v1:default:16",
)
HEADER = (
    "| network | configuration, bytes a cycle | without | with | fewer | uses | seconds | outputs |\n"
    + "|---" * 8
    + "|\n"
)
BUDGET_HEADER = (
    "| network | configuration, bytes a cycle | without | with | fewer | rewrites | largest, mean difference | maxima "
    "elsewhere |\n" + "|---" * 8 + "|\n"
)
BEGIN, END = "<!-- benchmarks/substitutions.py -->\n", "<!-- end -->\n"
BUDGET_BEGIN = "<!-- benchmarks/substitutions.py --budget -->\n"


def row(case: str, most: int) -> str:
    """Return a line of the table."""
    name, config, bandwidth = case.split(":")
    model = quantise_network(name).SerializeToString()
    plain = weft.compile(model, config, memory=float(bandwidth))
    begin = time.monotonic()
    program = weft.compile(model, config, memory=float(bandwidth), substitute=most)
    seconds = time.monotonic() - begin
    done = program.substitutions
    assert done is not None
    for line in done.lines:
        print(f"  {line}", flush=True)
    inputs = {
        value: np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)
        for value, (_, shape) in program.inputs.items()
    }
    wanted, computed = plain.run(inputs).outputs, program.run(inputs).outputs
    same = all(np.array_equal(computed[value], values) for value, values in wanted.items())
    fewer, end = 1 - done.after / done.before, "" if done.complete else ", not to its end"
    cells = (
        name, f"{config}, {bandwidth}", f"{done.before:,}", f"{done.after:,}", f"{fewer:.1%}",
        f"{len(done.used)}{end}", f"{seconds:.0f}", "equal" if same else "DIFFER",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def budget_row(case: str, budget: str, count: int) -> str:
    """Return a line of the table of rewrites that round otherwise."""
    name, config, bandwidth = case.split(":")
    model = quantise_network(name).SerializeToString()
    rng = np.random.default_rng(1)
    samples = {
        value: rng.normal(0, 1, (count, *shape)).astype(np.float32)
        for value, (_, shape) in weft.compile(model, config).inputs.items()
    }
    done = weft.compile(model, config, memory=float(bandwidth), budget=budget, samples=samples).roundings
    assert done is not None
    for line in done.lines:
        print(f"  {line}", flush=True)
    apart = done.difference
    cells = (
        name, f"{config}, {bandwidth}", f"{done.before:,}", f"{done.after:,}", f"{1 - done.after / done.before:.1%}",
        f"{len(done.used)}", f"{apart.largest}, {apart.mean:.2f}", f"{apart.elsewhere} of {apart.choices}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--most", type=int, default=400)
    parser.add_argument("--budget")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows = []
    for case in options.cases or (CASES if options.budget is None else BUDGETS):
        parts = case.split(":")
        full_case = ":".join([*parts, *("default", "16")[len(parts) - 1 :]])
        if options.budget is None:
            rows.append(row(full_case, options.most))
        else:
            rows.append(budget_row(full_case, options.budget, options.samples))
        print(rows[-1], end="", flush=True)
    if options.write is not None:
        begin, header = (BEGIN, HEADER) if options.budget is None else (BUDGET_BEGIN, BUDGET_HEADER)
        rewrite(options.write, begin, END, header + "".join(rows))
    return int(any("DIFFER" in item for item in rows))


if __name__ == "__main__":
    sys.exit(main())
