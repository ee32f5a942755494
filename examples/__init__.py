"""Models that come with weft: `weft example` copies one, `weft demo` runs it."""

from __future__ import annotations

import importlib
from typing import Any


def load(name: str) -> Any:
    """Return the example ``digits`` or ``attention``: a module with `model` and `held_out`."""
    return importlib.import_module(f"weft.examples.{name}")
