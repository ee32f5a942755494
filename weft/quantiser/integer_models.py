"""Models with integer weights and float activations as float models, which the quantiser takes.

`onnxruntime.quantization.quantize_dynamic` makes such models, whose activations are quantised when they run, and so do
tools that store weights alone in 4 bits. Their weights become floats here, and are remembered, so that the quantised
model can have the same integers again (`weft.quantiser.kept_weights`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from weft.compiler.ir.graph import CompileError
from weft.compiler.onnx.model import QLINEAR, UNFIXED
from weft.compiler.onnx.model_rules import Site, check
from weft.quantiser.integer_weights import Integers, Packing, Remembered, check_scales, linear
from weft.quantiser.rewriting import Nodes, Rewriting, attributes_of, input_of, label

_ONE = np.ones((), np.float32)
_STRANGE = (
    "is not as quantisers write it: weft reads products of integers behind DynamicQuantizeLinear with constant "
    "weights, scales and zero points, whose results are multiplied by the scales of both"
)
_UNKNOWN = "is an operator of integers that weft does not read: quantise the model without it"


@dataclass(frozen=True)
class _Quantised:
    """Integers that stand for ``source / step``, once `zero` is subtracted; all three are names of values."""

    source: str
    step: str
    zero: str


@dataclass(frozen=True, eq=False)
class _Step:
    """A product of the steps of activations, by name, and a constant."""

    names: tuple[str, ...]
    factor: np.ndarray


@dataclass(frozen=True, eq=False)
class _Product:
    """A product of integers: what `node` would make of floats, over the product of the steps `names`, times a constant.

    `sources` has the floats of each side, or its constant integers less their zero points.
    """

    node: onnx.NodeProto
    sources: tuple[str | np.ndarray, str | np.ndarray]
    kind: str
    names: tuple[str, ...]
    factor: np.ndarray


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of a constant table of integers."""

    node: onnx.NodeProto
    table: str


_Meaning = _Quantised | _Step | _Product | _Rows


def floats(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Remembered]:
    """A valid model with floats in the place of integer weights, and these weights.

    Models that have none, or whose activations have fixed ranges (QuantizeLinear), are returned as they are.

    Raises
    ------
    CompileError
        If weights or their scales make no sense, or operators of integers are not as quantisers write them.
    """
    operators = {node.op_type for node in model.graph.node}
    if operators & {"QuantizeLinear", *QLINEAR} or not operators & {*UNFIXED, "DequantizeLinear"}:
        return model, Remembered()
    made = onnx.ModelProto()
    made.CopyFrom(model)
    reading = _Reading(made)
    for node in reading.run(_FORMS):
        if node.op_type in UNFIXED:
            raise CompileError(f"{label(node)} {_STRANGE if node.op_type in _FORMS else _UNKNOWN}")
    return made, reading.remembered


class _Reading(Rewriting):
    """One walk over a model, in which nodes of integers are replaced; and what values of integers are."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self._meanings: dict[str, _Meaning] = {}
        self.remembered = Remembered()

    def meaning(self, name: str) -> _Meaning | None:
        return self._meanings.get(name)

    def note(self, name: str, meaning: _Meaning) -> None:
        self._meanings[name] = meaning

    def weights(self, name: str, integers: Integers) -> str:
        """The name of the floats of constant integers, which are remembered."""
        return self.constant(f"{name}_floats", self.remembered.add(integers))


def _dynamic(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """DynamicQuantizeLinear: integers of an activation."""
    quantised, step, zero = (*node.output, "", "")[:3]
    reading.note(quantised, _Quantised(node.input[0], step, zero))
    reading.note(step, _Step((step,), _ONE))
    return None


def _integer_product(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """MatMulInteger and ConvInteger."""
    sides: list[str | np.ndarray] = []
    kind = ""
    names: tuple[str, ...] = ()
    arrays = [reading.array(name) if name else None for name in node.input]
    shapes = tuple(None if array is None else array.shape for array in arrays)
    check(label(node), Site(node.op_type, attributes_of(node), shapes, (None,)))
    for index in range(2):
        side, zero = reading.meaning(node.input[index]), input_of(node, 2 + index)
        if isinstance(side, _Quantised) and side.zero == zero:
            sides.append(side.source)
            names += (side.step,)
            continue
        given = reading.array(node.input[index])
        offset = reading.array(zero) if zero else np.zeros((), np.int8)
        if given is None or offset is None:
            return None
        axis = 0 if node.op_type == "ConvInteger" else given.ndim - 1
        sides.append(linear(label(node), given, _ONE, offset, axis, 0).values)
        kind = str(given.dtype)
    if names:
        reading.note(node.output[0], _Product(node, (sides[0], sides[1]), kind, names, _ONE))
    return None


def _cast(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    meaning = reading.meaning(node.input[0])
    if isinstance(meaning, _Product) and attributes_of(node)["to"] == TensorProto.FLOAT:
        reading.note(node.output[0], meaning)
    return None


def _multiplied(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """Mul of steps, and of products of integers: once these are multiplied by all their steps, they are of floats."""
    sides = []
    for name in node.input:
        meaning, given = reading.meaning(name), reading.array(name)
        if given is not None and given.dtype == np.float32:
            meaning = _Step((), given)
        sides.append(meaning)
    first, second = sides
    if isinstance(second, _Product):
        first, second = second, first
    if not isinstance(second, _Step):
        return None
    if isinstance(first, _Step) and (first.names or second.names):
        reading.note(node.output[0], _Step(first.names + second.names, first.factor * second.factor))
    if not isinstance(first, _Product):
        return None
    left = list(first.names)
    for name in second.names:
        if name not in left:
            return None
        left.remove(name)
    found = replace(first, names=tuple(left), factor=np.asarray(first.factor * second.factor))
    if left:
        reading.note(node.output[0], found)
        return None
    return _float_product(reading, found, node.output[0])


def _float_product(reading: _Reading, product: _Product, output: str) -> Nodes:
    """The operator of floats, whose constant side has the factor; None for a factor of another shape than channels."""
    node, names = product.node, []
    conv = node.op_type == "ConvInteger"
    rest = product.factor
    for side, given in enumerate(product.sources):
        if isinstance(given, str):
            names.append(given)
            continue
        scale = _scale_of(rest, given, 0 if conv else given.ndim - 1, conv)
        if scale is None or (side == 0 and rest.size > 1):
            return None
        rest = _ONE
        integers = Integers(given, check_scales(label(node), scale), product.kind)
        names.append(reading.weights(node.input[side], integers))
    kept = {name: value for name, value in attributes_of(node).items() if conv}
    made = helper.make_node("Conv" if conv else "MatMul", names, [output], node.name, **kept)
    if rest.size == 1 and rest.reshape(-1)[0] == 1:
        return [made]
    made.output[0] = reading.value(f"{output}_product")
    factor = reading.constant(f"{output}_factor", rest)
    return [made, helper.make_node("Mul", [made.output[0], factor], [output], f"{node.name}_scaled")]


def _scale_of(factor: np.ndarray, weights: np.ndarray, axis: int, conv: bool) -> np.ndarray | None:
    """A factor of results as one of weights, whose `axis` counts channels of results."""
    shape = [1] * weights.ndim
    if factor.size == 1:
        return factor.reshape(shape)
    shape[axis] = weights.shape[axis]
    behind = tuple(factor.shape[1 - factor.ndim :]) if conv and factor.ndim > 1 else ()
    channels = factor.size == weights.shape[axis] and set(behind[-(weights.ndim - 2) :]) <= {1}
    place = factor.ndim >= weights.ndim - 1 if conv else factor.shape[-1] == factor.size
    return factor.reshape(shape) if channels and place else None


def _dequantised(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """DequantizeLinear of a constant, of rows of one, or of what DynamicQuantizeLinear made."""
    meaning = reading.meaning(node.input[0])
    if isinstance(meaning, _Quantised) and (meaning.step, meaning.zero) == tuple(node.input[1:3]):
        return [helper.make_node("Identity", [meaning.source], list(node.output), node.name)]
    rows = meaning if isinstance(meaning, _Rows) else None
    name = node.input[0] if rows is None else rows.table
    values, scale = reading.array(name), reading.array(node.input[1])
    zero = reading.array(input_of(node, 2))
    if values is None or scale is None or (input_of(node, 2) and zero is None):
        return None
    if values.dtype.kind not in "iuV" and "int" not in str(values.dtype):
        return None
    if str(values.dtype) in ("int16", "uint16", "int32"):
        return None
    if rows is not None and scale.size > 1:
        return None
    settings = attributes_of(node)
    shapes = (values.shape, scale.shape, None if zero is None else zero.shape)
    check(label(node), Site("DequantizeLinear", settings, shapes, (values.shape,)))
    axis = settings.get("axis", 1)
    integers = linear(label(node), values, scale, zero, axis, settings.get("block_size", 0))
    made = reading.weights(name, integers)
    if rows is None:
        return [helper.make_node("Identity", [made], list(node.output), node.name)]
    kept = attributes_of(rows.node)
    return [helper.make_node("Gather", [made, rows.node.input[1]], list(node.output), rows.node.name, **kept)]


def _gathered(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    table = reading.array(node.input[0])
    if table is not None and table.dtype.kind != "f":
        reading.note(node.output[0], _Rows(node, node.input[0]))
    return None


def _packed(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """MatMulNBits of ONNX Runtime's domain."""
    settings, what = attributes_of(node), label(node)
    if input_of(node, 4):
        raise CompileError(
            f"{what} has an order of its own for its blocks (g_idx), which weft does not read: quantise the model "
            "without it"
        )
    inner, outputs, bits, block = (
        int(settings.get(name, default))
        for name, default in (("K", 0), ("N", 0), ("bits", 4), ("block_size", 0))
    )
    packing = Packing(inner, outputs, bits, block)
    if settings.get("weight_prepacked", 0):
        raise CompileError(f"{what} has weights in another order for one kind of GPU (weight_prepacked)")
    zeros = reading.needed(node, 3, "zero points") if input_of(node, 3) else None
    given = reading.needed(node, 1, "weights"), reading.needed(node, 2, "scales")
    made = reading.weights(node.input[1], packing.weights(what, *given, zeros))
    output = reading.value(f"{node.output[0]}_product")
    product = helper.make_node("MatMul", [node.input[0], made], [output], node.name)
    return reading.biased(node, product, input_of(node, 5))


def _fused_product(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """DynamicQuantizeMatMul, of floats, and MatMulIntegerToFloat, of integers, of ONNX Runtime's domain."""
    if node.op_type == "DynamicQuantizeMatMul":
        source, scale, zero, bias = node.input[0], 2, 3, 4
    else:
        meaning = reading.meaning(node.input[0])
        given = _Quantised("", node.input[2], input_of(node, 4))
        if not isinstance(meaning, _Quantised) or replace(meaning, source="") != given:
            return None
        source, scale, zero, bias = meaning.source, 3, 5, 6
    weights = reading.needed(node, 1, "weights")
    steps = reading.needed(node, scale, "scales")
    zeros = reading.needed(node, zero, "zero points") if input_of(node, zero) else None
    shapes = (weights.shape, steps.shape, None if zeros is None else zeros.shape)
    axis = weights.ndim - 1
    check(label(node), Site("DequantizeLinear", {"axis": axis}, shapes, (weights.shape,)))
    made = reading.weights(node.input[1], linear(label(node), weights, steps, zeros, axis, 0))
    output = reading.value(f"{node.output[0]}_product")
    product = helper.make_node("MatMul", [source, made], [output], node.name)
    return reading.biased(node, product, input_of(node, bias))


def _attention(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """QAttention of ONNX Runtime's domain: its Attention, of floats."""
    meaning = reading.meaning(node.input[0])
    given = _Quantised("", node.input[3], input_of(node, 6))
    if not isinstance(meaning, _Quantised) or replace(meaning, source="") != given or input_of(node, 8):
        return None
    weights, steps = reading.needed(node, 1, "weights"), reading.needed(node, 4, "scales")
    zeros = reading.needed(node, 7, "zero points") if input_of(node, 7) else None
    shapes = (weights.shape, steps.shape, None if zeros is None else zeros.shape)
    check(label(node), Site("DequantizeLinear", {"axis": 1}, shapes, (weights.shape,)))
    integers = linear(label(node), weights, steps, zeros, 1, 0)
    third = weights.shape[1] // 3
    for part in range(3):  # which queries, keys and values will have each
        own = slice(part * third, (part + 1) * third)
        scale = integers.scale[:, own] if integers.scale.size > 1 else integers.scale
        reading.remembered.add(replace(integers, values=integers.values[:, own], scale=scale))
    floats = reading.constant(f"{node.input[1]}_floats", integers.floats)
    inputs = [meaning.source, floats, node.input[2], input_of(node, 5)]
    made = helper.make_node("Attention", inputs, list(node.output), node.name, domain=node.domain)
    made.attribute.extend(node.attribute)
    return [made]


_FORMS: dict[str, Callable[[_Reading, onnx.NodeProto], Nodes]] = {
    "Cast": _cast,
    "ConvInteger": _integer_product,
    "DequantizeLinear": _dequantised,
    "DynamicQuantizeLinear": _dynamic,
    "DynamicQuantizeMatMul": _fused_product,
    "Gather": _gathered,
    "MatMulInteger": _integer_product,
    "QAttention": _attention,
    "MatMulIntegerToFloat": _fused_product,
    "MatMulNBits": _packed,
    "Mul": _multiplied,
}
"""What replaces nodes, by operator; None where they stay as they are."""
