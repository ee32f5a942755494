"""A training step as a network: forward and backward pass, and update of constants or of low-rank adapters.

The loss is the cross entropy of the softmax of one output; its gradient is the softmax less the target. The update is
stochastic gradient descent with momentum (Polyak, 1964): ``m' = momentum * m + g``, ``w' = w - rate m'``.

With adapters, the weights of a layer stay, and the product of two small matrices is added to them (Hu et al., "LoRA:
low-rank adaptation of large language models", 2106.09685). Two layers with `rank` channels between them run in parallel
with a layer of weights W; the results are added. After training, the weights become W + B A, so that the model costs no
more than before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.ir.network import Network, Node, Type
from weft.compiler.onnx.folding import resolve
from weft.extras.training.gradient.derivative import GradientError, gradients
from weft.extras.training.gradient.emission import Emission
from weft.extras.training.gradient.expression import Axis, Expression, Source
from weft.extras.training.gradient.meaning import FLOATS, Meanings, meanings
from weft.extras.training.gradient.network import prune, with_variables
from weft.extras.training.gradient.real_network import dependents
from weft.extras.training.gradient.tensor import Dims, Graph, Tensor, one_dim_per_axis

TARGET, PROBABILITIES = "target", "probabilities"
"""Input with the target, 1 for the class of each sample, and output with the predicted probabilities."""
NARROW, NEXT, MOMENTUM, NEXT_MOMENTUM = "{}/narrow", "{}/next", "{}/momentum", "{}/momentum/next"
"""Names that belong to a trained constant: its 8-bit form for products, its next value, its momentum, and the next
momentum."""
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that the device cannot run with trained weights as they are: they are emitted as matrix products."""
_ELEMENTWISE = ("Relu", "Add", "Sub", "Mul")
"""Operators that are independent of the order of elements."""
FIRST, SECOND = "{}/adapter/first", "{}/adapter/second"
"""Names of the two matrices of an adapter, by the name of the weights."""
_MATRIX_PRODUCTS = ("MatMul", "Gemm")
_IMAGE_RANK = 4


@dataclass(frozen=True)
class Variable:
    """A trained constant: its shape in the model, and the order of axes and the shape of its state."""

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    state: tuple[int, ...]

    def to_state(self, value: np.ndarray) -> np.ndarray:
        """Return the state for a value of the model."""
        return np.ascontiguousarray(value.transpose(self.order).reshape(self.state))

    def from_state(self, state: np.ndarray) -> np.ndarray:
        """Return the value of the model for a state."""
        turned = state.reshape([self.shape[at] for at in self.order])
        return np.ascontiguousarray(turned.transpose(np.argsort(self.order)))


@dataclass(frozen=True)
class Step:
    """A training step.

    Inputs are those of the model, `TARGET`, and each variable with its momentum. Outputs are `PROBABILITIES`, and the
    next values of variables and momenta.
    """

    network: Network
    variables: tuple[Variable, ...]
    rate: float
    momentum: float
    gradients: dict[str, str] = field(default_factory=dict)

    @property
    def states(self) -> dict[str, str]:
        """Outputs that become inputs of the next run, by input."""
        pairs: dict[str, str] = {}
        for variable in self.variables:
            pairs[variable.name] = NEXT.format(variable.name)
            pairs[MOMENTUM.format(variable.name)] = NEXT_MOMENTUM.format(variable.name)
        return pairs


def training_step(network: Network, names: Sequence[str], *, rate: float, momentum: float) -> Step:
    """Return a step that trains some constants of a float network, for the batch size of its input.

    Raises
    ------
    GradientError
        If an operator after these constants has no gradient, or the network does not have one output of classes.
    CompileError
        If the network is not valid, or a shape is not known.
    """
    opened = with_variables(network, names)
    logits = _logits(opened)
    expressions = meanings(opened, names)
    graph = Graph("step", constants=dict(opened.constants))
    builder = _Builder(opened, expressions, graph, tuple(names))
    variables = builder.variables()
    builder.forward()
    error = builder.error(logits)
    sources = [expressions.sources[name] for name in names]
    parts = gradients([(expressions.values[logits], error)], sources)
    # The loss is a mean over samples, but gradients are sums: divide the rate by the number of samples.
    rows = expressions.values[logits].shape[0]
    gradient_names: dict[str, str] = {}
    for variable, part in zip(variables, parts, strict=True):
        if part is None:
            raise GradientError(f"the output does not depend on {variable.name!r}")
        gradient_names[variable.name] = builder.update(variable, part, rate / rows, momentum)
    return Step(builder.network(variables), variables, rate, momentum, gradient_names)


def strip_softmax(network: Network) -> Network:
    """Return the network without a final softmax."""
    producers = {name: node for node in network.nodes for name in node.outputs}
    outputs = []
    for name in network.outputs:
        node, own = producers.get(name), name
        while node is not None and node.op in ("Identity", "Softmax"):
            # The step adds the softmax itself, with the gradient of the cross entropy.
            own, node = node.inputs[0], producers.get(node.inputs[0])
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
    """Builder of the nodes of a step."""

    def __init__(self, network: Network, expressions: Meanings, graph: Graph, names: tuple[str, ...]) -> None:
        self.source, self.expressions, self.graph, self.names = network, expressions, graph, names
        self.emission = Emission(graph)
        self.states: dict[str, tuple[str, Dims]] = {}

    def variables(self) -> tuple[Variable, ...]:
        """Add the 8-bit form of trained constants, and return the variables."""
        variables = []
        for name in self.names:
            source = self.expressions.sources[name]
            order, dims = _layout(source.axes)
            sizes = tuple(Tensor(name, dims).sizes)
            variables.append(Variable(name, source.shape, order, sizes))
            narrow = self.graph.node("Identity", [name], NARROW.format(name))
            self.emission.place(source, Tensor(narrow, dims))
            self.states[name] = name, dims
        return tuple(variables)

    def forward(self) -> None:
        """Add the nodes of the network; those with trained weights become matrix products."""
        trained = {id(self.expressions.sources[name]) for name in self.names}
        moving = dependents(self.source.nodes, self.names)
        for name in (*self.source.inputs, *self.source.constants):
            item = self.expressions.values[name]
            if id(item) not in trained:
                self.emission.place(item, Tensor(name, one_dim_per_axis(item.axes)))
        for node in self.source.nodes:
            direct = node.op in _PRODUCTS and any(name in self.names for name in node.inputs)
            if direct or (node.op in _ELEMENTWISE and moving.intersection(node.inputs)):
                self._emit_as_expression(node)
            else:
                self._copy_node(node)

    def _emit_as_expression(self, node: Node) -> None:
        for name in node.outputs:
            self.emission.emit(self.expressions.values[name])

    def _copy_node(self, node: Node) -> None:
        inputs = tuple(self._full_value(name) if name else "" for name in node.inputs)
        self.graph.nodes.append(dataclasses.replace(node, inputs=inputs))
        for name in node.outputs:
            item = self.expressions.values.get(name)
            if item is not None:
                self.emission.place(item, Tensor(name, one_dim_per_axis(item.axes)))

    def _full_value(self, name: str) -> str:
        if name in self.source.constants:
            return name
        return self.emission.emit_full(self.expressions.values[name])

    def error(self, logits: str) -> Source:
        """Add the gradient of the loss by the output."""
        item = self.expressions.values[logits]
        name = self.emission.emit_full(item)
        self.graph.node("Softmax", [name], PROBABILITIES, axis=-1)
        error = self.graph.node("Sub", [PROBABILITIES, TARGET], "step/error")
        seed = Source(error, item.axes)
        self.emission.place(seed, Tensor(error, one_dim_per_axis(item.axes)))
        return seed

    def update(self, variable: Variable, part: Expression, rate: float, momentum: float) -> str:
        """Add the nodes that compute a variable's next state; return the name of its gradient."""
        _, dims = self.states[variable.name]
        tensor = self.emission.emit(part)
        missing = [axis for dim in dims for axis in dim if axis not in tensor.axes]
        if missing:
            raise GradientError(
                f"the gradient of {variable.name!r} is the same along an axis of {missing[0].size}"
            )
        gradient = self.graph.arrange(tensor, dims).name
        own = MOMENTUM.format(variable.name)
        decayed = self.graph.node("Mul", [own, self.graph.constant(np.array(momentum, np.float32))])
        next_momentum = self.graph.node("Add", [decayed, gradient], NEXT_MOMENTUM.format(variable.name))
        moved = self.graph.node("Mul", [next_momentum, self.graph.constant(np.array(rate, np.float32))])
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
        step = dataclasses.replace(
            self.source, nodes=tuple(self.graph.nodes), constants=self.graph.constants, outputs=tuple(outputs),
            inputs=(*plain, TARGET, *self.names, *momenta), types=kinds,
        )  # fmt: skip
        return resolve(prune(step)).network


def _layout(axes: tuple[Axis, ...]) -> tuple[tuple[int, ...], Dims]:
    """Return the axis order and the dimensions of a state: weights of a convolution are a row per output."""
    if len(axes) < _IMAGE_RANK - 1:
        return tuple(range(len(axes))), one_dim_per_axis(axes)
    # Channels last, as in the device's memory.
    order = (0, *range(2, len(axes)), 1)
    return order, ((axes[0],), tuple(axes[at] for at in order[1:]))


@dataclass(frozen=True)
class Adapter:
    """Two matrices in parallel with the weights `name`; `transposed` if the weights have outputs first."""

    name: str
    transposed: bool

    @property
    def constants(self) -> tuple[str, str]:
        return FIRST.format(self.name), SECOND.format(self.name)

    def merge(self, weight: np.ndarray, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the layer's weights plus the product of the trained matrices."""
        # Add in float64, and round once.
        first, second = (values[name].astype(np.float64) for name in self.constants)
        if weight.ndim > 2:
            added = np.tensordot(second.reshape(len(second), -1), first, 1)
        else:
            added = second @ first if self.transposed else first @ second
        return (weight + added).astype(np.float32)


def with_adapters(
    network: Network, layers: Iterable[tuple[Node, str]], rank: int, rng: np.random.Generator
) -> tuple[Network, tuple[Adapter, ...]]:
    """Add an adapter to each of some layers, given with the names of their weights.

    The first matrix is random and the second 0, so that the network first computes the same as before.

    Raises
    ------
    GradientError
        If a layer has groups, or is a transposed convolution.
    """
    chosen = {node.name: name for node, name in layers}
    constants, nodes = dict(network.constants), []
    adapters: list[Adapter] = []
    for node in network.nodes:
        if node.name not in chosen:
            nodes.append(node)
            continue
        adapter, added = _adapter(node, chosen[node.name], constants, rank, rng)
        own = f"{node.outputs[0]}/own"
        nodes += [dataclasses.replace(node, outputs=(own,)), *added]
        nodes.append(Node("Add", (own, added[-1].outputs[0]), node.outputs, name=f"{node.name}/adapted"))
        adapters.append(adapter)
    return dataclasses.replace(network, nodes=tuple(nodes), constants=constants), tuple(adapters)


def _adapter(
    node: Node, name: str, constants: dict[str, np.ndarray], rank: int, rng: np.random.Generator
) -> tuple[Adapter, list[Node]]:
    weight, source = constants[name], node.inputs[0]
    first, second = FIRST.format(name), SECOND.format(name)
    between, end = f"{node.name}/adapter/between", f"{node.name}/adapter/out"
    if node.op == "Conv" and node.attributes.get("group", 1) == 1:
        inner = weight.shape[1:]
        constants[first] = _random_matrix(rng, (rank, *inner), int(np.prod(inner)))
        constants[second] = np.zeros((weight.shape[0], rank, *(1 for _ in inner[1:])), np.float32)
        pointwise = {"kernel_shape": tuple(1 for _ in inner[1:])}
        both = (dict(node.attributes), pointwise)
        return Adapter(name, True), [
            Node("Conv", (operand, matrix), (output,), attributes, name=output)
            for operand, matrix, output, attributes in zip(
                (source, between), (first, second), (between, end), both, strict=True
            )
        ]
    plain = not node.attributes.get("transA", 0) and float(node.attributes.get("alpha", 1.0)) == 1.0
    if node.op not in _MATRIX_PRODUCTS or weight.ndim != 2 or not plain:
        raise GradientError(
            f"{node.label} takes no adapter: convolutions without groups and products of matrices do"
        )
    transposed = bool(node.attributes.get("transB", 0))
    outputs, inputs = weight.shape if transposed else weight.shape[::-1]
    shapes = ((rank, inputs), (outputs, rank)) if transposed else ((inputs, rank), (rank, outputs))
    constants[first] = _random_matrix(rng, shapes[0], inputs)
    constants[second] = np.zeros(shapes[1], np.float32)
    attributes = {"transB": int(transposed)}
    return Adapter(name, transposed), [
        Node("Gemm", (source, first), (between,), attributes, name=between),
        Node("Gemm", (between, second), (end,), attributes, name=end),
    ]


def _random_matrix(rng: np.random.Generator, shape: tuple[int, ...], inputs: int) -> np.ndarray:
    return (rng.normal(size=shape) / np.sqrt(inputs)).astype(np.float32)
