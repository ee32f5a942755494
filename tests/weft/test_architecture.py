"""The import arrows between the four rooms, checked from the sources."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from weft.compiler.ir.graph import IrError
from weft.hdl.errors import WeftError

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("hdl", "compiler", "sim", "boards")
ALLOWED = {
    "hdl": ("weft.hdl",),
    "compiler": ("weft.compiler", "weft.hdl.checker", "weft.hdl.errors", "weft.hdl.files", "weft.hdl.isa"),
    "sim": ("weft.sim", "weft.hdl"),
    "boards": ("weft.boards", "weft.hdl", "weft.sim.device", "weft.sim.sdram", "weft.sim.spi_flash"),
}
"""What a room may import of ours."""
SOURCES = [path for room in (*ROOMS, "weft") for path in sorted((ROOT / room).rglob("*.py"))]


def imports(text: str, package: str = "") -> set[str]:
    """Full names that a source imports anywhere in it; ``from x import y`` counts as ``x.y``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def package_of(path: Path) -> str:
    """The dotted name of the package that a source belongs to."""
    parts = path.relative_to(ROOT).parent.parts
    return ".".join(parts if parts[0] == "weft" else ("weft", *parts))


def within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows(path: Path) -> None:
    names = imports(path.read_text(), package_of(path))
    room = path.relative_to(ROOT).parts[0]
    bare = {name for name in names if name.split(".")[0] in ROOMS}
    assert not bare, f"{path}: import {bare} through weft"
    assert not {name for name in names if name.split(".")[0] == "tests"}, f"{path} imports tests"
    if room in ALLOWED:
        wrong = {name for name in names if within(name, ("weft",)) and not within(name, ALLOWED[room])}
        assert not wrong, f"{room} may not import {wrong}"


def group_of(path: Path) -> str:
    """The folder of a room that a source is in, or its own name where it is in none."""
    inside = path.relative_to(ROOT).parts[1:]
    return inside[0] if len(inside) > 1 else path.stem


@pytest.mark.parametrize("room", ["hdl", "compiler", "sim"])
def test_folders_of_a_room_have_no_cycle(room: str) -> None:
    paths = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == room]
    groups = {group_of(path) for path in paths}
    graph: dict[str, set[str]] = {group: set() for group in groups}
    for path in paths:
        for name in imports(path.read_text(), package_of(path)):
            parts = name.split(".")
            if parts[:2] == ["weft", room] and len(parts) > 2 and parts[2] in groups - {group_of(path)}:
                graph[group_of(path)].add(parts[2])
    assert len(graph) > 5
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_onnx_ends_at_our_network() -> None:
    """The reader knows ONNX's files, and what evaluates operators on the host writes models for others to run."""
    paths = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "compiler"]
    found = {path for path in paths if any(within(name, ("onnx",)) for name in imports(path.read_text()))}
    host = {
        ROOT / f"compiler/host/{name}.py"
        for name in ("evaluate", "exact_products", "onnx_model", "reference")
    }
    assert found == {ROOT / "compiler/onnx/reader.py", *host}


_LOADS_ONNX_RUNTIME = re.compile(r"^(?:import|from) onnxruntime\b", re.MULTILINE)


def test_telemetry_is_off_before_onnx_runtime_is_loaded() -> None:
    """`weft` imports it inside functions, when its own switch is set; scripts that start without `weft` set theirs."""
    assert not [path for path in SOURCES if _LOADS_ONNX_RUNTIME.search(path.read_text())]
    scripts = [path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    loads = {path: parts for path in scripts if len(parts := _LOADS_ONNX_RUNTIME.split(path.read_text())) > 1}
    assert loads
    for path, (before, *_) in loads.items():
        assert "ORT_DISABLE_TELEMETRY" in before, path


def test_tests_import_rooms_through_weft() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        bare = {name for name in imports(path.read_text()) if name.split(".")[0] in ROOMS}
        assert not bare, f"{path}: import {bare} through weft"


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_every_package_is_in_the_wheel() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = set()
    for name, folder in setup["package-dir"].items():
        for path in (ROOT / folder).rglob("__init__.py"):
            packages.add(".".join((name, *path.parent.relative_to(ROOT / folder).parts)))
    assert packages == set(setup["packages"])


def exceptions(path: Path) -> list[type[BaseException]]:
    """The exceptions that a source defines."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    names = [
        node.name
        for node in classes
        if any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    ]
    module = importlib.import_module(f"{package_of(path)}.{path.stem}") if names else None
    return [getattr(module, name) for name in names]


def test_errors_have_one_base_class_and_one_exit_code() -> None:
    found = {item for path in SOURCES for item in exceptions(path)} - {IrError}
    assert len(found) > 12
    for error in found:
        assert issubclass(error, WeftError), f"{error} does not derive from WeftError"
        kinds = [issubclass(error, kind) for kind in (ValueError, RuntimeError)]
        assert error is WeftError or sum(kinds) == 1, f"{error} is no ValueError or RuntimeError, or is both"


@pytest.mark.parametrize(
    ("text", "package", "names"),
    [
        ("import weft.hdl.isa, os", "weft.sim", {"weft.hdl.isa", "os"}),
        ("def f():\n  from weft.hdl import isa as i", "weft.sim", {"weft.hdl.isa"}),
        ("from . import a\nfrom .b import c\nfrom ..hdl.isa import d", "weft.sim",
         {"weft.sim.a", "weft.sim.b.c", "weft.hdl.isa.d"}),
        ("if TYPE_CHECKING:\n  from hdl.isa import Mm", "weft.sim", {"hdl.isa.Mm"}),
    ],
)  # fmt: skip
def test_imports_are_found(text: str, package: str, names: set[str]) -> None:
    assert imports(text, package) == names
