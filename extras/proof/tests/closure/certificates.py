"""Attack proofs of programs: ``python extras/proof/tests/closure/certificates.py --count 5000 --seed 1``.

Subject number i of a seed is always the same program, and its mutants are the same. Each mutant differs in words,
constants, weights, the network that it is compared with, its manifest, or a file. Accepted mutants run on 50 inputs.
Subjects that are done are kept in build/certificates.jsonl, so a campaign that was ended goes on where it was. The exit
code is 1 if an accepted mutant computes something else, or one ends in an error that is no refusal.
"""

from __future__ import annotations

import argparse
import collections
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[4] / "tests")]

import numpy as np
from closure import sections

from weft.extras.proof.tests.closure.proof_files import FILES
from weft.extras.proof.tests.closure.proof_subjects import DIFFERS, REFUSED, SAME, SEGMENTS, Result, Subject
from weft.sim.golden import interpreter

KINDS = (*SEGMENTS, *FILES)
SCHEDULE = (*KINDS, *FILES)
"""Kinds of subjects, in turn."""
MUTANTS = 12
"""Mutants of each subject."""
FAILED = "failed"
"""Outcome of a mutant that raised an error other than a refusal."""
_SECONDS = 60
"""Limit of processor time of a mutant's proof, in seconds."""
_BYTES = 6 << 30
"""Memory limit of a campaign, in bytes."""
_INSTRUCTIONS = 20_000
"""Limit of executed instructions; these programs have a few hundred."""


class _TakesLong(Exception):
    """Raised when a mutant exceeds its time."""


def subject_of(kind: str, seed: int, index: int, folder: Path) -> Subject:
    rng = np.random.default_rng([seed, index, *kind.encode()])
    own = 100_000 * seed + index
    return SEGMENTS[kind](own, rng) if kind in SEGMENTS else FILES[kind](own // len(SCHEDULE), folder, rng)


def attacks(kind: str, seed: int, index: int, count: int = MUTANTS) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="weft-proof-") as folder, _bounded():
        subject = subject_of(kind, seed, index, Path(folder))
        return [_attack(subject, np.random.default_rng([seed, index, number])) for number in range(count)]


def _attack(subject: Subject, rng: np.random.Generator) -> Result:
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
    try:
        return subject.attack(rng)
    except _TakesLong:
        return Result("any", REFUSED, "it takes too long")
    except Exception:
        return Result("any", FAILED, traceback.format_exc(limit=-6))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextmanager
def _bounded() -> Iterator[None]:
    """Abort mutants that do not terminate."""

    def over(number: int, frame: object) -> None:
        raise _TakesLong

    most, before = interpreter.MAX_EXECUTED, signal.signal(signal.SIGVTALRM, over)
    interpreter.MAX_EXECUTED = _INSTRUCTIONS
    try:
        yield
    finally:
        interpreter.MAX_EXECUTED = most
        signal.signal(signal.SIGVTALRM, before)


class Campaign:
    """Results of a seed's mutants so far, kept in a file."""

    def __init__(self, seed: int, path: Path) -> None:
        self.seed, self.path = seed, path
        lines = path.read_text().splitlines() if path.exists() else []
        known = (json.loads(line) for line in lines)
        self.done: dict[int, dict[str, Any]] = {
            item["subject"]: item for item in known if item["seed"] == seed
        }

    def run(self, count: int, minutes: float) -> None:
        """Attack subjects until a number of mutants or an amount of processor time is reached."""
        begin = time.process_time()
        for index in range(-(-count // MUTANTS)):
            if index in self.done:
                continue
            if minutes and time.process_time() - begin > 60 * minutes:
                break
            kind = SCHEDULE[index % len(SCHEDULE)]
            results = attacks(kind, self.seed, index)
            for number, item in enumerate(results):
                if item.outcome in (DIFFERS, FAILED):
                    which = f"{kind} {index}, mutant {number} ({item.changed})"
                    print(f"{which}: {item.outcome}: {item.reason}", flush=True)
            self._keep(index, kind, results)

    def _keep(self, index: int, kind: str, found: list[Result]) -> None:
        counts = collections.Counter((item.changed, item.outcome) for item in found)
        self.done[index] = {
            "seed": self.seed, "subject": index, "kind": kind,
            "counts": [[*key, number] for key, number in sorted(counts.items())],
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(self.done[index]) + "\n")

    def counts(self, by: str) -> dict[str, collections.Counter[str]]:
        """Return outcomes by "kind" of subject, or by the "changed" part."""
        result: dict[str, collections.Counter[str]] = {}
        for item in self.done.values():
            for changed, outcome, number in item["counts"]:
                key = item["kind"] if by == "kind" else changed
                result.setdefault(key, collections.Counter())[outcome] += number
        return result

    def show(self) -> bool:
        """Print all outcomes; return whether no differing mutant was accepted and none failed."""
        for by in ("kind", "changed"):
            for key, counts in self.counts(by).items():
                outcomes = "".join(f"{counts[name]:>8} {name}" for name in (REFUSED, SAME, DIFFERS, FAILED))
                print(f"{by} {key:24}{outcomes}")
        total = self.total
        print(f"{total.total():,} mutants of {len(self.done):,} programs: {dict(total)}")
        return not total[DIFFERS] + total[FAILED]

    def section(self, count: int) -> sections.Section:
        """Return a row for each changed part, for docs/assurance.json."""
        rows = [
            [
                f"mutants of certified programs, {changed}: refused, accepted and the same, accepted but different",
                f"{counts[REFUSED]:,}, {counts[SAME]:,}, {counts[DIFFERS]:,} of {counts.total():,}",
            ]
            for changed, counts in sorted(self.counts("changed").items())
        ]
        command = f"python extras/proof/tests/closure/certificates.py --count {count} --seed {self.seed}"
        return {"with": command, "rows": rows}

    @property
    def total(self) -> collections.Counter[str]:
        """Return mutants by outcome."""
        return sum(self.counts("kind").values(), collections.Counter())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=5000, help="mutants")
    parser.add_argument("--minutes", type=float, default=0, help="of processor time at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, default=Path("build/certificates.jsonl"), help="file of what is done"
    )
    parser.add_argument("--write", type=Path, help="file that the counts go to: docs/assurance.json")
    parser.add_argument("--subject", type=int, help="only this one, with what came of each mutant")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    if options.subject is not None:
        for item in attacks(SCHEDULE[options.subject % len(SCHEDULE)], options.seed, options.subject):
            print(f"{item.changed}: {item.outcome}: {item.reason}")
        return 0
    campaign = Campaign(options.seed, options.keep)
    campaign.run(options.count, options.minutes)
    if options.write is not None:
        sections.write(options.write, "compiler", campaign.section(campaign.total.total()))
    return 0 if campaign.show() else 1


if __name__ == "__main__":
    sys.exit(main())
