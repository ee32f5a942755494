"""Contributions of extras to general tests and tools of the core, which imports no extra by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

EXTRAS = Path(__file__).resolve().parents[2] / "extras"


def contributions(name: str) -> list[ModuleType]:
    """Import the module ``tests/support/<name>.py`` of each extra that has one, in order of the extras' names."""
    extras = sorted(path.parents[2].name for path in EXTRAS.glob(f"*/tests/support/{name}.py"))
    return [importlib.import_module(f"weft.extras.{extra}.tests.support.{name}") for extra in extras]
