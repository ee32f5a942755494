"""Where ranges of addresses are free over a time: first fit without a look at all that was placed before.

Times are the leaves of a binary tree, a segment tree (J. L. Bentley, 1977). A range that is in use from one time to
another is noted at the nodes that make up this interval, and at all above them. What is in use some time in another
interval is then noted at the nodes of that interval, or in whole at a node above them. Neighbouring ranges are kept as
one, so that a node has few of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class _Ranges:
    """A set of addresses, as ranges that neither meet nor touch."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        first, last = bisect_left(self.stops, start), bisect_right(self.starts, stop)
        if first < last:
            start, stop = min(start, self.starts[first]), max(stop, self.stops[last - 1])
        self.starts[first:last] = [start]
        self.stops[first:last] = [stop]

    def behind(self, start: int, size: int) -> int:
        """The end of the range that meets `size` addresses from `start` on; `start` if none does."""
        at = bisect_right(self.stops, start)
        meets = at < len(self.starts) and self.starts[at] < start + size
        return self.stops[at] if meets else start


class Packing:
    """Ranges of addresses that are in use from one time to another, of times from 0 to `times` - 1."""

    def __init__(self, times: int) -> None:
        self._leaves = 1 << max(times - 1, 0).bit_length()
        self._whole: dict[int, _Ranges] = {}
        """By node, the ranges that are in use at all of its times."""
        self._some: dict[int, _Ranges] = {}
        """By node, the ranges that are noted there or at a node below."""

    def place(self, size: int, first: int, last: int) -> int:
        """Use `size` addresses from time `first` to `last`: the lowest that are free then, whose start is returned."""
        nodes = list(self._nodes(first, last))
        above = {node >> up for node in nodes for up in range(1, node.bit_length())}
        used = [self._some[node] for node in nodes if node in self._some]
        used += [self._whole[node] for node in above if node in self._whole]
        start, before = 0, -1
        while start != before:
            before = start
            for ranges in used:
                start = ranges.behind(start, size)
        for node in nodes:
            self._whole.setdefault(node, _Ranges()).add(start, start + size)
        for node in above.union(nodes):
            self._some.setdefault(node, _Ranges()).add(start, start + size)
        return start

    def _nodes(self, first: int, last: int) -> Iterator[int]:
        """The nodes that make up an interval; node 1 has all times, and 2n and 2n + 1 are the halves of n."""
        low, high = first + self._leaves, last + self._leaves + 1
        while low < high:
            if low & 1:
                yield low
                low += 1
            if high & 1:
                high -= 1
                yield high
            low, high = low >> 1, high >> 1
