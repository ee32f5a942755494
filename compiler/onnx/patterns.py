"""Pattern matching: one walk over the model that turns operators between quantised values into device operators."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import numpy as np

from weft.compiler.errors import NarrowError
from weft.compiler.ir.graph import DeviceOp, Weighted
from weft.compiler.ir.layout import BITS, natural, row_major_layout
from weft.compiler.ir.network import Node
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.machine.target import Target
from weft.compiler.onnx import elementwise, registry, wide
from weft.compiler.onnx.functions import Function
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.operator import DEQUANTISE, QUANTISE, STEP, NodeContext, sentence
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
    constant,
    finish,
    host_tensor,
    integers,
)
from weft.compiler.passes.split_pool import fits
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config


def explain_missing_plan(produced: Symbol | Recipe | Results, config: Config) -> str | None:
    """Return the reason why an operator from a handler has no plan; None if all have one.

    Convolutions can be split along all axes, so they are not planned here.
    """
    check = getattr(config, "can_plan", functools.partial(can_plan, config))
    for op in _operators(produced):
        if not isinstance(op, Weighted) and not check(op):
            kind, size = type(op).__name__.lower(), config.scratchpad_size
            return f"One output of an operator must fit the scratchpad ({kind} in {size} vectors of {config.n} bytes)"
    return None


def can_plan(config: Config, op: DeviceOp) -> bool:
    """Return whether an operator, split or whole, fits a device with `config`.

    A configuration that records its use may have a method of this name, which is called instead.
    """
    return fits(op, _planner(config))


def _operators(produced: Symbol | Recipe | Results) -> Iterator[DeviceOp]:
    recipes: Iterable[Recipe | Pending] = produced.recipes if isinstance(produced, Results) else ()
    if isinstance(produced, Recipe | Pending):
        recipes = (produced,)
    for recipe in recipes:
        yield from recipe.ops


@functools.lru_cache(maxsize=8)
def _planner(config: Config) -> Planner:
    return Planner(Target(config))


@dataclasses.dataclass(eq=False)
class Match:
    """Part of a model that the device can compute.

    Attributes
    ----------
    symbols : dict
        Symbols by value.
    recipes : dict
        Recipes by the storage that they fill.
    unsupported : dict
        Reasons why nodes must run on the host, by node index.
    functions : dict
        For each value, the functions of int8 tensors that it equals.
    alone : dict
        Products of two activations that start no attention, by node index, with the reason.
    real : dict
        Symbols of the real numbers of quantised values.
    unread : dict
        Reasons why the device cannot read the real numbers of a value.
    unfinished : dict
        Results, by value, that the device cannot round to their quantisation.
    """

    model: Model
    symbols: dict[str, Symbol]
    recipes: dict[str, Recipe]
    unsupported: dict[int, str]
    functions: dict[str, tuple[Function, ...]]
    alone: dict[int, str]
    real: dict[str, Symbol] = dataclasses.field(default_factory=dict)
    unread: dict[str, str] = dataclasses.field(default_factory=dict)
    unfinished: dict[str, tuple[Node, Symbol]] = dataclasses.field(default_factory=dict)

    def context(self, node: Node) -> NodeContext:
        read = [self.read(node, name) for name in node.inputs]
        symbols = tuple(_as_input(node, symbol) for symbol in read)
        arguments = tuple(
            self.functions_of(node, name, symbol) for name, symbol in zip(node.inputs, read, strict=True)
        )
        context = NodeContext(self.model, node, symbols, arguments, alone=self.alone.get(node.index))
        context.functions = elementwise.result_functions(context)
        return context

    def add(self, recipe: Recipe) -> None:
        """Add a recipe, and the recipes that prepare its inputs."""
        output = recipe.output
        self.recipes[output.storage] = recipe
        if output.value not in self.model.shapes:
            self.model.shapes[output.value] = output.layout.shape
            self.model.dtypes[output.value] = output.dtype
        for tensor in recipe.inputs:
            if tensor.recipe is not None:
                self.add(tensor.recipe)

    def functions_of(self, node: Node, name: str, symbol: Symbol) -> tuple[Function, ...]:
        """Return all functions that an input of a node equals."""
        known = self.functions.get(name, ())
        quantisation = self.model.quantisation(node, name)
        if quantisation is None:
            return elementwise.value_functions(name, symbol, known)
        if name in self.model.network.constants:
            return ()
        stored = elementwise.value_functions(name, self.symbol(name), known)
        return _convert(stored, name, quantisation) or elementwise.value_functions(name, symbol, ())

    def read(self, node: Node, name: str) -> Symbol:
        """Return the symbol of an input as the node reads it: integers, or the real numbers of a quantised value."""
        quantisation = self.model.quantisation(node, name)
        if quantisation is None:
            return self.symbol(name)
        if name not in self.real:
            self.real[name] = self._dequantise(name, quantisation)
        return self.real[name]

    def _dequantise(self, name: str, quantisation: Quantisation) -> Symbol:
        if name in self.model.network.constants:
            return constant(self.model, name)
        step = Node(DEQUANTISE, (name,), (name,), name=name, index=STEP)
        context = NodeContext(self.model, step, (self.symbol(name),), quantisation=quantisation)
        operator = registry.choose(context)
        if isinstance(operator, str):
            self.unread[name] = operator
            return None
        produced = operator.handler(context)
        assert not isinstance(produced, Recipe | Results)
        return produced

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


def _as_input(node: Node, symbol: Symbol) -> Symbol:
    """Return a symbol as a node reads it: integers as an activation for some operators.

    None for values that the node does not accept: indices, and 16-bit values of most operators.
    """
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
    """Find all device operators of a model.

    Two assumptions are tentative: that a product of activations starts an attention, and that a later operator can read
    a transposed order. If one fails, the walk starts again without it.

    Raises
    ------
    CompileError
        For invalid quantisation parameters or attributes.
    """
    refused: dict[int, str] = {}
    alone: dict[int, str] = {}
    # Terminates: every repetition adds a node to one of the two.
    while True:
        result = _walk(model, refused, alone)
        products = {index: why for index, why in _no_attention(result).items() if index not in alone}
        alone |= products
        if products:  # their transposes may now feed other operators
            continue
        strange = {index: why for index, why in _strange_transposes(result).items() if index not in refused}
        if not strange:
            return result
        refused |= strange


def _walk(model: Model, refused: dict[int, str], alone: dict[int, str]) -> Match:
    result = Match(model, {}, {}, {}, {}, alone)
    for node in model.nodes:
        registry.check(model, node)
        context = result.context(node)
        produced = _compute(result, context, refused.get(node.index))
        functions = context.functions if node.index not in refused else ()
        for name, symbol in zip(node.outputs, _symbols(result, produced), strict=False):
            quantisation = model.quantisation(node, name)
            if quantisation is None:
                result.functions[name] = functions
                _note(result, name, symbol)
            else:
                _round(result, node, name, symbol, functions, quantisation)
    return result


def _symbols(result: Match, produced: Symbol | Recipe | Results) -> tuple[Symbol | Recipe, ...]:
    """Return the symbols of a node's outputs, and note the recipes of `Results`."""
    if not isinstance(produced, Results):
        return (produced,)
    for recipe in produced.recipes:
        result.add(recipe)
    return produced.symbols


def _note(result: Match, name: str, produced: Symbol | Recipe) -> None:
    """Note the symbol of a value, and the recipes that compute it."""
    if isinstance(produced, Recipe):
        result.add(produced)
        produced = produced.output
    tensor = produced.tensor if isinstance(produced, Activation) else produced
    if isinstance(tensor, Tensor) and tensor.recipe is not None:
        result.add(tensor.recipe)  # needed even if only the host reads the tensor
    if produced is not None:
        result.symbols[name] = produced


def _compute(result: Match, context: NodeContext, refusal: str | None) -> Symbol | Recipe | Results:
    """Return what the device computes for an operator; None, with the reason noted, if it cannot."""
    node = context.node
    produced = refusal or _produce(result, context)
    if isinstance(produced, str):
        unread = next((result.unread[name] for name in node.inputs if name in result.unread), None)
        result.unsupported[node.index] = unread if unread is not None and not node.raw else produced
        return None
    of_integers = node.op in _OF_INTEGERS and isinstance(result.read(node, node.inputs[0]), Tensor)
    if of_integers and isinstance(produced, Pending):
        # Integers have no quantisation, so their operator is complete here.
        return finish(produced, node.outputs[0], integers(produced.inputs[0]), node)
    return produced


def _produce(result: Match, context: NodeContext) -> Symbol | Recipe | Results | str:
    """Return what the first fitting record makes of an operator or a step, or the reason why none fits."""
    operator = registry.choose(context)
    if isinstance(operator, str):
        return operator
    try:
        produced = operator.handler(context)
    except NarrowError as error:
        return f"{sentence(wide_forms)} ({error})"
    return explain_missing_plan(produced, context.model.config) or produced


def _convert(functions: Iterable[Function], name: str, quantisation: Quantisation) -> tuple[Function, ...]:
    """Return functions of the real numbers of a value as functions of its integers, or the reverse."""
    # Functions apply to elements alike, which have one scale.
    return tuple(item.convert(quantisation, name) for item in functions) if quantisation.per_tensor else ()


def _round(
    result: Match,
    node: Node,
    name: str,
    symbol: Symbol | Recipe,
    functions: tuple[Function, ...],
    quantisation: Quantisation,
) -> None:
    """Round a result to its quantisation."""
    assert not isinstance(symbol, Recipe)
    step = Node(QUANTISE, (name,), (name,), name=node.name, index=node.index)
    rounded = _convert(functions, name, quantisation)
    context = NodeContext(
        result.model, step, (symbol,), (functions,), rounded, result.alone.get(node.index), quantisation
    )
    result.functions[name] = rounded
    produced = _produce(result, context)
    if isinstance(produced, str):
        result.unsupported.setdefault(node.index, produced)
        if symbol is not None:
            result.unfinished[name] = (node, symbol)
        return
    assert not isinstance(produced, Results)
    result.unsupported.pop(node.index, None)
    _note(result, name, produced)


def _unsupported_inputs(matched: Match) -> Iterator[tuple[Node, str, Symbol]]:
    """Yield (node, input, symbol of the input) for nodes that the device does not support."""
    done = {index for recipe in matched.recipes.values() for index in recipe.nodes}
    for node in matched.model.nodes:
        if node.index in matched.unsupported and node.index not in done:
            for name in filter(None, node.inputs):
                symbol = matched.read(node, name)
                # Integers whose real numbers the device cannot read may still be scores.
                yield node, name, matched.symbol(name) if name in matched.unread else symbol
    for name, (node, symbol) in matched.unfinished.items():
        if node.index not in done:
            yield dataclasses.replace(node, operator=QUANTISE), name, symbol


def _no_attention(matched: Match) -> dict[int, str]:
    """Return products of two activations that start no attention, with the obstacle, or "" if it is unknown."""
    done = {index for recipe in matched.recipes.values() for index in recipe.nodes}
    blocked: dict[int, str] = {}
    for node, _, symbol in _unsupported_inputs(matched):
        if isinstance(symbol, Scores | Probabilities):
            start = (symbol.scores if isinstance(symbol, Probabilities) else symbol).nodes[0]
            blocked.setdefault(start, f"{node.name!r}: {matched.unsupported[node.index]}")
        elif node.op == "MatMul" and all(
            isinstance(matched.read(node, item), Activation) for item in node.inputs
        ):
            # A product with a non-constant matrix was not tried as attention.
            tried = len(matched.model.shapes[node.inputs[1]]) > 2
            blocked.setdefault(node.index, matched.unsupported[node.index] if tried else "")
    for node in matched.model.nodes:
        symbol = matched.symbols.get(node.outputs[0])
        if isinstance(symbol, Scores) and symbol.nodes == (node.index,) and node.index not in done:
            blocked.setdefault(node.index, "")
    return blocked


def _strange_transposes(matched: Match) -> dict[int, str]:
    """Return transposes to leave to the host, with the reason: no device operator reads their order."""
    refused: dict[int, str] = {}
    for node, name, symbol in _unsupported_inputs(matched):
        transpose = _strange_transpose(matched, name, symbol)
        if transpose is not None and registry.has(node.op):
            refused[transpose] = f"{sentence(transposable)} ({node.name!r} does not)"
    return refused


def _strange_transpose(matched: Match, name: str, symbol: Symbol) -> int | None:
    """Return the index of the last Transpose before a value, if few operators read its present order; else None."""
    if isinstance(symbol, Activation):
        recipe = matched.recipes.get(symbol.tensor.storage)
        nodes, layout = (*(recipe.nodes if recipe else ()), *symbol.tensor.via), symbol.tensor.layout
    elif isinstance(symbol, Pending):
        nodes, layout = symbol.nodes, symbol.layout
    else:
        return None
    shape = matched.model.shapes[name]
    if layout.same(natural(shape)) or layout.same(row_major_layout(shape)):
        return None
    moves = {node.index for node in matched.model.nodes if node.op == "Transpose"}
    return max((index for index in nodes if index in moves), default=None)
