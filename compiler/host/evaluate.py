"""Evaluation of ONNX operators on the host, with ONNX Runtime if it is installed, else with the onnx package.

The onnx package's reference implementation computes a few operators wrongly. `weft.compiler.host.reference` replaces
some of them; without ONNX Runtime, weft refuses the others.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from weft.compiler.errors import EvaluationError, NetworkError
from weft.compiler.host.onnx_model import STANDARD, first_line, model_of
from weft.compiler.host.reference import is_wrong, replacements
from weft.compiler.ir.network import Network, Node, Type
from weft.compiler.ir.windows import span


class _Operand(NamedTuple):
    """Indices of an operand and of its zero point among a node's inputs."""

    value: int
    zero: int


_PAIRS: Mapping[tuple[str, str], tuple[_Operand | None, tuple[_Operand, ...]]] = {
    ("", "MatMulInteger"): (_Operand(0, 2), (_Operand(1, 3),)),
    ("", "ConvInteger"): (_Operand(0, 2), (_Operand(1, 3),)),
    ("", "QLinearMatMul"): (_Operand(0, 2), (_Operand(3, 5),)),
    ("", "QLinearConv"): (_Operand(0, 2), (_Operand(3, 5),)),
    ("com.microsoft", "QLinearConv"): (_Operand(0, 2), (_Operand(3, 5),)),
    ("com.microsoft", "MatMulIntegerToFloat"): (_Operand(0, 4), (_Operand(1, 5),)),
    ("com.microsoft", "QGemm"): (_Operand(0, 2), (_Operand(3, 5),)),
    ("com.microsoft", "QAttention"): (_Operand(0, 6), (_Operand(1, 7),)),
    ("com.microsoft", "DynamicQuantizeMatMul"): (None, (_Operand(1, 3),)),
    ("com.microsoft", "DynamicQuantizeLSTM"): (None, (_Operand(1, 9), _Operand(2, 11))),
}
"""First operand and weights of each operator, by domain and name; no first operand if the operator quantises it to
uint8.
"""
_ONLY_FIRST = ("ConvInteger", "MatMulInteger")
"""Operators with kernels for an int8 first operand and uint8 weights."""


def exact_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which products of uint8 and int8 are products of two uint8; the given model if it has none.

    An operand has the type of its zero point, unless the model declares another. Operands of unknown type stay.
    """
    if not _has_product(model.graph):
        return model  # without a copy, which weights make large
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    return changed if _Rewriter(changed.graph, {}, set()).run() else model


def _has_product(graph: GraphProto) -> bool:
    return any(
        (node.domain, node.op_type) in _PAIRS or any(map(_has_product, _bodies(node))) for node in graph.node
    )


class _Rewriter:
    """Rewriter of one graph, with the types of enclosing graphs' values, and all names in `used`."""

    def __init__(self, graph: GraphProto, outer: Mapping[str, int], used: set[str]) -> None:
        self.graph = graph
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.types = dict(outer)
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.HasField("tensor_type"):
                self.types[value.name] = value.type.tensor_type.elem_type
        self.types |= {name: tensor.data_type for name, tensor in self.constants.items()}
        self.used = used
        self.used.update(self.types, *((*node.input, *node.output) for node in graph.node))
        self.converted: dict[str, str] = {}
        self.changed_node = False

    def run(self) -> bool:
        """Rewrite the graph, and return whether that changed it."""
        nodes, changed = [], False
        for node in self.graph.node:
            # A list, not a generator: every body must be rewritten.
            inside = [_Rewriter(body, self.types, self.used).run() for body in _bodies(node)]
            self.changed_node = False
            nodes += [*self._before(node), node]
            changed |= self.changed_node or any(inside)
        if changed:
            del self.graph.node[:]
            self.graph.node.extend(nodes)
        return changed

    def _before(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield nodes that convert operands to uint8, and make `node` read their results."""
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
            dtype = self._type(node, 2) if node.op_type == "QuantizeLinear" else TensorProto.UINT8
            self.types.setdefault(node.output[0], dtype or TensorProto.UINT8)
        first, weights = _PAIRS.get((node.domain, node.op_type), (None, ()))
        one = TensorProto.UINT8 if first is None else self._operand_type(node, first)
        for operand in weights:
            other = self._operand_type(node, operand)
            if (one, other) == (TensorProto.UINT8, TensorProto.INT8):
                yield from self._convert(node, operand)
            elif (one, other) == (TensorProto.INT8, TensorProto.UINT8) and node.op_type in _ONLY_FIRST:
                assert first is not None
                yield from self._convert(node, first)

    def _operand_type(self, node: NodeProto, operand: _Operand) -> int:
        return self._type(node, operand.value) or self._type(node, operand.zero)

    def _type(self, node: NodeProto, place: int) -> int:
        return self.types.get(node.input[place], 0) if place < len(node.input) else 0

    def _convert(self, node: NodeProto, operand: _Operand) -> Iterator[NodeProto]:
        self.changed_node = True
        for place in operand:
            while place >= len(node.input):
                node.input.append("")
            name = node.input[place]
            if not name:
                # An omitted zero point is 0, which also moves by 128.
                node.input[place] = self._constant(np.array(128, np.uint8), "zero point")
            elif name in self.converted:
                node.input[place] = self.converted[name]
            elif name in self.constants:
                values = numpy_helper.to_array(self.constants[name])
                # Flipping the sign bit adds 128.
                node.input[place] = self._constant(values.view(np.uint8) ^ np.uint8(0x80), name)
                self.converted[name] = node.input[place]
            else:
                node.input[place] = self._name(name)
                yield from self._add_128(name, node.input[place])
                self.converted[name] = node.input[place]

    def _add_128(self, name: str, result: str) -> Iterator[NodeProto]:
        wide, sum_ = self._name(name), self._name(name)
        half = self._constant(np.array(128, np.int32), "half")
        yield helper.make_node("Cast", [name], [wide], to=TensorProto.INT32)
        yield helper.make_node("Add", [wide, half], [sum_])
        yield helper.make_node("Cast", [sum_], [result], to=TensorProto.UINT8)

    def _constant(self, values: np.ndarray, like: str) -> str:
        name = self._name(like)
        self.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def _name(self, like: str) -> str:
        """Return a name that is unique in the whole model."""
        names = (f"{like}/unsigned{index}" for index in itertools.count())
        name = next(name for name in names if name not in self.used)
        self.used.add(name)
        return name


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


HOW_TO_INSTALL = "install ONNX Runtime (pip install 'weft[host]')"
_NATIVE = frozenset({
    "float32", "float64", "float16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
})  # fmt: skip
"""Types that ONNX Runtime exchanges with numpy."""
_LARGEST = (np.iinfo(np.int32).max, np.iinfo(np.int64).max)
"""Ends with which ONNX Runtime's Slice with negative steps includes the first element."""
_SAFE = frozenset({
    "Cast", "DequantizeLinear", "Flatten", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators that can always be evaluated, because the onnx package supports them. Most host segments have no others."""
_OURS = ("MaxPool", "AveragePool", "LpPool", "LRN", "MaxUnpool")
"""Operators of which ONNX Runtime deviates from ONNX: pools with dilations and auto_pad, LRN of
even size, MaxUnpool.
"""

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], list[Any]]


@functools.cache
def runtime() -> ModuleType | None:
    """Return ONNX Runtime without its telemetry, or None if it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    # `weft` switches telemetry off before it loads the library. A program may have loaded the library earlier.
    onnxruntime.disable_telemetry_events()
    return onnxruntime


Part = tuple[tuple[str, ...], tuple[str, ...], Run]
"""Inputs and outputs of a part of a network, and the function that computes it."""


class Evaluator:
    """Evaluator of a network on the host.

    Parameters
    ----------
    network : Network
        Types of its inputs must be known, and types of values in between should be.
    ~
    Raises
    ------
    EvaluationError
        If an operator cannot be evaluated here, or only with wrong results in some cases.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        if any(node.domain not in STANDARD or node.operator not in _SAFE for node in network.nodes):
            self._parts  # noqa: B018  opens sessions, and raises errors now

    @functools.cached_property
    def _parts(self) -> list[Part]:
        network = self._network
        groups = itertools.groupby(network.nodes, lambda node: _by_runtime(node, network))
        return [part for kind, run in groups for part in _prepare_parts(network, tuple(run), kind)]

    def run(self, feeds: Feeds) -> list[Any]:
        """Return the network's outputs in order, for its inputs by name.

        Raises
        ------
        EvaluationError
            If an operator fails for these values.
        """
        values = {**self._network.constants, **feeds}
        for reads, gives, part in self._parts:
            values.update(zip(gives, part({name: values[name] for name in reads}), strict=True))
        return [values[name] for name in self._network.outputs]


def _by_runtime(node: Node, network: Network) -> bool:
    if node.domain not in STANDARD:
        return True
    if runtime() is None or node.operator in _OURS or _deviates(node, network):
        return False
    types = (network.type_of(name) for name in (*node.inputs, *node.outputs))
    return all(known is None or known.dtype in _NATIVE for known in types)


def _deviates(node: Node, network: Network) -> bool:
    """Return whether ONNX Runtime deviates from the text of ONNX for a node."""
    attributes = node.attributes
    if node.operator == "Attention":
        return len(node.outputs) > 3  # the scores
    if node.operator == "Resize":  # it ignores negative axes in an aspect ratio
        return (
            attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch"
            and min(attributes.get("axes", (0,))) < 0
        )
    if node.operator == "Squeeze":  # it treats an empty list of axes as all axes
        axes = network.constants.get(node.input(1))
        return axes is not None and axes.size == 0
    if node.operator == "Slice":  # it includes the first element
        ends, steps = (network.constants.get(node.input(at), np.ones(1)) for at in (2, 4))
        return bool((steps < 0).any() and np.isin(ends, _LARGEST).any())
    return node.operator in ("Conv", "ConvInteger", "QLinearConv") and _skips_elements(attributes)


def _skips_elements(attributes: Mapping[str, Any]) -> bool:
    """Return whether windows with auto_pad may have strides above their span: ONNX Runtime moves the first window."""
    strides, kernel = attributes.get("strides") or (), attributes.get("kernel_shape")
    if attributes.get("auto_pad") not in ("SAME_UPPER", "SAME_LOWER") or max(strides, default=1) == 1:
        return False
    dilations = attributes.get("dilations") or (1,) * len(strides)
    return kernel is None or any(
        stride > span(size, dilation)
        for stride, size, dilation in zip(strides, kernel, dilations, strict=False)
    )


def _prepare_parts(network: Network, run: tuple[Node, ...], by_runtime: bool) -> list[Part]:
    """Return a run of nodes as one part, or as several parts if ONNX Runtime does not support all of them."""
    part = _part(network, run)
    session = _session(part) if by_runtime else None
    if by_runtime and session is None and len(run) > 1:
        # Bisect until each part is supported by one of the two.
        middle = len(run) // 2
        return [*_prepare_parts(network, run[:middle], True), *_prepare_parts(network, run[middle:], True)]
    return [(part.inputs, part.outputs, session or _reference(part))]


def _part(network: Network, run: tuple[Node, ...]) -> Network:
    """Return the network of a run of nodes, with the outputs that others read; the whole network if the run is all of
    it.
    """
    if len(run) == len(network.nodes):
        return network
    inside = {id(node) for node in run}
    outside_reads = (name for node in network.nodes if id(node) not in inside for name in node.reads)
    needed = {*network.outputs, *outside_reads}
    return network.part(run, [name for node in run for name in node.outputs if name in needed])


def _open(model: onnx.ModelProto) -> Any:
    """Return a session that computes the model as it is: without fused operators and saturating products."""
    onnxruntime = runtime()
    assert onnxruntime is not None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        exact_products(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _session(network: Network) -> Run | None:
    """Return a function that runs ONNX Runtime; None if it is not installed or does not support an operator."""
    onnxruntime = runtime()
    if onnxruntime is None:
        return None
    try:
        session = _open(_model(network))
    except EvaluationError:
        raise
    except Exception:  # ONNX Runtime documents no types of exceptions
        return None
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4

    def run(feeds: Feeds) -> list[Any]:
        try:
            return session.run(None, feeds, quiet)
        except Exception as error:
            return _fallback(network, error)(feeds)

    return run


def foreign_types(network: Network) -> dict[str, Type]:
    """Return unknown types of results of operators outside ONNX, from ONNX Runtime.

    Raises
    ------
    EvaluationError
        If ONNX Runtime is not installed, or does not support one of them.
    """
    known = {name for name, type_ in network.types.items() if type_.sizes is not None}
    foreign = [
        node
        for node in network.nodes
        if node.domain not in STANDARD and not known.issuperset(filter(None, node.outputs))
    ]
    if not foreign:
        return {}
    label = f"node {foreign[0].name!r} uses operator {foreign[0].operator!r} of domain {foreign[0].domain!r}"
    if runtime() is None:
        raise EvaluationError(f"{label}, which is not part of ONNX: {HOW_TO_INSTALL}, which may have it")
    model = _model(network)
    del model.graph.output[:]
    names = [name for node in foreign for name in node.outputs if name]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        outputs = _open(model).get_outputs()
    except Exception as error:
        raise EvaluationError(
            f"{label}, which is not part of ONNX, and ONNX Runtime rejects it: {first_line(error)}"
        ) from None
    return {item.name: _type(item) for item in outputs if item.type in _NAMES}


def _type(output: Any) -> Type:
    return Type(_NAMES[output.type], tuple(size if isinstance(size, int) else None for size in output.shape))


_NAMES = {
    f"tensor({name})": dtype
    for name, dtype in (
        ("float", "float32"), ("double", "float64"), ("float16", "float16"), ("bool", "bool"), ("string", "object"),
        ("int8", "int8"), ("int16", "int16"), ("int32", "int32"), ("int64", "int64"), ("uint8", "uint8"),
        ("uint16", "uint16"), ("uint32", "uint32"), ("uint64", "uint64"), ("bfloat16", "bfloat16"),
    )
}  # fmt: skip
"""Types by their names in ONNX Runtime."""


def _model(network: Network) -> onnx.ModelProto:
    try:
        return model_of(network)
    except NetworkError as error:
        raise EvaluationError(str(error)) from None


def _fallback(network: Network, error: Exception) -> Run:
    """Return a run of the reference implementation after ONNX Runtime failed; its own failure shows `error`, which is
    clearer.
    """
    try:
        return _reference(network)
    except EvaluationError:
        raise EvaluationError(first_line(error)) from None


def _reference(network: Network) -> Run:
    opset = network.opset
    for node in network.nodes:
        if node.domain not in STANDARD:
            remedy = (
                HOW_TO_INSTALL if runtime() is None else "ONNX Runtime does not support it; export without it"
            )
            raise EvaluationError(
                f"operator {node.operator!r} of domain {node.domain!r} is not part of ONNX: {remedy}"
            )
        if is_wrong(node, opset):
            raise EvaluationError(
                f"the onnx package computes {node.operator} wrongly in some cases: {HOW_TO_INSTALL}"
            )
    model = _model(network)
    try:
        evaluator = ReferenceEvaluator(model, new_ops=replacements(opset))
    except Exception as error:  # the package raises exceptions of any type
        raise EvaluationError(first_line(error)) from None

    def run(feeds: Feeds) -> list[Any]:
        try:
            with np.errstate(all="ignore"):
                return list(evaluator.run(None, feeds))
        except Exception as error:
            raise EvaluationError(first_line(error)) from None

    return run
