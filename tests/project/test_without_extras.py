"""The core without some or all extras: it starts, and its tests need none of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.extras import EXTRAS

from weft.hdl.extras import extras

ROOT = EXTRAS.parent
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows the project's files")
TITLES = {extra.package.rpartition(".")[2]: extra.title for extra in extras()}
ALL = pytest.param([*TITLES], id="all")
EACH = [pytest.param([name], id=name, marks=pytest.mark.long) for name in TITLES]
NOT_RUN = ("tests/sim/rtl", "tests/project/test_without_extras.py")
"""Tests of the Verilog alone, which take long, and this file, which would copy the copy."""


@pytest.fixture
def folder(missing: list[str], tmp_path: Path) -> Path:
    """Copy of the project without the folders of the missing extras. Links stay links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in map(Path, subprocess.check_output(command, cwd=ROOT, text=True).split("\0")[:-1]):
        source, target = ROOT / name, tmp_path / name
        removed = name.parts[0] == "extras" and name.parts[1] in missing
        if not removed and (source.is_symlink() or source.is_file()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return tmp_path


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy. The installed project's entry points still name all extras."""
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:xdist",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("missing", [ALL, *EACH])
def test_it_starts_and_its_tests_are_found(missing: list[str], folder: Path) -> None:
    process = python(folder, "-c", "import weft; print(weft.__file__)")
    assert (process.stdout, process.stderr) == (f"{folder / 'weft/__init__.py'}\n", "")
    process = python(folder, "-m", "weft", "--help")
    assert (process.returncode, process.stderr) == (0, "")
    shown = {name for name, title in TITLES.items() if f"─ {title} ─" in process.stdout}
    assert shown == TITLES.keys() - missing
    process = python(folder, "-m", "pytest", "--collect-only", "-q", "tests")
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr


@pytest.mark.long
@pytest.mark.parametrize("missing", [ALL, *EACH])
def test_its_tests_pass(missing: list[str], folder: Path) -> None:
    ignored = [f"--ignore={name}" for name in NOT_RUN]
    process = python(folder, "-m", "pytest", "-q", "-m", "not long", *ignored, "tests")
    assert process.returncode == 0, process.stdout[-20000:] + process.stderr
