"""Count proofs, random runs and injected faults for the table of docs/assurance.md.

    python benchmarks/assurance.py measure [PART ...] [--minutes 30] [--count 100]
    python benchmarks/assurance.py write

``measure`` runs parts, by default all of them, and stores its counts in docs/assurance.json, as other tools do;
``write`` makes the table from that file.

fuzz      random inputs of every kind, for ``--minutes`` faults    runs with memory errors, stops and bit flips, of
``--count`` random programs for each core

Extras add parts, such as proofs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from pages import rewrite  # noqa: E402
from support.extras import contributions  # noqa: E402

MEASURED = ROOT / "docs" / "assurance.json"
PAGE = ROOT / "docs" / "assurance.md"
BEGIN, END = "<!-- benchmarks/assurance.py -->\n", "<!-- end -->\n"
HEADER = "| what | counted | with |\n| --- | --- | --- |\n"
Section = dict[str, Any]
"""``with`` is the command that counts it again, ``rows`` are what, how much, and a command if it is another one."""


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
            ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())),
        ]
        for kind, outcomes in sorted(counts.items())
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


PARTS: dict[str, Callable[[argparse.Namespace], Section]] = {
    "fuzz": fuzz,
    "faults": faults,
}
for _extra in contributions("assurance"):
    PARTS |= _extra.PARTS


def read_results() -> dict[str, Section]:
    """Return the earlier results."""
    return json.loads(MEASURED.read_text()) if MEASURED.exists() else {}


def table(sections: dict[str, Section]) -> str:
    """Return the table, with the parts in the order of their names."""
    lines = [
        f"| {title} | {count} | `{(command or [section['with']])[0]}` |\n"
        for _, section in sorted(sections.items())
        for title, count, *command in section["rows"]
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
            MEASURED.write_text(json.dumps(read_results() | {part: section}, indent=1) + "\n")
            print(f"{part}:", *(": ".join(row) for row in section["rows"]), sep="\n  ")
    rewrite(PAGE, BEGIN, END, table(read_results()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
