"""Ring of on-chip slots for weights: LOAD fills one slot while others are in use.

The products of a block are cut into parts, one for each slot in turn. The number of parts is a multiple of the number
of slots, so that a part has the same slot in every block. This is necessary because addresses on the chip cannot depend
on registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.compiler.errors import CompileError
from weft.compiler.machine.emit import ceil_div

_MAX_SLOTS = 8
"""With more slots, parts become so short that starting units takes longer than the overlap saves."""


@dataclass(frozen=True)
class Product:
    """Product with weights: `tiles` of N outputs, `vectors` of weights and parameters of a tile, and the number of
    tiles that must stay in one part.
    """

    tiles: int
    vectors: int
    group: int = 1


@dataclass(frozen=True)
class Part:
    """Part of the product `name` with tiles from `first` on; `index` counts the parts of a block."""

    name: str
    index: int
    first: int
    tiles: int


@dataclass(frozen=True)
class Ring:
    """Slots, and the parts of all products.

    Attributes
    ----------
    slots : range
        First vector of each slot.
    parts : tuple of Part
    vectors : tuple of int
        Vectors of each part.
    head_tiles, head_turns : int
        Tiles of a part of the head, and the number of times that all slots are filled with parts of it; see `cut`.
    """

    slots: range
    parts: tuple[Part, ...]
    vectors: tuple[int, ...]
    head_tiles: int
    head_turns: int

    def of(self, name: str) -> list[Part]:
        """Return the parts of a product."""
        return [part for part in self.parts if part.name == name]


def cut(
    products: Mapping[str, Product],
    head: Product,
    free: range,
    bank: int,
    max_tiles: int,
    max_head_tiles: int,
    *,
    other_room: int | None = None,
) -> Ring:
    """Cut the products of a block, in this order, for the vectors `free` of a scratchpad with banks of `bank` vectors.

    Slots are whole banks if at least three fit, because LOAD, MM and VEC then seldom access the same bank. Parts have
    at most `max_tiles` tiles, those of the head `max_head_tiles`. The head's first parts are no larger than a block's,
    because the last block loads them as if they belonged to another block. With `other_room`, a second program with
    that many vectors for weights also gets at least two slots for the same parts (`find_slots`).

    Raises
    ------
    CompileError
        If the scratchpad is too small.
    """
    # Candidates come in order of preference; the first feasible one is taken.
    for slots, first, slot in _candidate_slots(free, bank):
        counts = _count_parts_for_both(products, slots, slot, max_tiles, other_room)
        if counts is None:
            continue
        parts = tuple(_make_parts(products, counts))
        vectors = tuple(part.tiles * products[part.name].vectors for part in parts)
        tiles = min(max_head_tiles, min(vectors[:slots]) // head.vectors)
        if tiles:
            turns = ceil_div(head.tiles, slots * tiles)
            return Ring(
                range(first, first + slots * slot, slot), parts, vectors, ceil_div(head.tiles, slots * turns), turns,
            )  # fmt: skip
    largest = max(product.vectors * product.group for product in products.values())
    raise CompileError(
        f"the scratchpad has room for {len(free)} vectors of weights; two parts of a product take {2 * largest}"
    )


def _candidate_slots(free: range, bank: int) -> Iterator[tuple[int, int, int]]:
    """Yield number of slots, first vector and size of a slot, best choice first."""
    first = ceil_div(free.start, bank) * bank
    for slots in range(_MAX_SLOTS, 2, -1):
        if (slot := (free.stop - first) // bank // slots * bank) > 0:
            yield slots, first, slot
    # Without three whole banks, slots may have any size.
    for slots in range(_MAX_SLOTS, 1, -1):
        yield slots, free.start, len(free) // slots


def find_slots(ring: Ring, free: range, bank: int) -> range:
    """Return the slots of a second program for the same parts, in the vectors `free`: at least two, or none."""
    largest, parts = max(ring.vectors), len(ring.parts)
    for slots, first, slot in _candidate_slots(free, bank):
        if parts % slots == 0 and slot >= largest:
            return range(first, first + slots * slot, slot)
    return range(0)


def _count_parts_for_both(
    products: Mapping[str, Product], slots: int, slot: int, max_tiles: int, other_room: int | None
) -> dict[str, int] | None:
    """Return the counts of `_count_parts` that also suit a second program with `other_room`, with the fewest parts."""
    if other_room is None:
        return _count_parts(products, slots, slot, max_tiles)
    # The number of parts must be a multiple of the slots of both programs.
    candidates = (
        _count_parts(products, math.lcm(slots, others), min(slot, other_room // others), max_tiles)
        for others in range(_MAX_SLOTS, 1, -1)
    )
    valid = [counts for counts in candidates if counts is not None]
    return min(valid, key=lambda counts: sum(counts.values())) if valid else None


def _count_parts(
    products: Mapping[str, Product], multiple: int, slot: int, max_tiles: int
) -> dict[str, int] | None:
    """Return the number of parts of each product, in total a multiple of `multiple`; None if that is impossible."""
    counts = {}
    for name, product in products.items():
        tiles = min(slot // product.vectors, max_tiles) // product.group * product.group
        if not tiles:
            return None
        counts[name] = ceil_div(product.tiles, tiles)
    # Cut the product with the largest parts further until the number of parts is a multiple.
    while sum(counts.values()) % multiple:
        divisible = [
            name for name, product in products.items() if counts[name] * product.group < product.tiles
        ]
        if not divisible:
            return None
        largest = max(
            divisible, key=lambda name: products[name].tiles * products[name].vectors / counts[name]
        )
        counts[largest] += 1
    return counts


def _make_parts(products: Mapping[str, Product], counts: Mapping[str, int]) -> Iterator[Part]:
    """Yield the parts of all products, as equal as possible."""
    index = itertools.count()
    for name, product in products.items():
        units = product.tiles // product.group
        ends = [units * number // counts[name] * product.group for number in range(counts[name] + 1)]
        for first, end in itertools.pairwise(ends):
            yield Part(name, next(index), first, end - first)
