"""Tensors as the lowering sees them: addresses and pitches in DRAM, or positions on chip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.compiler.machine.target import PIXELS_MAX


class Place(NamedTuple):
    """Vectors of a box on chip: first address, and steps from pixel to pixel and from row to row."""

    start: int
    pixel: int
    row: int

    def tile(self, index: int) -> Place:
        """Return this place, `index` vectors further on."""
        return Place(self.start + index, self.pixel, self.row)


@dataclass(frozen=True)
class TensorRef:
    """A view as the lowering sees it.

    In DRAM it has a base register, a byte offset, and pitches in bytes. A `resident` one lies in the scratchpad from
    that address on, pixel after pixel, each in whole vectors.
    """

    base: int
    offset: int
    n: int
    h: int
    w: int
    c: int
    image_pitch: int
    row_pitch: int
    pixel_pitch: int
    resident: int | None = None

    @property
    def kind(self) -> TensorRef:
        """This tensor without its address: equal for tensors that lie in DRAM, or on chip, in one form."""
        return TensorRef(
            0,
            0,
            self.n,
            self.h,
            self.w,
            self.c,
            self.image_pitch,
            self.row_pitch,
            self.pixel_pitch,
            None if self.resident is None else 0,
        )

    @property
    def rows_are_adjacent(self) -> bool:
        """True if each row ends where the next begins."""
        return self.w * self.pixel_pitch == self.row_pitch

    def address(self, image: int, y: int, x: int) -> int:
        """Return the byte offset of a pixel's first channel."""
        return self.offset + image * self.image_pitch + y * self.row_pitch + x * self.pixel_pitch

    def on_chip(self, image: int, y: int, x: int, n: int) -> Place:
        """Return the place of the pixels from (y, x) on, for a `resident` tensor in vectors of `n` bytes."""
        assert self.resident is not None
        vectors = -(-self.c // n)
        return Place(self.resident + ((image * self.h + y) * self.w + x) * vectors, vectors, self.w * vectors)

    def advance(self, size: int) -> TensorRef:
        """Return this tensor `size` bytes further on."""
        return replace(self, offset=self.offset + size)

    def merge_rows(self, rows: int, pixels: int) -> tuple[int, int]:
        """Return rows of a box, and pixels per row: one row where rows of full width are adjacent."""
        joined = pixels == self.w and self.rows_are_adjacent and rows * pixels <= PIXELS_MAX
        return (1, rows * pixels) if joined else (rows, pixels)

    def flatten(self) -> TensorRef:
        """Return the bytes as one row of pixels; requires `can_flatten`."""
        pixels = self.n * self.h * self.w
        span = pixels * self.pixel_pitch
        return replace(self, n=1, h=1, w=pixels, image_pitch=span, row_pitch=span)

    def matrix(self, image: int, head: int, counts: tuple[int, int]) -> TensorRef:
        """Return one of `counts` (images, heads of an image) matrices, its rows as the pixels of one image row.

        Heads lie side by side in the channels, or one after the other as images.
        """
        images, heads = counts
        if self.n == images:
            # Heads side by side in the channels; else each head is an image.
            size, at = self.c // heads, self.address(image, 0, 0)
            at += head * size
        else:
            size, at = self.c, self.address(image * heads + head, 0, 0)
        pitch = self.pixel_pitch
        return TensorRef(self.base, at, 1, 1, self.w, size, self.w * pitch, self.w * pitch, pitch)

    def columns_as_rows(self) -> TensorRef:
        """Return images of one column as images of one row each."""
        assert self.w == 1
        pitch = self.row_pitch
        return replace(self, h=1, w=self.h, row_pitch=self.h * pitch, pixel_pitch=pitch)

    @property
    def can_flatten(self) -> bool:
        return self.rows_are_adjacent and (self.n == 1 or self.h * self.row_pitch == self.image_pitch)

    def subsample(self, stride: tuple[int, int], h: int, w: int) -> TensorRef:
        """Return every `stride`-th row and column."""
        return TensorRef(
            self.base,
            self.offset,
            self.n,
            h,
            w,
            self.c,
            self.image_pitch,
            self.row_pitch * stride[0],
            self.pixel_pitch * stride[1],
        )
