"""The time budget of the long regression, on a small folder of tests in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import long_tests

TESTS = """
import time
import pytest

@pytest.mark.parametrize("number", range(20))
def test_passes(number):
    pass

def test_fails():
    assert False

@pytest.fixture
def breaks():
    yield
    raise RuntimeError("behind the test")

def test_leaves_a_mess(breaks):
    pass
"""
SLOW = "import os, time\n" + "".join(
    f"\ndef test_{n}(): time.sleep(float(os.environ['SECONDS']))\n" for n in range(30)
)
CONFTEST = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support import long_tests

def pytest_addoption(parser):
    long_tests.add_option(parser)

def pytest_configure(config):
    long_tests.configure(config, Path(__file__).parent.parent)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    return tmp_path


def run(project: Path, *options: str) -> tuple[int, str]:
    """Run pytest without this session's environment; return exit code and output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests", *options]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.drawn(1)
@pytest.mark.parametrize("processes", ["0", "2"])
def test_passed_tests_do_not_run_again(project: Path, processes: str) -> None:
    options = ("--budget-minutes", "0", "-n", processes)
    code, first = run(project, *options)
    assert code == 1
    assert "20 passed and 2 failed, 0 had passed before on these sources" in first
    code, second = run(project, *options)
    assert code == 1
    # That test passes, but its teardown fails.
    assert "0 passed and 2 failed, 20 had passed before on these sources" in second
    whole = TESTS.replace("assert False", "pass").replace("    raise", "    return; raise")
    (project / "tests" / "test_some.py").write_text(whole)
    code, third = run(project, *options)
    assert code == 0
    assert "22 passed and 0 failed, 0 had passed before" in third
    code, fourth = run(project, *options)
    assert code == 0
    assert "0 passed and 0 failed, 22 had passed before" in fourth
    assert len(list((project / ".pytest_cache" / "long").iterdir())) == 1


def test_no_test_begins_after_the_time_is_over(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "tests" / "test_some.py").write_text(SLOW)
    monkeypatch.setenv("SECONDS", "0.4")
    code, output = run(project, "--budget-minutes", "0.02")
    assert code == 0
    last = next(line for line in output.splitlines() if "passed and" in line)
    ran, left = int(last.split()[0]), int(last.split(";")[1].split()[0])
    assert 0 < ran < 30
    assert ran + left == 30
    monkeypatch.setenv("SECONDS", "0")
    code, output = run(project, "--budget-minutes", "0")
    assert f"{left} passed and 0 failed, {ran} had passed before" in output


def test_without_the_option_all_run(project: Path) -> None:
    assert run(project, "--budget-minutes", "0")[0] == 1
    code, output = run(project)
    assert code == 1
    assert "1 failed, 21 passed, 1 error" in output


@pytest.mark.parametrize("minutes", [-1, float("inf"), float("nan")])
def test_invalid_minutes_are_refused(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    monkeypatch.setattr(pytestconfig.option, "budget_minutes", minutes)
    with pytest.raises(pytest.UsageError, match=f"--budget-minutes is {minutes:g}, but minutes are 0"):
        long_tests.configure(pytestconfig, Path("/nowhere"))


def test_digest_depends_on_every_source(tmp_path: Path) -> None:
    """Contents and names of files in every folder that tests depend on."""
    seen = {long_tests.digest(tmp_path)}
    for number, name in enumerate(long_tests.SOURCES):
        path = tmp_path / name / "deep" / "file.json"
        path.parent.mkdir(parents=True)
        for change in ("", "1", "2"):
            path.write_text(change)
            seen.add(long_tests.digest(tmp_path))
        path.rename(path.with_name("other.json"))
        seen.add(long_tests.digest(tmp_path))
        assert len(seen) == 1 + 4 * (number + 1)
    (tmp_path / "hdl" / "__pycache__").mkdir()
    (tmp_path / "hdl" / "__pycache__" / "a.pyc").write_text("")
    assert long_tests.digest(tmp_path) in seen
