"""Mutants of the golden interpreter and the compiler: ``make mutants-software COUNT=200``.

Cosmic Ray changes one operator, number or condition of a Python file (`closure.python_sites`), and tests that run the
line must fail (`closure.python_tests`). Each mutant has a process of its own, which imports the changed code; no file
is written. A test that fails on a mutant runs once more without it, and must pass. Equivalent mutants are listed in
``same.txt`` beside this file, in lines ``file: line of the file: operator at column | reason``; they are not counted.

Recording which test runs which line takes as long as the tests, once for given sources and tests. Verdicts are cached
as well, so that an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.machinery
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from closure import python_tests, sections
from closure.kept import Kept
from closure.python_sites import OPERATORS, Change, apply_change, draw_changes
from closure.python_tests import SECONDS, Recorded, Test, record
from support.forks import fork

from weft.hdl.cache import cache_root, entry
from weft.hdl.errors import WeftError

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"golden interpreter": "sim/golden", "compiler": "compiler"}
"""Mutated parts and their folders."""
TESTS = ("tests/compiler", "tests/sim/golden", "tests/sim/compiled", "tests/sim/test_timing.py")
SAME = Path(__file__).with_name("same.txt")
ENOUGH = 0.9
"""Share of mutants that tests must detect."""
BUILDS = ("compiled-", "timing-", "runtime-", "model-", "verilog-")
"""Cache entries that mutants of Python cannot change: each process finds them in its own cache."""

PATIENCE = 60
"""Processor seconds beyond four times the recorded duration after which tests count as hung; wall time has ten times as
many."""
LIBRARIES = ("amaranth.hdl", "numpy", "onnx", "onnxruntime", "pytest", "weft.hdl.isa")
"""Libraries that most tests import and no mutant changes, imported once before all mutants. Pytest's plugins are
excluded, because pytest imports them itself."""
MEMORY = 8 << 30
"""Bytes that a process with a mutant may use."""
_NO_ROOM = "failed to map segment"
"""Message of a shared library's import when memory is exhausted."""


class ControlError(WeftError, RuntimeError):
    """A test fails without any mutant."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of a mutant.

    Attributes
    ----------
    change : Change
    killed_by : str
        The failed test, or another reason; empty if the mutant survives.
    """

    change: Change
    killed_by: str


def run(part: str, count: int, seed: int, recorded: Recorded, jobs: int) -> Iterator[Verdict]:
    """Yield verdicts of `count` mutants of a part, in the order in which they end."""
    kept, waiting = _Verdicts(), []
    for change in draw_changes(ROOT, _files(PARTS[part]), count, seed):
        if (killed_by := kept.of(change)) is None:
            waiting.append(change)
        else:
            yield Verdict(change, killed_by)
    with tempfile.TemporaryDirectory(prefix="weft-mutants-", dir=cache_root()) as scratch:
        _share_builds(Path(scratch))
        for change, killed_by in _try_changes(waiting, recorded, Path(scratch), jobs):
            kept.add(change, killed_by)
            yield Verdict(change, killed_by)


def _files(folder: str) -> list[str]:
    """Return the files of a folder, or the file itself."""
    if folder.endswith(".py"):
        return [folder]
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py"))


def _share_builds(folder: Path) -> None:
    """Hard-link builds into a cache that mutants may write to."""
    for path in cache_root().iterdir():
        if path.name.startswith(BUILDS):
            shutil.copytree(path, folder / path.name, copy_function=os.link)


def _try_changes(
    changes: list[Change], recorded: Recorded, scratch: Path, jobs: int
) -> Iterator[tuple[Change, str]]:
    """Yield changes with what detected them. Raises `ControlError`."""
    waiting, running = list(reversed(changes)), dict[int, tuple[Change, int]]()
    passed: set[str] = set()
    while waiting or running:
        while waiting and len(running) < jobs:
            change = waiting.pop()
            if tests := recorded.tests(change.path, change.line):
                child, reader = _fork(change, tests, scratch)
                running[child] = change, reader
            else:
                yield change, ""
        if running:
            child, status = os.wait()
            change, reader = running.pop(child)
            said = _read_report(child, status, reader)
            if "::" in said and said not in passed:
                _control(said, scratch)
                passed.add(said)
            yield change, said


def _control(test: str, scratch: Path) -> None:
    """Raise `ControlError` unless a test passes without any change."""
    child, reader = _fork(None, [Test(test, SECONDS)], scratch)
    if said := _read_report(child, os.waitpid(child, 0)[1], reader):
        raise ControlError(f"{test} fails without a mutant, too ({said})")


def _read_report(child: int, status: int, reader: int) -> str:
    """Return the report of a child that ended, and end its remaining processes."""
    with os.fdopen(reader, "rb") as stream:
        said = stream.read().decode()
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return _verdict(status, said)


def _verdict(status: int, said: str) -> str:
    if not os.WIFSIGNALED(status):
        if status:
            raise ControlError(f"a mutant could not be tried: {said}")
        return said
    died = signal.Signals(os.WTERMSIG(status))
    return "tests do not end" if died in (signal.SIGALRM, signal.SIGPROF) else f"tests end with {died.name}"


def _fork(change: Change | None, tests: list[Test], scratch: Path) -> tuple[int, int]:
    """Fork a process that tries a change, or none; return it with the pipe for the failed test's name."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = fork()
    if child:
        os.close(writer)
        return child, reader
    code = 1
    try:
        os.close(reader)
        _be_alone(scratch, PATIENCE + 4 * sum(test.seconds for test in tests))
        if change:
            _install(change)
        os.write(writer, _first_failure([test.name for test in tests]).encode()[:4000])
        code = 0
    except BaseException as error:
        # pytest may not be able to report an endless value of a change.
        if isinstance(error, MemoryError) or _NO_ROOM in str(error):
            os.write(writer, b"tests take too much memory")
            code = 0
        else:
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:4000])
    finally:
        os._exit(code)


def _be_alone(scratch: Path, seconds: float) -> None:
    """Make this process a silent group of its own, within limits, with a cache of its own."""
    os.setpgrp()
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(int(10 * seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.environ |= {"WEFT_CACHE": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(ROOT)


def _first_failure(tests: list[str]) -> str:
    import pytest

    class Failures:
        first = ""

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                self.first = self.first or report.nodeid

    seen = Failures()
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[seen])
    if seen.first:
        return seen.first
    if code == pytest.ExitCode.OK:
        return ""
    return "tests cannot be imported" if code == pytest.ExitCode.INTERRUPTED else f"pytest ends with {code}"


def _install(change: Change) -> None:
    """Make imports of the file give the changed code. Raises `ControlError` if it was imported before."""
    path = str(ROOT / change.path)
    if any(getattr(module, "__file__", None) == path for module in list(sys.modules.values())):
        raise ControlError(f"{path} is imported already")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(apply_change(ROOT, change), path, "exec")
    before = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        return code if os.path.realpath(self.path) == path else before(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


class _Verdicts:
    """Verdicts of other runs. A detected mutant stays detected while its file and the test's file are unchanged; a
    survivor stays while all tests and their choice are unchanged."""

    def __init__(self) -> None:
        self._kept = Kept("software-mutants")
        tests = [ROOT / path for folder in TESTS for path in _files(folder)]
        self._tests = _digest(Path(python_tests.__file__), *tests)

    def of(self, change: Change) -> str | None:
        found = self._kept.verdicts.get(self._key(change))
        if found is None:
            return None
        killed_by, digest = found
        return killed_by if digest == self._depends(killed_by) else None

    def add(self, change: Change, killed_by: str) -> None:
        self._kept.add(self._key(change), (killed_by, self._depends(killed_by)))

    def _key(self, change: Change) -> tuple[Any, ...]:
        return _digest(ROOT / change.path), change.path, change.operator, change.occurrence

    def _depends(self, killed_by: str) -> str:
        file, called, _ = killed_by.partition("::")
        return _digest(ROOT / file) if called else self._tests


@cache
def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.exists())).hexdigest()[:24]


def same(change: Change, root: Path, reasons: dict[tuple[str, str, str], str]) -> bool:
    """Return whether a reason marks a mutant as equivalent."""
    whole = (root / change.path).read_text().splitlines()[change.line - 1]
    column = change.column - (len(whole) - len(whole.lstrip()))
    return (change.path, whole.strip(), f"{change.operator.removeprefix(OPERATORS)} at {column}") in reasons


def reasons(path: Path = SAME) -> dict[tuple[str, str, str], str]:
    """Read `SAME`: reasons by file, line and operator. Raises `ControlError` for a malformed line."""
    found = {}
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if not text or text.startswith("#"):
            continue
        what, _, why = text.rpartition(" | ")
        file, _, rest = what.partition(": ")
        line, _, operator = rest.rpartition(": ")
        if not (file and line and operator and why):
            raise ControlError(
                f"{path}, line {number}: {text!r} is not `file: line: operator at column | reason`"
            )
        found[file, line, operator] = why
    return found


def section(results: dict[str, list[Verdict]], count: int, seed: int) -> dict[str, Any]:
    """Return the section for the file of results."""
    rows = []
    for part, verdicts in results.items():
        killed, counted = _count(verdicts)
        share = f"{killed:,} of {counted:,} ({100 * killed / max(1, counted):.1f} %)"
        rows.append(
            [
                f"mutants of the {part} that its tests see",
                f"{share}; {len(verdicts) - counted:,} more mean the same",
            ]
        )
    return {"with": f"make mutants-software COUNT={count} SEED={seed}", "rows": rows}


def _count(verdicts: list[Verdict]) -> tuple[int, int]:
    """Count detected mutants and all that are not equivalent."""
    why = reasons()
    counted = [item for item in verdicts if item.killed_by or not same(item.change, ROOT, why)]
    return sum(bool(item.killed_by) for item in counted), len(counted)


def recorded_tests(folder: Path | None, jobs: int) -> Recorded:
    """Return the record of tests, made if there is none of these sources and tests. Raises `RecordError`."""
    if folder is None:
        files = [ROOT / path for folder in (*PARTS.values(), *TESTS) for path in _files(folder)]
        folder = entry(
            f"recorded-{_digest(*files)}", lambda target: record(ROOT, target, PARTS.values(), TESTS, jobs)
        )
    return Recorded(ROOT, folder)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, help="of each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=list(PARTS), help="only this one")
    parser.add_argument("--recorded", type=Path, help="a record of tests that is there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, help="put the results into this file")
    options = parser.parse_args()
    recorded, begin = recorded_tests(options.recorded, options.jobs), time.monotonic()
    for name in LIBRARIES:
        importlib.import_module(name)
    results: dict[str, list[Verdict]] = {}
    few, why = False, reasons()
    for part in [options.part] if options.part else list(PARTS):
        results[part] = verdicts = []
        for verdict in run(part, options.count, options.seed, recorded, options.jobs):
            verdicts.append(verdict)
            if not verdict.killed_by and not same(verdict.change, ROOT, why):
                print(f"survives: {verdict.change}", flush=True)
        killed, counted = _count(verdicts)
        few |= killed < ENOUGH * counted
        left = len(verdicts) - counted
        print(
            f"{part}, seed {options.seed}: {killed} of {counted} mutants are seen, {left} mean the same",
            flush=True,
        )
    print(f"{time.monotonic() - begin:.0f} s")
    if options.write:
        sections.write(options.write, "mutants_software", section(results, options.count, options.seed))
    return 1 if few else 0


if __name__ == "__main__":
    sys.exit(main())
