"""Registry of the properties of `weft.hdl`."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from weft.extras.proof import hardware
from weft.extras.proof.hardware.property import Bench, Property


def of_module(module: ModuleType) -> Iterator[Property]:
    """Yield the properties of a module: those of its function ``properties``, if it has one, and those that its
    benches register with `weft.extras.proof.hardware.property.proves`, in the order of their definition.
    """
    yield from getattr(module, "properties", tuple)()
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Bench) and value.__module__ == module.__name__:
            yield from value.__dict__.get("registered", ())


def collect(package: ModuleType) -> Iterator[Property]:
    """Yield the properties of all modules in `package`, in order of their names."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.endswith(".registry"):
            yield from of_module(import_module(info.name))


def properties() -> Iterator[Property]:
    """Yield all properties of units of `weft.hdl`."""
    return collect(hardware)
