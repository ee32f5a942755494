"""Division of a decoder's products into parts for the weight slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.ring import Product, cut, find_slots

_products = st.tuples(st.integers(1, 300), st.integers(3, 600), st.sampled_from([1, 2]))


@given(
    st.lists(_products, min_size=1, max_size=4), st.integers(1, 5000), st.integers(0, 3000), st.integers(0, 6),
    st.integers(1, 64), st.integers(1, 64),
)  # fmt: skip
def test_parts_cover_products_and_fit(
    drawn: list[tuple[int, int, int]], vocabulary: int, start: int, banks: int, most: int, head_most: int
) -> None:
    products = {
        f"product {index}": Product(tiles * together, vectors, together)
        for index, (tiles, vectors, together) in enumerate(drawn)
    }
    head = Product(vocabulary, drawn[0][1])
    free = range(start, start + banks * 512)
    try:
        ring = cut(products, head, free, 512, most, head_most)
    except CompileError:
        return  # too little room, or a head whose tile is larger than the first parts
    slots = len(ring.slots)
    assert slots >= 2
    assert len(ring.vectors) % slots == 0
    assert free.start <= ring.slots[0]
    assert ring.slots[-1] + ring.slots.step <= free.stop
    assert max(ring.vectors) <= ring.slots.step
    index = 0
    for name, product in products.items():
        tile = 0
        for part in ring.of(name):
            assert (part.index, part.first) == (index, tile)
            assert 0 < part.tiles <= most
            assert part.tiles % product.group == 0
            assert ring.vectors[index] == part.tiles * product.vectors
            index, tile = index + 1, tile + part.tiles
        assert tile == product.tiles
    assert index == len(ring.vectors)
    # All parts of the head have one size, so the first may be loaded like parts of a block.
    assert vocabulary <= slots * ring.head_turns * ring.head_tiles < vocabulary + slots * ring.head_turns
    assert ring.head_tiles <= head_most
    assert ring.head_tiles * head.vectors <= min(ring.vectors[:slots])


def test_slots_are_banks_where_there_is_room() -> None:
    products = {"product": Product(54, 290)}
    ring = cut(products, Product(100, 290), range(1500, 16384), 2048, 64, 24)
    assert ring.slots == range(2048, 16384, 2048)
    small = cut(products, Product(100, 290), range(300, 1500), 1024, 64, 24)
    assert small.slots.start == 300
    assert len(small.slots) == 3  # fewer than four, as the number of parts must be a multiple


def test_too_little_room_is_reported() -> None:
    with pytest.raises(
        CompileError, match="room for 500 vectors of weights; two parts of a product take 580"
    ):
        cut({"product": Product(54, 290)}, Product(100, 290), range(0, 500), 512, 64, 24)


@given(
    st.lists(_products, min_size=1, max_size=4), st.integers(0, 600), st.integers(2, 7), st.integers(0, 3000),
    st.integers(1, 64),
)  # fmt: skip
def test_programs_share_slots(
    drawn: list[tuple[int, int, int]], start: int, banks: int, taken: int, most: int
) -> None:
    """Each part has one slot in every block, and fits it."""
    products = {
        f"product {index}": Product(tiles * together, vectors, together)
        for index, (tiles, vectors, together) in enumerate(drawn)
    }
    head, end = Product(100, drawn[0][1]), banks * 512
    free = range(min(start + taken, end), end)
    try:
        ring = cut(products, head, range(start, end), 512, most, most, other_room=len(free))
    except CompileError:
        return
    slots = find_slots(ring, free, 512)
    assert len(slots) >= 2
    assert len(ring.parts) % len(slots) == 0
    assert max(ring.vectors) <= slots.step
    assert free.start <= slots[0]
    assert slots[-1] + slots.step <= free.stop
