"""Conversion of models with integer weights and float activations to float models, for the quantiser.

`onnxruntime.quantization.quantize_dynamic` writes such models, and so do tools that store only weights, in 4 bits. The
conversion remembers the integers, so that `weft.quantiser.kept_weights` can put them into the quantised model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from weft.compiler.errors import CompileError
from weft.compiler.onnx.model import QLINEAR, UNFIXED
from weft.compiler.onnx.model_rules import Site, check
from weft.quantiser.integer_weights import Integers, Packing, Remembered, check_scales, linear
from weft.quantiser.rewriting import Nodes, Rewriting, attributes_of, input_of, label

_ONE = np.ones((), np.float32)
_STRANGE = (
    "has a form that weft does not read: a product of integers must follow DynamicQuantizeLinear, have constant "
    "weights, scales and zero points, and be multiplied by the scales of both sides"
)
_UNKNOWN = "is an integer operator that weft does not read: quantise the model without it"


@dataclass(frozen=True)
class _Quantised:
    """Integers that equal ``source / step + zero``; all three are names of values."""

    source: str
    step: str
    zero: str


@dataclass(frozen=True, eq=False)
class _Step:
    """Product of a constant and the steps of activations, by name."""

    names: tuple[str, ...]
    factor: np.ndarray


@dataclass(frozen=True, eq=False)
class _Product:
    """Product of integers, the result of `node`.

    It equals the float product divided by the steps `names` and by `factor`. `sources` holds the name of the floats of
    each side, or its constant integers minus their zero points.
    """

    node: onnx.NodeProto
    sources: tuple[str | np.ndarray, str | np.ndarray]
    kind: str
    names: tuple[str, ...]
    factor: np.ndarray


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows that Gather reads from a constant table of integers."""

    node: onnx.NodeProto
    table: str


_Meaning = _Quantised | _Step | _Product | _Rows


def to_floats(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Remembered]:
    """Replace the integer weights of a valid model by floats. Returns the new model and the integers.

    A model without integer weights, or with fixed ranges of activations (QuantizeLinear), is returned unchanged.

    Raises
    ------
    CompileError
        If weights or scales are invalid, or integer operators have a form that no known quantiser writes.
    """
    operators = {node.op_type for node in model.graph.node}
    if operators & {"QuantizeLinear", *QLINEAR} or not operators & {*UNFIXED, "DequantizeLinear"}:
        return model, Remembered()
    converted = onnx.ModelProto()
    converted.CopyFrom(model)
    reading = _Reading(converted)
    for node in reading.run(_FORMS):
        if node.op_type in UNFIXED:
            raise CompileError(f"{label(node)} {_STRANGE if node.op_type in _FORMS else _UNKNOWN}")
    return converted, reading.remembered


class _Reading(Rewriting):
    """Walk over a model that replaces integer nodes, with the meanings of the integer values so far."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self._meanings: dict[str, _Meaning] = {}
        self.remembered = Remembered()

    def meaning(self, name: str) -> _Meaning | None:
        return self._meanings.get(name)

    def note(self, name: str, meaning: _Meaning) -> None:
        self._meanings[name] = meaning

    def weights(self, name: str, integers: Integers) -> str:
        """Remember constant integers. Returns the name of a new constant with their floats."""
        return self.new_constant(f"{name}_floats", self.remembered.add(integers))


def _dynamic(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """Note the results of DynamicQuantizeLinear."""
    # A model may leave out the last outputs.
    quantised, step, zero = (*node.output, "", "")[:3]
    reading.note(quantised, _Quantised(node.input[0], step, zero))
    reading.note(step, _Step((step,), _ONE))
    return None


def _integer_product(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """Note the result of MatMulInteger or ConvInteger."""
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
        weights = reading.array(node.input[index])
        offset = reading.array(zero) if zero else np.zeros((), np.int8)
        if weights is None or offset is None:
            return None
        axis = 0 if node.op_type == "ConvInteger" else weights.ndim - 1
        sides.append(linear(label(node), weights, _ONE, offset, axis, 0).values)
        kind = str(weights.dtype)
    if names:
        reading.note(node.output[0], _Product(node, (sides[0], sides[1]), kind, names, _ONE))
    return None


def _cast(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    meaning = reading.meaning(node.input[0])
    if isinstance(meaning, _Product) and attributes_of(node)["to"] == TensorProto.FLOAT:
        reading.note(node.output[0], meaning)
    return None


def _scaling(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """Follow a Mul of steps or of integer products; a product multiplied by all of its steps is a float product."""
    sides = []
    for name in node.input:
        meaning, constant = reading.meaning(name), reading.array(name)
        if constant is not None and constant.dtype == np.float32:
            meaning = _Step((), constant)
        sides.append(meaning)
    first, second = sides
    # Multiplication commutes: look at the product first.
    if isinstance(second, _Product):
        first, second = second, first
    if not isinstance(second, _Step):
        return None
    if isinstance(first, _Step) and (first.names or second.names):
        reading.note(node.output[0], _Step(first.names + second.names, first.factor * second.factor))
    # Cancel the steps of the product that this Mul multiplies by.
    if not isinstance(first, _Product):
        return None
    missing = list(first.names)
    for name in second.names:
        if name not in missing:
            return None
        missing.remove(name)
    product = replace(first, names=tuple(missing), factor=np.asarray(first.factor * second.factor))
    if missing:
        reading.note(node.output[0], product)
        return None
    return _float_product(reading, product, node.output[0])


def _float_product(reading: _Reading, product: _Product, output: str) -> Nodes:
    """Write a float operator whose constant side absorbs the factor; None if the factor varies within a channel."""
    node, names = product.node, []
    conv = node.op_type == "ConvInteger"
    remaining_factor = product.factor
    for side, source in enumerate(product.sources):
        if isinstance(source, str):
            names.append(source)
            continue
        scale = _scale_of(remaining_factor, source, 0 if conv else source.ndim - 1, conv)
        if scale is None or (side == 0 and remaining_factor.size > 1):
            return None
        remaining_factor = _ONE
        integers = Integers(source, check_scales(label(node), scale), product.kind)
        names.append(reading.weights(node.input[side], integers))
    attributes = attributes_of(node) if conv else {}
    floats = helper.make_node("Conv" if conv else "MatMul", names, [output], node.name, **attributes)
    # Two activations have no constant side: multiply their product.
    if remaining_factor.size == 1 and remaining_factor.reshape(-1)[0] == 1:
        return [floats]
    floats.output[0] = reading.new_value(f"{output}_product")
    factor = reading.new_constant(f"{output}_factor", remaining_factor)
    return [floats, helper.make_node("Mul", [floats.output[0], factor], [output], f"{node.name}_scaled")]


def _scale_of(factor: np.ndarray, weights: np.ndarray, axis: int, conv: bool) -> np.ndarray | None:
    """Reshape a factor of results into scales of weights, by output channel along `axis`; None if it does not fit."""
    shape = [1] * weights.ndim
    if factor.size == 1:
        return factor.reshape(shape)
    shape[axis] = weights.shape[axis]
    trailing = tuple(factor.shape[1 - factor.ndim :]) if conv and factor.ndim > 1 else ()
    by_channel = factor.size == weights.shape[axis] and set(trailing[-(weights.ndim - 2) :]) <= {1}
    aligned = factor.ndim >= weights.ndim - 1 if conv else factor.shape[-1] == factor.size
    return factor.reshape(shape) if by_channel and aligned else None


def _dequantisation(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """Replace DequantizeLinear of a constant, of rows of a constant, or of a result of DynamicQuantizeLinear."""
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
    # Wider integers are not weights: a DequantizeLinear of int32 is a bias.
    if str(values.dtype) in ("int16", "uint16", "int32"):
        return None
    # Rows of a table share one scale only if the table has one.
    if rows is not None and scale.size > 1:
        return None
    settings = attributes_of(node)
    shapes = (values.shape, scale.shape, None if zero is None else zero.shape)
    check(label(node), Site("DequantizeLinear", settings, shapes, (values.shape,)))
    axis = settings.get("axis", 1)
    integers = linear(label(node), values, scale, zero, axis, settings.get("block_size", 0))
    floats = reading.weights(name, integers)
    if rows is None:
        return [helper.make_node("Identity", [floats], list(node.output), node.name)]
    inputs, attributes = [floats, rows.node.input[1]], attributes_of(rows.node)
    return [helper.make_node("Gather", inputs, list(node.output), rows.node.name, **attributes)]


def _gather(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    table = reading.array(node.input[0])
    if table is not None and table.dtype.kind != "f":
        reading.note(node.output[0], _Rows(node, node.input[0]))
    return None


def _packed_product(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """Replace MatMulNBits of ONNX Runtime's domain."""
    settings, title = attributes_of(node), label(node)
    if input_of(node, 4):
        raise CompileError(
            f"{title} reorders its blocks with g_idx, which weft does not read: quantise the model without it"
        )
    inner, outputs, bits, block = (
        int(settings.get(name, default))
        for name, default in (("K", 0), ("N", 0), ("bits", 4), ("block_size", 0))
    )
    # Missing sizes become 0, which `Packing.check` refuses.
    packing = Packing(inner, outputs, bits, block)
    if settings.get("weight_prepacked", 0):
        raise CompileError(
            f"{title} has weights in the order of a GPU (weight_prepacked): export the model without it"
        )
    zeros = reading.constant_input(node, 3, "zero points") if input_of(node, 3) else None
    packed, scales = reading.constant_input(node, 1, "weights"), reading.constant_input(node, 2, "scales")
    floats = reading.weights(node.input[1], packing.weights(title, packed, scales, zeros))
    output = reading.new_value(f"{node.output[0]}_product")
    product = helper.make_node("MatMul", [node.input[0], floats], [output], node.name)
    return reading.add_bias(node, product, input_of(node, 5))


def _fused_product(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """Replace DynamicQuantizeMatMul (of floats) and MatMulIntegerToFloat (of integers) of ONNX Runtime's domain."""
    if node.op_type == "DynamicQuantizeMatMul":
        source, scale, zero, bias = node.input[0], 2, 3, 4
    else:
        meaning = reading.meaning(node.input[0])
        expected = _Quantised("", node.input[2], input_of(node, 4))
        if not isinstance(meaning, _Quantised) or replace(meaning, source="") != expected:
            return None
        source, scale, zero, bias = meaning.source, 3, 5, 6
    weights = reading.constant_input(node, 1, "weights")
    steps = reading.constant_input(node, scale, "scales")
    zeros = reading.constant_input(node, zero, "zero points") if input_of(node, zero) else None
    shapes = (weights.shape, steps.shape, None if zeros is None else zeros.shape)
    axis = weights.ndim - 1
    check(label(node), Site("DequantizeLinear", {"axis": axis}, shapes, (weights.shape,)))
    floats = reading.weights(node.input[1], linear(label(node), weights, steps, zeros, axis, 0))
    output = reading.new_value(f"{node.output[0]}_product")
    product = helper.make_node("MatMul", [source, floats], [output], node.name)
    return reading.add_bias(node, product, input_of(node, bias))


def _attention(reading: _Reading, node: onnx.NodeProto) -> Nodes:
    """Replace QAttention of ONNX Runtime's domain by its Attention of floats."""
    meaning = reading.meaning(node.input[0])
    expected = _Quantised("", node.input[3], input_of(node, 6))
    if not isinstance(meaning, _Quantised) or replace(meaning, source="") != expected or input_of(node, 8):
        return None
    weights, steps = reading.constant_input(node, 1, "weights"), reading.constant_input(node, 4, "scales")
    zeros = reading.constant_input(node, 7, "zero points") if input_of(node, 7) else None
    shapes = (weights.shape, steps.shape, None if zeros is None else zeros.shape)
    check(label(node), Site("DequantizeLinear", {"axis": 1}, shapes, (weights.shape,)))
    integers = linear(label(node), weights, steps, zeros, 1, 0)
    third = weights.shape[1] // 3
    # `fused_operators.expand` splits the weights into those of queries, keys and values: remember each.
    for part in range(3):
        own = slice(part * third, (part + 1) * third)
        scale = integers.scale[:, own] if integers.scale.size > 1 else integers.scale
        reading.remembered.add(replace(integers, values=integers.values[:, own], scale=scale))
    floats = reading.new_constant(f"{node.input[1]}_floats", integers.floats)
    inputs = [meaning.source, floats, node.input[2], input_of(node, 5)]
    attention = helper.make_node("Attention", inputs, list(node.output), node.name, domain=node.domain)
    attention.attribute.extend(node.attribute)
    return [attention]


_FORMS: dict[str, Callable[[_Reading, onnx.NodeProto], Nodes]] = {
    "Cast": _cast,
    "ConvInteger": _integer_product,
    "DequantizeLinear": _dequantisation,
    "DynamicQuantizeLinear": _dynamic,
    "DynamicQuantizeMatMul": _fused_product,
    "Gather": _gather,
    "MatMulInteger": _integer_product,
    "QAttention": _attention,
    "MatMulIntegerToFloat": _fused_product,
    "MatMulNBits": _packed_product,
    "Mul": _scaling,
}
"""Function that replaces a node, by operator; it returns None to leave the node."""
