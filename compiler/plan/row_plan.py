"""Choosing the tiles of operators that the kernel engine computes row by row."""

from __future__ import annotations

from dataclasses import dataclass

from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.limits import COUNT_MAX, STRIDE_MAX
from weft.compiler.plan.site import Site

_MOST = 2048
"""Vectors of a tile at most, so that the units overlap."""


@dataclass(frozen=True)
class RowPlan:
    """Rows of a tile, the vectors of one, and the slots of rings for sources and results."""

    rows: int
    vectors: int
    slots: int


def plan(site: Site, constants: int, most: int = COUNT_MAX, *, wide: bool = False) -> RowPlan | None:
    """As many rows as fit three times, else twice, else once, beside `constants` vectors for each one of a row; a few
    strips of the engine at least, if that many fit, and at most `most`. None if not even one row fits. With `wide`
    results have two planes."""
    counts = [ceil_div(tensor.c, site.config.n) for tensor in (*site.sources, site.dst)]
    vectors = max(counts)
    counts[-1] *= 1 + wide
    room = site.room[1] - site.room[0] - constants * vectors
    if vectors > min(COUNT_MAX, STRIDE_MAX):
        return None
    for slots in (3, 2, 1):
        rows = min(room // (slots * sum(counts)), site.dst.w, most)
        if rows >= min(site.dst.w, most, 16) or (slots == 1 and rows >= 1):
            return RowPlan(max(1, min(rows, max(16, _MOST // vectors))), vectors, slots)
    return None


def image_plan(site: Site, constants: int) -> RowPlan | None:
    """As many vectors of channels, with all pixels of an image, as fit three times, else twice, else once, beside
    `constants` vectors for each: results take the place of what they are made of. None if not even one vector does, or
    there are too many pixels. `rows` of the plan are pixels."""
    pixels, whole = site.dst.h * site.dst.w, ceil_div(site.dst.c, site.config.n)
    for slots in (3, 2, 1):
        vectors = min(site.config.scratchpad_size // (slots * pixels + constants), whole)
        if pixels <= COUNT_MAX and vectors >= min(whole, 8 if slots > 1 else 1):
            return RowPlan(pixels, vectors, slots)
    return None
