"""Results that workers keep for each other, under a hash of all that they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from weft.extras.search.tuning import sources_digest
from weft.hdl import schema
from weft.hdl.cache import entry

Result = TypeVar("Result", bound=msgspec.Struct)


def key(source: str, *about: object) -> str:
    """A hash of what a result is about, and of all sources that it depends on: those of the compiler, the hardware and
    its models, and the file `source`, which makes it."""
    return hashlib.sha256(json.dumps((_sources(source), *about), default=str).encode()).hexdigest()[:32]


@cache
def _sources(source: str) -> str:
    own = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return f"{sources_digest()} {own[:16]}"


def once(path: Path, kind: type[Result], work: Callable[[], Result]) -> Result:
    """The result in the file `path`, which is alone in its folder: by `work`, unless another worker has done that or is
    doing it."""

    def make(folder: Path) -> None:
        (folder / path.name).write_bytes(msgspec.json.encode(work()))

    return read(entry(path.parent.name, make, path.parent.parent) / path.name, kind)


def read(path: Path, kind: type[Result]) -> Result:
    """A result that there is. Raises `OSError` or `weft.hdl.schema.SchemaError` if there is none."""
    return schema.decode(schema.read_bytes(path), kind)
