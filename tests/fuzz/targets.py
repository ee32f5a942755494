"""Files that extras read: each extra declares its own in ``tests/support/fuzz_targets.py``, as `TARGETS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.extras import contributions


@dataclass(frozen=True)
class Target:
    """A kind of file that an extra reads.

    Attributes
    ----------
    share : int
        How often it is damaged, compared with the targets of `fuzz.files`.
    seed : callable
        Returns a valid file, by the name of a model of `fuzz.seeds`.
    offer : callable
        Gives weft the content of a file, with a folder to work in. Returns the reason of a refusal, or "".
    values : bool
        Whether the file is JSON whose values `fuzz.values` changes as well.
    """

    share: int
    seed: Callable[[str], bytes]
    offer: Callable[[bytes, Path], str]
    values: bool = False


@cache
def targets() -> dict[str, Target]:
    """Return the targets of all extras by name."""
    return {name: target for extra in contributions("fuzz_targets") for name, target in extra.TARGETS.items()}
