"""The documentation: its Python runs, its commands print what it says, its links lead somewhere."""

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
from support import float_nets, language_models, onnx_decoders, tflite_networks

from weft.examples import digits

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
RUN = [
    ROOT / "docs" / name
    for name in (
        "machine.md",
        "compiling.md",
        "quantising.md",
        "attention.md",
        "extending.md",
        "tflite.md",
        "mlir.md",
        "boards.md",
        "language.md",
        "assurance.md",
        "exploring.md",
        "training.md",
    )
]
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
    """Whether lines are as expected: ``...`` alone stands for any lines, inside a line for any text."""
    if not expected:
        return not printed
    if expected[0] == "...":
        return any(agree(expected[1:], printed[start:]) for start in range(len(printed) + 1))
    pattern = expected[0].replace("[", "[[]").replace("...", "*")
    return bool(printed) and fnmatch.fnmatchcase(printed[0], pattern) and agree(expected[1:], printed[1:])


def session(text: str) -> list[tuple[str, list[str]]]:
    """Commands, each with the lines that follow it; runs of blanks count as one."""
    runs: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            runs.append((line[2:], []))
        else:
            runs[-1][1].append(" ".join(line.split()))
    return runs


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page.name != "compiling.md":  # which puts it there itself
        Path("digits.onnx").write_bytes(digits.model())
    if page.name == "tflite.md":
        Path("network.tflite").write_bytes(tflite_networks.convolutions())
        np.save("input.npy", np.zeros((1, 9, 8, 3), np.int8))
    if page.name == "language.md":
        made = language_models.write_random(Path("model.gguf"), np.random.default_rng(0))
        form = onnx_decoders.Form(style="plain")
        onnx_decoders.write(Path("exported"), made, form, np.random.default_rng(0))
    if page.name == "quantising.md":
        onnx.save(float_nets.residual(batch="batch"), "network.onnx")
        np.savez("samples.npz", **float_nets.samples(float_nets.residual(), 64))
    names: dict[str, object] = {}
    found = blocks(page)
    assert found
    for block in found:
        if block.kind == "python":
            exec(compile(block.text, str(page), "exec"), names)
            continue
        for command, expected in session(block.text):
            printed = shell(command, tmp_path)
            assert agree(expected, printed), f"{command}\n" + "\n".join(printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    written = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)  # code has no links
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", written):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


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
