"""The documentation: Python runs, commands print the shown output, links and anchors exist."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import float_nets, tflite_networks
from support.extras import EXTRAS, contributions

import weft
from weft.examples import digits

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page
    for folder in (ROOT, ROOT / "docs", ROOT / "docs" / "reference", *sorted(EXTRAS.iterdir()))
    for page in sorted(folder.glob("*.md"))
}
RUN = (
    "docs/core.md",
    "docs/machine.md",
    "docs/compiling.md",
    "docs/quantising.md",
    "docs/attention.md",
    "docs/extending.md",
    "docs/tflite.md",
    "docs/boards.md",
)
"""Pages of the core whose examples run. Those of extras run on all of their pages."""
FENCE = re.compile(r"(<!-- not run -->\n)?^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(kind, text) for skip, kind, text in FENCE.findall(page.read_text()) if not skip]


def shell(command: str, folder: Path) -> list[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, f"{command}\n{process.stdout}{process.stderr}"
    return [" ".join(line.split()) for line in process.stdout.splitlines()]


def agree(expected: list[str], printed: list[str]) -> bool:
    """Compare lines: a line ``...`` matches any lines, and ``...`` inside a line any text."""
    if not expected:
        return not printed
    if expected[0] == "...":
        return any(agree(expected[1:], printed[start:]) for start in range(len(printed) + 1))
    pattern = expected[0].replace("[", "[[]").replace("...", "*")
    return bool(printed) and fnmatch.fnmatchcase(printed[0], pattern) and agree(expected[1:], printed[1:])


def session(text: str) -> list[tuple[str, list[str]]]:
    """Return commands, each with the lines of its output; runs of blanks count as one."""
    runs: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            runs.append((line[2:], []))
        else:
            runs[-1][1].append(" ".join(line.split()))
    return runs


@pytest.mark.parametrize(
    "name", [*RUN, *(name for name in PAGES if name.startswith("extras/") and blocks(PAGES[name]))]
)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name not in ("docs/compiling.md", "docs/core.md"):  # their examples write it
        Path("digits.onnx").write_bytes(digits.model())
    if name == "docs/tflite.md":
        Path("network.tflite").write_bytes(tflite_networks.convolutions())
        np.save("input.npy", np.zeros((1, 9, 8, 3), np.int8))
    if name == "docs/quantising.md":
        onnx.save(float_nets.residual(batch="batch"), "network.onnx")
        np.savez("samples.npz", **float_nets.samples(float_nets.residual(), 64))
    for extra in contributions("page_files"):
        extra.write_files(name)
    names: dict[str, object] = {}
    examples = blocks(PAGES[name])
    assert examples
    for block in examples:
        if block.kind == "python":
            exec(compile(block.text, name, "exec"), names)
            continue
        for command, expected in session(block.text):
            printed = shell(command, tmp_path)
            assert agree(expected, printed), f"{command}\n" + "\n".join(printed)


def heading_anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_code(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def is_in_missing_extra(path: Path) -> bool:
    try:
        folder, *_ = path.resolve().relative_to(EXTRAS).parts
    except ValueError:
        return False
    return not (EXTRAS / folder).exists()


@pytest.mark.parametrize("name", PAGES)
def test_links(name: str) -> None:
    page = PAGES[name]
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", without_code(page)):
        if "://" in target:
            continue
        linked = page.parent / target if target else page
        if is_in_missing_extra(linked):
            continue
        assert linked.exists(), f"{name} links to {target}"
        assert not anchor or anchor in heading_anchors(linked), f"{name} links to {target}#{anchor}"


def test_each_extra_has_a_page_that_the_map_links() -> None:
    extras = {path.parent.name for path in EXTRAS.glob("*/__init__.py")}
    map_of_all = (ROOT / "README.md").read_text(), (ROOT / "docs" / "core.md").read_text()
    for extra in extras:
        for text in map_of_all:
            assert f"extras/{extra}/README.md" in text, extra


def test_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (.*)$", PAGES["CHANGELOG.md"].read_text(), re.MULTILINE)
    assert headings[0] in (weft.__version__, "Unreleased")
    assert weft.__version__ in headings


def test_ellipses() -> None:
    assert agree(["a", "...", "d ... f"], ["a", "b", "c", "d e f"])
    assert agree(["...", "[x]"], ["[x]"])
    assert not agree(["a", "...", "d"], ["a", "b"])
    assert not agree(["a"], ["a", "b"])


def test_reference_pages_say_what_the_code_says() -> None:
    process = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
