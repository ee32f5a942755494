"""Buffers in the device's memory, and views of them: boxes that operators read and write."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Buffer:
    """Packed NHWC int8 array in DRAM.

    `kind` is "input" if the host writes it before a device segment, "output" if the host reads it afterwards, "state"
    if it keeps its contents between runs, else "temp". Attention has "pages" and "table" as well.

    Buffers with one name share one piece of memory. Operators may give it different shapes of one size (B rows as (B,
    1, 1, F) or (1, 1, B, F), an image as one long row); kinds must agree.
    """

    name: str
    shape: tuple[int, int, int, int]
    kind: str = "temp"

    @cached_property
    def size(self) -> int:
        n, h, w, c = self.shape
        return n * h * w * c


@dataclass(frozen=True)
class View:
    """A box of a buffer: all images, rows from `y`, columns from `x`, channels from `c` on; shape (n, h, w, c).

    In a buffer of 16-bit elements a view is one plane: half of the images, from `image` on (see `planes`). `step` is
    the distance in buffer rows and columns between rows and columns of the view. A step of 0, for reading only,
    repeats one row or column. Concatenation is several operators that write views of one buffer.
    """

    buffer: Buffer
    shape: tuple[int, int, int, int]
    y: int = 0
    x: int = 0
    c: int = 0
    step: tuple[int, int] = (1, 1)
    image: int = 0

    @property
    def pixel_pitch(self) -> int:
        """Bytes from one pixel to the next in a row."""
        return self.step[1] * self.buffer.shape[3]

    @property
    def row_pitch(self) -> int:
        return self.step[0] * self.buffer.shape[2] * self.buffer.shape[3]

    @property
    def image_pitch(self) -> int:
        return math.prod(self.buffer.shape[1:])

    @property
    def offset(self) -> int:
        """Byte offset of the first element in the buffer."""
        pixel = (self.image * self.buffer.shape[1] + self.y) * self.buffer.shape[2] + self.x
        return pixel * self.buffer.shape[3] + self.c

    @property
    def ends(self) -> tuple[int, int, int, int]:
        """Least images, rows, columns and channels of a buffer that holds the view."""
        n, h, w, c = self.shape
        y, x = (
            first + (count - 1) * step + 1
            for first, count, step in ((self.y, h, self.step[0]), (self.x, w, self.step[1]))
        )
        return self.image + n, y, x, self.c + c

    @property
    def plane_pitch(self) -> int:
        """Bytes from the plane of upper bytes to the plane of lower bytes."""
        return self.shape[0] * self.image_pitch

    @cached_property
    def planes(self) -> tuple[View, View]:
        """Views of the upper and lower bytes of 16-bit elements; this view is the upper plane.

        16-bit elements are stored as two planes: all upper bytes (signed), then all lower bytes less 128. So the
        planes are the first and second half of a buffer's images, whatever its shape.
        """
        return self, dataclasses.replace(self, image=self.shape[0])

    @property
    def contiguous(self) -> bool:
        """True if the view is its whole buffer."""
        return self.shape == self.buffer.shape and self.step == (1, 1)


def whole_view(buffer: Buffer) -> View:
    """Return a view of the whole buffer."""
    return View(buffer, buffer.shape)


def channels(view: View, first: int, count: int) -> View:
    """Return a view of some channels of a view."""
    return dataclasses.replace(view, c=view.c + first, shape=(*view.shape[:3], count))


def may_overlap(one: View, other: View) -> bool:
    """Return whether two views may share bytes: they are of one buffer, and their channels intersect."""
    if one.buffer.name != other.buffer.name or one.buffer.shape != other.buffer.shape:
        return one.buffer.name == other.buffer.name
    return one.c < other.c + other.shape[3] and other.c < one.c + one.shape[3]
