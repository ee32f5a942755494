"""Diffs and new files that docs/extending.md shows.  A new file is a Python block whose first line is a comment with
the file's path."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


def read_block(path: str) -> str:
    """Return the text of the file `path`, as the page shows it."""
    found = re.search(rf"^```python\n(# {re.escape(path)}\n.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert found, f"{PAGE.name} shows no {path}"
    return found[1]


def copy_sources(folder: Path) -> Path:
    """Copy the package's sources below `folder`, to be changed. Returns the value of PYTHONPATH."""
    root = PAGE.parents[1]
    for room in ("hdl", "compiler", "sim", "boards", "examples", "extras", "weft", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / room, folder / room, symlinks=True, ignore=ignored)
    shutil.copy(root / "conftest.py", folder)
    package = folder / "path" / "weft"
    package.parent.mkdir()
    package.symlink_to(folder / "weft")
    return package.parent


def apply_diffs(folder: Path, heading: str) -> None:
    """Apply the diffs in a section of the page to files below `folder`."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^```diff\n(.*?)^```$", section, re.M | re.S)
    assert found, f"{PAGE.name} shows no change in {heading!r}"
    for text in found:
        # Paths and contexts must match exactly; hunks may have moved.
        command = ["git", "apply", "--unidiff-zero", "--recount", "-C1", "-"]
        subprocess.run(command, input=text, cwd=folder, text=True, check=True)


def write_file(folder: Path, path: str) -> Path:
    """Write the file `path` below `folder`, as the page shows it."""
    target = folder / path
    target.write_text(read_block(path))
    return target


def run_tests(folder: Path, path: Path, *tests: Path) -> None:
    """Run test files on the copy of the sources in `folder`; `path` is the value that `copy_sources` returned."""
    search = os.pathsep.join([str(path), str(folder / "tests")])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *map(str, tests),
    ]
    environment = os.environ | {"PYTHONPATH": search, "PYTEST_ADDOPTS": ""}
    process = subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
