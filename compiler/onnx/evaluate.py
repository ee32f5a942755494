"""Evaluating ONNX operators on the host: with ONNX Runtime where it is installed, else with the onnx package.

The onnx package's reference implementation is wrong for a few operators. Some are mended in
`weft.compiler.onnx.evaluate_ops`; the others are refused where ONNX Runtime is not installed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from weft.compiler.onnx.evaluate_ops import mistaken, replacements
from weft.hdl.errors import WeftError
from weft.hdl.files.schema import printable

_SHOWN = 400
"""Characters of a library's message; ONNX Runtime's name everything that is wrong behind each other."""
HOW_TO_INSTALL = "install ONNX Runtime (pip install 'weft[host]')"
STANDARD = ("", "ai.onnx", "ai.onnx.ml")
"""Operator sets that the onnx package defines."""

_NATIVE = frozenset({
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16,
    TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32,
    TensorProto.UINT64, TensorProto.UNDEFINED,
})  # fmt: skip
"""Types that ONNX Runtime takes from numpy and gives to it; UNDEFINED stands for one that is not known."""
_OURS = ("MaxPool", "AveragePool", "LpPool", "LRN", "MaxUnpool")
"""Operators that ONNX Runtime lets depart from ONNX: pools with dilations and auto_pad, LRN of even size, MaxUnpool."""

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], list[Any]]


class EvaluationError(WeftError, RuntimeError):
    """An operator that cannot be evaluated on the host, or not for these values; one sentence."""


@functools.cache
def runtime() -> ModuleType | None:
    """ONNX Runtime, None if it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    return onnxruntime


Part = tuple[tuple[str, ...], tuple[str, ...], Run]
"""What a part of a model reads, what it makes, and how."""


class Evaluator:
    """A model that the host runs.

    Parameters
    ----------
    model : ModelProto
        Its value_info should give the types of values in between; those of inputs must be known.

    Raises
    ------
    EvaluationError
        If there is an operator that nothing here computes, or not with certainty.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._outputs = [value.name for value in model.graph.output]
        types = _types(model)
        nodes = model.graph.node
        groups = itertools.groupby(range(len(nodes)), lambda index: _by_runtime(nodes[index], types))
        self._parts = [part for kind, run in groups for part in _prepared(model, list(run), kind)]

    def run(self, feeds: Feeds) -> list[Any]:
        """The model's outputs in order, for its inputs by name.

        Raises
        ------
        EvaluationError
            If an operator fails on these values.
        """
        values = dict(feeds)
        for reads, gives, part in self._parts:
            values.update(zip(gives, part({name: values[name] for name in reads}), strict=True))
        return [values[name] for name in self._outputs]


def reads(node: onnx.NodeProto) -> set[str]:
    """All values that a node or a graph inside it reads; names of values inside such graphs are among them."""
    found = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            found.update(value.name for value in graph.output)
            for inner in graph.node:
                found |= reads(inner)
    return found


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types by value, 0 where they are not known."""
    graph = model.graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    return types


def _by_runtime(node: onnx.NodeProto, types: dict[str, int]) -> bool:
    """Whether ONNX Runtime is to compute a node."""
    if node.domain not in STANDARD:
        return True
    if runtime() is None or node.op_type in _OURS or _departs(node):
        return False
    return all(types.get(name, TensorProto.UNDEFINED) in _NATIVE for name in (*node.input, *node.output))


def _departs(node: onnx.NodeProto) -> bool:
    """Whether ONNX Runtime gives other values than ONNX's own tests of an operator ask for."""
    if node.op_type == "Attention":
        return len(node.output) > 3  # the scores
    modes = [item.s for item in node.attribute if item.name == "coordinate_transformation_mode"]
    return node.op_type == "Resize" and modes == [b"align_corners"]


def _prepared(model: onnx.ModelProto, run: list[int], by_runtime: bool) -> list[Part]:
    """How a run of nodes is evaluated: as a whole, or in parts if ONNX Runtime does not have all of them."""
    part = _part(model, run)
    session = _session(part) if by_runtime else None
    if by_runtime and session is None and len(run) > 1:
        middle = len(run) // 2
        return [*_prepared(model, run[:middle], True), *_prepared(model, run[middle:], True)]
    inputs, outputs = (
        tuple(value.name for value in values) for values in (part.graph.input, part.graph.output)
    )
    return [(inputs, outputs, session or _reference(part))]


def _part(model: onnx.ModelProto, run: list[int]) -> onnx.ModelProto:
    """The nodes of a run as a model; the model itself if these are all."""
    graph = model.graph
    if len(run) == len(graph.node):
        return model
    inside = [graph.node[index] for index in run]
    made = {name for node in inside for name in node.output if name}
    read = set().union(*(reads(node) for node in inside))
    rest = [node for index, node in enumerate(graph.node) if index not in set(run)]
    wanted = {value.name for value in graph.output}.union(*(reads(node) for node in rest))
    constants = [tensor for tensor in graph.initializer if tensor.name in read]
    outer = {value.name for value in graph.input} | {name for node in rest for name in node.output}
    known = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    inputs, outputs = (
        [known.get(name, onnx.ValueInfoProto(name=name)) for name in sorted(names)]
        for names in ((read & outer) - {tensor.name for tensor in constants} - made, made & wanted)
    )
    part = helper.make_graph(inside, graph.name, inputs, outputs, constants)
    return helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)


def _open(model: onnx.ModelProto) -> Any:
    """A session that computes what the model says and nothing else: no fused operators, no saturating products."""
    onnxruntime = runtime()
    assert onnxruntime is not None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    # Without it products of uint8 and int8 saturate at 16 bits on processors without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _session(model: onnx.ModelProto) -> Run | None:
    """A run by ONNX Runtime, None if it is not installed or does not have one of the operators."""
    onnxruntime = runtime()
    if onnxruntime is None:
        return None
    try:
        session = _open(model)
    except Exception:  # of many types, none of which it documents
        return None
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4

    def run(feeds: Feeds) -> list[Any]:
        try:
            return session.run(None, feeds, quiet)
        except Exception as error:
            return _second(model, error)(feeds)

    return run


def inferred_types(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Types and shapes of what operators make that ONNX does not define, by ONNX Runtime.

    Raises
    ------
    EvaluationError
        If ONNX Runtime is not installed, or does not have one of them.
    """
    foreign = [node for node in model.graph.node if node.domain not in STANDARD]
    what = f"node {foreign[0].name!r} uses operator {foreign[0].op_type!r} of domain {foreign[0].domain!r}"
    if runtime() is None:
        raise EvaluationError(f"{what}, which is not part of ONNX: {HOW_TO_INSTALL}, which may have it")
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    del asked.graph.output[:]
    names = [name for node in foreign for name in node.output if name]
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        outputs = _open(asked).get_outputs()
    except Exception as error:
        raise EvaluationError(
            f"{what}, which is not part of ONNX, and ONNX Runtime does not take it: {first_line(error)}"
        ) from None
    return [_value_info(output) for output in outputs if output.type in _NAMES]


def _value_info(output: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(output.name, _NAMES[output.type], output.shape)


_NAMES = {
    f"tensor({name})": kind
    for name, kind in (
        ("float", TensorProto.FLOAT), ("double", TensorProto.DOUBLE), ("float16", TensorProto.FLOAT16),
        ("bool", TensorProto.BOOL), ("string", TensorProto.STRING), ("int8", TensorProto.INT8),
        ("int16", TensorProto.INT16), ("int32", TensorProto.INT32), ("int64", TensorProto.INT64),
        ("uint8", TensorProto.UINT8), ("uint16", TensorProto.UINT16), ("uint32", TensorProto.UINT32),
        ("uint64", TensorProto.UINT64), ("bfloat16", TensorProto.BFLOAT16),
    )
}  # fmt: skip
"""Types by what ONNX Runtime calls them."""


def _second(model: onnx.ModelProto, error: Exception) -> Run:
    """What is left where ONNX Runtime fails; its own `error` is the better one to show."""
    try:
        return _reference(model)
    except EvaluationError:
        raise EvaluationError(first_line(error)) from None


def _reference(model: onnx.ModelProto) -> Run:
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
    for node in model.graph.node:
        if node.domain not in STANDARD:
            remedy = (
                HOW_TO_INSTALL if runtime() is None else "ONNX Runtime does not have it; export without it"
            )
            raise EvaluationError(
                f"operator {node.op_type!r} of domain {node.domain!r} is not part of ONNX: {remedy}"
            )
        if mistaken(node, opset):
            raise EvaluationError(
                f"the onnx package's {node.op_type} is not right in all cases: {HOW_TO_INSTALL}"
            )
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


def first_line(error: Exception) -> str:
    """An error of a library as one line without a full stop, cut in the middle if it is long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[0].rstrip("."), _SHOWN) if lines else type(error).__name__
