"""Pages of keys and values that several texts share: who holds which, and which texts they are of.

A page is full when it has the keys and values of as many tokens as a page has. What is in a full page depends on its
tokens and on all tokens in front of them, and on nothing else, so that another text that begins alike takes it as it
is. Full pages are kept when nobody holds them any more, until somebody needs the room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

ROOT = 0
"""The start of every text."""


class PagePool:
    """A number of pages, with reference counts and an index by tokens.

    Where a text has come to is a number, `ROOT` at its start: `publish` and `find` lead from one full page to the next.

    Parameters
    ----------
    count : int
        Pages that there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._empty = list(range(count - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # full ones that nobody holds, the oldest first
        self._holders = [0] * count
        self._index: dict[
            tuple[int, tuple[int, ...]], tuple[int, int]
        ] = {}  # to where it leads, and the page
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}  # of pages
        self._places = ROOT

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._empty) + len(self._idle)

    def take(self) -> int | None:
        """A page for one holder, what it has does not matter any more; None if all are held."""
        if self._empty:
            page = self._empty.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            del self._index[self._keys.pop(page)]
        else:
            return None
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Have one more holder of a page that somebody holds, or that is in the index."""
        self._idle.pop(page, None)
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """Have one holder less."""
        assert self._holders[page] > 0, f"nobody holds page {page}"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if page in self._keys:
                self._idle[page] = None
            else:
                self._empty.append(page)

    def own(self, page: int) -> bool:
        """Whether its one holder may write to it: nobody else holds it, and it is not in the index."""
        return self._holders[page] == 1 and page not in self._keys

    def publish(self, place: int, tokens: Sequence[int], page: int) -> int:
        """Put a full page into the index: that of some tokens behind a place. Returns the place behind it.

        If the index has another page of these tokens already, it stays there.
        """
        key = (place, tuple(tokens))
        if key not in self._index:
            self._places += 1
            self._index[key], self._keys[page] = (self._places, page), key
        return self._index[key][0]

    def find(self, place: int, tokens: Sequence[int]) -> tuple[int, int] | None:
        """The place behind some tokens behind a place, and their page; None if the index has none."""
        return self._index.get((place, tuple(tokens)))
