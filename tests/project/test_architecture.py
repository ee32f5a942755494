"""The import arrows between the four rooms, checked from the sources."""

from __future__ import annotations

import builtins
import functools
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("hdl", "compiler", "sim", "boards")
ALLOWED = {
    "hdl": ("weft.hdl",),
    "compiler": (
        "weft.compiler",
        *(f"weft.hdl.{name}" for name in ("cache", "checker", "errors", "extras", "isa", "schema")),
    ),
    "sim": ("weft.sim", "weft.hdl"),
    "boards": ("weft.boards", "weft.hdl", "weft.sim.device", "weft.sim.memories"),
}
"""Rooms that a room may import."""
SCRIPTS = ("benchmarks", "examples")
OTHER_EXTRAS = {"language/certificate": {"proof"}, "language/tests": {"proof"}}
"""Other extras that parts of an extra import. Certificates of language models extend those of programs."""
SOURCES = [
    path
    for room in (*ROOMS, "weft", "extras")
    for path in sorted((ROOT / room).rglob("*.py"))
    if not {"benchmarks", "tests"} & set(path.relative_to(ROOT).parts)
]


_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<base>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n]*)"
    r"|import[ \t]+(?P<modules>[^\n]*))",
    re.MULTILINE,
)
"""An import, anywhere in a source: the formatter begins a line with each. Parsing all sources takes a hundred times as
long."""
_CLASS = re.compile(r"^[ \t]*class (?P<name>\w+)\((?P<bases>[^)]*)\):", re.MULTILINE)


def _split_names(text: str) -> list[str]:
    """Return the names between commas, without comments, brackets and aliases."""
    plain = re.sub(r"#[^\n]*", "", text).strip().strip("()")
    return [item.split()[0] for item in plain.split(",") if item.strip()]


def imports(text: str, package: str = "") -> set[str]:
    """Full names that a source imports anywhere in it; ``from x import y`` counts as ``x.y``."""
    names: set[str] = set()
    for match in _IMPORT.finditer(text):
        if match["modules"]:
            names |= set(_split_names(match["modules"]))
            continue
        base = match["base"].lstrip(".")
        if level := len(match["base"]) - len(base):
            parents = package.split(".")[: len(package.split(".")) - level + 1]
            base = ".".join([*parents, base] if base else parents)
        names |= {f"{base}.{name}" for name in _split_names(match["names"])}
    return names


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Return the project's modules that a source imports."""
    return imports(path.read_text(), package_of(path))


def package_of(path: Path) -> str:
    """The dotted name of the package that a source belongs to."""
    parts = path.relative_to(ROOT).parent.parts
    return ".".join(parts if parts[0] == "weft" else ("weft", *parts))


def within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)


def test_arrows() -> None:
    for path in SOURCES:
        names, room = imports_of(path), path.relative_to(ROOT).parts[0]
        bare = {name for name in names if name.split(".")[0] in ROOMS}
        assert not bare, f"{path}: import {bare} through weft"
        assert not {name for name in names if name.split(".")[0] == "tests"}, f"{path} imports tests"
        if room in ALLOWED:
            wrong = {name for name in names if within(name, ("weft",)) and not within(name, ALLOWED[room])}
            assert not wrong, f"{path}: {room} may not import {wrong}"


def extras_in(path: Path) -> set[str]:
    """Names of the extras that a source imports."""
    return {name.split(".")[2] for name in imports_of(path) if name.startswith("weft.extras.")}


def test_the_core_imports_no_extra() -> None:
    """Type checkers have to see the names of `weft` that extras provide, so `weft` itself is the exception."""
    others = [path for folder in ("tests", *SCRIPTS, "docs") for path in (ROOT / folder).rglob("*.py")]
    core = [path for path in (*SOURCES, *others) if path.relative_to(ROOT).parts[0] != "extras"]
    assert {path for path in core if extras_in(path)} == {ROOT / "weft" / "__init__.py"}


def test_extras_import_each_other_only_where_declared() -> None:
    used: dict[str, set[str]] = {}
    for path in (ROOT / "extras").glob("*/**/*.py"):
        _, extra, part, *_ = path.relative_to(ROOT).parts
        if others := extras_in(path) - {extra}:
            used.setdefault(f"{extra}/{part}", set()).update(others)
    assert used == OTHER_EXTRAS


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
        for name in imports_of(path):
            parts = name.split(".")
            if parts[:2] == ["weft", room] and len(parts) > 2 and parts[2] in groups - {group_of(path)}:
                graph[group_of(path)].add(parts[2])
    assert len(graph) > 5
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_onnx_ends_at_our_network() -> None:
    """The reader knows ONNX's files, and what evaluates operators on the host writes models for others to run."""
    paths = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "compiler"]
    found = {path for path in paths if any(within(name, ("onnx",)) for name in imports_of(path))}
    host = {ROOT / f"compiler/host/{name}.py" for name in ("evaluate", "onnx_model", "reference")}
    assert found == {ROOT / "compiler/onnx/reader.py", *host}


_LOADS_ONNX_RUNTIME = re.compile(r"^(?:import|from) onnxruntime\b", re.MULTILINE)


def test_telemetry_is_off_before_onnx_runtime_is_loaded() -> None:
    """`weft` imports it inside functions, when its own switch is set; scripts that start without `weft` set theirs."""
    assert not [path for path in SOURCES if _LOADS_ONNX_RUNTIME.search(path.read_text())]
    folders = [*(ROOT / name for name in SCRIPTS), *(ROOT / "extras").glob("*/benchmarks")]
    scripts = [path for folder in folders for path in folder.rglob("*.py")]
    loads = {path: parts for path in scripts if len(parts := _LOADS_ONNX_RUNTIME.split(path.read_text())) > 1}
    assert loads
    for path, (before, *_) in loads.items():
        assert "ORT_DISABLE_TELEMETRY" in before, path


def all_tests() -> list[Path]:
    """Tests and what they share, those of extras among them."""
    folders = (ROOT / "tests", *sorted((ROOT / "extras").glob("*/tests")))
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def test_tests_import_rooms_through_weft() -> None:
    for path in all_tests():
        bare = {name for name in imports(path.read_text()) if name.split(".")[0] in (*ROOMS, "extras")}
        assert not bare, f"{path}: import {bare} through weft"


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in all_tests() if path.name.startswith("test_")]
    assert len(names) == len(set(names))


def test_links_make_rooms_packages_of_weft() -> None:
    for room in (*ROOMS, "examples", "extras"):
        link = ROOT / "weft" / room
        assert link.is_symlink()
        assert link.readlink() == Path("..") / room
    folders = {path.parent for path in SOURCES}
    assert not {folder for folder in folders if not (folder / "__init__.py").exists()}


def ancestors(name: str, bases: dict[str, list[str]]) -> set[str]:
    """Names of all classes that one derives from, of ours and of Python's."""
    if name not in bases:
        return {item.__name__ for item in getattr(builtins, name, type).__mro__}
    return {name}.union(*(ancestors(base, bases) for base in bases[name]))


def test_errors_have_one_base_class_and_one_exit_code() -> None:
    bases: dict[str, list[str]] = {}
    for path in SOURCES:
        for match in _CLASS.finditer(path.read_text()):
            found = [base.rpartition(".")[2] for base in _split_names(match["bases"])]
            if any(base.endswith(("Error", "Exception")) for base in found):
                assert bases.setdefault(match["name"], found) == found, f"there are two of {match['name']}"
    assert len(bases) > 40
    for name in bases.keys() - {"IrError"}:
        above = ancestors(name, bases)
        assert "WeftError" in above, f"{name} does not derive from WeftError"
        kinds = above & {"ValueError", "RuntimeError"}
        assert name == "WeftError" or len(kinds) == 1, f"{name} is no ValueError or RuntimeError, or is both"


@pytest.mark.parametrize(
    ("text", "package", "names"),
    [
        ("import weft.hdl.isa, os", "weft.sim", {"weft.hdl.isa", "os"}),
        ("def f():\n  from weft.hdl import isa as i", "weft.sim", {"weft.hdl.isa"}),
        ("from . import a\nfrom .b import c\nfrom ..hdl.isa import d", "weft.sim",
         {"weft.sim.a", "weft.sim.b.c", "weft.hdl.isa.d"}),
        ("if TYPE_CHECKING:\n  from hdl.isa import Mm", "weft.sim", {"hdl.isa.Mm"}),
        ("from a import (  # why\n    b,\n    c as d,  # b, e\n)\nimport f as g", "weft.sim", {"a.b", "a.c", "f"}),
    ],
)  # fmt: skip
def test_imports_are_found(text: str, package: str, names: set[str]) -> None:
    assert imports(text, package) == names
