"""Results that workers share in files, by a hash of everything that they depend on."""

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


def key(source: str, *key_parts: object) -> str:
    """Return a hash of a result's parameters and of all sources that it depends on.

    These are the sources of compiler, hardware and models, and the file `source`, which computes the result.
    """
    return hashlib.sha256(json.dumps((_sources(source), *key_parts), default=str).encode()).hexdigest()[:32]


@cache
def _sources(source: str) -> str:
    own = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return f"{sources_digest()} {own[:16]}"


def run_once(path: Path, kind: type[Result], work: Callable[[], Result]) -> Result:
    """Return the result in the file `path`, the only one in its folder.

    If it is missing, compute it by `work`, unless another worker is doing so.
    """

    def make(folder: Path) -> None:
        (folder / path.name).write_bytes(msgspec.json.encode(work()))

    return read(entry(path.parent.name, make, path.parent.parent) / path.name, kind)


def read(path: Path, kind: type[Result]) -> Result:
    """Read a result; raise `OSError` or `weft.hdl.errors.SchemaError` if there is none."""
    return schema.decode(schema.read_bytes(path), kind)
