"""A training step as a network: forward, gradient of the loss, backward, and the update of what is trained.

The loss is the cross entropy of the softmax of one output, of which the gradient is the softmax less the target.
The update is stochastic gradient descent with momentum (Polyak, 1964): ``m' = momentum * m + g``, ``w' = w - rate m'``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.ir.network import Network, Node, Type
from weft.compiler.onnx.folding import resolve
from weft.extras.training.gradient.context import FLOATS
from weft.extras.training.gradient.deployed import depending
from weft.extras.training.gradient.derivative import GradientError, gradients
from weft.extras.training.gradient.emission import Emission
from weft.extras.training.gradient.expression import Axis, Expression, Source
from weft.extras.training.gradient.held import Dims, Graph, Held, singles
from weft.extras.training.gradient.meaning import Meanings, meanings
from weft.extras.training.gradient.network import needed, with_variables

TARGET, PROBABILITIES = "target", "probabilities"
"""The input that says what should come out, with 1 for the class of each sample, and the output of what came out."""
NARROW, NEXT, MOMENTUM, NEXT_MOMENTUM = "{}/narrow", "{}/next", "{}/momentum", "{}/momentum/next"
"""Names of what belongs to a trained constant: what products read, and what it and its momentum are next."""
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that take no trained weights on the device as they are: they become products of what they read."""
_ELEMENTWISE = ("Relu", "Add", "Sub", "Mul")
"""Operators that may have their elements in any order."""
_IMAGE_RANK = 4


@dataclass(frozen=True)
class Variable:
    """A constant that is trained: its shape in the model, and the order of axes and shape that its state has."""

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    state: tuple[int, ...]

    def stored(self, value: np.ndarray) -> np.ndarray:
        """The state for a value of the model."""
        return np.ascontiguousarray(value.transpose(self.order).reshape(self.state))

    def restored(self, state: np.ndarray) -> np.ndarray:
        """The value of the model for a state."""
        turned = state.reshape([self.shape[at] for at in self.order])
        return np.ascontiguousarray(turned.transpose(np.argsort(self.order)))


@dataclass(frozen=True)
class Step:
    """A training step: inputs are those of the model, `TARGET`, and each variable with its momentum; outputs are
    `PROBABILITIES` and what variables and momenta become."""

    network: Network
    variables: tuple[Variable, ...]
    rate: float
    momentum: float
    gradients: dict[str, str] = field(default_factory=dict)

    @property
    def states(self) -> dict[str, str]:
        """Outputs that inputs become for the next run."""
        pairs: dict[str, str] = {}
        for variable in self.variables:
            pairs[variable.name] = NEXT.format(variable.name)
            pairs[MOMENTUM.format(variable.name)] = NEXT_MOMENTUM.format(variable.name)
        return pairs


def training_step(network: Network, names: Sequence[str], *, rate: float, momentum: float) -> Step:
    """A step that trains some constants of a network of real numbers, for as many samples as its input has.

    Raises
    ------
    GradientError
        If an operator behind these constants has no gradient, or the network has not one output of classes.
    CompileError
        If the network is not valid, or a shape is not known.
    """
    opened = with_variables(network, names)
    logits = _logits(opened)
    found = meanings(opened, names)
    graph = Graph("step", constants=dict(opened.constants))
    builder = _Builder(opened, found, graph, tuple(names))
    variables = builder.variables()
    builder.forward()
    error = builder.error(logits)
    sources = [found.sources[name] for name in names]
    parts = gradients([(found.values[logits], error)], sources)
    rows = found.values[logits].shape[0]
    made: dict[str, str] = {}
    for variable, part in zip(variables, parts, strict=True):
        if part is None:
            raise GradientError(f"the output does not depend on {variable.name!r}")
        made[variable.name] = builder.update(variable, part, rate / rows, momentum)
    return Step(builder.network(variables), variables, rate, momentum, made)


def before_softmax(network: Network) -> Network:
    """The network without a softmax at its end: what it makes classes of."""
    made = {name: node for node in network.nodes for name in node.outputs}
    outputs = []
    for name in network.outputs:
        node, own = made.get(name), name
        while node is not None and node.op in ("Identity", "Softmax"):
            own, node = node.inputs[0], made.get(node.inputs[0])
        outputs.append(own)
    kinds = dict(network.types) | {
        own: network.types[name]
        for name, own in zip(network.outputs, outputs, strict=True)
        if name in network.types
    }
    return dataclasses.replace(network, outputs=tuple(outputs), types=kinds)


def _logits(network: Network) -> str:
    real = [name for name in network.outputs if (kind := network.type_of(name)) and kind.dtype in FLOATS]
    if len(real) != 1:
        raise GradientError(f"a network is trained by one output of real numbers; this one has {len(real)}")
    kind = network.type_of(real[0])
    if kind is None or kind.sizes is None or len(kind.sizes) != 2:
        raise GradientError(f"output {real[0]!r} must have a row of classes for each sample; it is {kind}")
    return real[0]


class _Builder:
    """Makes the nodes of a step."""

    def __init__(self, network: Network, found: Meanings, graph: Graph, names: tuple[str, ...]) -> None:
        self.source, self.found, self.graph, self.names = network, found, graph, names
        self.emission = Emission(graph)
        self.states: dict[str, tuple[str, Dims]] = {}

    def variables(self) -> tuple[Variable, ...]:
        """Constants that are trained, and what products read of them."""
        made = []
        for name in self.names:
            source = self.found.sources[name]
            order, dims = _layout(source.axes)
            sizes = tuple(Held(name, dims).sizes)
            made.append(Variable(name, source.shape, order, sizes))
            narrow = self.graph.node("Identity", [name], NARROW.format(name))
            self.emission.place(source, Held(narrow, dims))
            self.states[name] = name, dims
        return tuple(made)

    def forward(self) -> None:
        """The nodes of the network, those of trained weights as products of what they read."""
        trained = {id(self.found.sources[name]) for name in self.names}
        moving = depending(self.source.nodes, self.names)
        for name in (*self.source.inputs, *self.source.constants):
            item = self.found.values[name]
            if id(item) not in trained:
                self.emission.place(item, Held(name, singles(item.axes)))
        for node in self.source.nodes:
            direct = node.op in _PRODUCTS and any(name in self.names for name in node.inputs)
            if direct or (node.op in _ELEMENTWISE and moving.intersection(node.inputs)):
                self._own(node)
            else:
                self._kept(node)

    def _own(self, node: Node) -> None:
        for name in node.outputs:
            self.emission.value(self.found.values[name])

    def _kept(self, node: Node) -> None:
        inputs = tuple(self._whole(name) if name else "" for name in node.inputs)
        self.graph.nodes.append(dataclasses.replace(node, inputs=inputs))
        for name in node.outputs:
            item = self.found.values.get(name)
            if item is not None:
                self.emission.place(item, Held(name, singles(item.axes)))

    def _whole(self, name: str) -> str:
        if name in self.source.constants:
            return name
        return self.emission.whole(self.found.values[name])

    def error(self, logits: str) -> Source:
        """The gradient of the loss by the output."""
        item = self.found.values[logits]
        name = self.emission.whole(item)
        self.graph.node("Softmax", [name], PROBABILITIES, axis=-1)
        error = self.graph.node("Sub", [PROBABILITIES, TARGET], "step/error")
        seed = Source(error, item.axes)
        self.emission.place(seed, Held(error, singles(item.axes)))
        return seed

    def update(self, variable: Variable, part: Expression, rate: float, momentum: float) -> str:
        """Nodes that make the next state of a variable; the name of its gradient."""
        _, dims = self.states[variable.name]
        held = self.emission.value(part)
        missing = [axis for dim in dims for axis in dim if axis not in held.axes]
        if missing:
            raise GradientError(
                f"the gradient of {variable.name!r} is the same along an axis of {missing[0].size}"
            )
        gradient = self.graph.arrange(held, dims).name
        own = MOMENTUM.format(variable.name)
        kept = self.graph.node("Mul", [own, self.graph.constant(np.array(momentum, np.float32))])
        after = self.graph.node("Add", [kept, gradient], NEXT_MOMENTUM.format(variable.name))
        moved = self.graph.node("Mul", [after, self.graph.constant(np.array(rate, np.float32))])
        self.graph.node("Sub", [variable.name, moved], NEXT.format(variable.name))
        return gradient

    def network(self, variables: Iterable[Variable]) -> Network:
        kinds = {name: kind for name in self.source.inputs if (kind := self.source.type_of(name)) is not None}
        logits = self.source.type_of(_logits(self.source))
        assert logits is not None
        kinds[TARGET] = kinds[PROBABILITIES] = Type("float32", logits.shape)
        outputs = [PROBABILITIES]
        for variable in variables:
            for name in (variable.name, MOMENTUM.format(variable.name)):
                kinds[name] = Type("float32", variable.state)
            for name in (NEXT.format(variable.name), NEXT_MOMENTUM.format(variable.name)):
                kinds[name] = Type("float32", variable.state)
                outputs.append(name)
        plain = [name for name in self.source.inputs if name not in self.names]
        momenta = [MOMENTUM.format(name) for name in self.names]
        made = dataclasses.replace(
            self.source, nodes=tuple(self.graph.nodes), constants=self.graph.constants, outputs=tuple(outputs),
            inputs=(*plain, TARGET, *self.names, *momenta), types=kinds,
        )  # fmt: skip
        return resolve(needed(made)).network


def _layout(axes: tuple[Axis, ...]) -> tuple[tuple[int, ...], Dims]:
    """The order of axes of a state and its dimensions: weights of a convolution as a row for each output."""
    if len(axes) < _IMAGE_RANK - 1:
        return tuple(range(len(axes))), singles(axes)
    order = (0, *range(2, len(axes)), 1)
    return order, ((axes[0],), tuple(axes[at] for at in order[1:]))
