"""Proofs of rules: both sides have equal forms, on images and windows of several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from weft.compiler.ir.graph import ONE, Window
from weft.extras.search.substitution.domains import Forms
from weft.extras.search.substitution.meaning import HALF, Domain, NoMeaning, Setting, meaning
from weft.extras.search.substitution.term import (
    IMAGES,
    KERNEL_CHANNELS,
    KERNELS,
    POINT_CHANNELS,
    POINTS,
    Term,
)

WINDOWS = (
    Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    Window((2, 2), (2, 2)),
    Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    Window((3, 3), (1, 1)),
    Window((2, 2), (1, 1), (1, 1), (0, 0, 1, 1)),
)
"""Windows that the symbols of a rule stand for in its proof."""
SIZES = ((6, 6, 2), (8, 6, 2), (6, 8, 2))
"""Rows, columns and channels of the images in proofs."""


@dataclass(frozen=True)
class Scene:
    """Sizes of images for which a rule is proven, and the windows by their names."""

    shape: tuple[int, int, int]
    windows: tuple[tuple[str, Window], ...]

    @property
    def known(self) -> dict[str, Window]:
        return {**dict(self.windows), "s": HALF, "1": ONE}


def scenes(windows: Sequence[str], *, square: bool) -> Iterator[Scene]:
    """Where a rule with these windows is proven; `square` images and windows only if it turns them."""
    sizes = [size for size in SIZES if not square or size[0] == size[1]]
    known = WINDOWS if len(windows) < 2 else WINDOWS[:3]
    for number, chosen in enumerate(product(known, repeat=len(windows))):
        shape = sizes[number % len(sizes)]
        yield Scene(shape, tuple(zip(windows, chosen, strict=True)))


def values_of(names: Sequence[str], scene: Scene, make: Forms) -> dict[str, np.ndarray]:
    """A variable for each name, as elements of the domain."""
    return {name: make.image(name, shape_of(name, scene)) for name in names}


def shape_of(name: str, scene: Scene) -> tuple[int, ...]:
    """The shape of a variable."""
    channels, kernel = scene.shape[2], scene.known.get("a", ONE).kernel
    if name in IMAGES:
        return scene.shape
    if name in POINTS + KERNELS:
        return (scene.shape[2], *((1, 1) if name in POINTS else kernel), channels)
    return (channels, *((1, 1) if name in POINT_CHANNELS else kernel), 1)


def variables(*terms: Term) -> list[str]:
    """The variables of terms, in the order in which they first appear."""
    return list(dict.fromkeys(part.operator for term in terms for part in term.parts if not part.operands))


def window_names(*terms: Term) -> list[str]:
    """The windows that stand for any, in the order in which they first appear."""
    found = (name for term in terms for part in term.parts for name in part.window.split("*"))
    names = dict.fromkeys(name for name in found if name not in ("", "s", "1"))
    if not {*KERNELS, *KERNEL_CHANNELS}.isdisjoint(variables(*terms)):
        names.setdefault("a")
    return list(names)


def equal_in(left: Term, right: Term, scene: Scene, unsteady: frozenset[str]) -> bool | None:
    """Whether both sides have equal forms; None if one has no meaning there."""
    forms = Forms(unsteady)
    setting = Setting(values_of(variables(left, right), scene, forms), scene.known)
    domain: Domain = forms
    try:
        one, other = (meaning(term, setting, domain) for term in (left, right))
    except NoMeaning:
        return None
    return one.shape == other.shape and bool((one == other).all())


def holds_for(left: Term, right: Term, windows: Mapping[str, Window], sizes: tuple[int, int]) -> bool:
    """Whether a rule has equal forms with these windows, on images of so many rows and columns.

    Rows and columns are fewer in the proof where there are many: as many as leave the same over behind the last window,
    and borders that do not meet.
    """
    known = {**windows, "s": HALF, "1": ONE}
    names = [part for term in (left, right) for item in term.parts for part in item.window.split("*") if part]
    shape = []
    for axis, size in enumerate(sizes):
        stride, reach = 1, 1
        for name in names:
            window = known[name]
            reach += stride * (window.kernel[axis] + window.pad[axis] + window.pad[axis + 2])
            stride *= window.stride[axis]
        least = 2 * reach
        shape.append(size if size <= least else least + (size - least) % stride)
    scene = Scene((shape[0], shape[1], 2), tuple(windows.items()))
    return bool(equal_in(left, right, scene, frozenset()))
