"""Matching: one walk over the model that turns DequantizeLinear -> operator -> QuantizeLinear into device operators."""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler.ir.layout import natural, packed
from weft.compiler.ir.network import Node
from weft.compiler.onnx import support
from weft.compiler.onnx.case import Case
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.operators import HANDLERS, rescale
from weft.compiler.onnx.operators_attention import PARTS
from weft.compiler.onnx.qdq import (
    Activation,
    Constant,
    Pending,
    Probabilities,
    Recipe,
    Scores,
    Symbol,
    check_parameters,
    constant,
    finish,
    hosted,
    parameters,
)
from weft.compiler.onnx.support_attention import attended, check_attention


@dataclasses.dataclass(eq=False)
class Match:
    """What the device can make of a model.

    `symbols` by value, `recipes` by the value they make, `obstacles` by node index: why the host must run it.
    """

    model: Model
    symbols: dict[str, Symbol]
    recipes: dict[str, Recipe]
    obstacles: dict[int, str]

    def case(self, node: Node) -> Case:
        return Case(self.model, node, tuple(self.symbol(name) for name in node.inputs))

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

    Some nodes are taken on trust: products of activations as the start of attention, transposes into an order that
    only some operators read. Where the trust was misplaced the walk is repeated without them.

    Raises
    ------
    CompileError
        For quantisation parameters or attributes that make no sense.
    """
    refused: dict[int, str] = {}
    while True:
        found = _walk(model, refused)
        more = {index: reason for index, reason in _misplaced(found).items() if index not in refused}
        if not more:
            return found
        refused |= more


def _walk(model: Model, refused: dict[int, str]) -> Match:
    found = Match(model, {}, {}, {})
    for node in model.nodes:
        if node.op in ("QuantizeLinear", "DequantizeLinear"):
            check_parameters(model, node)
        if node.op == "Attention":
            check_attention(model, node)
        if node.op == "DequantizeLinear" and node.inputs[0] in model.constants:
            found.symbols[node.outputs[0]] = constant(model, node)
            continue
        case = found.case(node)
        obstacle = refused.get(node.index) or support.obstacle(case)
        role = support.part(case)
        if obstacle is not None:
            found.obstacles[node.index] = obstacle
        elif role is not None:
            found.symbols[node.outputs[0]] = PARTS[role](case)
        elif node.op == "QuantizeLinear":
            _quantise(found, case)
        else:
            found.symbols[node.outputs[0]] = HANDLERS[node.op](case)
    return found


def _misplaced(found: Match) -> dict[int, str]:
    """Nodes to leave to the host, with the reason: their results end where the device cannot go on."""
    done = {index for recipe in found.recipes.values() for index in recipe.nodes}
    refused: dict[int, str] = {}
    blocked: dict[int, str] = {}
    for node in found.model.nodes:
        if node.index not in found.obstacles:
            continue
        for name in node.inputs:
            symbol = found.symbol(name) if name else None
            if isinstance(symbol, Scores | Probabilities):
                start = (symbol.scores if isinstance(symbol, Probabilities) else symbol).nodes[0]
                blocked.setdefault(start, f"{node.name!r}: {found.obstacles[node.index]}")
            transpose = _strange_transpose(found, name, symbol)
            if transpose is not None and node.op in support.CONSTRAINTS:
                refused[transpose] = f"{support.sentence(support.transposable)} ({node.name!r} does not)"
    for node in found.model.nodes:
        symbol = found.symbols.get(node.outputs[0])
        if isinstance(symbol, Scores) and symbol.nodes == (node.index,) and node.index not in done:
            reason = support.sentence(attended)
            refused[node.index] = reason + (f" ({blocked[node.index]})" if node.index in blocked else "")
    return refused


def _strange_transpose(found: Match, name: str, symbol: Symbol) -> int | None:
    """The last Transpose that a value passed, if its elements are now in an order that few operators take."""
    if isinstance(symbol, Activation):
        recipe = found.recipes.get(symbol.tensor.storage)
        nodes, layout = (*(recipe.nodes if recipe else ()), *symbol.tensor.via), symbol.tensor.layout
    elif isinstance(symbol, Pending):
        nodes, layout = symbol.nodes, symbol.layout
    else:
        return None
    shape = found.model.shapes[name]
    if layout.same(natural(shape)) or layout.same(packed(shape)):
        return None
    moves = {node.index for node in found.model.nodes if node.op == "Transpose"}
    return max((index for index in nodes if index in moves), default=None)


def _quantise(found: Match, case: Case) -> None:
    """Complete a pending operator, requantise an activation, or recognise that nothing happens."""
    model, node, source = case.model, case.node, case.symbol(0)
    name = node.outputs[0]
    quant = parameters(model, node, model.dtypes[name])
    assert quant is not None
    if isinstance(source, Activation):
        if source.quant.same(quant):
            found.symbols[name] = dataclasses.replace(source.tensor, via=(*source.tensor.via, node.index))
            return
        source = rescale(source, node.name)
    assert isinstance(source, Pending)
    recipe = finish(source, name, quant, node)
    found.recipes[name] = recipe
    found.symbols[name] = recipe.output
