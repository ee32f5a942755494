"""Utilisation of the array in fused attention, on the RTL, from the hardware's own counters.

    python benchmarks/attention.py [--config default] [--write docs/attention-utilisation.md]

Every case is compiled as users' models are and runs on the Verilator model, as in `benchmarks/utilisation.py`, results
compared with the golden interpreter byte for byte. Work is counted as the mask leaves it. *window* is useful MACs
over N * N * (cycles from the first row that enters the array to the last accumulator write); *whole* counts all cycles.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from utilisation import HEADER, format_row, measure

from weft.compiler.ir.graph import Attention, DeviceSegment
from weft.compiler.ir.views import Buffer, View
from weft.compiler.machine.target import Target
from weft.compiler.plan.attention_plan import plan
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class Case:
    """`heads` query heads on `kv_heads`, `rows` queries and `keys` keys of `size` elements each."""

    size: int
    rows: int
    keys: int
    heads: int = 1
    kv_heads: int = 1
    causal: bool = False

    @property
    def name(self) -> str:
        heads = f", {self.heads} heads on {self.kv_heads}" if self.heads > 1 else ""
        return (
            f"d {self.size}, {self.rows} queries, {self.keys} keys{heads}{', causal' if self.causal else ''}"
        )

    def operator(self) -> Attention:
        shapes = {
            "q": (self.rows, self.heads), "k": (self.keys, self.kv_heads), "v": (self.keys, self.kv_heads),
            "y": (self.rows, self.heads),
        }  # fmt: skip
        views = []
        for name, (rows, heads) in shapes.items():
            shape = (heads, 1, rows, self.size)
            views.append(View(Buffer(name, shape, "output" if name == "y" else "input"), shape))
        scale = 2.0 / (40 * 40 * math.sqrt(self.size))
        offset = self.keys - self.rows
        return Attention(
            self.name, *views, 1, self.heads, self.kv_heads, scale, (self.keys,), 4.0, self.causal, offset
        )


CASES = (
    Case(64, 128, 512),
    Case(64, 128, 1024),
    Case(64, 512, 512),
    Case(64, 512, 1024),
    Case(32, 128, 512),
    Case(32, 128, 1024),
    Case(32, 512, 512),
    Case(128, 128, 512),
    Case(64, 512, 512, causal=True),
    Case(64, 1024, 1024, causal=True),
    Case(32, 512, 512, causal=True),
    Case(32, 1024, 1024, causal=True),
    Case(64, 128, 512, 4, 1),
    Case(64, 256, 256, 8, 2, causal=True),
    Case(64, 1, 1024, 8, 2),
)
"""A single tile of 128 queries with its operands on chip, several tiles, masks, grouped heads, and a decode step."""


def inputs(op: Attention, seed: int = 0) -> dict[str, np.ndarray]:
    """Return Gaussian int8 operands."""
    rng = np.random.default_rng(seed)
    operands = {"q": op.q, "k": op.k, "v": op.v}
    return {
        name: np.clip(np.rint(rng.normal(0, 40, view.shape)), -127, 127).astype(np.int8)
        for name, view in operands.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="default")
    parser.add_argument("--only", default="", help="run cases whose name contains this")
    parser.add_argument("--write", type=Path, help="write the table to this Markdown file")
    options = parser.parse_args()
    config = Config.load(options.config)
    rows, wrong = [HEADER.replace("shape", "attention, tile x block")], 0
    print(rows[0])
    for case in CASES:
        if options.only not in case.name:
            continue
        op = case.operator()
        counters, same = measure(DeviceSegment(case.name, (op,)), inputs(op), config)
        chosen = plan(op, Target(config))
        assert chosen is not None
        moved = sum(view.buffer.size for view in (op.q, op.k, op.v, op.dst)) / config.bus_bytes
        roofline = min(1.0, op.macs / config.n**2 / moved)
        row = format_row(
            f"{case.name} ({chosen.rows} x {chosen.block})", op.macs, counters, config, f"{roofline:.0%}"
        )
        wrong += not same
        rows.append(row)
        print(row if same else row + " **differs from golden**", flush=True)
    print(f"cases whose bytes differ from the golden interpreter: {wrong}")
    if options.write is not None:
        options.write.write_text("\n".join(rows) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
