"""Static analysis of a model: types and shapes of its values, and constant folding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.errors import CompileError, EvaluationError, NetworkError
from weft.compiler.host.evaluate import Evaluator, foreign_types
from weft.compiler.host.onnx_model import STANDARD, infer_types
from weft.compiler.ir.network import Network, Node, Type, check_values, type_of
from weft.compiler.ir.windows import axes, span
from weft.compiler.onnx.links import as_real, expand, real_type, stored_types
from weft.compiler.onnx.model_rules import Site, check

Shape = tuple[int, ...]


def types_by_text(network: Network, sure: Mapping[str, Type]) -> dict[str, Type]:
    """Return the types of a network's values by shape inference, corrected by the text of the ONNX specification.

    Types in `sure` are given.

    Raises
    ------
    NetworkError
        If types or shapes contradict each other.
    """
    settled = dict(sure)
    while True:  # terminates: each round settles nodes whose predecessors are all settled
        types, error = _infer_with_settled(network, settled)
        fresh = _other_types(network, types)
        if not fresh and len(settled) == len(sure) and error is not None:
            raise error
        if not fresh:
            return types
        settled |= fresh


def _infer_with_settled(
    network: Network, settled: Mapping[str, Type]
) -> tuple[dict[str, Type], NetworkError | None]:
    """Return inferred types with `settled` types as inputs, and the error if the file declares other shapes."""
    nodes = tuple(node for node in network.nodes if settled.keys().isdisjoint(node.outputs))
    cut = _cut(network, nodes, settled) if settled else network
    try:
        return {**settled, **infer_types(cut)}, None
    except NetworkError as error:
        if not any(node.op in _BY_TEXT for node in network.nodes):
            raise
        # The file may declare the shapes that inference computes wrongly. Keep only types that it cannot infer.
        foreign = (name for node in nodes if node.domain not in STANDARD for name in node.outputs)
        declared = {name: cut.types[name] for name in (*cut.inputs, *foreign) if name in cut.types}
        return {**settled, **infer_types(dataclasses.replace(cut, types=declared))}, error


def _cut(network: Network, nodes: tuple[Node, ...], settled: Mapping[str, Type]) -> Network:
    """Return the network of some nodes, with all of the network's inputs and the `settled` values that they read."""
    part = network.part(nodes, network.outputs)
    inputs = tuple(dict.fromkeys((*network.inputs, *part.inputs)))
    known = {**{name: network.types[name] for name in inputs if name in network.types}, **part.types}
    return dataclasses.replace(
        part, inputs=inputs, types=known | {name: settled[name] for name in inputs if name in settled}
    )


def _other_types(network: Network, types: Mapping[str, Type]) -> dict[str, Type]:
    """Return the types of outputs whose shape differs by the specification's text."""
    other = {}
    for node in network.nodes:
        shape = _shape(node, network.constants, types) if node.op in _BY_TEXT else None
        for name in node.outputs if shape is not None else ():
            if name in types and types[name].sizes != shape:
                other[name] = Type(types[name].dtype, shape)
    return other


def _shape(node: Node, constants: Mapping[str, np.ndarray], types: Mapping[str, Type]) -> Shape | None:
    shapes: list[Shape | None] = []
    for name in node.inputs:
        known = types.get(name)
        shapes.append(constants[name].shape if name in constants else None if known is None else known.sizes)
    if not shapes or shapes[0] is None:
        return None
    return _BY_TEXT[node.op](node, shapes[0], shapes[1:])


def _pool(node: Node, image: Shape, others: list[Shape | None]) -> Shape | None:
    if len(image) < 3 or len(node.attributes.get("kernel_shape", ())) != len(image) - 2:
        return None
    counts = tuple(axis.count for axis in axes(image[2:], node.attributes))
    # A kernel larger than the padded image has no windows by the text; `model_rules` refuses it.
    return (*image[:2], *counts) if all(counts) else None


def _conv_transpose(node: Node, image: Shape, others: list[Shape | None]) -> Shape | None:
    weight, attributes = others[0] if others else None, node.attributes
    if attributes.get("auto_pad") not in ("SAME_UPPER", "SAME_LOWER") or "output_shape" in attributes:
        return None
    if weight is None or len(weight) != len(image):
        return None
    rank = len(image) - 2
    strides, dilations = (attributes.get(name) or (1,) * rank for name in ("strides", "dilations"))
    extra = attributes.get("output_padding") or (0,) * rank
    sizes = (
        min(size * stride, (size - 1) * stride + extra_size + span(kernel, dilation))
        for size, stride, extra_size, kernel, dilation in zip(
            image[2:], strides, extra, weight[2:], dilations, strict=True
        )
    )
    return (image[0], weight[1] * attributes.get("group", 1), *sizes)


_Shape = Callable[[Node, Shape, list[Shape | None]], Shape | None]
_BY_TEXT: dict[str, _Shape] = {
    "AveragePool": _pool,
    "ConvTranspose": _conv_transpose,
    "LpPool": _pool,
    "MaxPool": _pool,
}
"""Output shape of a node from its input shapes; None if it is unknown, or shape inference is right."""


FOLD_LIMIT = 1 << 24
"""Largest number of elements of a folded constant."""
_GROWING = ("ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample")
"""Operators with results far larger than their inputs: folded once the size is known."""
_RANDOM = ("Bernoulli", "Dropout", "Multinomial")
_MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
"""Operators that only move elements, for example on the way of tied weights to a second product."""
_CONTROL = ("If", "Loop", "Scan", "SequenceMap")


@dataclass(eq=False)
class Known:
    """A network without the nodes in `folded`, whose results are among `constants`.

    Attributes
    ----------
    shapes, dtypes : dict
        Known shapes and numpy type names of all values.
    moved : dict
        Weights that were dequantised and moved, with the nodes that did so.
    """

    network: Network
    constants: dict[str, np.ndarray]
    folded: list[Node] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    moved: dict[str, tuple[Node, ...]] = field(default_factory=dict)

    def note(self, types: Mapping[str, Type]) -> None:
        """Record types of values, and shapes that are fully known."""
        for name, type_ in types.items():
            self.dtypes[name] = type_.dtype
            if type_.sizes is not None:
                self.shapes[name] = type_.sizes


def resolve(network: Network, sure: Mapping[str, Type] | None = None) -> Known:
    """Infer shapes and fold constants in turns, because each may need the other. Nodes get unique names.

    Types in `sure` are given. Real numbers of quantised constants are never computed, because their scales matter.

    Raises
    ------
    CompileError
        If the model is not valid, or a value is too large.
    """
    constants = dict(network.constants)
    known = Known(
        dataclasses.replace(network, nodes=_with_unique_names(network.nodes), constants=constants), constants
    )
    while True:
        types = _infer(known.network, sure or {})
        known.network = dataclasses.replace(known.network, types=types)
        known.shapes, known.dtypes = {}, {}
        known.note(types)
        known.note({name: type_of(value) for name, value in constants.items()})
        check_values(known.shapes)
        for node in known.network.nodes:
            check(node.label, _site(node, known))
        fresh = _fold_all(known)
        outputs = (name for node in known.network.nodes for name in node.outputs if name)
        if not fresh or all(name in known.shapes for name in outputs):
            return known


def _with_unique_names(nodes: Iterable[Node]) -> tuple[Node, ...]:
    taken: set[str] = set()
    named = []
    for index, node in enumerate(nodes):
        name = node.name or f"{node.operator}_{index}"
        while name in taken:
            name += f"_{index}"
        taken.add(name)
        named.append(dataclasses.replace(node, name=name, index=index))
    return tuple(named)


def _infer(network: Network, sure: Mapping[str, Type]) -> dict[str, Type]:
    """Return the types of a network's values; ONNX Runtime provides types for operators outside ONNX."""
    plain, real = as_real(network)
    try:
        known = {**plain.types, **foreign_types(plain)}
        given = {name: real_type(name, kind, real) for name, kind in sure.items()}
        types = types_by_text(dataclasses.replace(plain, types=known), given)
    except NetworkError as error:
        raise CompileError(f"the model is not valid ONNX: {error}") from None
    except EvaluationError as error:
        raise CompileError(str(error)) from None
    return stored_types(types, real)


def _site(node: Node, known: Known) -> Site:
    return Site(
        node.op,
        node.attributes,
        tuple(known.shapes.get(name) for name in node.inputs),
        tuple(known.shapes.get(name) for name in node.outputs),
    )


def _fold_all(known: Known) -> bool:
    """Fold all nodes with constant results, and return whether there were any."""
    left: list[Node] = []
    fresh: dict[str, np.ndarray] = {}
    for node in known.network.nodes:
        values = _fold(node, known)
        if values is None:
            values = _requantise_moved(node, known)
        if values is None:
            left.append(node)
            continue
        known.folded.append(node)
        known.constants.update(values)
        fresh |= values
        known.note({name: type_of(value) for name, value in values.items()})
    types = {name: kind for name, kind in known.network.types.items() if name not in fresh}
    known.network = dataclasses.replace(known.network, nodes=tuple(left), types=types)
    return bool(fresh)


def _fold(node: Node, known: Known) -> dict[str, np.ndarray] | None:
    """Return a node's outputs if they are constant and can be computed here, else None."""
    # Shape needs only the input's shape, so it folds even if the input is no constant.
    if node.op == "Shape" and node.inputs[0] in known.shapes:
        start, end = node.attributes.get("start", 0), node.attributes.get("end")
        return {node.outputs[0]: np.array(known.shapes[node.inputs[0]][start:end], np.int64)}
    if node.op == "DequantizeLinear" or node.op.startswith("Random") or node.op in (*_RANDOM, *_CONTROL):
        return None
    quantised = known.network.quantisation
    if not node.raw and not quantised.keys().isdisjoint(node.inputs) and node.outputs[0] not in quantised:
        return None
    if any(name and name not in known.constants for name in node.inputs):
        return None
    outputs = [name for name in node.outputs if name]
    sizes = [known.shapes.get(name) for name in outputs]
    if node.op in _GROWING and None in sizes:
        return None
    if any(size is not None and np.prod(size, dtype=np.int64) > FOLD_LIMIT for size in sizes):
        return None
    try:
        values = run_nodes([node], outputs, known)
    except EvaluationError:
        return None
    # A node whose evaluation contradicts shape inference stays.
    agrees = all(
        str(value.dtype) == known.dtypes.get(name, str(value.dtype)) and size in (None, value.shape)
        for name, size, value in zip(outputs, sizes, values, strict=True)
    )
    return dict(zip(outputs, values, strict=True)) if agrees else None


def _requantise_moved(node: Node, known: Known) -> dict[str, np.ndarray] | None:
    """Return the result of a QuantizeLinear of weights that were dequantised and moved; None for other nodes.

    Nodes that dequantise or move such weights are added to `known.moved`.
    """
    constants, moved = known.constants, known.moved
    if not all(not name or name in constants or name in moved for name in node.inputs):
        return None
    if node.op.endswith("Linear") and not _positive(constants.get(node.input(1))):
        return None
    before = (item for name in node.inputs for item in moved.get(name, ()) if name not in constants)
    nodes = (*dict.fromkeys(before), node)
    if node.op in ("QuantizeLinear", "DequantizeLinear", *_MOVES):
        moved[node.outputs[0]] = nodes
    if node.op != "QuantizeLinear":
        return None
    try:
        return dict(zip(node.outputs, run_nodes(nodes, node.outputs, known), strict=True))
    except EvaluationError:
        return None


def _positive(scale: np.ndarray | None) -> bool:
    """Return whether a scale is finite and positive. Matching refuses others with a message."""
    return scale is not None and bool((np.isfinite(scale) & (scale > 0)).all())


def run_nodes(nodes: Iterable[Node], outputs: Iterable[str], known: Known) -> list[np.ndarray]:
    """Evaluate some nodes with constant inputs on the host.

    Raises
    ------
    EvaluationError
        If one of them cannot be evaluated.
    """
    part = expand(known.network.part(nodes, outputs))
    types = {name: type_of(value) for name, value in part.constants.items()}
    fed = dataclasses.replace(part, inputs=tuple(part.constants), types=types, constants={})
    return [np.asarray(value) for value in Evaluator(fed).run(dict(part.constants))]
