"""Mutants of the hardware: ``make mutants COUNT=1000``.

One bit of a core is changed, by Yosys' ``mutate`` (`weft.extras.proof.mutants.mutated`), and programs, register
accesses and faults must tell the mutant from the core: every byte against the golden interpreter, counters against
the cycle model (see kill.py). Mutants of bits that nothing reads are the same hardware
(`weft.extras.proof.mutants.constants`). Of those that few programs do not tell from the core, it is proven by SAT
which are (`weft.extras.proof.mutants.equivalence`); of those that more programs do not tell from it either, which are
the same from a reset on (`weft.extras.proof.mutants.equivalence`). The last ones meet programs of millions of cycles.
What is left survives, and must be explained in ``survivors.txt`` next to this file. Its lines have the form ``core
mutant unit place | reason``, where a place is a cell, with port and bit.

Verdicts are kept in the cache, so that a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import ast
import collections
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[4] / "tests")]

from closure import sections
from closure.cores import CORES, component
from closure.kept import Kept
from support.core_cases import Core

from weft.extras.proof.mutants.constants import unread_mutants
from weft.extras.proof.mutants.equivalence import prove_equal, prove_equal_from_reset
from weft.extras.proof.mutants.mutated import PLAIN, Mutant, MutatedCore, mutate_core
from weft.extras.proof.tests.closure import kill
from weft.sim.rtl.coverage import Explanation, Point, explanations

SURVIVORS = Path(__file__).with_name("survivors.txt")
PROGRAMS = 3
"""Seeds of random programs; `MORE` of further ones for what these do not kill."""
MORE = 16
LENGTH = {False: 20, True: 6}
"""Random instructions of a program, by whether the core is the sequential one."""
EQUAL = "equal"
"""Verdict of a mutant proven to be equal hardware."""
_Judge = Callable[[list[int], int], Iterator[tuple[int, str]]]
"""Function that yields verdicts of mutants with a number of jobs."""
_Stage = tuple[str, _Judge]
"""A stage's name and function."""


@dataclass
class Result:
    """Verdicts on the mutants of a core.

    Attributes
    ----------
    mutants : list of Mutant
        Those that were tried.
    verdicts : dict
        By number what killed it, `EQUAL`, or nothing if it survives.
    drawn : int
        How many there are, of which these are the first.
    """

    mutants: list[Mutant]
    verdicts: dict[int, str]
    drawn: int

    def survivors(self) -> list[Mutant]:
        return [mutant for mutant in self.mutants if not self.verdicts[mutant.number]]

    def counted(self) -> dict[str, list[int]]:
        """Return counts by unit: killed, equal, surviving."""
        result: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
        for mutant in self.mutants:
            verdict = self.verdicts[mutant.number]
            result[mutant.unit][1 if verdict == EQUAL else 0 if verdict else 2] += 1
        return dict(sorted(result.items()))

    def totals(self) -> tuple[int, int, int]:
        """Return counts over all units: killed, equal, surviving."""
        killed, same, left = (sum(counts[index] for counts in self.counted().values()) for index in range(3))
        return killed, same, left


def run(core: Core, count: int, seed: int, jobs: int, tried: int | None = None, stages: int = 5) -> Result:
    """Try `count` mutants of a core (or `tried` of them, spread over all units) in `stages`: programs, SAT, more
    programs, induction, long programs. Unread bits come first."""
    result = mutate_core(component(core), count, seed)
    numbers = kill.spread([mutant.number for mutant in result.mutants])[:tried]
    kept = _Verdicts(result)
    every = [
        _by_reading(result),
        _by_programs(core, result, PROGRAMS, 0),
        _by_proof("SAT", result, prove_equal),
        _by_programs(core, result, MORE, PROGRAMS),
        _by_proof("induction", result, prove_equal_from_reset),
        _by_long_programs(core, result),
    ]
    for name, judge in every[: 1 + stages]:
        open_ = [number for number in numbers if not kept.final(number) and not kept.known(name, number)]
        for done, (number, verdict) in enumerate(judge(open_, jobs), 1):
            kept.add(name, number, verdict)
            if done % 50 == 0:
                print(f"  {name}: {done} of {len(open_)}", flush=True)
    mutants = [mutant for mutant in result.mutants if mutant.number in set(numbers)]
    return Result(mutants, {number: kept.final(number) for number in numbers}, len(result.mutants))


def _by_programs(core: Core, found: MutatedCore, programs: int, first: int) -> _Stage:
    seeds = range(first, first + programs)
    return f"programs {first} to {first + programs - 1}", _killed_by(
        lambda: kill.kill_set(core, found, seeds, LENGTH[core.sequential])
    )


def _by_long_programs(core: Core, found: MutatedCore) -> _Stage:
    return "long programs", _killed_by(lambda: kill.long_set(core, found))


def _killed_by(kills: Callable[[], kill.KillSet]) -> _Judge:
    """Yield verdicts of scenarios, built only if there are mutants for them."""

    def judge(numbers: list[int], jobs: int) -> Iterator[tuple[int, str]]:
        if numbers:
            yield from kill.verdicts(kills(), numbers, jobs)

    return judge


def _by_reading(found: MutatedCore) -> _Stage:
    def judge(numbers: list[int], jobs: int) -> Iterator[tuple[int, str]]:
        if numbers:
            same = unread_mutants(found.folder / PLAIN, found.mutants)
            yield from ((number, EQUAL if number in same else "") for number in numbers)

    return "reading", judge


def _by_proof(
    name: str, found: MutatedCore, prove: Callable[[Path, list[Mutant]], Mapping[int, bool | None]]
) -> _Stage:
    by_number = {mutant.number: mutant for mutant in found.mutants}

    def judge(numbers: list[int], jobs: int) -> Iterator[tuple[int, str]]:
        with ThreadPoolExecutor(jobs) as pool:  # the provers are processes of their own
            for same in pool.map(lambda number: prove(found.folder / PLAIN, [by_number[number]]), numbers):
                yield from ((number, EQUAL if value else "") for number, value in same.items())

    return name, judge


class _Verdicts:
    """Verdicts by stage from this and earlier runs, keyed by all their inputs; stage names include seeds."""

    def __init__(self, found: MutatedCore) -> None:
        used = [str(module.__file__) for name, module in sys.modules.items() if name.startswith("support.")]
        digest = hashlib.sha256(f"{found.verilog} {LENGTH}".encode())
        for path in (Path(__file__).with_name("kill.py"), *map(Path, sorted(used))):
            digest.update(ast.dump(ast.parse(path.read_text())).encode())
        self._kept = Kept(f"mutants-{digest.hexdigest()[:24]}")

    def known(self, stage: str, number: int) -> bool:
        return (stage, number) in self._kept.verdicts

    def final(self, number: int) -> str:
        """Return the first conclusive verdict."""
        return next((said for (_, own), said in self._kept.verdicts.items() if own == number and said), "")

    def add(self, stage: str, number: int, verdict: str) -> None:
        self._kept.add((stage, number), verdict)


def place(mutant: Mutant) -> Point:
    """Return a mutant's point as `weft.sim.rtl.coverage.Explanation` names it."""
    cell, port, bit = mutant.pin
    return Point("mutant", mutant.unit, f"{cell} {port}[{bit}]")


def section(results: dict[str, Result], command: str, why: list[Explanation]) -> dict[str, Any]:
    rows, details = [], {}
    for name, result in results.items():
        killed, same, left = result.totals()
        explained = sum(_explain(name, mutant, why) is not None for mutant in result.survivors())
        some = len(result.mutants) < result.drawn
        which = f"the first {len(result.mutants):,} of {result.drawn:,} mutants" if some else "mutants"
        rows.append(
            [
                f"{name} core, {which} of its gates that programs see",
                f"{killed:,} of {killed + left:,} ({100 * killed / max(1, killed + left):.1f} %), "
                f"{explained:,} explained; {same:,} more are the same hardware",
            ]
        )
        details[name] = {
            "units": result.counted(),
            "survivors": [{"unit": item.unit, "command": item.command} for item in result.survivors()],
        }
    return {"with": command, "rows": rows, "details": details}


def command_of(options: argparse.Namespace) -> str:
    """Return the command that reproduces the result."""
    if options.tried or options.core:
        parts = [f"--{name} {getattr(options, name)}" for name in ("core", "count", "tried", "seed")]
        return "python extras/proof/tests/closure/mutate.py " + " ".join(
            part for part in parts if "None" not in part
        )
    return f"make mutants COUNT={options.count} SEED={options.seed}"


def _explain(name: str, mutant: Mutant, why: list[Explanation]) -> Explanation | None:
    return next((item for item in why if item.matches(name, place(mutant))), None)


def table(name: str, result: Result) -> Iterator[str]:
    """Return a table for people."""
    killed, same, left = result.totals()
    different = len(result.mutants) - same
    yield (
        f"{name}: {len(result.mutants)} mutants, {same} of them the same hardware; of the other {different}"
        f" {killed} killed, {100 * killed / max(1, different):.1f} %, {left} survive"
    )
    for unit, (dead, equal_, alive) in result.counted().items():
        if alive:
            yield f"  {unit}: {alive} of {dead + equal_ + alive} survive"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="of each core")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--core", choices=list(CORES), help="only this one")
    parser.add_argument("--tried", type=int, help="try only so many of them")
    stages = "1: programs, 2: and SAT, 3: and more programs, 4: and induction, 5: and long programs"
    parser.add_argument("--stages", type=int, default=5, help=stages)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, help="put the results into this file")
    options = parser.parse_args()
    why, results, begin = explanations(SURVIVORS), {}, time.monotonic()
    for name in [options.core] if options.core else list(CORES):
        print(f"{name}: seed {options.seed}", flush=True)
        core = next(iter(CORES[name].values()))
        results[name] = run(core, options.count, options.seed, options.jobs, options.tried, options.stages)
        print("\n".join(table(name, results[name])), flush=True)
    lacking = [
        (name, mutant)
        for name, result in results.items()
        for mutant in result.survivors()
        if _explain(name, mutant, why) is None
    ]
    for name, mutant in lacking:
        print(f"survives, and is not explained: {name} {' '.join(place(mutant))} ({mutant.command})")
    print(f"{time.monotonic() - begin:.0f} s")
    if options.write:
        sections.write(options.write, "mutants_hardware", section(results, command_of(options), why), results)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
