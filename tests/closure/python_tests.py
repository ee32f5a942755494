"""Record of the tests that run each line of Python, made once by pytest-cov with a context for each test."""

from __future__ import annotations

import collections
import itertools
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from closure.python_sites import statement
from support import drawn_cases

from weft.hdl.errors import WeftError

DATA, RESULTS, SETTINGS = ".coverage", "results.xml", "settings"
SECONDS = 120.0
"""Recorded seconds of tests that are tried on a change."""
DEFINITIONS = ("tests/compiler/ir/test_operator_defaults.py",)
"""Tests of modules' definitions, which run none of their lines."""
MOST = 600
"""Tests that are tried on a change."""


class RecordError(WeftError, RuntimeError):
    """No recorded tests, or recorded from other sources."""


def record(root: Path, folder: Path, sources: Iterable[str], tests: Iterable[str], jobs: int) -> None:
    """Run `tests` and record in `folder` which lines of `sources` each test runs; both are folders below `root`.
    Raises `RecordError` if pytest fails to run; failing tests are left out later."""
    lines = "\n    ".join(str(root / source) for source in sources)
    settings = folder / SETTINGS
    settings.write_text(f"[run]\nparallel = true\ndata_file = {folder / DATA}\nsource = {lines}\n")
    command = [
        sys.executable, "-m", "pytest", *tests, "-m", "not long", "-n", str(jobs), "-q", "-p", "no:cacheprovider",
        "--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=", f"--junitxml={folder / RESULTS}",
    ]  # fmt: skip
    environment = os.environ | {drawn_cases.SEED: drawn_cases.ALL}
    code = subprocess.run(command, cwd=root, env=environment, check=False).returncode
    if code not in (0, 1):
        raise RecordError(f"pytest ends with {code}: {' '.join(command)}")


@dataclass(frozen=True)
class Test:
    """A test that passed when it was recorded.

    Attributes
    ----------
    name : str
        Test id of pytest.
    seconds : float
    """

    name: str
    seconds: float


class Recorded:
    """Contents of a folder written by `record`. Raises `RecordError` if there are none."""

    def __init__(self, root: Path, folder: Path) -> None:
        from coverage import CoverageData

        self._root = root
        self._data = CoverageData(str(folder / DATA))
        self._data.read()
        if not self._data.measured_files():
            raise RecordError(f"{folder} has no record of tests")
        self._tests = {test.name: test for test in _passed_tests(root, folder / RESULTS)}
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests(self, path: str, line: int) -> list[Test]:
        """Return tests that run a line of a file, within `SECONDS` and `MOST`, nearest and quickest first, from all
        files in turn.  Tests of the file itself come first, then tests of its folder. Lines that run only at import
        belong to all tests of that file and to `DEFINITIONS`."""
        lines = self._lines_of(path)
        around = statement((self._root / path).read_text(), line)
        names = {name for at in around for name in lines.get(at, ()) if name}
        if not names:
            names = {name for found in lines.values() for name in found if name}
            names |= {name for name in self._tests if name.partition("::")[0] in DEFINITIONS}
        found, spent = [], 0.0
        near = sorted(
            _in_turn([self._tests[name] for name in names if name in self._tests]),
            key=lambda test: distance(path, test.name),
        )
        for test in near:
            if spent + test.seconds <= SECONDS and len(found) < MOST:
                found.append(test)
                spent += test.seconds
        return found

    def _lines_of(self, path: str) -> dict[int, list[str]]:
        """Return the names of tests by line; a fixture's lines belong to the test that it was set up for."""
        if path not in self._lines:
            contexts = self._data.contexts_by_lineno(str(self._root / path))
            self._lines[path] = {
                line: [name.partition("|")[0] for name in names] for line, names in contexts.items()
            }
        return self._lines[path]


def distance(path: str, test: str) -> int:
    """Return 0 for a test in the file that mirrors `path`, 1 for one in its folder, 2 for any other."""
    mirror, file = "tests" / Path(path), Path(test.partition("::")[0])
    return 2 if file.parent != mirror.parent else int(file.stem != f"test_{mirror.stem}")


def _in_turn(tests: list[Test]) -> Iterator[Test]:
    """Return the quickest test of each file, then the second of each, and so on."""
    by_file = collections.defaultdict(list)
    for test in sorted(tests, key=lambda test: (test.seconds, test.name)):
        by_file[test.name.partition("::")[0]].append(test)
    rounds = itertools.zip_longest(*sorted(by_file.values(), key=lambda found: found[0].seconds))
    yield from (test for found in rounds for test in found if test)


def _passed_tests(root: Path, path: Path) -> Iterator[Test]:
    for case in ElementTree.parse(path).iter("testcase"):
        if not any(child.tag in ("failure", "error", "skipped") for child in case):
            yield Test(_name(root, case.attrib["classname"], case.attrib["name"]), float(case.attrib["time"]))


def _name(root: Path, module: str, name: str) -> str:
    """Return pytest's id of a test, whose results have the dotted name of file and classes."""
    words = module.split(".")
    for count in range(len(words), 0, -1):
        if (root / "/".join(words[:count])).with_suffix(".py").exists():
            return "::".join(["/".join(words[:count]) + ".py", *words[count:], name])
    raise RecordError(f"there is no file of the test {module}.{name}")
