"""Matching: one walk over the model that turns DequantizeLinear -> operator -> QuantizeLinear into device operators."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import numpy as np

from weft.compiler.ir.graph import DeviceOp, Weighted
from weft.compiler.ir.layout import BITS, natural, row_major_layout
from weft.compiler.ir.network import Node
from weft.compiler.machine.target import Target
from weft.compiler.onnx import elementwise, registry, wide
from weft.compiler.onnx.functions import Function
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.operator import NodeContext, sentence
from weft.compiler.onnx.operators.lookup import wide_forms
from weft.compiler.onnx.operators.move import transposable
from weft.compiler.onnx.qdq import (
    Activation,
    Constant,
    Pending,
    Probabilities,
    Recipe,
    Results,
    Scores,
    Symbol,
    Tensor,
    finish,
    host_tensor,
    integers,
)
from weft.compiler.passes.split_pool import fits
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config


def too_large(made: Symbol | Recipe | Results, config: Config) -> str | None:
    """Why an operator that a handler made has no plan; None if all have one.

    Convolutions are cut along all axes, and are not planned here.
    """
    check = getattr(config, "has_plan", functools.partial(has_plan, config))
    for op in _operators(made):
        if not isinstance(op, Weighted) and not check(op):
            kind, size = type(op).__name__.lower(), config.scratchpad_size
            return f"One output of an operator must fit the scratchpad ({kind} in {size} vectors of {config.n} bytes)"
    return None


def has_plan(config: Config, op: DeviceOp) -> bool:
    """Whether an operator fits a device with `config`, cut or as it is.

    A stand-in for a configuration that notes its use may have a method of this name, which is asked instead.
    """
    return fits(op, _planner(config))


def _operators(made: Symbol | Recipe | Results) -> Iterator[DeviceOp]:
    recipes: Iterable[Recipe | Pending] = made.recipes if isinstance(made, Results) else ()
    if isinstance(made, Recipe | Pending):
        recipes = (made,)
    for recipe in recipes:
        yield from recipe.ops


@functools.lru_cache(maxsize=8)
def _planner(config: Config) -> Planner:
    return Planner(Target(config))


@dataclasses.dataclass(eq=False)
class Match:
    """What of a model the device can compute.

    `symbols` by value, `recipes` by the value they make, `unsupported` by node index: why the host must run it.
    `functions` by value: as which functions of int8 tensors it has been computed. `alone` has the products of two
    activations that start no attention, by node index, and why.
    """

    model: Model
    symbols: dict[str, Symbol]
    recipes: dict[str, Recipe]
    unsupported: dict[int, str]
    functions: dict[str, tuple[Function, ...]]
    alone: dict[int, str]

    def context(self, node: Node) -> NodeContext:
        found = [self.symbol(name) for name in node.inputs]
        symbols = tuple(_given(node, symbol) for symbol in found)
        arguments = tuple(
            elementwise.value_functions(name, symbol, self.functions.get(name, ()))
            for name, symbol in zip(node.inputs, found, strict=True)
        )
        context = NodeContext(self.model, node, symbols, arguments, alone=self.alone.get(node.index))
        context.functions = elementwise.result_functions(context)
        return context

    def add(self, recipe: Recipe) -> None:
        """Add a recipe, and those that bring what it reads into another order."""
        output = recipe.output
        self.recipes[output.storage] = recipe
        if output.value not in self.model.shapes:
            self.model.shapes[output.value] = output.layout.shape
            self.model.dtypes[output.value] = output.dtype
        for tensor in recipe.inputs:
            if tensor.recipe is not None:
                self.add(tensor.recipe)

    def symbol(self, name: str) -> Symbol:
        if name in self.symbols:
            return self.symbols[name]
        if name in self.model.constants:
            return float_constant(self.model.constants[name])
        if self.model.dtypes.get(name) in BITS:
            return host_tensor(self.model, name)
        return None


_OF_INTEGERS = ("GlobalMaxPool", "MaxPool")
"""Operators that compute on int8 and uint8 values as on floats."""


def _given(node: Node, symbol: Symbol) -> Symbol:
    """What a node reads, where that is integers as an activation; None for values that it does not take: those of 16
    bits, or indices."""
    tensor = symbol.tensor if isinstance(symbol, Activation) else symbol
    if isinstance(tensor, Tensor) and (tensor.index or (tensor.wide and node.op not in wide.OPERATORS)):
        return None
    if node.op in _OF_INTEGERS and isinstance(symbol, Tensor):
        return Activation(symbol, integers(symbol))
    return symbol


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
    alone: dict[int, str] = {}
    while True:
        found = _walk(model, refused, alone)
        products = {index: why for index, why in _no_attention(found).items() if index not in alone}
        alone |= products
        if products:  # what their transposes lead to is another operator then
            continue
        strange = {index: why for index, why in _strange_transposes(found).items() if index not in refused}
        if not strange:
            return found
        refused |= strange


def _walk(model: Model, refused: dict[int, str], alone: dict[int, str]) -> Match:
    found = Match(model, {}, {}, {}, {}, alone)
    for node in model.nodes:
        registry.check(model, node)
        context = found.context(node)
        operator = refused.get(node.index) or registry.choose(context)
        if node.index not in refused:
            found.functions[node.outputs[0]] = context.functions
        if isinstance(operator, str):
            found.unsupported[node.index] = operator
            continue
        try:
            made = operator.handler(context)
        except wide.NarrowError as error:
            found.unsupported[node.index] = f"{sentence(wide_forms)} ({error})"
            continue
        large = too_large(made, model.config)
        if large is not None:
            found.unsupported[node.index] = large
            continue
        if (
            node.op in _OF_INTEGERS
            and isinstance(made, Pending)
            and isinstance(found.symbol(node.inputs[0]), Tensor)
        ):
            made = finish(made, node.outputs[0], integers(made.inputs[0]), node)
        if isinstance(made, Results):
            for recipe in made.recipes:
                found.add(recipe)
            found.symbols |= zip(node.outputs, made.symbols, strict=True)
            continue
        if isinstance(made, Recipe):
            found.add(made)
            made = made.output
        tensor = made.tensor if isinstance(made, Activation) else made
        if isinstance(tensor, Tensor) and tensor.recipe is not None:
            found.add(tensor.recipe)  # also where nothing but the host reads it
        found.symbols[node.outputs[0]] = made
    return found


def _stopped(found: Match) -> Iterator[tuple[Node, str, Symbol]]:
    """The nodes that the device does not take, with each of their inputs and what that is."""
    done = {index for recipe in found.recipes.values() for index in recipe.nodes}
    for node in found.model.nodes:
        if node.index in found.unsupported and node.index not in done:
            for name in filter(None, node.inputs):
                yield node, name, found.symbol(name)


def _no_attention(found: Match) -> dict[int, str]:
    """Products of two activations that start no attention, and what that ends at; "" if nothing is known."""
    done = {index for recipe in found.recipes.values() for index in recipe.nodes}
    blocked: dict[int, str] = {}
    for node, _, symbol in _stopped(found):
        if isinstance(symbol, Scores | Probabilities):
            start = (symbol.scores if isinstance(symbol, Probabilities) else symbol).nodes[0]
            blocked.setdefault(start, f"{node.name!r}: {found.unsupported[node.index]}")
        elif node.op == "MatMul" and all(isinstance(found.symbol(item), Activation) for item in node.inputs):
            # A matrix that is no constant was not tried.
            tried = len(found.model.shapes[node.inputs[1]]) > 2
            blocked.setdefault(node.index, found.unsupported[node.index] if tried else "")
    for node in found.model.nodes:
        symbol = found.symbols.get(node.outputs[0])
        if isinstance(symbol, Scores) and symbol.nodes == (node.index,) and node.index not in done:
            blocked.setdefault(node.index, "")
    return blocked


def _strange_transposes(found: Match) -> dict[int, str]:
    """Transposes to leave to the host, with the reason: the device cannot go on with the order that they make."""
    refused: dict[int, str] = {}
    for node, name, symbol in _stopped(found):
        transpose = _strange_transpose(found, name, symbol)
        if transpose is not None and registry.has(node.op):
            refused[transpose] = f"{sentence(transposable)} ({node.name!r} does not)"
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
    if layout.same(natural(shape)) or layout.same(row_major_layout(shape)):
        return None
    moves = {node.index for node in found.model.nodes if node.op == "Transpose"}
    return max((index for index in nodes if index in moves), default=None)
