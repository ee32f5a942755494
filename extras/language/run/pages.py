"""Pages of keys and values that several texts share, with reference counts and an index by tokens.

A full page holds the keys and values of as many tokens as fit. Its contents depend only on its tokens and all preceding
ones, so that texts with the same beginning can share it. Full pages without holders stay in the index until their space
is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

ROOT = 0
"""Index node of an empty text."""


class PagePool:
    """Pool of pages with reference counts and a prefix tree of full pages.

    A node of the tree is a number, `ROOT` for the empty text; `publish` and `find` lead from one full page to the next.

    Parameters
    ----------
    count : int
        Number of pages.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._empty = list(range(count - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # full pages without holders, oldest first
        self._holders = [0] * count
        self._index: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # child node and page
        self._page_keys: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._last_node = ROOT

    @property
    def free(self) -> int:
        """Number of pages without holders."""
        return len(self._empty) + len(self._idle)

    def take(self) -> int | None:
        """Return a page for one holder, with undefined contents; None if all pages are held."""
        if self._empty:
            page = self._empty.pop()
        elif self._idle:
            # Evict the page that has been idle for longest.
            page, _ = self._idle.popitem(last=False)
            del self._index[self._page_keys.pop(page)]
        else:
            return None
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """Add a holder to a page that is held or indexed."""
        self._idle.pop(page, None)
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """Remove a holder."""
        assert self._holders[page] > 0, f"nobody holds page {page}"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            # An indexed page keeps its contents until it is evicted.
            if page in self._page_keys:
                self._idle[page] = None
            else:
                self._empty.append(page)

    def is_exclusive(self, page: int) -> bool:
        """Return whether the only holder may write to a page: it has no other holder and is not indexed."""
        return self._holders[page] == 1 and page not in self._page_keys

    def publish(self, node: int, tokens: Sequence[int], page: int) -> int:
        """Index a full page whose `tokens` follow `node`, and return the page's node.

        An existing page with these tokens stays in the index.
        """
        key = (node, tuple(tokens))
        if key not in self._index:
            self._last_node += 1
            self._index[key], self._page_keys[page] = (self._last_node, page), key
        return self._index[key][0]

    def find(self, node: int, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return the node and the page of `tokens` after `node`, or None."""
        return self._index.get((node, tuple(tokens)))
