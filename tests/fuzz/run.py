"""Fuzz weft with hostile and valid inputs: ``make fuzz COUNT=20000 SEED=1``, or ``MINUTES=60``.

Seed and number determine an input. Each runs in a process of its own with limits (`fuzz.sandbox`). Failures are kept
below ``build/fuzz``: ``case.json`` has the fewest edits of a valid file that still fail, with the files beside it.
``python tests/fuzz/run.py --case FOLDER`` runs it again. Programs with new features go to ``build/fuzz/corpus.jsonl``
(`fuzz.corpus`), and come first the next time, before input 0.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    HERE = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from fuzz import corpus, files, programs, sandbox, seeds
from fuzz.corpus import Corpus
from fuzz.kinds import KINDS, RARE, RARELY
from fuzz.outcome import Outcome
from fuzz.targets import targets

from weft.cli import main as cli

SCHEDULE = [name for name, kind in KINDS.items() for _ in range(kind.share)]
"""Kinds in turn: input i has kind ``SCHEDULE[i % len(SCHEDULE)]``, except one in `RARELY` of kind `RARE`."""
KEPT = 3
"""Cases kept for each signature."""


def edits_of(seed: int, index: int, only: str = "", kept: Corpus | None = None) -> tuple[str, list[Any]]:
    """Return kind and edits of input `index`, of all kinds in turn or of one; negative ones are a corpus' programs."""
    if index < 0:
        assert kept is not None
        return corpus.KIND, kept.cases[-1 - index]
    rare = index % RARELY == RARELY - 1
    name = only or (RARE if rare else SCHEDULE[index % len(SCHEDULE)])
    rng = np.random.default_rng([seed, index, *name.encode()])
    if name == corpus.KIND and kept and kept.cases and rng.random() < corpus.SHARE:
        return name, kept.draw(rng)
    return name, KINDS[name].draw(rng)


def outcome_of(name: str, edits: list[Any], keep: Path | None = None) -> Outcome:
    """Run one input; its files go to the folder `keep`, if given."""
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as scratch:
        work = Path(scratch) / "work"
        work.mkdir()
        found = sandbox.run(lambda: KINDS[name].run(edits, work), Path(scratch), KINDS[name].seconds)
        if keep is not None:
            shutil.copytree(scratch, keep, dirs_exist_ok=True)
        return found


def minimise(name: str, edits: list[Any], outcome: Outcome) -> list[Any]:
    """Return `edits` without those that the failure does not need; the first names their subject."""
    if outcome.kind == "hang":
        return edits
    index = 1
    while index < len(edits):
        fewer = [*edits[:index], *edits[index + 1 :]]
        if outcome_of(name, fewer).signature == outcome.signature:
            edits = fewer
        else:
            index += 1
    return edits


def keep(root: Path, case: dict[str, Any], outcome: Outcome) -> None:
    """Write a failed case."""
    folder = root / f"{case['seed']}-{case['index']}-{case['kind']}"
    case["edits"] = minimise(case["kind"], case["edits"], outcome)
    shutil.rmtree(folder, ignore_errors=True)
    outcome_of(case["kind"], case["edits"], folder)
    (folder / "case.json").write_text(json.dumps(case | {"outcome": outcome.to_dict()}, indent=1) + "\n")


def warm() -> None:
    """Import and build what inputs need, in this process, from which their processes fork."""
    for name in seeds.models():
        seeds.program(name), seeds.inputs(name)
        for target in targets().values():
            target.seed(name)
    for core in programs.CORES.values():
        core.rtl().close(), core.timing()
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as scratch:
        model, program, source = (Path(scratch) / name for name in ("model.onnx", "program", "in.npz"))
        model.write_bytes(seeds.models()["rows"])
        source.write_bytes(files.archive(seeds.inputs("rows")))
        for command in (
            ["check", model], ["compile", model, "-o", program], ["dis", program], ["run", program, "--on", "timing"],
            ["run", program, "--input", source, "--output", source],
        ):  # fmt: skip
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(SystemExit):
                cli.main([str(part) for part in command])


def shard(options: argparse.Namespace) -> int:
    """Run every `shards`-th input, and print a JSON line for each."""
    number, shards = (int(part) for part in options.shard.split("/"))
    warm()
    kept = Corpus(options.corpus)
    start = time.monotonic()
    first = options.first
    if options.kind in ("", corpus.KIND) and not first:
        first = -len(kept.cases)
    for index in range(first + number, options.first + options.count, shards):
        if options.minutes and time.monotonic() - start > 60 * options.minutes:
            break
        name, edits = edits_of(options.seed, index, options.kind, kept)
        outcome = outcome_of(name, edits)
        case = {"seed": options.seed, "index": index, "kind": name, "edits": edits}
        print(json.dumps(case | {"outcome": outcome.to_dict()}), flush=True)
    return 0


class Tally:
    """Counts, and the failures to keep."""

    def __init__(self, root: Path, kept: Corpus | None = None) -> None:
        self.root, self.corpus = root, kept
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.signatures: collections.Counter[tuple[str, str]] = collections.Counter()
        self.lock = threading.Lock()

    def add(self, line: str) -> None:
        case = json.loads(line)
        outcome = Outcome(**case.pop("outcome"))
        with self.lock:
            self.counts[case["kind"], outcome.kind] += 1
            if not outcome.failed:
                if self.corpus and case["kind"] == corpus.KIND:
                    self.corpus.add(case["edits"], set(outcome.text.splitlines()))
                return
            self.signatures[case["kind"], outcome.signature] += 1
            if self.signatures[case["kind"], outcome.signature] > KEPT:
                return
            print(f"{case['kind']} {case['index']}: {outcome.signature}", flush=True)
        keep(self.root, case, outcome)

    def by_kind(self) -> dict[str, dict[str, int]]:
        """Return counts of outcomes, for each kind of input."""
        found: dict[str, dict[str, int]] = {}
        for (kind, outcome), count in self.counts.items():
            found.setdefault(kind, {})[outcome] = count
        return found

    def show(self) -> bool:
        """Print all counts; return whether nothing failed."""
        for (kind, outcome), count in sorted(self.counts.items()):
            print(f"{kind:10} {outcome:10} {count:7}")
        for (kind, signature), count in self.signatures.most_common():
            print(f"{count:6} {kind}: {signature}")
        failed = sum(self.signatures.values())
        print(
            f"{sum(self.counts.values())} inputs, {failed} failed" + (f"; see {self.root}" if failed else "")
        )
        return not failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="inputs")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--minutes", type=float, default=0, help="so long instead of a number of inputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", default="", choices=["", *KINDS], help="these only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="folder for what fails")
    parser.add_argument(
        "--corpus", type=Path, help="file of programs to begin with, and to add to (corpus.jsonl in --keep)"
    )
    parser.add_argument("--json", action="store_true", help="counts as JSON in the last line")
    parser.add_argument("--case", type=Path, help="run a case that was kept")
    parser.add_argument("--shard", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.corpus = options.corpus or options.keep / "corpus.jsonl"
    if options.minutes:
        options.count = 1 << 60
    if options.shard:
        return shard(options)
    if options.case:
        case = json.loads((options.case / "case.json").read_text())
        outcome = outcome_of(case["kind"], case["edits"])
        print(f"{outcome.kind}: {outcome.text}")
        return int(outcome.failed)
    tally = run(options)
    passed = tally.show()
    if options.json:
        print(json.dumps(tally.by_kind()))
    return 0 if passed else 1


def run(options: argparse.Namespace) -> Tally:
    """Distribute the inputs over processes."""
    tally = Tally(options.keep, Corpus(options.corpus))
    common = [
        sys.executable, __file__, f"--count={options.count}", f"--first={options.first}", f"--seed={options.seed}",
        f"--minutes={options.minutes}", f"--kind={options.kind}", f"--corpus={options.corpus}",
    ]  # fmt: skip

    def follow(number: int) -> None:
        command = [*common, f"--shard={number}/{options.jobs}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                tally.add(line)
        if process.returncode:
            raise SystemExit(f"shard {number} ended with {process.returncode}")

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


if __name__ == "__main__":
    sys.exit(main())
