"""The packages that `make` installs: pinned, with hashes, complete, and as `pyproject.toml` asks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LEFT_OUT = {Requirement(text).name for text in PROJECT["tool"]["uv"]["override-dependencies"]}
FILES = ("demo", "lm", "test")
_ENTRY = re.compile(
    r"(?P<requirement>\S+==\S+(?: ; .*?)?)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
)


def text_of(name: str) -> str:
    """A file of requirements without its comments."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def pins(name: str) -> dict[str, str]:
    """The version of each package in a file of requirements."""
    found = (Requirement(match["requirement"]) for match in _ENTRY.finditer(text_of(name)))
    return {canonicalize_name(item.name): str(item.specifier).removeprefix("==") for item in found}


def applicable_requirements(texts: list[str]) -> Iterator[Requirement]:
    """Return the requirements that apply here, with our own extras' in place of ``weft[extra]``."""
    for item in map(Requirement, texts):
        if item.name == "weft":
            for own in item.extras:
                yield from applicable_requirements(PROJECT["project"]["optional-dependencies"][own])
        elif item.marker is None or item.marker.evaluate({"extra": ""}):
            yield item


@pytest.mark.parametrize("name", FILES)
def test_every_package_is_pinned_and_has_hashes(name: str) -> None:
    """Nothing else is in the file: no index, no address."""
    assert not _ENTRY.sub("", text_of(name))
    assert "setuptools" in pins(name)
    assert pins(name).items() <= pins("test").items()


@pytest.mark.parametrize("name", FILES)
def test_pins_are_what_the_project_asks_for(name: str) -> None:
    project, found = PROJECT["project"], pins(name)
    own = [] if name == "demo" else project["optional-dependencies"][name]
    for item in applicable_requirements(
        [*PROJECT["build-system"]["requires"], *project["dependencies"], *own]
    ):
        assert item.specifier.contains(found[canonicalize_name(item.name)]), item


@pytest.mark.parametrize("name", FILES)
def test_pins_are_complete(name: str) -> None:
    """pip installs them without looking at dependencies, so a missing one would be missed only when it is used."""
    found = pins(name)
    for package, version in found.items():
        try:
            distribution = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue  # of other platforms
        assert distribution.version == version
        for item in applicable_requirements(distribution.requires or []):
            if item.name.lower() not in LEFT_OUT:
                assert item.specifier.contains(found[canonicalize_name(item.name)]), (package, item)


def test_omitted_requirements_are_requested_and_not_installed() -> None:
    asked = {
        item.name.lower()
        for package in pins("test")
        for item in applicable_requirements(metadata.distribution(package).requires or [])
    }
    assert {name.lower() for name in LEFT_OUT} <= asked
    assert not {canonicalize_name(name) for name in LEFT_OUT} & pins("test").keys()


def test_make_installs_nothing_else() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    installs = [
        line.strip() for line in lines if "pip install" in line or "$(INSTALL)" in line or "$(HASHED)" in line
    ]
    weft = "@$(INSTALL) --no-build-isolation --editable ."
    hashed = [f"@$(HASHED) requirements/{name}.txt" for name in FILES]
    tool = next(line for line in installs if line.endswith(" uv"))  # writes the files
    variables = [line for line in installs if line.startswith(("INSTALL :=", "HASHED "))]
    assert "--no-deps" in variables[0]
    assert "$(INSTALL) --require-hashes --only-binary :all:" in variables[1]
    assert sorted(installs) == sorted([weft, *hashed, tool, *variables])
