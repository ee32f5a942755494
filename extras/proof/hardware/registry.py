"""Registry of the properties of `weft.hdl`."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from weft.extras.proof import hardware
from weft.extras.proof.hardware.property import Property


def collect(package: ModuleType) -> Iterator[Property]:
    """Yield the properties of all modules in `package` that have a function ``properties``, in order of their names."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.endswith(".registry"):
            yield from getattr(import_module(info.name), "properties", tuple)()


def properties() -> Iterator[Property]:
    """Yield all properties of units of `weft.hdl`."""
    return collect(hardware)
