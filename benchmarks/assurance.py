"""What is proven, run and broken on purpose, counted: the table of docs/assurance.md.

    python benchmarks/assurance.py measure [PART ...] [--minutes 30] [--count 100]
    python benchmarks/assurance.py write

``measure`` runs parts, all of them if none is named, and keeps what it counted in docs/assurance.json; ``write`` makes
the table of that. What other tools count they add to the same file.

properties     all properties of the hardware, with the solvers
fuzz           random inputs of every kind, for so many ``--minutes``
faults         runs with errors of memory, stops and bits that change, of ``--count`` random programs for each core
certificates   proofs of programs, with the time that they take
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from pages import rewrite  # noqa: E402

MEASURED = ROOT / "docs" / "assurance.json"
PAGE = ROOT / "docs" / "assurance.md"
BEGIN, END = "<!-- benchmarks/assurance.py -->\n", "<!-- end -->\n"
HEADER = "| what | counted | with |\n| --- | --- | --- |\n"
Section = dict[str, Any]
"""``with`` is the command that counts it again, ``rows`` are what, how much, and a command if it is another one."""


def properties(options: argparse.Namespace) -> Section:
    from weft.extras.proof.boards.registry import properties as of_boards
    from weft.extras.proof.engine.prove import prove_all
    from weft.extras.proof.hardware.registry import properties as of_hardware

    items = [*of_hardware(), *of_boards()]
    results = list(
        prove_all(items, options.seconds, options.jobs, lambda result: print(result.title, result.how))
    )
    kinds = Counter(kind_of(result.outcome.value, result.how) for result in results)
    rows = [[f"properties of the hardware: {kind}", f"{count:,}"] for kind, count in sorted(kinds.items())]
    claims = sum(len(result.claims) for result in results)
    return {"with": "make prove", "rows": [*rows, ["claims in them", f"{claims:,}"]]}


def kind_of(outcome: str, how: str) -> str:
    """How a property was decided, for the table."""
    if outcome != "proven":
        return outcome if outcome != "bounded" else "hold in the first cycles, up to a bound"
    return "proven by k-induction" if how.startswith("induction") else "proven by an inductive invariant"


def fuzz(options: argparse.Namespace) -> Section:
    command = [
        sys.executable, str(ROOT / "tests/fuzz/run.py"), f"--minutes={options.minutes}", f"--seed={options.seed}",
        f"--jobs={options.jobs}", "--json",
    ]  # fmt: skip
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    counts: dict[str, dict[str, int]] = json.loads(process.stdout.splitlines()[-1])
    rows = [
        [
            f"random inputs, {kind}",
            ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(found.items())),
        ]
        for kind, found in sorted(counts.items())
    ]
    return {"with": f"make fuzz MINUTES={options.minutes:g} SEED={options.seed}", "rows": rows}


def faults(options: argparse.Namespace) -> Section:
    from support import faulty_runs

    seeds = range(1000, 1000 + options.count)
    rows = []
    for core, sequential in (("pipelined", False), ("sequential", True)):
        errors = faulty_runs.errors(seeds, sequential)
        stops = faulty_runs.stops(seeds, sequential)
        flips, _ = faulty_runs.flips(faulty_runs.PARITY, seeds, sequential, 4096)
        rows += [
            [f"{core} core, runs that met an error of memory: told with unit and address, the next run right",
             f"{errors['told']:,} of {errors['told']:,}"],
            [f"{core} core, runs stopped at a random cycle: the next one right, in as many cycles",
             f"{stops['told']:,} of {stops['told']:,}"],
            [f"{core} core with parity, runs with bits that change: told, right all the same, wrong",
             f"{flips['told']:,}, {flips['right']:,}, {flips['wrong']:,}"],
        ]  # fmt: skip
    return {"with": f"python benchmarks/assurance.py measure faults --count {options.count}", "rows": rows}


def certificates(options: argparse.Namespace) -> Section:
    import network

    from weft.compiler.backend import compile_segment
    from weft.extras.proof.certificate import graph_of, placement_of
    from weft.extras.proof.programs.proof import prove
    from weft.hdl.isa.config import PRESETS

    segment, config = network.resnet18(), PRESETS["default"]
    program = compile_segment(segment, config)
    begun = time.process_time()
    proven = prove(graph_of(segment), config, placement_of(program), 1, lambda done: None)
    seconds = time.process_time() - begun
    rows = [
        [f"ResNet-18 on `default`: {proven.instructions:,} instructions compute the network, proven in",
         f"{seconds:.0f} s of processor time"],
        *_of_the_language_model(),
    ]  # fmt: skip
    return {"with": "python benchmarks/assurance.py measure certificates", "rows": rows}


def _of_the_language_model() -> list[list[str]]:
    """A row for the proof of the example's decoder."""
    import weft.extras.language.run.lm
    from weft.extras.language import example

    with weft.extras.language.run.lm.load(example.model(), "default") as model:
        begun = time.process_time()
        program, prompts = (item.proven for item in model.certify(lambda done: None))
        seconds = time.process_time() - begun
    what = (
        f"the example's language model on `default`: {program.instructions:,} instructions, and "
        f"{prompts.instructions:,} of its program for prompts, compute the decoder at all {program.places:,} places of "
        "a text, proven in"
    )
    return [[what, f"{seconds:.0f} s of processor time"]]


PARTS: dict[str, Callable[[argparse.Namespace], Section]] = {
    "properties": properties,
    "fuzz": fuzz,
    "faults": faults,
    "certificates": certificates,
}


def measured() -> dict[str, Section]:
    """What was counted before."""
    return json.loads(MEASURED.read_text()) if MEASURED.exists() else {}


def table(sections: dict[str, Section]) -> str:
    """The table, with the parts in the order of their names."""
    lines = [
        f"| {what} | {count} | `{(command or [section['with']])[0]}` |\n"
        for _, section in sorted(sections.items())
        for what, count, *command in section["rows"]
    ]
    return HEADER + "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["measure", "write"])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--minutes", type=float, default=30, help="for fuzz")
    parser.add_argument("--count", type=int, default=100, help="programs, for faults")
    parser.add_argument("--seconds", type=int, default=240, help="for each property")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    if options.command == "measure":
        for part in options.parts or PARTS:
            section = PARTS[part](options)
            MEASURED.write_text(json.dumps(measured() | {part: section}, indent=1) + "\n")
            print(f"{part}:", *(": ".join(row) for row in section["rows"]), sep="\n  ")
    rewrite(PAGE, BEGIN, END, table(measured()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
