"""Products of matrices that are both computed at run time: one of the device's operators."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from weft.compiler.ir.graph import DeviceOp, View

Counts = tuple[int, int]
"""Images, and heads of an image."""


@dataclass(frozen=True, eq=False)
class Product(DeviceOp):
    """The product of matrices A and B of activations, for each head of each image::

        sum = sum_k (a[i, k] - a_zero) * (b[k, j] - b_zero)
        q   = sat(round_half_even(sum * scale) + y_zero), clamped to [low, high]

    With `transposed`, B is given with a row for each column of the result: b[j, k] takes the place of b[k, j]. With
    `a_transposed`, A is given with a row for each element of the contraction: a[k, i] takes the place of a[i, k].
    Heads lie beside each other in the channels, shape (images, 1, rows, heads * size), or one after the other as
    images, shape (images * heads, 1, rows, size); each operand as it likes. `counts` are the images and heads of the
    result. Those of an operand may be fewer: 1 image for all, or a head for several that follow each other.
    """

    name: str
    a: View
    b: View
    dst: View
    counts: Counts
    a_counts: Counts
    b_counts: Counts
    transposed: bool = False
    scale: float = 1.0
    a_zero: int = 0
    b_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    a_transposed: bool = False

    @property
    def sources(self) -> tuple[View, ...]:
        return self.a, self.b

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return _width(self.a, self.a_counts) if self.a_transposed else self.a.shape[2]

    @property
    def depth(self) -> int:
        """Elements of the contraction."""
        return self.a.shape[2] if self.a_transposed else _width(self.a, self.a_counts)

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return self.b.shape[2] if self.transposed else _width(self.b, self.b_counts)

    @property
    def macs(self) -> int:
        return prod(self.counts) * self.rows * self.depth * self.columns

    def place(self, counts: Counts, image: int, head: int) -> Counts:
        """The image and head of an operand with `counts` that are those of a matrix of the result."""
        return image % counts[0], head * counts[1] // self.counts[1]


def _width(view: View, counts: Counts) -> int:
    """Elements of a row of one matrix of an operand."""
    n, h, w, c = view.shape
    return n * h * w * c // (prod(counts) * w)
