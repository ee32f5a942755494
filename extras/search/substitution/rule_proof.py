"""Proofs of rules by equal forms of both sides, on images and windows of several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from weft.compiler.ir.graph import ONE, Window
from weft.extras.search.substitution.domains import Forms
from weft.extras.search.substitution.meaning import HALF, Domain, InvalidOperands, Setting, evaluate_term
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
"""Windows for the names of a rule in its proof."""
SIZES = ((6, 6, 2), (8, 6, 2), (6, 8, 2))
"""Rows, columns and channels of images in proofs."""


@dataclass(frozen=True)
class Scene:
    """Sizes of images and windows by name, for which a rule is proven."""

    shape: tuple[int, int, int]
    windows: tuple[tuple[str, Window], ...]

    @property
    def windows_by_name(self) -> dict[str, Window]:
        return {**dict(self.windows), "s": HALF, "1": ONE}


def make_scenes(windows: Sequence[str], *, square: bool) -> Iterator[Scene]:
    """Yield the scenes in which a rule with these windows is proven, only `square` ones if it transposes images."""
    sizes = [size for size in SIZES if not square or size[0] == size[1]]
    candidates = WINDOWS if len(windows) < 2 else WINDOWS[:3]
    for number, windows_chosen in enumerate(product(candidates, repeat=len(windows))):
        shape = sizes[number % len(sizes)]
        yield Scene(shape, tuple(zip(windows, windows_chosen, strict=True)))


def make_variables(names: Sequence[str], scene: Scene, domain: Forms) -> dict[str, np.ndarray]:
    """Return a variable for each name, as elements of the domain."""
    return {name: domain.image(name, shape_of(name, scene)) for name in names}


def shape_of(name: str, scene: Scene) -> tuple[int, ...]:
    """Return the shape of a variable."""
    channels, kernel = scene.shape[2], scene.windows_by_name.get("a", ONE).kernel
    if name in IMAGES:
        return scene.shape
    if name in POINTS + KERNELS:
        return (scene.shape[2], *((1, 1) if name in POINTS else kernel), channels)
    return (channels, *((1, 1) if name in POINT_CHANNELS else kernel), 1)


def variables(*terms: Term) -> list[str]:
    """Return the variables of terms, in the order of first appearance."""
    return list(dict.fromkeys(part.operator for term in terms for part in term.parts if not part.operands))


def window_names(*terms: Term) -> list[str]:
    """Return the names of arbitrary windows, in the order of first appearance."""
    parts = (name for term in terms for part in term.parts for name in part.window.split("*"))
    names = dict.fromkeys(name for name in parts if name not in ("", "s", "1"))
    if not {*KERNELS, *KERNEL_CHANNELS}.isdisjoint(variables(*terms)):
        names.setdefault("a")
    return list(names)


def equal_in(left: Term, right: Term, scene: Scene, non_monotone: frozenset[str]) -> bool | None:
    """Return whether both sides have equal forms in a scene; None if a side is invalid there."""
    forms = Forms(non_monotone)
    setting = Setting(make_variables(variables(left, right), scene, forms), scene.windows_by_name)
    domain: Domain = forms
    try:
        left_value, right_value = (evaluate_term(term, setting, domain) for term in (left, right))
    except InvalidOperands:
        return None
    return left_value.shape == right_value.shape and bool((left_value == right_value).all())


def holds_for(left: Term, right: Term, windows: Mapping[str, Window], sizes: tuple[int, int]) -> bool:
    """Return whether a rule has equal forms with these windows, on images with these numbers of rows and columns.

    Large images are replaced by smaller ones with the same remainder after the last window, and with borders that do
    not overlap.
    """
    windows_by_name = {**windows, "s": HALF, "1": ONE}
    names = [part for term in (left, right) for item in term.parts for part in item.window.split("*") if part]
    shape = []
    for axis, size in enumerate(sizes):
        stride, extent = 1, 1
        for name in names:
            window = windows_by_name[name]
            extent += stride * (window.kernel[axis] + window.pad[axis] + window.pad[axis + 2])
            stride *= window.stride[axis]
        minimum = 2 * extent
        shape.append(size if size <= minimum else minimum + (size - minimum) % stride)
    scene = Scene((shape[0], shape[1], 2), tuple(windows.items()))
    return bool(equal_in(left, right, scene, frozenset()))
