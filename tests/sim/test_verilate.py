"""Compilers and Verilator: what is wrong with them is said, and nothing that they do outlives the build."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.sim import verilate
from weft.sim.timing.library import library
from weft.sim.verilate import BuildError, Model, Tools, compiler


def script(path: Path, *lines: str) -> Path:
    """A program of the shell."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have `lines` run in place of g++; ``$target`` is what it is to make."""
    find = 'while [ "$1" != -o ]; do shift; done; target=$2'
    script(folder / "bin" / "g++", find, *lines)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("own", "command"),
    [("", ["g++"]), ("g++", ["g++"]), ("sh -c", ["sh", "-c"]), (sys.executable, [sys.executable])],
)
def test_compiler(monkeypatch: pytest.MonkeyPatch, own: str, command: list[str]) -> None:
    monkeypatch.setenv("CXX", own)
    monkeypatch.setattr(verilate.shutil, "which", lambda name: f"/bin/{name}")
    assert compiler() == command


@pytest.mark.parametrize("own", ["no-such-compiler", "no-such-compiler -O2", " ", "g++ 'x", "/"])
def test_a_compiler_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    monkeypatch.setenv("CXX", own)
    with pytest.raises(BuildError) as caught:
        compiler()
    assert str(caught.value) == f"CXX is {own!r}, which is no program: set it to a C++ compiler, or unset it"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        BuildError, match=r"^no C\+\+ compiler found: install g\+\+ or clang\+\+, or set CXX$"
    ):
        compiler()


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ("true", r"true made no out\.so: set CXX to a C\+\+ compiler, or unset it"),
        ("false", r"false failed with 1"),
        ("sh -c 'echo no such option; exit 3'", r"sh failed:\nno such option"),
        ("{folder}/odd", r"cannot run .*odd: Exec format error"),
    ],
)
def test_a_compiler_that_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, sentence: str
) -> None:
    (tmp_path / "odd").write_bytes(b"\x7fELF")
    (tmp_path / "odd").chmod(0o755)
    monkeypatch.setenv("CXX", own.format(folder=tmp_path))
    with pytest.raises(BuildError, match=rf"^{sentence}$"):
        Tools(tmp_path).link(["a.o"], "out.so")


def test_when_one_compiler_fails_the_others_are_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake(tmp_path, monkeypatch, "case $target in *bad.o) exit 1;; esac", "exec sleep 60")
    start = time.monotonic()
    with pytest.raises(BuildError, match=r"^g\+\+ failed with 1$"):
        Tools(tmp_path).compile([(Path(f"{name}.cpp"), "-O0") for name in ("a", "bad", "b", "c")], [])
    assert time.monotonic() - start < 10


_BUILD = """
import signal, sys
from weft.hdl.cache import entry
from weft.sim.verilate import Tools
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
entry("build", lambda folder: Tools(folder).{})
"""


def is_running(number: int) -> bool:
    """Return whether there is a running process of this number."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("step", ['compile([(folder / "a.cpp", "-O2")], [])', 'link([], "a.so")'])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_an_interrupted_build_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals, code: int, step: str
) -> None:
    """Like g++, the compiler has a file in TMPDIR and a child that computes: only Python gets the signal."""
    lines = ["mktemp", f"sleep 60 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid", "wait"]
    fake(tmp_path, monkeypatch, *lines)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    process = subprocess.Popen([sys.executable, "-c", _BUILD.format(step)], stderr=subprocess.PIPE)
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.02)
    assert list((tmp_path / "cache").glob("part-*"))
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code
    assert not list((tmp_path / "cache").iterdir())
    assert not list((tmp_path / "temporary").iterdir())
    assert not is_running(int((tmp_path / "pid").read_text()))


_COUNT = """
from weft.sim.timing.library import library
print(library().weft_timing_tokens.restype.__name__)
"""


@pytest.mark.parametrize("damage", ["truncated", "deleted", "empty"])
def test_a_damaged_cycle_model_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    """In a process of its own, because loading half a library ends it."""
    good = Path(library()._name)
    fake(tmp_path, monkeypatch, "echo built >> " + str(tmp_path / "log"), f"cp {good} $target")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        subprocess.run([sys.executable, "-c", _COUNT], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "log").read_text().split() == ["built"] * 3  # two files compiled, and linked, once
    (made,) = (tmp_path / "cache").glob("timing-*/timing.so")
    if damage == "deleted":
        made.unlink()
    else:
        os.truncate(made, 5000 if damage == "truncated" else 0)
    subprocess.run([sys.executable, "-c", _COUNT], check=True, stdout=subprocess.DEVNULL)
    assert made.read_bytes() == good.read_bytes()


def test_a_damaged_model_is_built_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(tmp_path, monkeypatch, "echo $target | tee -a " + str(tmp_path / "log") + " > $target")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    driver = tmp_path / "driver.cpp"
    driver.write_text("")

    def made(comment: str = "") -> Path:
        verilog = f"{comment}module top(input clk, output reg q); always @(posedge clk) q <= !q; endmodule\n"
        return Model(verilog=verilog, top="top", driver=driver, output="model.so").build()

    path = made()
    assert path == made() == made("// A comment of a unit.\n")
    assert path.read_text() == "model.so\n"
    path.write_text("")
    assert made().read_text() == "model.so\n"
    assert (tmp_path / "log").read_text().split().count("model.so") == 2
    assert {item.name for item in path.parent.iterdir()} == {"model.so", "contents.txt"}
