"""Registry of extras: optional parts of weft that the core does not import, such as proofs or language models.

A package declares an extra as an entry point of the group ``weft.extras`` whose value is an `Extra`. The core finds
commands and services there, and imports them on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from weft.hdl.errors import ExtraError

GROUP = "weft.extras"


class Extra(NamedTuple):
    """Optional part of weft.

    Attributes
    ----------
    package : str
        Package with its commands, see `weft.cli.commands`.
    title : str
        Heading of its commands in `weft --help`.
    services : mapping of str to str
        Objects for the core as ``module:name``, by the name of the service.
    """

    package: str
    title: str
    services: Mapping[str, str] = MappingProxyType({})


@cache
def extras() -> tuple[Extra, ...]:
    """Return all installed extras in order of their names."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return tuple(extra for point in points if (extra := _load(point)) is not None)


def _load(point: EntryPoint) -> Extra | None:
    """Load the extra of an entry point, or return None if its package is missing."""
    try:
        return point.load()
    except ModuleNotFoundError as error:
        if error.name is not None and f"{point.module}.".startswith(f"{error.name}."):
            return None
        raise


def providers(service: str) -> Iterator[Any]:
    """Yield the objects that installed extras provide as `service`."""
    for extra in extras():
        if service in extra.services:
            module, _, name = extra.services[service].partition(":")
            yield attrgetter(name)(importlib.import_module(module))


def provider(service: str) -> Any:
    """Return the object that the first extra provides as `service`.

    Raises
    ------
    ExtraError
        If no installed extra provides it.
    """
    for service_object in providers(service):
        return service_object
    raise ExtraError(f"no installed extra provides {service!r}: install all of weft, with its folder extras/")
