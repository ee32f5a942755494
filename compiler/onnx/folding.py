"""What is known of a model before it runs: types and shapes of its values, and those that are constant."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.host.evaluate import EvaluationError, Evaluator, foreign_types
from weft.compiler.host.onnx_model import STANDARD, NetworkError, infer_types
from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Network, Node, Type, type_of
from weft.compiler.ir.windows import axes, span
from weft.compiler.onnx.limits import check_values
from weft.compiler.onnx.model_rules import Site, check

Shape = tuple[int, ...]


def types_by_text(network: Network, sure: Mapping[str, Type]) -> dict[str, Type]:
    """The types of a network's values by shape inference, with the shapes of the text; those of values in `sure` are
    right already.

    Raises
    ------
    NetworkError
        If types or shapes contradict each other.
    """
    settled = dict(sure)
    while True:  # ends: each round settles what only settled nodes come before
        types, error = _text_shapes_inferred(network, settled)
        fresh = _other_types(network, types)
        if not fresh and len(settled) == len(sure) and error is not None:
            raise error
        if not fresh:
            return types
        settled |= fresh


def _text_shapes_inferred(
    network: Network, settled: Mapping[str, Type]
) -> tuple[dict[str, Type], NetworkError | None]:
    """Types by inference with `settled` ones as inputs; and the error if shapes that the file declares are others."""
    nodes = tuple(node for node in network.nodes if settled.keys().isdisjoint(node.outputs))
    cut = _cut(network, nodes, settled) if settled else network
    try:
        return {**settled, **infer_types(cut)}, None
    except NetworkError as error:
        if not any(node.op in _BY_TEXT for node in network.nodes):
            raise
        foreign = (name for node in nodes if node.domain not in STANDARD for name in node.outputs)
        given = {name: cut.types[name] for name in (*cut.inputs, *foreign) if name in cut.types}
        return {**settled, **infer_types(dataclasses.replace(cut, types=given))}, error


def _cut(network: Network, nodes: tuple[Node, ...], settled: Mapping[str, Type]) -> Network:
    """The network of some nodes, whose inputs are those of all and the `settled` values that they read."""
    part = network.part(nodes, network.outputs)
    inputs = tuple(dict.fromkeys((*network.inputs, *part.inputs)))
    known = {**{name: network.types[name] for name in inputs if name in network.types}, **part.types}
    return dataclasses.replace(
        part, inputs=inputs, types=known | {name: settled[name] for name in inputs if name in settled}
    )


def _other_types(network: Network, types: Mapping[str, Type]) -> dict[str, Type]:
    """The types of the outputs of nodes whose shape is another one by the text."""
    other = {}
    for node in network.nodes:
        found = _shape(node, network.constants, types) if node.op in _BY_TEXT else None
        for name in node.outputs if found is not None else ():
            if name in types and types[name].sizes != found:
                other[name] = Type(types[name].dtype, found)
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
    # Kernels that are larger than the padded image have no windows by the text; `model_rules` refuses them.
    return (*image[:2], *counts) if all(counts) else None


def _spread(node: Node, image: Shape, others: list[Shape | None]) -> Shape | None:
    weight, given = others[0] if others else None, node.attributes
    if given.get("auto_pad") not in ("SAME_UPPER", "SAME_LOWER") or "output_shape" in given:
        return None
    if weight is None or len(weight) != len(image):
        return None
    rank = len(image) - 2
    strides, dilations = (given.get(name) or (1,) * rank for name in ("strides", "dilations"))
    extra = given.get("output_padding") or (0,) * rank
    sizes = (
        min(size * stride, (size - 1) * stride + more + span(kernel, dilation))
        for size, stride, more, kernel, dilation in zip(
            image[2:], strides, extra, weight[2:], dilations, strict=True
        )
    )
    return (image[0], weight[1] * given.get("group", 1), *sizes)


_Shape = Callable[[Node, Shape, list[Shape | None]], Shape | None]
_BY_TEXT: dict[str, _Shape] = {
    "AveragePool": _pool,
    "ConvTranspose": _spread,
    "LpPool": _pool,
    "MaxPool": _pool,
}
"""The shape of a node's results for those of its inputs; None where it is not known, or inference is right."""


FOLD_LIMIT = 1 << 24
"""Elements above which a constant is not computed ahead of time."""
_GROWING = ("ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample")
"""Operators whose results may be far larger than their inputs: folded once their size is known."""
_RANDOM = ("Bernoulli", "Dropout", "Multinomial")
_MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
"""Operators that only move elements: tied weights pass them on the way to a second product."""
_CONTROL = ("If", "Loop", "Scan", "SequenceMap")


@dataclass(eq=False)
class Known:
    """A network of which the nodes in `folded` are left out, as what they make is among `constants`.

    `shapes` and `dtypes` (numpy names) are those of all values as far as they are known. `moved` are weights that were
    dequantised and moved, with the nodes that did it.
    """

    network: Network
    constants: dict[str, np.ndarray]
    folded: list[Node] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    moved: dict[str, tuple[Node, ...]] = field(default_factory=dict)

    def note(self, types: Mapping[str, Type]) -> None:
        """Note types of values, and shapes that are known as a whole."""
        for name, found in types.items():
            self.dtypes[name] = found.dtype
            if found.sizes is not None:
                self.shapes[name] = found.sizes


def resolve(network: Network, sure: Mapping[str, Type] | None = None) -> Known:
    """Infer shapes and fold constants, in turns: either may tell what the other needs. Nodes get names that differ.

    Types in `sure` are right, and not inferred again. Constants are never folded through DequantizeLinear, whose
    scales matter.

    Raises
    ------
    CompileError
        If the model is not valid, or a value is too large.
    """
    constants = dict(network.constants)
    known = Known(dataclasses.replace(network, nodes=_named(network.nodes), constants=constants), constants)
    while True:
        types = _inferred(known.network, sure or {})
        known.network = dataclasses.replace(known.network, types=types)
        known.shapes, known.dtypes = {}, {}
        known.note(types)
        known.note({name: type_of(value) for name, value in constants.items()})
        check_values(known.shapes)
        for node in known.network.nodes:
            check(node.label, _site(node, known))
        fresh = _fold_all(known)
        made = (name for node in known.network.nodes for name in node.outputs if name)
        if not fresh or all(name in known.shapes for name in made):
            return known


def _named(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes by their place, with names that differ."""
    taken: set[str] = set()
    named = []
    for index, node in enumerate(nodes):
        name = node.name or f"{node.operator}_{index}"
        while name in taken:
            name += f"_{index}"
        taken.add(name)
        named.append(dataclasses.replace(node, name=name, index=index))
    return tuple(named)


def _inferred(network: Network, sure: Mapping[str, Type]) -> dict[str, Type]:
    """The types of a network's values; those that operators make that ONNX does not define are as ONNX Runtime says."""
    try:
        types = {**network.types, **foreign_types(network)}
        return types_by_text(dataclasses.replace(network, types=types), sure)
    except NetworkError as error:
        raise CompileError(f"the model is not valid ONNX: {error}") from None
    except EvaluationError as error:
        raise CompileError(str(error)) from None


def _site(node: Node, known: Known) -> Site:
    return Site(
        node.op,
        node.attributes,
        tuple(known.shapes.get(name) for name in node.inputs),
        tuple(known.shapes.get(name) for name in node.outputs),
    )


def _fold_all(known: Known) -> bool:
    """Fold the nodes whose results are constant; whether there were any."""
    left: list[Node] = []
    fresh: dict[str, np.ndarray] = {}
    for node in known.network.nodes:
        values = _fold(node, known)
        if values is None:
            values = _requantised(node, known)
        if values is None:
            left.append(node)
            continue
        known.folded.append(node)
        known.constants.update(values)
        fresh |= values
        known.note({name: type_of(value) for name, value in values.items()})
    types = {name: found for name, found in known.network.types.items() if name not in fresh}
    known.network = dataclasses.replace(known.network, nodes=tuple(left), types=types)
    return bool(fresh)


def _fold(node: Node, known: Known) -> dict[str, np.ndarray] | None:
    """The node's outputs if they are constant, else None: also if nothing here can compute them."""
    if node.op == "Shape" and node.inputs[0] in known.shapes:
        start, end = node.attributes.get("start", 0), node.attributes.get("end")
        return {node.outputs[0]: np.array(known.shapes[node.inputs[0]][start:end], np.int64)}
    if node.op == "DequantizeLinear" or node.op.startswith("Random") or node.op in (*_RANDOM, *_CONTROL):
        return None
    if any(name and name not in known.constants for name in node.inputs):
        return None
    made = [name for name in node.outputs if name]
    sizes = [known.shapes.get(name) for name in made]
    if node.op in _GROWING and None in sizes:
        return None
    if any(size is not None and np.prod(size, dtype=np.int64) > FOLD_LIMIT for size in sizes):
        return None
    try:
        values = run_nodes([node], made, known)
    except EvaluationError:
        return None
    agrees = all(
        str(value.dtype) == known.dtypes.get(name, str(value.dtype)) and size in (None, value.shape)
        for name, size, value in zip(made, sizes, values, strict=True)
    )
    return dict(zip(made, values, strict=True)) if agrees else None


def _requantised(node: Node, known: Known) -> dict[str, np.ndarray] | None:
    """The result of a QuantizeLinear of weights that were dequantised and moved, None for any other node.

    `known.moved` has the nodes that make each value of that kind, to which this one is added.
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
    """Whether a scale is one that a quantiser writes; others are refused with a message, where nodes are matched."""
    return scale is not None and bool((np.isfinite(scale) & (scale > 0)).all())


def run_nodes(nodes: Iterable[Node], outputs: Iterable[str], known: Known) -> list[np.ndarray]:
    """Evaluate a few nodes of constants on the host.

    Raises
    ------
    EvaluationError
        If one of them cannot be evaluated.
    """
    part = known.network.part(nodes, outputs)
    types = {name: type_of(value) for name, value in part.constants.items()}
    fed = dataclasses.replace(part, inputs=tuple(part.constants), types=types, constants={})
    return [np.asarray(value) for value in Evaluator(fed).run(dict(part.constants))]
