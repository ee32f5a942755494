"""Coverage that closes: ``make coverage MINUTES=20``.

Runs programs, register accesses and faults on models of both cores that count lines, branches and changes of bits
(`weft.sim.rtl.coverage`), and counts values of instructions' fields and pairs of instructions that are under way
together (`closure.fields`). What is not covered must be explained in ``unreached.txt`` next to this file, whose lines
have the form ``core kind unit name | reason``; an explanation of nothing is a fault as well.

Each configuration has an equal part of the time. Directed scenarios and the programs of seed 0 run in any case.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[4] / "tests")]

from closure import fields, sections
from closure.cores import CORES, component
from closure.extremes import extremes
from support.core_cases import Benches, Core, Scenario, scenarios
from support.core_directed import directed_scenarios, wild
from support.core_special import special

from weft.extras.proof.mutants.constants import constant_bits
from weft.hdl.errors import WeftError
from weft.sim.rtl.coverage import (
    KINDS,
    Closure,
    Counts,
    CoveredRtl,
    Explanation,
    close,
    explanations,
    merge,
    read,
)
from weft.sim.rtl.library import core_verilog

UNREACHED = Path(__file__).with_name("unreached.txt")
FUNCTIONAL = ("field", "pair")
_KINDS = {
    "line": "lines of Verilog that run",
    "branch": "sides of branches that are taken",
    "toggle": "changes of bits, in both directions",
    "field": "values of instructions' fields",
    "pair": "pairs of instructions that are under way together",
}
LENGTH = {False: 25, True: 10}
"""Random instructions of a program, by whether the core is sequential."""


class ScenarioError(WeftError, RuntimeError):
    """Error for a device that violates a scenario."""


@dataclass
class Covered:
    """Coverage of a configuration's runs.

    Attributes
    ----------
    counts : Counts
        Of Verilator's points and of functional ones.
    seeds : int
        Of random programs.
    cycles : int
        Simulated.
    """

    counts: Counts = field(default_factory=dict)
    seeds: int = 0
    cycles: int = 0


def run(core: Core, seconds: float) -> Covered:
    """Run scenarios on `core` for about the given time. Raises `ScenarioError` if one fails."""
    end, result = time.monotonic() + seconds, Covered()
    functional = fields.points(core)
    verilog = core_verilog(core.config, sequential=core.sequential)
    benches = Benches(core, kept=True)
    devices: dict[int, CoveredRtl] = {}  # those of `benches`, which scenarios share
    for seed, scenario in _scenarios(core, benches):
        if seed and time.monotonic() > end:
            break
        result.seeds = seed + 1
        key = id(scenario.bench)
        device = devices.get(key) or CoveredRtl(
            core.config, scenario.bench.size, sequential=core.sequential, **scenario.bench.memory
        )
        before = device.cycles
        _carry_out(device, scenario)
        result.cycles += device.cycles - before
        fields.count(functional, scenario.steps, core.config)
        if scenario.bench in benches:
            devices[key] = device
        else:  # a model with its counts takes much memory
            result.counts = merge([result.counts, _close_device(device, verilog)])
    parts = [_close_device(device, verilog) for device in devices.values()]
    result.counts = {**merge([result.counts, *parts]), **functional}
    return result


def _close_device(device: CoveredRtl, verilog: str) -> Counts:
    counts = _read(device, verilog)
    device.close()
    return counts


def _scenarios(core: Core, benches: Benches) -> Iterator[tuple[int, Scenario]]:
    for scenario in directed_scenarios(core):
        yield 0, scenario
    yield 0, wild(core, 1)
    yield 0, extremes(core, benches.of({"latency": 1}))
    for scenario in special(core):
        yield 0, scenario
    for seed in itertools.count():
        for scenario in scenarios(core, range(seed, seed + 1), LENGTH[core.sequential], benches):
            yield seed, scenario


def _carry_out(device: CoveredRtl, scenario: Scenario) -> None:
    for step in scenario.steps:
        if fault := step.fault(device):
            raise ScenarioError(f"scenario {scenario.name} fails: {fault}")


def _read(device: CoveredRtl, verilog: str) -> Counts:
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = Path(folder) / "coverage.dat"
        device.write_coverage(path)
        return read(path, verilog)


def closed(name: str, runs: dict[str, Covered], why: list[Explanation]) -> Closure:
    """Merge a core's configurations: a bit counts as constant if it is constant in each that has it."""
    parts = [runs[key].counts for key in runs]
    fixed = [constant_bits(component(core)) for core in CORES[name].values()]
    whole: Counts = {}
    for counts, bits in zip(parts, fixed, strict=True):
        counted = {point: number for point, number in counts.items() if not _constant(point, bits)}
        whole = merge([whole, counted])
    return close(name, whole, set(), why)


def _constant(point: Any, bits: set[tuple[str, str]]) -> bool:
    return point.kind == "toggle" and (point.unit, point.name.rpartition(":")[0]) in bits


def table(closures: dict[str, Closure]) -> Iterator[str]:
    """Return a table for people."""
    for name, result in closures.items():
        yield f"{name} core"
        for kind in (*KINDS, *FUNCTIONAL):
            total = result.total.get(kind, 0)
            if total:
                done, explained = result.covered.get(kind, 0), result.count_explained(kind)
                yield (
                    f"  {kind:8} {done:6,} of {total:6,}, {100 * done / total:6.2f} %; "
                    f"{explained} explained, {total - done - explained} not"
                )


def section(
    closures: dict[str, Closure], runs: dict[str, dict[str, Covered]], command: str
) -> dict[str, Any]:
    """Return the section of the results file for `command`."""
    rows = [
        [f"{name} core, {_KINDS[kind]}", _counted(result, kind)]
        for name, result in closures.items()
        for kind in (*KINDS, *FUNCTIONAL)
        if result.total.get(kind, 0)
    ]
    details = {
        name: {
            "seeds": {key: covered.seeds for key, covered in runs[name].items()},
            "cycles": {key: covered.cycles for key, covered in runs[name].items()},
        }
        for name in closures
    }
    return {"with": command, "rows": rows, "details": details}


def command_of(options: argparse.Namespace) -> str:
    """Return the command that reproduces the result."""
    if options.core:
        return (
            f"python extras/proof/tests/closure/cover.py --core {options.core} --minutes {options.minutes:g}"
        )
    return f"make coverage MINUTES={options.minutes:g}"


def _counted(found: Closure, kind: str) -> str:
    done, total, explained = found.covered.get(kind, 0), found.total[kind], found.count_explained(kind)
    left = total - done - explained
    return (
        f"{done:,} of {total:,} ({100 * done / total:.1f} %)"
        + (f", {explained:,} explained" if explained else "")
        + (f", {left:,} not" if left else "")
    )


def idle(why: list[Explanation], closures: dict[str, Closure]) -> list[Explanation]:
    """Return explanations of nothing, of the cores that ran."""
    used = {item for result in closures.values() for item in result.explained}
    return [item for item in why if item not in used and any(item.matches_core(name) for name in closures)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, help="for all configurations together")
    parser.add_argument("--core", choices=list(CORES), help="only this one")
    parser.add_argument("--write", type=Path, help="put the results into this file")
    parser.add_argument("--show", type=int, default=40, help="so many unexplained points at most")
    options = parser.parse_args()
    why = explanations(UNREACHED)
    names = [options.core] if options.core else list(CORES)
    share = 60 * options.minutes / sum(len(CORES[name]) for name in names)
    runs: dict[str, dict[str, Covered]] = collections.defaultdict(dict)
    for name in names:
        for key, core in CORES[name].items():
            runs[name][key] = result = run(core, share)
            print(f"{name}, {key}: {result.seeds} seeds, {result.cycles:,} cycles", flush=True)
    closures = {name: closed(name, runs[name], why) for name in names}
    print("\n".join(table(closures)))
    lacking = [(name, point) for name, result in closures.items() for point in result.unexplained]
    for name, point in lacking[: options.show]:
        print(f"not covered, and not explained: {name} {' '.join(point)}")
    useless = idle(why, closures)
    for item in useless:
        print(f"{UNREACHED.name}, line {item.line}: explains nothing that is not covered")
    if options.write:
        sections.write(options.write, "coverage", section(closures, runs, command_of(options)), names)
    return 1 if lacking or useless else 0


if __name__ == "__main__":
    sys.exit(main())
