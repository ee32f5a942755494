"""Plant faults in the hardware, one at a time, and find the properties of their units that notice them.

`planted.toml` lists the faults: substitutions in sources, written by hand, as a person would get a unit wrong. Each is
planted in the memory of a process of its own; no file changes. `python extras/proof/tests/closure/planted.py` plants
all of them, or those that parts of their units' names or of their own select, and fails if fewer than 95 % are noticed
or if the table is wrong about a survivor.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.extras.proof.engine.engines import Verdict
    from weft.extras.proof.hardware.property import Property

ROOT = Path(__file__).resolve().parents[4]
TABLE = Path(__file__).with_suffix(".toml")
NOTICED = 0.95
"""The part of the faults that properties of their own units notice, at least."""


@dataclass(frozen=True)
class Fault:
    """A substitution in a source.

    Attributes
    ----------
    name : str
        The fault, in words.
    unit : str
        As in `weft.extras.proof.hardware.property.Property.unit`: its properties are to notice the fault.
    file : str
        The source, below the root of the project.
    old, new : str
        `old` stands in the file exactly once.
    survives : str
        The reason why no property of the unit notices it; empty if one does.
    """

    name: str
    unit: str
    file: str
    old: str
    new: str
    survives: str = ""


@dataclass(frozen=True)
class Found:
    """Outcome of one fault.

    Attributes
    ----------
    noticed : str
        The name of the first property that is not proven any more, or empty.
    how : str
        How it fails, or why it is not known whether one does.
    """

    noticed: str
    how: str


class FaultError(ValueError):
    """A fault that cannot be planted: the table does not fit the sources."""


def faults(path: Path = TABLE) -> list[Fault]:
    return [Fault(**entry) for entry in tomllib.loads(path.read_text())["fault"]]


def substitute(fault: Fault) -> str:
    """The source with the fault.

    Raises `FaultError` if its old text does not stand there exactly once, or is the new one.
    """
    source = (ROOT / fault.file).read_text()
    count = source.count(fault.old)
    if count != 1 or fault.old == fault.new:
        raise FaultError(
            f"{fault.name!r}: its old text stands {count} times in {fault.file}, not once, or is its new text: "
            f"mend the fault in {TABLE.name}"
        )
    return source.replace(fault.old, fault.new)


def plant(fault: Fault) -> ModuleType:
    """Load the module with the fault, for all modules that this process imports later.

    Raises `FaultError`, also if the process has imported the module before.
    """
    source = substitute(fault)
    name = "weft." + fault.file.removesuffix(".py").replace("/", ".")
    parent = importlib.import_module(name.rpartition(".")[0])
    if name in sys.modules:
        raise FaultError(f"{fault.name!r}: {name} is loaded already, without the fault")
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != (ROOT / fault.file).resolve():
        raise FaultError(f"{fault.name!r}: {name} is not {ROOT / fault.file}, but {spec and spec.origin}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    setattr(parent, name.rpartition(".")[2], module)
    return module


def notice(items: Iterable[Property], seconds: float) -> Found:
    """Try to prove properties of a unit with a fault, each in about `seconds` at most, until one fails.

    The first cycles of all of them come first: a counterexample there is found sooner than the lack of a proof.
    """
    from weft.extras.proof.engine import engines, netlist
    from weft.extras.proof.hardware.property import Bounded

    def decide(item: Property, folder: Path, *, first: bool) -> Verdict:
        if not folder.exists():
            folder.mkdir()
            netlist.prepare(netlist.source(item.bench()), folder)
        method = item.method if isinstance(item.method, Bounded) or not first else Bounded(item.cover)
        return engines.decide(method, folder, seconds / 4 if first else seconds)

    undecided = []
    with tempfile.TemporaryDirectory(prefix="weft-") as temporary:
        listed = [(item, Path(temporary) / str(number)) for number, item in enumerate(items)]
        for first in (True, False):
            for item, folder in listed:
                verdict = decide(item, folder, first=first)
                if verdict.holds is False:
                    return Found(item.name, f"fails in cycle {verdict.frame}")
                if not first and verdict.how.startswith(engines.NO_INDUCTION):
                    return Found(item.name, verdict.how)
                if verdict.holds is None and not first:
                    undecided.append(item.name)
    return Found("", f"out of time: {', '.join(undecided)}" if undecided else "all properties hold")


def planted(fault: Fault, seconds: float) -> Found:
    """Plant a fault in this process, and try the properties of its unit."""
    plant(fault)
    from weft.extras.proof.boards import registry as boards
    from weft.extras.proof.hardware import registry as hdl

    items = [item for item in (*hdl.properties(), *boards.properties()) if item.unit == fault.unit]
    return notice(items, seconds) if items else Found("", "the unit has no properties")


def tried(fault: Fault, seconds: float) -> Found:
    """What a process of its own finds of a fault.

    Raises `FaultError` with the end of its output if it fails.
    """
    command = [sys.executable, __file__, "--one", fault.name, "--seconds", str(seconds)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise FaultError(f"{fault.name!r}: {process.stderr.strip()[-2000:]}")
    return Found(**json.loads(process.stdout))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", help="parts of names of units or of faults; all if not given")
    parser.add_argument("--seconds", type=float, default=60, help="time for each property (60)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Print a line for each fault, a line for each unit, and their sum."""
    arguments = _arguments()
    listed = faults()
    if arguments.one:
        (fault,) = (fault for fault in listed if fault.name == arguments.one)
        result = planted(fault, arguments.seconds)
        print(json.dumps({"noticed": result.noticed, "how": result.how}))
        return 0
    parts = arguments.part or [""]
    chosen = [fault for fault in listed if any(part in fault.unit or part in fault.name for part in parts)]
    for fault in chosen:
        substitute(fault)  # all problems of the table before the first proof
    counts, seen, wrong = Counter[str](), Counter[str](), 0
    for fault in chosen:
        counts[fault.unit] += 1
        try:
            result = tried(fault, arguments.seconds)
        except FaultError as error:
            print(error, file=sys.stderr, flush=True)
            wrong += 1
            continue
        seen[fault.unit] += bool(result.noticed)
        wrong += bool(result.noticed) == bool(fault.survives)
        outcome = (
            f"noticed by {result.noticed!r}, {result.how}" if result.noticed else f"SURVIVES: {result.how}"
        )
        print(f"{fault.unit}: {fault.name}: {outcome}", flush=True)
    for unit, count in counts.items():
        print(f"{unit}: {seen[unit]} of {count}")
    total = sum(seen.values())
    print(f"{total} of {len(chosen)} faults are noticed; {wrong} are not as {TABLE.name} says")
    return int(wrong > 0 or total < NOTICED * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
