"""A ring of slots on the chip for weights: LOAD fills one while others are worked on.

The products of a block are cut into parts, one for each slot in turn. Their number is a multiple of that of the slots,
so that a part has the same slot in every block, as addresses on the chip do not depend on registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.compiler.ir.graph import CompileError
from weft.compiler.machine.emit import ceil_div

_SLOTS_MOST = 8
"""With more of them parts become so short that starting units takes longer than what overlaps."""


@dataclass(frozen=True)
class Product:
    """A product with weights: `tiles` of N outputs, each with so many vectors of weights and mantissas, of which so
    many must stay `together`."""

    tiles: int
    vectors: int
    together: int = 1


@dataclass(frozen=True)
class Part:
    """Tiles of the product `name` from tile `first` on. It is part `index` of all that a block has."""

    name: str
    index: int
    first: int
    tiles: int


@dataclass(frozen=True)
class Ring:
    """How products are cut.

    Attributes
    ----------
    slots : range
        The first vector of each.
    parts : tuple of Part
    vectors : tuple of int
        Vectors of each part.
    head_tiles, head_turns : int
        Tiles of a part of the head, and how often all slots are filled with some of these: see `cut`.
    """

    slots: range
    parts: tuple[Part, ...]
    vectors: tuple[int, ...]
    head_tiles: int
    head_turns: int

    def of(self, name: str) -> list[Part]:
        """The parts of a product."""
        return [part for part in self.parts if part.name == name]


def cut(
    products: Mapping[str, Product],
    head: Product,
    free: range,
    bank: int,
    most: int,
    head_most: int,
    *,
    beside: int | None = None,
) -> Ring:
    """Cut the products of a block, in this order, for the vectors `free` of a scratchpad with so many in a `bank`.

    Slots are whole banks if there is room for at least three: LOAD, MM and VEC then seldom want the same bank.
    Parts have `most` tiles at most, those of the head `head_most`. The first ones of the head are as large as a block's
    at most, as the last block loads them as if they were those of another block. With `beside` another program, which
    has room for so many vectors of weights, can have two slots for the same parts or more (`slots_for`).

    Raises
    ------
    CompileError
        If the room is too small.
    """
    for slots, first, slot in _slots(free, bank):
        counts = _counts_beside(products, slots, slot, most, beside)
        if counts is None:
            continue
        parts = tuple(_parts(products, counts))
        vectors = tuple(part.tiles * products[part.name].vectors for part in parts)
        tiles = min(head_most, min(vectors[:slots]) // head.vectors)
        if tiles:
            turns = ceil_div(head.tiles, slots * tiles)
            return Ring(
                range(first, first + slots * slot, slot), parts, vectors, ceil_div(head.tiles, slots * turns), turns,
            )  # fmt: skip
    largest = max(product.vectors * product.together for product in products.values())
    raise CompileError(
        f"the scratchpad has room for {len(free)} vectors of weights; two parts of a product take {2 * largest}"
    )


def _slots(free: range, bank: int) -> Iterator[tuple[int, int, int]]:
    """How many slots there may be, where the first one is, and how large they are, the best ones first."""
    first = ceil_div(free.start, bank) * bank
    for slots in range(_SLOTS_MOST, 2, -1):
        if (slot := (free.stop - first) // bank // slots * bank) > 0:
            yield slots, first, slot
    for slots in range(_SLOTS_MOST, 1, -1):
        yield slots, free.start, len(free) // slots


def slots_for(ring: Ring, free: range, bank: int) -> range:
    """The slots of another program for the same parts, in the vectors `free`; there are two at least, or none."""
    largest, parts = max(ring.vectors), len(ring.parts)
    for slots, first, slot in _slots(free, bank):
        if parts % slots == 0 and slot >= largest:
            return range(first, first + slots * slot, slot)
    return range(0)


def _counts_beside(
    products: Mapping[str, Product], slots: int, slot: int, most: int, beside: int | None
) -> dict[str, int] | None:
    """The same as `_counts`, with some number of slots `beside`, too, if that is given: the fewest parts there are."""
    if beside is None:
        return _counts(products, slots, slot, most)
    some = (
        _counts(products, math.lcm(slots, others), min(slot, beside // others), most)
        for others in range(_SLOTS_MOST, 1, -1)
    )
    found = [counts for counts in some if counts is not None]
    return min(found, key=lambda counts: sum(counts.values())) if found else None


def _counts(products: Mapping[str, Product], multiple: int, slot: int, most: int) -> dict[str, int] | None:
    """Parts of each product, altogether such a multiple; None if there is no such cut."""
    counts = {}
    for name, product in products.items():
        tiles = min(slot // product.vectors, most) // product.together * product.together
        if not tiles:
            return None
        counts[name] = ceil_div(product.tiles, tiles)
    while sum(counts.values()) % multiple:
        more = [name for name, product in products.items() if counts[name] * product.together < product.tiles]
        if not more:
            return None
        largest = max(more, key=lambda name: products[name].tiles * products[name].vectors / counts[name])
        counts[largest] += 1
    return counts


def _parts(products: Mapping[str, Product], counts: Mapping[str, int]) -> Iterator[Part]:
    """The parts of all products, as equal as can be."""
    index = itertools.count()
    for name, product in products.items():
        units = product.tiles // product.together
        ends = [units * number // counts[name] * product.together for number in range(counts[name] + 1)]
        for first, end in itertools.pairwise(ends):
            yield Part(name, next(index), first, end - first)
