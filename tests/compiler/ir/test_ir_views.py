"""Views of buffers, against indexing of arrays."""

from __future__ import annotations

import numpy as np
from support.repeated import repeated

from weft.compiler.ir.views import Buffer, View


@repeated("seed", range(60))
def test_ends_and_offsets(seed: int) -> None:
    """The last element and the first that a view reads."""
    rng = np.random.default_rng(seed)
    n, h, w, c = (int(value) for value in rng.integers(1, 6, 4))
    y, x, channel, image = (int(value) for value in rng.integers(0, 4, 4))
    step = int(rng.integers(0, 4)), int(rng.integers(0, 4))
    rows, columns = (
        [first + at * by for at in range(count)] for first, count, by in ((y, h, step[0]), (x, w, step[1]))
    )
    ends = (image + n, max(rows) + 1, max(columns) + 1, channel + c)
    shape = tuple(end + int(rng.integers(0, 3)) for end in ends)
    view = View(Buffer("b", shape), (n, h, w, c), y, x, channel, step, image)
    assert view.ends == ends
    numbers = np.arange(np.prod(shape)).reshape(shape)
    assert view.offset == numbers[image, y, x, channel]
    if len(rows) > 1:
        assert view.row_pitch == numbers[image, rows[1], x, channel] - view.offset
    if len(columns) > 1:
        assert view.pixel_pitch == numbers[image, y, columns[1], channel] - view.offset
