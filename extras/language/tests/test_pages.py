"""Pages that texts share: who may take, write and find which."""

from __future__ import annotations

import pytest

from weft.extras.language.run.pages import ROOT, PagePool


def test_every_page_is_taken_once() -> None:
    pool = PagePool(3)
    taken = [pool.take() for _ in range(3)]
    assert sorted(page for page in taken if page is not None) == [0, 1, 2]
    assert (pool.take(), pool.free) == (None, 0)
    assert taken[1] is not None
    pool.release(taken[1])
    assert pool.free == 1
    assert pool.take() == taken[1]


def test_a_page_is_free_when_its_last_holder_leaves() -> None:
    pool = PagePool(1)
    page = pool.take()
    assert page is not None
    assert pool.is_exclusive(page)
    pool.hold(page)
    assert not pool.is_exclusive(page)
    pool.release(page)
    assert (pool.is_exclusive(page), pool.free) == (True, 0)
    pool.release(page)
    assert pool.free == 1
    with pytest.raises(AssertionError, match="nobody holds page 0"):
        pool.release(page)


def test_full_pages_are_found_by_their_tokens_and_all_in_front_of_them() -> None:
    pool = PagePool(4)
    first, second = pool.take(), pool.take()
    assert first is not None
    assert second is not None
    place = pool.publish(ROOT, [1, 2], first)
    behind = pool.publish(place, [3, 4], second)
    assert pool.find(ROOT, [1, 2]) == (place, first)
    assert pool.find(place, [3, 4]) == (behind, second)
    assert pool.find(ROOT, [3, 4]) is None
    assert not pool.is_exclusive(first)  # what the index has stays as it is
    again = pool.take()
    assert again is not None
    assert pool.publish(ROOT, [1, 2], again) == place
    assert pool.find(ROOT, [1, 2]) == (place, first)
    assert pool.is_exclusive(again)


def test_full_pages_are_kept_until_there_is_need_the_oldest_goes_first() -> None:
    pool = PagePool(3)
    pages = [page for page in (pool.take(), pool.take(), pool.take()) if page is not None]
    for at, page in enumerate(pages):
        pool.publish(ROOT, [at], page)
    for at in (1, 0, 2):
        pool.release(pages[at])
    assert pool.free == 3
    found = pool.find(ROOT, [1])
    assert found is not None
    pool.hold(found[1])
    assert pool.free == 2
    pool.release(found[1])  # now the youngest
    for at in (0, 2, 1):
        assert pool.find(ROOT, [at]) is not None
        assert pool.take() == pages[at]
        assert pool.find(ROOT, [at]) is None
    assert pool.take() is None


def test_what_followed_a_page_that_is_gone_is_not_found_behind_another() -> None:
    pool = PagePool(2)
    first, second = pool.take(), pool.take()
    assert first is not None
    assert second is not None
    place = pool.publish(ROOT, [1], first)
    pool.publish(place, [2], second)
    pool.release(first)
    taken = pool.take()  # the first one, as the second is held
    assert taken == first
    again = pool.publish(ROOT, [1], first)
    assert again != place
    assert pool.find(again, [2]) is None
