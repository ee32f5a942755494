"""Extras: parts of weft that the core does not import, such as proofs or language models.

A package declares an extra as an entry point of the group ``weft.extras`` whose value is an `Extra`. The core looks up
commands and services there, and loads them on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from weft.hdl.errors import WeftError

GROUP = "weft.extras"


class ExtraError(WeftError, ValueError):
    """The user asks for a part of weft that is not installed."""


class Extra(NamedTuple):
    """A part of weft.

    Attributes
    ----------
    title : str
        Heading of its commands in `weft --help`.
    commands : tuple of str
        Modules with a function ``add(app)``, which adds commands to a `typer.Typer`.
    services : mapping of str to str
        Objects that the core asks for, as ``module:name``, by the name of the service.
    """

    title: str
    commands: tuple[str, ...] = ()
    services: Mapping[str, str] = MappingProxyType({})


@cache
def extras() -> tuple[Extra, ...]:
    """All installed extras, by name."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return tuple(extra for point in points if (extra := _load(point)) is not None)


def _load(point: EntryPoint) -> Extra | None:
    """The extra of an entry point; None if its package is not there."""
    try:
        return point.load()
    except ModuleNotFoundError as error:
        if error.name is not None and f"{point.module}.".startswith(f"{error.name}."):
            return None
        raise


def providers(service: str) -> Iterator[Any]:
    """All objects that installed extras provide as `service`."""
    for extra in extras():
        if service in extra.services:
            module, _, name = extra.services[service].partition(":")
            loaded = importlib.import_module(module)
            yield attrgetter(name)(loaded)


def provider(service: str) -> Any:
    """The object that an extra provides as `service`.

    Raises
    ------
    ExtraError
        If no installed extra provides it.
    """
    for found in providers(service):
        return found
    raise ExtraError(f"this weft has no extra for {service!r}: install weft whole, with its folder extras/")
