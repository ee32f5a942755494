"""A node with what is known of its inputs: what the functions of an `Operator` are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.network import Node
from weft.compiler.onnx.functions import Function
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.qdq import Constant, Symbol


@dataclass(eq=False)
class NodeContext:
    """A node with the symbols of its inputs (None for those left out).

    `arguments` has for each input the functions of int8 tensors that it is, `functions` those that the result is, the
    nearest root first. `alone` says of a product of activations why it is not the start of an attention; None where
    that is yet to be tried.
    """

    model: Model
    node: Node
    symbols: tuple[Symbol, ...]
    arguments: tuple[tuple[Function, ...], ...] = ()
    functions: tuple[Function, ...] = ()
    alone: str | None = None

    def symbol(self, index: int) -> Symbol:
        return self.symbols[index] if index < len(self.symbols) else None

    def shape(self, index: int = 0) -> tuple[int, ...]:
        return self.model.shapes[self.node.inputs[index]]

    @property
    def output(self) -> tuple[int, ...]:
        return self.model.shapes[self.node.outputs[0]]

    @property
    def inputs(self) -> str:
        """The names of all inputs for a message."""
        return " and ".join(map(repr, self.node.inputs))

    def floats(self, index: int) -> np.ndarray | None:
        """The values of an input if it is a constant of floats."""
        symbol = self.symbol(index)
        return symbol.floats if isinstance(symbol, Constant) else None

    def attribute(self, name: str, default: object = None) -> object:
        return self.node.attributes.get(name, default)

    def ints(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.node.attributes.get(name, default))


Constraint = Callable[[NodeContext], str | None]
"""None if the node satisfies it, else the value that does not ("" if there is none worth showing)."""


def sentence(constraint: Constraint) -> str:
    """A constraint's docstring as one line without its full stop."""
    return " ".join((constraint.__doc__ or constraint.__name__).split()).rstrip(".")
