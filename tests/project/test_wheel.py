"""The wheel: it holds every file of the package, and works from a clean environment in another folder."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest

from weft import __version__
from weft.hdl.extras import providers

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("hdl", "compiler", "sim", "boards", "examples", "extras")
DATA = {".py", ".cpp", ".h", ".vlt", ".onnx", ".gguf", ".txt", ".npz", ".json", ".v", ".typed"}


def call(*command: str | Path, cwd: Path) -> str:
    process = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the sources, so that what lies around in a checkout cannot help."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    for room in ("weft", *ROOMS):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, tree / room, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    # Without isolation the pinned setuptools builds, and nothing is downloaded.
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    call(*pip, "--wheel-dir", folder, tree, cwd=folder)
    return next(folder.glob("weft-*.whl"))


@pytest.fixture(scope="module")
def weft(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``weft`` command of an environment that has the wheel, and this one's dependencies but not its weft."""
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", folder, cwd=folder)
    call(
        folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder
    )
    site = Path(
        call(
            folder / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
        )[:-1]
    )
    # A .pth file found this way is not followed, so the editable weft of this environment stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = call(folder / "bin/python", "-c", "import weft.hdl; print(weft.hdl.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(site)
    return folder / "bin/weft"


def test_the_wheel_holds_every_file_of_the_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    expected = {
        (folder / path.relative_to(folder.resolve())).relative_to(ROOT).as_posix()
        for folder in (ROOT / "weft", *(ROOT / "weft" / room for room in ROOMS))
        for path in folder.resolve().rglob("*")
        if path.suffix in DATA and not {"__pycache__", "benchmarks", "tests"} & set(path.parts)
    }
    assert held == expected
    assert licences


def test_the_installed_command_works_elsewhere(weft: Path, tmp_path: Path) -> None:
    assert "compile" in call(weft, "--help", cwd=tmp_path)
    model = call(
        weft.parent / "python",
        "-c",
        "from weft.examples import digits; print(digits.__path__[0])",
        cwd=tmp_path,
    )
    call(
        weft,
        "compile",
        Path(model.strip()) / "digits.onnx",
        "-o",
        "program",
        "--config",
        "small",
        cwd=tmp_path,
    )
    np.savez(tmp_path / "in.npz", image=np.zeros((1, 1, 8, 8), np.float32))
    call(weft, "run", "program", "--input", "in.npz", "--output", "out.npz", cwd=tmp_path)
    with np.load(tmp_path / "out.npz") as outputs:
        assert outputs["logits"].shape == (1, 10)


TYPED = """
import weft
from weft import CompileError, Config

program: weft.Program = weft.compile("model.onnx", config=Config(n=8))
cycles: int = weft.check("model.onnx")
try:
    reveal_type(program.run({}))
except CompileError as error:
    reveal_type(error)
"""


def test_type_checkers_see_the_installed_package(weft: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(TYPED)
    mypy = [
        sys.executable,
        "-m",
        "mypy",
        "--python-executable",
        weft.parent / "python",
        "--follow-imports=silent",
    ]
    process = subprocess.run(
        [*map(str, mypy), "--cache-dir", str(tmp_path / "cache"), "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line.split(": ", 1)[1] for line in process.stdout.splitlines()[:-1]]
    assert said == [
        'error: Incompatible types in assignment (expression has type "Check", '
        'variable has type "int")  [assignment]',
        'note: Revealed type is "weft.run.program.Result"',
        'note: Revealed type is "weft.compiler.errors.CompileError"',
    ]


def test_the_module_and_the_examples_work_elsewhere(weft: Path, tmp_path: Path) -> None:
    assert call(weft.parent / "python", "-m", "weft", "--version", cwd=tmp_path).startswith("weft ")
    for name in ("digits", "attention"):
        call(weft, "example", name, "-o", name, cwd=tmp_path)
        assert (tmp_path / name / f"{name}.onnx").stat().st_size > 10_000
    for model, _ in (load() for load in providers("load an example language model")):
        call(weft, "example", "llm", cwd=tmp_path)
        assert (tmp_path / "model.gguf").read_bytes() == model


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Version"] == __version__
    classifiers = metadata.get_all("Classifier") or []
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(classifiers)
    assert "FPGA" in (metadata["Keywords"] or "")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert not any(item.startswith("License ::") for item in classifiers)  # not together with the expression
