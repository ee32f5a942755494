"""The long regression with a time budget: ``make regression MINUTES=60``, or ``pytest -m long --budget-minutes 60``.

No test begins after the time is over. Passed tests are recorded under a digest of all sources, and do not run again
before a source changes: an interrupted or timed-out regression resumes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

OPTION = "--budget-minutes"
SOURCES = (
    "hdl",
    "compiler",
    "sim",
    "boards",
    "extras",
    "weft",
    "examples",
    "benchmarks",
    "tests",
    "docs",
    "requirements",
)
"""Folders that tests depend on, beside `SINGLE` files."""
SINGLE = ("pyproject.toml", "Makefile", "README.md")
_TOGETHER = 8
"""Neighbouring tests of a file that stay together, because they share the file's fixtures."""
_OUT_OF_TIME = "out of time"


def digest(root: Path) -> str:
    """Return a digest of all that tests depend on below `root`."""
    found = hashlib.sha256()
    files = [path for name in SOURCES for path in (root / name).rglob("*") if path.is_file()]
    for path in sorted([*files, *(root / name for name in SINGLE if (root / name).exists())]):
        if "__pycache__" not in path.parts and "build" not in path.relative_to(root).parts:
            found.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:24]


class LongTests:
    """Plugin of a session with a time budget.

    Parameters
    ----------
    record : Path
        File with the names of tests that passed on these sources, one a line. Records of other sources beside it are
        removed.
    minutes : float
        0 for no limit.
    """

    def __init__(self, record: Path, minutes: float) -> None:
        self.record = record
        self.deadline = time.monotonic() + 60 * minutes if minutes else None
        record.parent.mkdir(parents=True, exist_ok=True)
        for old in record.parent.glob("*.txt"):
            if old != record:
                old.unlink(missing_ok=True)
        self.before = set(record.read_text().splitlines()) if record.exists() else set()
        self.passed = self.failed = self.not_run = 0
        self._ran: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        known = [item for item in items if item.nodeid in self.before]
        config.hook.pytest_deselected(items=known)
        items[:] = spread([item for item in items if item.nodeid not in self.before])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            pytest.skip(_OUT_OF_TIME)

    def count(self, report: pytest.TestReport) -> None:
        """Count each report once, in the process that has the terminal."""
        if report.failed:
            self.failed += 1
        elif report.skipped and _OUT_OF_TIME in str(report.longrepr):
            self.not_run += 1
        elif report.when == "call" and report.passed:
            self._ran.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid in self._ran:
            self.passed += 1
            with self.record.open("a") as record:
                record.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.before:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = f"{self.passed:,} passed and {self.failed:,} failed, {len(self.before):,} had passed before"
        line += " on these sources"
        if self.not_run:
            line += (
                f"; {self.not_run:,} were not run, as the time was over: the same command goes on with them"
            )
        terminalreporter.write_line(line)


class Reports:
    """Counts for `LongTests`; registered where there is a terminal, and not in worker processes."""

    def __init__(self, tests: LongTests) -> None:
        self.tests = tests

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests.count(report)


def spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order tests by names alone, so that every part of the regression gets its share of the time; neighbours in a file
    stay together in small groups."""
    return [item for group in sorted(_groups(items), key=_place) for item in group]


def _groups(items: list[pytest.Item]) -> Iterator[list[pytest.Item]]:
    for _, found in groupby(items, key=lambda item: item.nodeid.split("::")[0]):
        of_file = list(found)
        yield from (of_file[at : at + _TOGETHER] for at in range(0, len(of_file), _TOGETHER))


def _place(group: list[pytest.Item]) -> str:
    return hashlib.sha256(group[0].nodeid.encode()).hexdigest()


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION,
        type=float,
        metavar="MINUTES",
        help="begin no test behind so many minutes (0: no limit), and leave out what has passed on these sources",
    )


def configure(config: pytest.Config, root: Path) -> None:
    """Register the plugin if its option is given."""
    minutes = config.getoption(OPTION)
    if minutes is None:
        return
    if not 0 <= minutes < float("inf"):
        raise pytest.UsageError(f"{OPTION} is {minutes:g}, but minutes are 0 (no limit) or more")
    tests = LongTests(root / ".pytest_cache" / "long" / f"{digest(root)}.txt", minutes)
    config.pluginmanager.register(tests, "long_tests")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reports(tests), "long_tests_reports")
