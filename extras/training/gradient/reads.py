"""Reads at computed places as operators of a network: padding, slices, and what taps of a window read side by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import IrError
from weft.extras.training.gradient.derivative import GradientError
from weft.extras.training.gradient.expression import Axis, Place, Reindex, taps
from weft.extras.training.gradient.held import Dims, Graph, Held

_IMAGE_RANK = 4
_LEAST = -(1 << 31)


@dataclass(frozen=True)
class _Window:
    """How one dimension is read: with step `step` along `main` from where constant and taps say."""

    dim: int
    main: Axis | None
    step: int
    inner: tuple[tuple[Axis, int], ...]
    constant: int

    def first(self, at: Mapping[Axis, int]) -> int:
        return self.constant + sum(factor * at[axis] for axis, factor in self.inner)

    @property
    def count(self) -> int:
        return 1 if self.main is None else self.main.size

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest index that is read."""
        spans = [(axis.size - 1) * factor for axis, factor in self.inner] + [(self.count - 1) * self.step]
        return self.constant + sum(min(span, 0) for span in spans), self.constant + sum(
            max(span, 0) for span in spans
        )


def read(graph: Graph, item: Reindex, held: Held) -> Held:
    """The value of a read of a value that is in the network.

    Raises
    ------
    GradientError
        If an axis of the result decides about two places.
    """
    if item.fill:
        raise IrError("what is read outside of an image is 0 in a network")
    held = _filled(graph, item, held)
    names: dict[Axis, tuple[Axis, ...]] = {}
    computed: dict[Axis, Place] = {}
    for axis in held.axes:
        place, same = item.places[axis], item.places[axis].is_axis(axis.size)
        if same is not None:
            names[axis] = (same,)
        elif axis.size == 1 and place == Place():
            names[axis] = ()
        else:
            computed[axis] = place
    used = [axis for found in names.values() for axis in found] + [
        axis for place in computed.values() for axis, _ in place.terms
    ]
    if len(set(used)) < len(used):
        raise GradientError("one axis is read as two")
    if not computed:
        return held.renamed(names)
    dims = tuple(itertools.chain.from_iterable(_apart(dim, computed) for dim in held.dims))
    held = _image(graph, graph.reshape(held, dims), computed).renamed(names)
    held = _repeated(graph, held, {axis: place for axis, place in computed.items() if place.floor})
    rest = {axis: place for axis, place in computed.items() if not place.floor}
    return _windows(graph, held, rest) if rest else held


def _image(graph: Graph, held: Held, computed: Mapping[Axis, Place]) -> Held:
    """Rows of pixels as an image: samples and channels ahead of what is read at computed places."""
    spatial = tuple(dim for dim in held.dims if dim and dim[0] in computed)
    others = tuple(dim for dim in held.dims if dim not in spatial)
    if len(others) < 2:
        return held
    channels = tuple(itertools.chain.from_iterable(others[1:]))
    return graph.arrange(held, (others[0], channels, *spatial))


def _filled(graph: Graph, item: Reindex, held: Held) -> Held:
    """The value repeated along axes that it lacks, if some places of these are none of the operand's."""
    missing = tuple(
        axis
        for axis in item.operand.axes
        if axis not in held.axes and not item.places[axis].always(axis.size)
    )
    if not missing:
        return held
    sizes = [*(axis.size for axis in missing), *held.sizes]
    name = graph.node("Expand", [held.name, graph.integers(sizes)])
    return Held(name, (*((axis,) for axis in missing), *held.dims))


def _apart(dim: tuple[Axis, ...], computed: Mapping[Axis, Place]) -> Dims:
    """A dimension cut where an axis is read at computed places."""
    runs = itertools.groupby(dim, key=lambda axis: axis if axis in computed else None)
    return tuple(tuple(run) for _, run in runs) or ((),)


def _repeated(graph: Graph, held: Held, floors: Mapping[Axis, Place]) -> Held:
    """A value whose elements are repeated side by side."""
    if not floors:
        return held
    names = {axis: (place.terms[0][0],) for axis, place in floors.items()}
    if len(held.dims) == _IMAGE_RANK and not any(set(dim) & set(floors) for dim in held.dims[:2]):
        scales = [floors[dim[0]].divisor if dim and dim[0] in floors else 1 for dim in held.dims]
        name = graph.node(
            "Resize", [held.name, "", graph.constant(np.array(scales, np.float32))], mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
        return Held(name, held.dims).renamed(names)
    for axis, place in floors.items():
        sizes = _split(held.sizes, [1 if dim == (axis,) else 0 for dim in held.dims])
        wide = _split(held.sizes, [place.divisor if dim == (axis,) else 0 for dim in held.dims])
        name = graph.node("Reshape", [held.name, graph.integers(sizes)])
        name = graph.node("Expand", [name, graph.integers(wide)])
        held = held.renamed({axis: names[axis]})
        held = Held(graph.node("Reshape", [name, graph.integers(held.sizes)]), held.dims)
    return held


def _split(sizes: list[int], behind: list[int]) -> list[int]:
    """Sizes with another behind some of them, where that is not 0."""
    return [item for pair in zip(sizes, behind, strict=True) for item in pair[: 2 if pair[1] else 1]]


def _windows(graph: Graph, held: Held, places: Mapping[Axis, Place]) -> Held:
    """Slices of a padded value, one for each choice of taps, side by side."""
    held = _stuffed(graph, held, {axis: place.divisor for axis, place in places.items() if place.divisor > 1})
    windows = [_window(held.dims.index((axis,)), place) for axis, place in places.items()]
    sizes = [axis.size + (axis.size - 1) * (place.divisor - 1) for axis, place in places.items()]
    name, ahead = _padded(graph, held, windows, sizes)
    dims = list(held.dims)
    for window in windows:
        dims[window.dim] = () if window.main is None else (window.main,)
    inner = tuple(axis for window in windows for axis, _ in window.inner)
    parts = [_slice(graph, name, windows, ahead, at) for at in taps(inner)]
    if not inner:
        return Held(parts[0], tuple(dims))
    free = [at for at in range(len(dims)) if at not in {window.dim for window in windows}]
    if not free:
        inside = Held("", tuple(dims)).sizes
        parts = [graph.node("Reshape", [part, graph.integers([1, *inside])]) for part in parts]
        return Held(graph.node("Concat", parts, axis=0), (inner, *dims))
    at = 1 if len(dims) == _IMAGE_RANK and 1 in free else free[-1]
    dims[at] = (*inner, *dims[at])
    return Held(graph.node("Concat", parts, axis=at), tuple(dims))


def _window(dim: int, place: Place) -> _Window:
    if not place.terms:
        return _Window(dim, None, 1, (), place.constant)
    main, step = max(place.terms, key=lambda term: term[0].size)
    return _Window(
        dim, main, step, tuple(term for term in place.terms if term[0] is not main), place.constant
    )


def _stuffed(graph: Graph, held: Held, steps: Mapping[Axis, int]) -> Held:
    """A value with zeros between its elements along some axes, each a dimension of its own."""
    if not steps:
        return held
    sizes = held.sizes
    factors = [steps.get(dim[0], 1) if len(dim) == 1 else 1 for dim in held.dims]
    if len(sizes) == _IMAGE_RANK and factors[:2] == [1, 1]:
        ones = graph.constant(np.ones((sizes[1], 1, 1, 1), np.float32))
        name = graph.node(
            "ConvTranspose",
            [held.name, ones],
            group=sizes[1],
            strides=tuple(factors[2:]),
            kernel_shape=(1, 1),
        )
        return Held(name, held.dims)
    spread = _split(sizes, [1 if factor > 1 else 0 for factor in factors])
    behind = [item for factor in factors for item in ((0, factor - 1) if factor > 1 else (0,))]
    whole = [size * factor for size, factor in zip(sizes, factors, strict=True)]
    name = graph.node("Reshape", [held.name, graph.integers(spread)])
    name = graph.node("Pad", [name, graph.integers([0] * len(behind) + behind)])
    name = graph.node("Reshape", [name, graph.integers(whole)])
    ends = [size - factor + 1 for size, factor in zip(whole, factors, strict=True)]
    name = graph.node("Slice", [name, graph.integers([0] * len(ends)), graph.integers(ends)])
    return Held(name, held.dims)


def _padded(graph: Graph, held: Held, windows: list[_Window], sizes: list[int]) -> tuple[str, dict[int, int]]:
    """The value with zeros around it, as far as windows reach, and how many are ahead of each dimension."""
    rank = len(held.dims)
    pads = [0] * 2 * rank
    for window, size in zip(windows, sizes, strict=True):
        low, high = window.ends
        pads[window.dim], pads[window.dim + rank] = max(-low, 0), max(high - size + 1, 0)
    ahead = {window.dim: pads[window.dim] for window in windows}
    if not any(pads):
        return held.name, ahead
    return graph.node("Pad", [held.name, graph.integers(pads)]), ahead


def _slice(
    graph: Graph, name: str, windows: list[_Window], ahead: Mapping[int, int], at: Mapping[Axis, int]
) -> str:
    starts = [window.first(at) + ahead[window.dim] for window in windows]
    ends = [start + (window.count - 1) * window.step + (1 if window.step > 0 else -1)
            for start, window in zip(starts, windows, strict=True)]  # fmt: skip
    ends = [_LEAST if end < 0 else end for end in ends]
    chosen, steps = [window.dim for window in windows], [window.step for window in windows]
    return graph.node("Slice", [name, *(graph.integers(items) for items in (starts, ends, chosen, steps))])
