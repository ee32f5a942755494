"""Expressions as ONNX operators, in forms that the device supports.

Sums of products become matrix products, windows become adjacent slices of the padded image (im2col), and repetition
becomes nearest-neighbour resizing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.errors import IrError
from weft.extras.training.gradient.derivative import GradientError
from weft.extras.training.gradient.expression import (
    FUNCTIONS,
    Axis,
    Constant,
    Expression,
    Map,
    Place,
    Reduce,
    Reindex,
    Reshape,
    Stop,
    taps,
)
from weft.extras.training.gradient.tensor import (
    Dims,
    Graph,
    Tensor,
    one_dim_per_axis,
    one_dim_per_memory_axis,
)

_IMAGE_RANK = 4
_LEAST = -(1 << 31)
_PAIR = 2


@dataclass(frozen=True)
class _Window:
    """Coordinates along one dimension: steps of `step` along `main`, plus the constant and the taps in `inner`."""

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
        """Least and greatest index that is read."""
        spans = [(axis.size - 1) * factor for axis, factor in self.inner] + [(self.count - 1) * self.step]
        return self.constant + sum(min(span, 0) for span in spans), self.constant + sum(
            max(span, 0) for span in spans
        )


def emit_read(graph: Graph, item: Reindex, tensor: Tensor) -> Tensor:
    """Emit a read of a tensor.

    Raises
    ------
    GradientError
        If an axis of the result determines two coordinates.
    """
    if item.fill:
        raise IrError("a network reads 0 outside of an image")
    tensor = _fill_axes(graph, item, tensor)
    names: dict[Axis, tuple[Axis, ...]] = {}
    computed: dict[Axis, Place] = {}
    for axis in tensor.axes:
        place, same = item.places[axis], item.places[axis].is_axis(axis.size)
        if same is not None:
            names[axis] = (same,)
        elif axis.size == 1 and place == Place():
            names[axis] = ()
        else:
            computed[axis] = place
    used = [axis for axes_of_dim in names.values() for axis in axes_of_dim] + [
        axis for place in computed.values() for axis, _ in place.terms
    ]
    if len(set(used)) < len(used):
        raise GradientError("one axis determines two coordinates")
    if not computed:
        return tensor.rename(names)
    dims = tuple(itertools.chain.from_iterable(_split_dim(dim, computed) for dim in tensor.dims))
    tensor = _to_image(graph, graph.reshape(tensor, dims), computed).rename(names)
    tensor = _repeat(graph, tensor, {axis: place for axis, place in computed.items() if place.floor})
    linear = {axis: place for axis, place in computed.items() if not place.floor}
    return _windows(graph, tensor, linear) if linear else tensor


def _to_image(graph: Graph, tensor: Tensor, computed: Mapping[Axis, Place]) -> Tensor:
    """Arrange rows of pixels as an image: samples and channels before axes with computed places."""
    spatial = tuple(dim for dim in tensor.dims if dim and dim[0] in computed)
    others = tuple(dim for dim in tensor.dims if dim not in spatial)
    if len(others) < 2:
        return tensor
    channels = tuple(itertools.chain.from_iterable(others[1:]))
    return graph.arrange(tensor, (others[0], channels, *spatial))


def _fill_axes(graph: Graph, item: Reindex, tensor: Tensor) -> Tensor:
    """Repeat a tensor along axes that it lacks, if some of their places are outside the operand."""
    missing = tuple(
        axis
        for axis in item.operand.axes
        if axis not in tensor.axes and not item.places[axis].always(axis.size)
    )
    if not missing:
        return tensor
    sizes = [*(axis.size for axis in missing), *tensor.sizes]
    name = graph.node("Expand", [tensor.name, graph.integers(sizes)])
    return Tensor(name, (*((axis,) for axis in missing), *tensor.dims))


def _split_dim(dim: tuple[Axis, ...], computed: Mapping[Axis, Place]) -> Dims:
    """Split a dimension at axes with computed places."""
    runs = itertools.groupby(dim, key=lambda axis: axis if axis in computed else None)
    return tuple(tuple(run) for _, run in runs) or ((),)


def _repeat(graph: Graph, tensor: Tensor, floors: Mapping[Axis, Place]) -> Tensor:
    """Repeat each element of a tensor, adjacent to itself."""
    if not floors:
        return tensor
    names = {axis: (place.terms[0][0],) for axis, place in floors.items()}
    if len(tensor.dims) == _IMAGE_RANK and not any(set(dim) & set(floors) for dim in tensor.dims[:2]):
        # The device resizes images; other ranks repeat along a new axis of one element.
        scales = [floors[dim[0]].divisor if dim and dim[0] in floors else 1 for dim in tensor.dims]
        name = graph.node(
            "Resize", [tensor.name, "", graph.constant(np.array(scales, np.float32))], mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
        return Tensor(name, tensor.dims).rename(names)
    for axis, place in floors.items():
        sizes = _insert_sizes(tensor.sizes, [1 if dim == (axis,) else 0 for dim in tensor.dims])
        wide = _insert_sizes(tensor.sizes, [place.divisor if dim == (axis,) else 0 for dim in tensor.dims])
        name = graph.node("Reshape", [tensor.name, graph.integers(sizes)])
        name = graph.node("Expand", [name, graph.integers(wide)])
        tensor = tensor.rename({axis: names[axis]})
        tensor = Tensor(graph.node("Reshape", [name, graph.integers(tensor.sizes)]), tensor.dims)
    return tensor


def _insert_sizes(sizes: list[int], following: list[int]) -> list[int]:
    """Return sizes with a further size after those where it is not 0."""
    return [item for pair in zip(sizes, following, strict=True) for item in pair[: 2 if pair[1] else 1]]


def _windows(graph: Graph, tensor: Tensor, places: Mapping[Axis, Place]) -> Tensor:
    """Emit slices of a padded tensor, one for each choice of taps, concatenated."""
    tensor = _insert_zeros(
        graph, tensor, {axis: place.divisor for axis, place in places.items() if place.divisor > 1}
    )
    windows = [_window(tensor.dims.index((axis,)), place) for axis, place in places.items()]
    sizes = [axis.size + (axis.size - 1) * (place.divisor - 1) for axis, place in places.items()]
    name, before = _pad(graph, tensor, windows, sizes)
    dims = list(tensor.dims)
    for window in windows:
        dims[window.dim] = () if window.main is None else (window.main,)
    inner = tuple(axis for window in windows for axis, _ in window.inner)
    parts = [_slice(graph, name, windows, before, at) for at in taps(inner)]
    if not inner:
        return Tensor(parts[0], tuple(dims))
    free = [at for at in range(len(dims)) if at not in {window.dim for window in windows}]
    # Taps go to a dimension without windows: of an image the channels; if there is none, to a new one in front.
    if not free:
        inside = Tensor("", tuple(dims)).sizes
        parts = [graph.node("Reshape", [part, graph.integers([1, *inside])]) for part in parts]
        return Tensor(graph.node("Concat", parts, axis=0), (inner, *dims))
    at = 1 if len(dims) == _IMAGE_RANK and 1 in free else free[-1]
    dims[at] = (*inner, *dims[at])
    return Tensor(graph.node("Concat", parts, axis=at), tuple(dims))


def _window(dim: int, place: Place) -> _Window:
    if not place.terms:
        return _Window(dim, None, 1, (), place.constant)
    main, step = max(place.terms, key=lambda term: term[0].size)
    return _Window(
        dim, main, step, tuple(term for term in place.terms if term[0] is not main), place.constant
    )


def _insert_zeros(graph: Graph, tensor: Tensor, steps: Mapping[Axis, int]) -> Tensor:
    """Insert zeros between the elements along some axes, each of which is a dimension."""
    if not steps:
        return tensor
    sizes = tensor.sizes
    factors = [steps.get(dim[0], 1) if len(dim) == 1 else 1 for dim in tensor.dims]
    if len(sizes) == _IMAGE_RANK and factors[:2] == [1, 1]:
        # A transposed convolution with a kernel of one 1 leaves zeros between the pixels.
        ones = graph.constant(np.ones((sizes[1], 1, 1, 1), np.float32))
        name = graph.node(
            "ConvTranspose",
            [tensor.name, ones],
            group=sizes[1],
            strides=tuple(factors[2:]),
            kernel_shape=(1, 1),
        )
        return Tensor(name, tensor.dims)
    # Give each element a dimension of its own, pad that with zeros, and merge it again.
    split = _insert_sizes(sizes, [1 if factor > 1 else 0 for factor in factors])
    zeros = [item for factor in factors for item in ((0, factor - 1) if factor > 1 else (0,))]
    spread = [size * factor for size, factor in zip(sizes, factors, strict=True)]
    name = graph.node("Reshape", [tensor.name, graph.integers(split)])
    name = graph.node("Pad", [name, graph.integers([0] * len(zeros) + zeros)])
    name = graph.node("Reshape", [name, graph.integers(spread)])
    # No zeros follow the last element.
    ends = [size - factor + 1 for size, factor in zip(spread, factors, strict=True)]
    name = graph.node("Slice", [name, graph.integers([0] * len(ends)), graph.integers(ends)])
    return Tensor(name, tensor.dims)


def _pad(
    graph: Graph, tensor: Tensor, windows: list[_Window], sizes: list[int]
) -> tuple[str, dict[int, int]]:
    """Pad a tensor with zeros as far as windows reach; return its name and the padding before each dimension."""
    rank = len(tensor.dims)
    pads = [0] * 2 * rank
    for window, size in zip(windows, sizes, strict=True):
        low, high = window.ends
        pads[window.dim], pads[window.dim + rank] = max(-low, 0), max(high - size + 1, 0)
    before = {window.dim: pads[window.dim] for window in windows}
    if not any(pads):
        return tensor.name, before
    return graph.node("Pad", [tensor.name, graph.integers(pads)]), before


def _slice(
    graph: Graph, name: str, windows: list[_Window], before: Mapping[int, int], at: Mapping[Axis, int]
) -> str:
    starts = [window.first(at) + before[window.dim] for window in windows]
    ends = [start + (window.count - 1) * window.step + (1 if window.step > 0 else -1)
            for start, window in zip(starts, windows, strict=True)]  # fmt: skip
    # A negative end would count from the back; a slice with negative steps to the first element needs -inf.
    ends = [_LEAST if end < 0 else end for end in ends]
    chosen, steps = [window.dim for window in windows], [window.step for window in windows]
    return graph.node("Slice", [name, *(graph.integers(items) for items in (starts, ends, chosen, steps))])


class Emission:
    """Emitter of nodes for expressions; `place` registers values that the network already has."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._tensors: dict[int, tuple[Expression, Tensor]] = {}

    def place(self, expression: Expression, tensor: Tensor) -> None:
        """Register the tensor of an expression."""
        self._tensors[id(expression)] = expression, tensor

    def emit(self, expression: Expression) -> Tensor:
        """Return the tensor of an expression, emitted if needed. It may lack axes along which it repeats."""
        # A stack instead of recursion: gradients of deep networks exceed Python's recursion limit.
        stack = [expression]
        while stack:
            item = stack[-1]
            if id(item) in self._tensors:
                stack.pop()
                continue
            missing = [operand for operand in self._read(item) if id(operand) not in self._tensors]
            if missing:
                stack.extend(missing)
                continue
            self.place(item, self._emit(item))
            stack.pop()
        return self._tensors[id(expression)][1]

    def emit_full(self, expression: Expression) -> str:
        """Return the name of a tensor with all axes of an expression, one dimension each."""
        tensor = self.emit(expression)
        present = [axis for axis in expression.axes if axis in tensor.axes]
        arranged = self.graph.arrange(tensor, one_dim_per_axis(present))
        if len(present) == len(expression.axes):
            return arranged.name
        dims = tuple((axis,) if axis in present else () for axis in expression.axes)
        arranged = self.graph.reshape(arranged, dims)
        return self.graph.node("Expand", [arranged.name, self.graph.integers(expression.shape)])

    def _read(self, item: Expression) -> tuple[Expression, ...]:
        # A contraction reads the factors; the product itself is never stored.
        product = _product_of(item)
        return product.operands if product is not None else item.operands

    def _operands(self, item: Expression) -> list[Tensor]:
        return [self._tensors[id(operand)][1] for operand in self._read(item)]

    def _emit(self, item: Expression) -> Tensor:
        operands = self._operands(item)
        if _product_of(item) is not None:
            assert isinstance(item, Reduce)
            return self._contraction(operands[0], operands[1], item.over)
        match item:
            case Constant():
                return Tensor(self.graph.constant(item.value.astype(np.float32)), one_dim_per_axis(item.axes))
            case Map():
                return self._map(item, operands)
            case Reduce(kind="add"):
                return self._sum(operands[0], item.over)
            case Reduce():
                return self._maximum(operands[0], item.over)
            case Reindex():
                return emit_read(self.graph, item, operands[0])
            case Reshape():
                name = self.emit_full(item.operand)
                return self.graph.reshape(
                    Tensor(name, one_dim_per_axis(item.operand.axes)), one_dim_per_axis(item.axes)
                )
            case Stop():
                return operands[0]
        raise IrError(f"{type(item).__name__} is no value of the network")

    def _map(self, item: Map, operands: list[Tensor]) -> Tensor:
        axes = list(dict.fromkeys(axis for tensor in operands for axis in tensor.axes))
        largest = max(operands, key=lambda tensor: len(tensor.axes))
        dims = largest.dims if len(largest.axes) == len(axes) else one_dim_per_axis(axes)
        # An operand with some axes of a merged dimension cannot repeat along the others.
        if any(_splits_dim(tensor, dims) for tensor in operands):
            dims = one_dim_per_memory_axis(largest.memory if len(largest.axes) == len(axes) else axes)
        names = [self._expand_dims(tensor, dims) for tensor in operands]
        first, *following = FUNCTIONS[item.function].operators
        name = self.graph.node(first, names)
        for step in following:
            operator, *numbers = step.split()
            constants = [self.graph.constant(np.asarray(float(item), np.float32)) for item in numbers]
            name = self.graph.node(operator, [name, *constants])
        return Tensor(name, dims)

    def _expand_dims(self, tensor: Tensor, dims: tuple[tuple[Axis, ...], ...]) -> str:
        """Return a tensor with a dimension of one element for each of `dims` whose axes it lacks."""
        if not tensor.axes and not tensor.dims:
            return tensor.name
        present = tuple(dim for dim in dims if dim and dim[0] in tensor.axes)
        arranged = self.graph.arrange(tensor, present)
        return self.graph.reshape(arranged, tuple(dim if dim in present else () for dim in dims)).name

    def _sum(self, tensor: Tensor, over: Iterable[Axis]) -> Tensor:
        """Emit the sum over axes as a product with ones."""
        inside = tuple(axis for axis in tensor.memory if axis in set(over))
        repeats = math.prod(axis.size for axis in over if axis not in inside)
        if inside:
            size = math.prod(axis.size for axis in inside)
            outer = tuple(axis for axis in tensor.memory if axis not in inside)
            # Ones go to the side where the summed axes are contiguous, which saves a transpose.
            if tensor.memory[-len(inside) :] == inside:
                ones = self.graph.constant(np.ones((size, 1), np.float32))
                tensor = self.graph.arrange(tensor, (outer, inside))
                tensor = Tensor(self.graph.node("MatMul", [tensor.name, ones]), (outer, ()))
            else:
                ones = self.graph.constant(np.ones((1, size), np.float32))
                tensor = self.graph.arrange(tensor, (inside, outer))
                tensor = Tensor(self.graph.node("MatMul", [ones, tensor.name]), ((), outer))
        return self._times(tensor, repeats)

    def _times(self, tensor: Tensor, factor: float) -> Tensor:
        if factor == 1:
            return tensor
        constant = self.graph.constant(np.asarray(factor, np.float32))
        return Tensor(self.graph.node("Mul", [tensor.name, constant]), tensor.dims)

    def _maximum(self, tensor: Tensor, over: Iterable[Axis]) -> Tensor:
        inside = tuple(axis for axis in tensor.memory if axis in set(over))
        if not inside:
            return tensor
        outer = tuple(axis for axis in tensor.memory if axis not in inside)
        tensor = self.graph.arrange(tensor, (outer, inside))
        return Tensor(self.graph.node("ReduceMax", [tensor.name, self.graph.integers([1])]), (outer, ()))

    def _contraction(self, a: Tensor, b: Tensor, over: tuple[Axis, ...]) -> Tensor:
        """Emit the sum of products over axes as a matrix product, batched over the other shared axes."""
        shared = [axis for axis in over if axis in a.axes and axis in b.axes]
        repeats = math.prod(axis.size for axis in over if axis not in a.axes and axis not in b.axes)
        a, b = (
            self._sum(tensor, [axis for axis in over if axis in tensor.axes and axis not in shared])
            for tensor in (a, b)
        )
        # The device reads the left matrix by rows: the contracted axis should be its innermost.
        if _is_contiguous(b, shared) and not _is_contiguous(a, shared):
            a, b = b, a
        order = tuple(axis for axis in max((a, b), key=_size).memory if axis in shared)
        batch = tuple(axis for axis in a.memory if axis in b.axes and axis not in shared)
        left, right = (
            tuple(axis for axis in tensor.memory if axis not in shared and axis not in batch)
            for tensor in (a, b)
        )
        lead = (batch,) if batch else ()
        first = self.graph.arrange(a, (*lead, left, order))
        second = self.graph.arrange(b, (*lead, order, right))
        name = self.graph.node("MatMul", [first.name, second.name])
        return self._times(Tensor(name, (*lead, left, right)), repeats)


def _product_of(item: Expression) -> Map | None:
    """Return the product that a sum contracts, if each factor has axes that the other lacks, else None."""
    if not isinstance(item, Reduce) or item.kind != "add" or not isinstance(item.operand, Map):
        return None
    product = item.operand
    if product.function != "mul" or len(product.operands) != _PAIR:
        return None
    a, b = (set(operand.axes) for operand in product.operands)
    return product if (a ^ b) - set(item.over) else None


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.sizes)


def _is_contiguous(tensor: Tensor, shared: list[Axis]) -> bool:
    """Return whether summed elements are adjacent in memory, so that the tensor is a left matrix as it is."""
    return bool(shared) and tensor.memory[-1] in shared


def _splits_dim(tensor: Tensor, dims: tuple[tuple[Axis, ...], ...]) -> bool:
    """Return whether a tensor has some axes of a dimension, but lacks others."""
    return any(len({axis in tensor.axes for axis in dim}) > 1 for dim in dims)
