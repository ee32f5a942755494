"""Matching: one walk over the model that turns DequantizeLinear -> operator -> QuantizeLinear into device operators."""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler import support
from weft.compiler.onnx_import import Model
from weft.compiler.operators import HANDLERS, rescale
from weft.compiler.qdq import (
    Activation,
    Constant,
    Pending,
    Recipe,
    Symbol,
    check_parameters,
    constant,
    finish,
    hosted,
    parameters,
)
from weft.compiler.support import Case


@dataclasses.dataclass(eq=False)
class Match:
    """What the device can make of a model.

    `symbols` by value, `recipes` by the value they make, `obstacles` by node index: why the host must run it.
    """

    model: Model
    symbols: dict[str, Symbol]
    recipes: dict[str, Recipe]
    obstacles: dict[int, str]

    def symbol(self, name: str) -> Symbol:
        if name in self.symbols:
            return self.symbols[name]
        if name in self.model.constants:
            return float_constant(self.model.constants[name])
        if self.model.dtypes.get(name) in ("int8", "uint8"):
            return hosted(self.model, name)
        return None


def float_constant(values: np.ndarray) -> Symbol:
    if values.dtype.kind != "f":
        return None
    return Constant(values.astype(np.float64), np.ones((1,) * values.ndim), exact=True)


def match(model: Model) -> Match:
    """Find every device operator of a model.

    Raises
    ------
    CompileError
        For quantisation parameters that no quantiser would write.
    """
    found = Match(model, {}, {}, {})
    for node in model.nodes:
        if node.op in ("QuantizeLinear", "DequantizeLinear"):
            check_parameters(model, node)
        if node.op == "DequantizeLinear" and node.inputs[0] in model.constants:
            found.symbols[node.outputs[0]] = constant(model, node)
            continue
        case = Case(model, node, tuple(found.symbol(name) for name in node.inputs))
        obstacle = support.obstacle(case)
        if obstacle is None and node.op == "QuantizeLinear":
            _quantise(found, case)
        elif obstacle is None:
            found.symbols[node.outputs[0]] = HANDLERS[node.op](case)
        else:
            found.obstacles[node.index] = obstacle
    return found


def _quantise(found: Match, case: Case) -> None:
    """Complete a pending operator, requantise an activation, or recognise that nothing happens."""
    model, node, source = case.model, case.node, case.symbol(0)
    name = node.outputs[0]
    quant = parameters(model, node, model.dtypes[name])
    assert quant is not None
    if isinstance(source, Activation):
        if source.quant == quant:
            found.symbols[name] = dataclasses.replace(source.tensor, via=(*source.tensor.via, node.index))
            return
        source = rescale(source, node.name)
    assert isinstance(source, Pending)
    recipe = finish(source, name, quant, node)
    found.recipes[name] = recipe
    found.symbols[name] = recipe.output
