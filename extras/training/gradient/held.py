"""Values of a network whose dimensions are axes of expressions, and how one is brought into another order."""

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
"""The axes of each dimension, merged in row-major order; a dimension without axes has one element."""
IMAGE = (0, 2, 3, 1)
"""How dimensions (n, c, h, w) follow each other in the device's memory."""


@dataclass(frozen=True)
class Held:
    """A value of a network by its name, and the axes of its dimensions. Along axes that it lacks it repeats."""

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
        """The axes in the order that they have in the device's memory, as far as dimensions tell."""
        order = IMAGE if len(self.dims) == len(IMAGE) else range(len(self.dims))
        return tuple(itertools.chain.from_iterable(self.dims[at] for at in order))

    def renamed(self, names: Mapping[Axis, tuple[Axis, ...]]) -> Held:
        """The same value with others in the place of some axes."""
        return Held(
            self.name,
            tuple(
                tuple(itertools.chain.from_iterable(names.get(axis, (axis,)) for axis in dim))
                for dim in self.dims
            ),
        )


def singles(axes: Iterable[Axis]) -> Dims:
    """A dimension for each axis."""
    return tuple((axis,) for axis in axes)


def apart(axes: Sequence[Axis]) -> Dims:
    """A dimension for each axis, given in the order of the device's memory."""
    if len(axes) != len(IMAGE):
        return singles(axes)
    return singles(axes[IMAGE.index(at)] for at in range(len(IMAGE)))


@dataclass
class Graph:
    """Nodes of a network as they are made."""

    prefix: str = "gradient"
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    _known: dict[Any, str] = field(default_factory=dict)

    def constant(self, value: np.ndarray) -> str:
        """A constant's name; equal ones have one."""
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
        """The name of what a node makes; one that is there already is taken, if it needs no name of its own."""
        key = operator, tuple(inputs), tuple(sorted(attributes.items()))
        if not output and key in self._known:
            return self._known[key]
        name = output or f"{self.prefix}/{operator}{len(self.nodes)}"
        self._known[key] = name
        self.nodes.append(Node(operator, tuple(inputs), (name,), attributes, name=name))
        return name

    def integers(self, values: Iterable[int]) -> str:
        return self.constant(np.array(list(values), np.int64))

    def reshape(self, held: Held, dims: Dims) -> Held:
        """The same elements in the same order with other dimensions."""
        if held.dims == dims:
            return held
        wanted = Held(held.name, dims)
        if wanted.sizes == held.sizes:
            return wanted
        return Held(self.node("Reshape", [held.name, self.integers(wanted.sizes)]), dims)

    def arrange(self, held: Held, dims: Dims) -> Held:
        """A value with the same axes in other dimensions."""
        target = tuple(itertools.chain.from_iterable(dims))
        if held.axes == target:
            return self.reshape(held, dims)
        atoms = _atoms(held, target)
        at = {atom[0]: index for index, atom in enumerate(atoms)}
        split = self.reshape(held, atoms)
        order = [at[axis] for axis in target if axis in at]
        moved = Held(
            self.node("Transpose", [split.name], perm=tuple(order)), tuple(atoms[index] for index in order)
        )
        return self.reshape(moved, dims)


def _atoms(held: Held, target: Sequence[Axis]) -> Dims:
    """The value's axes in runs that stay together in `target`, and never reach over two of its dimensions."""
    follows = dict(itertools.pairwise(target))
    atoms: list[list[Axis]] = []
    for dim in held.dims:
        for index, axis in enumerate(dim):
            if index and follows.get(dim[index - 1]) is axis:
                atoms[-1].append(axis)
            else:
                atoms.append([axis])
    return tuple(map(tuple, atoms))
