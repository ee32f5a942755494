"""Values of a network whose dimensions are axes of expressions, and nodes that rearrange them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.ir.network import Node
from weft.extras.training.gradient.expression import Axis

Dims = tuple[tuple[Axis, ...], ...]
"""Axes of each dimension, merged in row-major order; a dimension without axes has one element."""
IMAGE = (0, 2, 3, 1)
"""Order of the dimensions (n, c, h, w) in the device's memory."""


@dataclass(frozen=True)
class Tensor:
    """A value of a network, by name, and the axes of its dimensions. It repeats along axes that it lacks."""

    name: str
    dims: Dims

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(itertools.chain.from_iterable(self.dims))

    @property
    def sizes(self) -> list[int]:
        return [math.prod(axis.size for axis in dim) for dim in self.dims]

    @property
    def memory(self) -> tuple[Axis, ...]:
        """Axes in the order of the device's memory, as far as dimensions determine it."""
        order = IMAGE if len(self.dims) == len(IMAGE) else range(len(self.dims))
        return tuple(itertools.chain.from_iterable(self.dims[at] for at in order))

    def rename(self, names: Mapping[Axis, tuple[Axis, ...]]) -> Tensor:
        """Return the value with some axes replaced."""
        return Tensor(
            self.name,
            tuple(
                tuple(itertools.chain.from_iterable(names.get(axis, (axis,)) for axis in dim))
                for dim in self.dims
            ),
        )


def one_dim_per_axis(axes: Iterable[Axis]) -> Dims:
    """Return dimensions of one axis each."""
    return tuple((axis,) for axis in axes)


def one_dim_per_memory_axis(axes: Sequence[Axis]) -> Dims:
    """Return dimensions of one axis each, for axes in the order of the device's memory."""
    if len(axes) != len(IMAGE):
        return one_dim_per_axis(axes)
    return one_dim_per_axis(axes[IMAGE.index(at)] for at in range(len(IMAGE)))


@dataclass
class Graph:
    """Nodes of a network under construction."""

    prefix: str = "gradient"
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    _known: dict[Any, str] = field(default_factory=dict)

    def constant(self, value: np.ndarray) -> str:
        """Return the name of a constant; equal constants share one."""
        for name, known in self.constants.items():
            if (
                known.dtype == value.dtype
                and known.shape == value.shape
                and known.tobytes() == value.tobytes()
            ):
                return name
        name = f"{self.prefix}/constant{len(self.constants)}"
        self.constants[name] = value
        return name

    def node(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node and return its result; reuse an equal node unless `output` names the result."""
        key = operator, tuple(inputs), tuple(sorted(attributes.items()))
        if not output and key in self._known:
            return self._known[key]
        # A name of its own makes the result an output: it must not merge with another node's.
        name = output or f"{self.prefix}/{operator}{len(self.nodes)}"
        self._known[key] = name
        self.nodes.append(Node(operator, tuple(inputs), (name,), attributes, name=name))
        return name

    def integers(self, values: Iterable[int]) -> str:
        return self.constant(np.array(list(values), np.int64))

    def reshape(self, tensor: Tensor, dims: Dims) -> Tensor:
        """Return the elements in the same order with other dimensions."""
        if tensor.dims == dims:
            return tensor
        wanted = Tensor(tensor.name, dims)
        if wanted.sizes == tensor.sizes:
            return wanted
        return Tensor(self.node("Reshape", [tensor.name, self.integers(wanted.sizes)]), dims)

    def arrange(self, tensor: Tensor, dims: Dims) -> Tensor:
        """Return a value with its axes in other dimensions, transposed if needed."""
        target = tuple(itertools.chain.from_iterable(dims))
        if tensor.axes == target:
            return self.reshape(tensor, dims)
        # Axes that stay adjacent move as one dimension, which keeps the rank of the transpose small.
        atoms = _atoms(tensor, target)
        at = {atom[0]: index for index, atom in enumerate(atoms)}
        split = self.reshape(tensor, atoms)
        order = [at[axis] for axis in target if axis in at]
        moved = Tensor(
            self.node("Transpose", [split.name], perm=tuple(order)), tuple(atoms[index] for index in order)
        )
        return self.reshape(moved, dims)


def _atoms(tensor: Tensor, target: Sequence[Axis]) -> Dims:
    """Return runs of axes that stay adjacent in `target`, each within one dimension of the value."""
    follows = dict(itertools.pairwise(target))
    atoms: list[list[Axis]] = []
    for dim in tensor.dims:
        for index, axis in enumerate(dim):
            if index and follows.get(dim[index - 1]) is axis:
                atoms[-1].append(axis)
            else:
                atoms.append([axis])
    return tuple(map(tuple, atoms))
