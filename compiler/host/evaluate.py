"""Evaluating ONNX operators on the host: with ONNX Runtime where it is installed, else with the onnx package.

The onnx package's reference implementation is wrong for a few operators. Some are mended in
`weft.compiler.host.reference`; the others are refused where ONNX Runtime is not installed.
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

from weft.compiler.host.onnx_model import STANDARD, NetworkError, first_line, model_of
from weft.compiler.host.reference import mistaken, replacements
from weft.compiler.ir.network import Network, Node, Type
from weft.compiler.ir.windows import span
from weft.hdl.errors import WeftError


class _Operand(NamedTuple):
    """Places of an operand and of its zero point among a node's inputs."""

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
"""By domain and operator: its first operand, None if it makes that of floats itself, as uint8, and its weights."""
_ONLY_FIRST = ("ConvInteger", "MatMulInteger")
"""Operators that have kernels for an int8 first operand and uint8 weights."""


def exact_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with products of uint8 and int8 as products of two uint8; the same model if it has none.

    The type of an operand is that of its zero point, if nothing else is said of it. One whose type is not known stays
    as it is.
    """
    if not _multiplies(model.graph):
        return model  # without a copy, which weights make large
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    return changed if _Rewriter(changed.graph, {}, set()).run() else model


def _multiplies(graph: GraphProto) -> bool:
    """Whether there is an operator of `_PAIRS` in a graph or a body in it."""
    return any(
        (node.domain, node.op_type) in _PAIRS or any(map(_multiplies, _bodies(node))) for node in graph.node
    )


class _Rewriter:
    """A graph, with the types of values that the graphs around it have, and all names that are `used` by now."""

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
        self.made: dict[str, str] = {}
        self.swapped = False

    def run(self) -> bool:
        """Whether something was changed."""
        nodes, changed = [], False
        for node in self.graph.node:
            inside = [_Rewriter(body, self.types, self.used).run() for body in _bodies(node)]  # all of them
            self.swapped = False
            nodes += [*self._before(node), node]
            changed |= self.swapped or any(inside)
        if changed:
            del self.graph.node[:]
            self.graph.node.extend(nodes)
        return changed

    def _before(self, node: NodeProto) -> Iterator[NodeProto]:
        """Nodes that make operands unsigned, which `node` then reads."""
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
            made = self._type(node, 2) if node.op_type == "QuantizeLinear" else TensorProto.UINT8
            self.types.setdefault(node.output[0], made or TensorProto.UINT8)
        first, weights = _PAIRS.get((node.domain, node.op_type), (None, ()))
        one = TensorProto.UINT8 if first is None else self._of(node, first)
        for operand in weights:
            other = self._of(node, operand)
            if (one, other) == (TensorProto.UINT8, TensorProto.INT8):
                yield from self._unsigned(node, operand)
            elif (one, other) == (TensorProto.INT8, TensorProto.UINT8) and node.op_type in _ONLY_FIRST:
                assert first is not None
                yield from self._unsigned(node, first)

    def _of(self, node: NodeProto, operand: _Operand) -> int:
        return self._type(node, operand.value) or self._type(node, operand.zero)

    def _type(self, node: NodeProto, place: int) -> int:
        return self.types.get(node.input[place], 0) if place < len(node.input) else 0

    def _unsigned(self, node: NodeProto, operand: _Operand) -> Iterator[NodeProto]:
        self.swapped = True
        for place in operand:
            while place >= len(node.input):
                node.input.append("")
            name = node.input[place]
            if not name:
                node.input[place] = self._constant(np.array(128, np.uint8), "zero point")
            elif name in self.made:
                node.input[place] = self.made[name]
            elif name in self.constants:
                values = numpy_helper.to_array(self.constants[name])
                node.input[place] = self._constant(values.view(np.uint8) ^ np.uint8(0x80), name)
                self.made[name] = node.input[place]
            else:
                node.input[place] = self._name(name)
                yield from self._moved(name, node.input[place])
                self.made[name] = node.input[place]

    def _moved(self, name: str, result: str) -> Iterator[NodeProto]:
        """128 more than an int8, as uint8."""
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
        """A name that no graph of the model has."""
        names = (f"{like}/unsigned{index}" for index in itertools.count())
        name = next(name for name in names if name not in self.used)
        self.used.add(name)
        return name


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Branches, and bodies of loops."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


HOW_TO_INSTALL = "install ONNX Runtime (pip install 'weft[host]')"
_NATIVE = frozenset({
    "float32", "float64", "float16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
})  # fmt: skip
"""Types that ONNX Runtime takes from numpy and gives to it."""
_LARGEST = (np.iinfo(np.int32).max, np.iinfo(np.int64).max)
"""Ends that ONNX Runtime's Slice takes for the first element, if it goes backwards."""
_SAFE = frozenset({
    "Cast", "DequantizeLinear", "Flatten", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators that can always be evaluated: the onnx package has them too. Most models have no others on the host."""
_OURS = ("MaxPool", "AveragePool", "LpPool", "LRN", "MaxUnpool")
"""Operators that ONNX Runtime lets depart from ONNX: pools with dilations and auto_pad, LRN of even size, MaxUnpool."""

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], list[Any]]


class EvaluationError(WeftError, RuntimeError):
    """An operator that cannot be evaluated on the host, or not for these values; one sentence."""


@functools.cache
def runtime() -> ModuleType | None:
    """ONNX Runtime without its telemetry, None if it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    # `weft` switches telemetry off before the library is loaded, which is too late if a program loaded it earlier.
    onnxruntime.disable_telemetry_events()
    return onnxruntime


Part = tuple[tuple[str, ...], tuple[str, ...], Run]
"""The inputs and outputs of a part of a network, and the function that computes it."""


class Evaluator:
    """A network that the host runs.

    Parameters
    ----------
    network : Network
        The types of its inputs must be known, those of values in between should.

    Raises
    ------
    EvaluationError
        If there is an operator that nothing here computes, or not with certainty.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        if any(node.domain not in STANDARD or node.operator not in _SAFE for node in network.nodes):
            self._parts  # noqa: B018  raises what is wrong now, and opens sessions

    @functools.cached_property
    def _parts(self) -> list[Part]:
        network = self._network
        groups = itertools.groupby(network.nodes, lambda node: _by_runtime(node, network))
        return [part for kind, run in groups for part in _prepared(network, tuple(run), kind)]

    def run(self, feeds: Feeds) -> list[Any]:
        """The network's outputs in order, for its inputs by name.

        Raises
        ------
        EvaluationError
            If an operator fails on these values.
        """
        values = {**self._network.constants, **feeds}
        for reads, gives, part in self._parts:
            values.update(zip(gives, part({name: values[name] for name in reads}), strict=True))
        return [values[name] for name in self._network.outputs]


def _by_runtime(node: Node, network: Network) -> bool:
    """Whether ONNX Runtime is to compute a node."""
    if node.domain not in STANDARD:
        return True
    if runtime() is None or node.operator in _OURS or _departs(node, network):
        return False
    types = (network.type_of(name) for name in (*node.inputs, *node.outputs))
    return all(known is None or known.dtype in _NATIVE for known in types)


def _departs(node: Node, network: Network) -> bool:
    """Whether ONNX Runtime gives another result than the text of ONNX."""
    given = node.attributes
    if node.operator == "Attention":
        return len(node.outputs) > 3  # the scores
    if node.operator == "Resize":  # it leaves negative axes out of an aspect ratio
        return (
            given.get("keep_aspect_ratio_policy", "stretch") != "stretch" and min(given.get("axes", (0,))) < 0
        )
    if node.operator == "Squeeze":  # it takes no axes for all of them
        axes = network.constants.get(node.input(1))
        return axes is not None and axes.size == 0
    if node.operator == "Slice":  # it goes on to the first element
        ends, steps = (network.constants.get(node.input(at), np.ones(1)) for at in (2, 4))
        return bool((steps < 0).any() and np.isin(ends, _LARGEST).any())
    return node.operator in ("Conv", "ConvInteger", "QLinearConv") and _leaves_out(given)


def _leaves_out(given: Mapping[str, Any]) -> bool:
    """Whether windows of auto_pad may be further apart than they are long: ONNX Runtime moves the first of them."""
    strides, kernel = given.get("strides") or (), given.get("kernel_shape")
    if given.get("auto_pad") not in ("SAME_UPPER", "SAME_LOWER") or max(strides, default=1) == 1:
        return False
    dilations = given.get("dilations") or (1,) * len(strides)
    return kernel is None or any(
        stride > span(size, dilation)
        for stride, size, dilation in zip(strides, kernel, dilations, strict=False)
    )


def _prepared(network: Network, run: tuple[Node, ...], by_runtime: bool) -> list[Part]:
    """A run of nodes ready to evaluate: as a whole, or in parts if ONNX Runtime does not have all of them."""
    part = _part(network, run)
    session = _session(part) if by_runtime else None
    if by_runtime and session is None and len(run) > 1:
        middle = len(run) // 2
        return [*_prepared(network, run[:middle], True), *_prepared(network, run[middle:], True)]
    return [(part.inputs, part.outputs, session or _reference(part))]


def _part(network: Network, run: tuple[Node, ...]) -> Network:
    """The nodes of a run with what others read of them; the network itself if these are all."""
    if len(run) == len(network.nodes):
        return network
    inside = {id(node) for node in run}
    rest = (name for node in network.nodes if id(node) not in inside for name in node.reads)
    wanted = {*network.outputs, *rest}
    return network.part(run, [name for node in run for name in node.outputs if name in wanted])


def _open(model: onnx.ModelProto) -> Any:
    """A session that computes what the model says and nothing else: no fused operators, no saturating products."""
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
    """A run by ONNX Runtime, None if it is not installed or does not have one of the operators."""
    onnxruntime = runtime()
    if onnxruntime is None:
        return None
    try:
        session = _open(_model(network))
    except EvaluationError:
        raise
    except Exception:  # of many types, none of which it documents
        return None
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4

    def run(feeds: Feeds) -> list[Any]:
        try:
            return session.run(None, feeds, quiet)
        except Exception as error:
            return _second(network, error)(feeds)

    return run


def foreign_types(network: Network) -> dict[str, Type]:
    """Types and shapes of what operators make that ONNX does not define, as far as they are not known, by ONNX Runtime.

    Raises
    ------
    EvaluationError
        If ONNX Runtime is not installed, or does not have one of them.
    """
    known = {name for name, found in network.types.items() if found.sizes is not None}
    foreign = [
        node
        for node in network.nodes
        if node.domain not in STANDARD and not known.issuperset(filter(None, node.outputs))
    ]
    if not foreign:
        return {}
    what = f"node {foreign[0].name!r} uses operator {foreign[0].operator!r} of domain {foreign[0].domain!r}"
    if runtime() is None:
        raise EvaluationError(f"{what}, which is not part of ONNX: {HOW_TO_INSTALL}, which may have it")
    asked = _model(network)
    del asked.graph.output[:]
    names = [name for node in foreign for name in node.outputs if name]
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        outputs = _open(asked).get_outputs()
    except Exception as error:
        raise EvaluationError(
            f"{what}, which is not part of ONNX, and ONNX Runtime does not take it: {first_line(error)}"
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
"""Types by what ONNX Runtime calls them."""


def _model(network: Network) -> onnx.ModelProto:
    try:
        return model_of(network)
    except NetworkError as error:
        raise EvaluationError(str(error)) from None


def _second(network: Network, error: Exception) -> Run:
    """The reference implementation, where ONNX Runtime fails with `error`: that is the better one to show."""
    try:
        return _reference(network)
    except EvaluationError:
        raise EvaluationError(first_line(error)) from None


def _reference(network: Network) -> Run:
    opset = network.opset
    for node in network.nodes:
        if node.domain not in STANDARD:
            remedy = (
                HOW_TO_INSTALL if runtime() is None else "ONNX Runtime does not have it; export without it"
            )
            raise EvaluationError(
                f"operator {node.operator!r} of domain {node.domain!r} is not part of ONNX: {remedy}"
            )
        if mistaken(node, opset):
            raise EvaluationError(
                f"the onnx package's {node.operator} is not right in all cases: {HOW_TO_INSTALL}"
            )
    model = _model(network)
    try:
        evaluator = ReferenceEvaluator(model, new_ops=replacements(opset))
    except Exception as error:  # it raises anything
        raise EvaluationError(first_line(error)) from None

    def run(feeds: Feeds) -> list[Any]:
        try:
            with np.errstate(all="ignore"):
                return list(evaluator.run(None, feeds))
        except Exception as error:
            raise EvaluationError(first_line(error)) from None

    return run
