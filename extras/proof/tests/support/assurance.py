"""Proofs for the table of docs/assurance.md (see benchmarks/assurance.py)."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

from weft.compiler.backend import compile_segment
from weft.extras.proof.boards.registry import properties as of_boards
from weft.extras.proof.certificate import graph_of, placement_of
from weft.extras.proof.engine.prove import prove_all
from weft.extras.proof.hardware.registry import properties as of_hardware
from weft.extras.proof.programs.proof import prove
from weft.hdl.isa.config import PRESETS

Section = dict[str, Any]


def properties(options: argparse.Namespace) -> Section:
    items = [*of_hardware(), *of_boards()]
    results = list(
        prove_all(items, options.seconds, options.jobs, lambda result: print(result.title, result.how))
    )
    kinds = Counter(kind_of(result.outcome.value, result.how) for result in results)
    rows = [[f"properties of the hardware: {kind}", f"{count:,}"] for kind, count in sorted(kinds.items())]
    claims = sum(len(result.claims) for result in results)
    return {"with": "make prove", "rows": [*rows, ["claims in them", f"{claims:,}"]]}


def kind_of(outcome: str, how: str) -> str:
    """Return a property's method of proof, for the table."""
    if outcome != "proven":
        return outcome if outcome != "bounded" else "hold in the first cycles, up to a bound"
    return "proven by k-induction" if how.startswith("induction") else "proven by an inductive invariant"


def certificates(options: argparse.Namespace) -> Section:
    import network  # of the benchmarks

    segment, config = network.resnet18(), PRESETS["default"]
    program = compile_segment(segment, config)
    begun = time.process_time()
    proven = prove(graph_of(segment), config, placement_of(program), 1, lambda done: None)
    seconds = time.process_time() - begun
    rows = [
        [f"ResNet-18 on `default`: {proven.instructions:,} instructions compute the network, proven in",
         f"{seconds:.0f} s of processor time"],
    ]  # fmt: skip
    return {"with": "python benchmarks/assurance.py measure certificates", "rows": rows}


PARTS = {"properties": properties, "certificates": certificates}
