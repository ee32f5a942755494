"""What the operators of a network compute in real numbers, as expressions of micro-operations.

Operators are those of ONNX. Quantised networks are brought into real numbers first
(`weft.extras.training.gradient.deployed`).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

from weft.compiler.ir.network import Network
from weft.extras.training.gradient import context, operators
from weft.extras.training.gradient.context import Context, Handler, axes_of, constant
from weft.extras.training.gradient.deployed import depending
from weft.extras.training.gradient.derivative import GradientError
from weft.extras.training.gradient.expression import Expression, Source


@dataclass
class Meanings:
    """The expressions of all values of a network, and its sources by name."""

    values: dict[str, Expression] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)


@cache
def handlers() -> Mapping[str, Handler]:
    """The meanings of operators, by name."""
    for item in pkgutil.iter_modules(operators.__path__):
        import_module(f"{operators.__name__}.{item.name}")
    return context.HANDLERS


def meanings(network: Network, names: Iterable[str]) -> Meanings:
    """What values of a network are that depend on some inputs. All inputs are sources, and so is what does not depend
    on these, whatever makes it.

    Raises
    ------
    GradientError
        For an operator without a gradient that depends on them, or a value whose shape is not known.
    """
    found = Meanings()
    for name in network.inputs:
        found.sources[name] = found.values[name] = _source(network, name)
    for name, value in network.constants.items():
        found.values[name] = constant(value)
    moving = depending(network.nodes, names)
    for node in network.nodes:
        if not moving.intersection(node.outputs):
            found.values.update({name: _source(network, name) for name in node.outputs if name})
            continue
        handler = handlers().get(node.op)
        if handler is None:
            raise GradientError(f"{node.label} is an operator that has no gradient here")
        inputs = tuple(found.values[name] if name else None for name in node.inputs)
        made = handler(Context(node, inputs, network))
        results = [made] if isinstance(made, Expression) else list(made)
        found.values.update(zip(node.outputs, results, strict=False))
    return found


def _source(network: Network, name: str) -> Source:
    kind = network.type_of(name)
    if kind is None or kind.sizes is None:
        raise GradientError(f"the shape of {name!r} is not known: give sizes for what the model leaves open")
    return Source(name, axes_of(kind.sizes))
