"""Comparison of a quantised model's results with ONNX Runtime without its optimisations.

Tolerances are derived, not tuned:

- The device computes convolutions, products, sums and pools in integers and rounds once, half to even, by scales with
  mantissas of b bits. ONNX Runtime computes in float32. So a value is one step off at most, and only where ONNX
  Runtime's own value lies close to a rounding boundary: within `NEAR` of a step for float32 sums, and 2**-b of the
  rounded value (of all terms, for an addition) for the mantissa.
- A bias that is a float is rounded to the scale of the sums it is added to, by half a step of those.
- Softmax and attention have probabilities of `probability_bits` bits: see `variation`.
- Values of 16 bits are computed by kernels, whose results are at most one step off; functions and normalisations have
`WIDE_STEPS`.
- An early difference would be counted wherever it spreads. So where whole programs differ, results are compared layer
by layer, each layer on *identical* quantised inputs. The whole program must give exactly the results of its layers run
one after the other, however the compiler fuses them. Only fused functions of 16-bit values have tables of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.inliner
from fuzz import sandbox
from fuzz.outcome import Failure, Outcome, check_sentence
from onnx import TensorProto, helper, numpy_helper
from oracle import layers, session
from support.memories import BANDWIDTHS

import weft
from weft.compiler.backend import DeviceProgram
from weft.compiler.errors import CompileError
from weft.compiler.host.segments import run_host
from weft.compiler.ir.model import HostSegment
from weft.compiler.onnx.convolutions import ADD_WEIGHT
from weft.compiler.onnx.operators.attention import ROUNDED_SCORES, ROUNDING
from weft.compiler.onnx.operators.lookup import WIDE_STEPS
from weft.compiler.onnx.qdq import BITS
from weft.compiler.onnx.reader import network_of
from weft.hdl.isa.config import Config

NEAR = 2.0**-8
"""Largest error of ONNX Runtime's float32 sums, in steps."""
_FUSED = (ROUNDING[:30], ROUNDED_SCORES[:30])
_KERNELS = {"Div", "LRN", "LogSoftmax", "Max", "Min", "Sqrt"} | {
    f"Reduce{kind}" for kind in ("L1", "L2", "Max", "Mean", "Min", "Sum", "SumSquare")
}
"""Operators of the kernel engine, at most one step off; any result is right where a divisor is 0."""
_EXACT = {
    "Add", "AveragePool", "Clip", "Concat", "Conv", "ConvTranspose", "Expand", "Flatten", "Gather", "Gemm",
    "GlobalAveragePool", "GlobalMaxPool", "MatMul", "MaxPool", "Mul", "Pad", "Relu", "Reshape", "Resize", "Slice",
    "Split", "Squeeze", "Sub", "Transpose",
}  # fmt: skip
"""Operators that are no function of 16-bit values."""
HIGHEST = 170.0
"""Scores of attention, in nats: the device clamps them at 256 octaves."""


def compare_with_ort(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], config: Config, *, timing: bool = False
) -> Outcome:
    """Run a model on the golden interpreter and compare it with ONNX Runtime. Raises `fuzz.outcome.Failure`."""
    try:
        program = weft.compile(model, config, memory=BANDWIDTHS[model.ByteSize() % len(BANDWIDTHS)])
    except CompileError as error:
        check_sentence(str(error))
        return Outcome("refused", str(error))
    given = program.run(feeds).outputs
    if timing and any(isinstance(segment, DeviceProgram) for segment in program.segments):
        program.run(feeds, on="timing")
    wanted = dict(zip(given, session(model).run(list(given), feeds), strict=True))
    if all(np.array_equal(given[name], wanted[name]) for name in given):
        return Outcome("done")
    on_host = {node for node, _, place, _ in program.assignment if place == "host"}
    fused = {node for node, _, _, note in program.assignment if note.startswith(_FUSED)}
    model = onnx.inliner.inline_local_functions(model) if model.functions else model
    try:
        values = _run_layers(model, feeds, config, on_host, set(_inside(model, fused)))
    except NoOracle:
        return Outcome("done", "no oracle")
    if any(value.dtype.itemsize == 2 for value in values.values()):
        return Outcome("done", "by its layers")
    makers = {node.output[0]: node for node in model.graph.node}
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    for name, array in given.items():
        node = makers.get(name)
        if node is None or node.op_type != "DequantizeLinear" or len(node.input) != 3:
            continue  # an input or a constant as it is, or computed on the host, in floating point
        if node.input[0] not in values:
            continue  # made by what is no layer: the Identity that a function was
        scale, zero = _parameters(node, constants)
        expected = (values[node.input[0]].astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale
        if not np.array_equal(array, expected):
            wrong = int(np.count_nonzero(array != expected))
            raise Failure(
                "wrong", f"{name}: {wrong} of {array.size} values are not those of its layers", "whole"
            )
    return Outcome("done")


class NoOracle(Exception):
    """A layer of a form that is not compared."""


def _parameters(node: onnx.NodeProto, constants: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and zero point of QuantizeLinear or DequantizeLinear."""
    scale = constants.get(node.input[1])
    zero = constants.get(node.input[2]) if len(node.input) > 2 else np.uint8(0)
    if scale is None or zero is None or scale.size != 1 or zero.dtype.name not in BITS:
        raise NoOracle
    return scale, np.asarray(zero)


def _run_layers(
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray],
    config: Config,
    on_host: set[str],
    inside: set[str],
) -> dict[str, np.ndarray]:
    """Return every quantised value except those `inside` a fused attention, from programs of one layer each. Each layer
    is compared with ONNX Runtime.

    Layers whose nodes are `on_host` in the whole program run there, in floating point.
    """
    values: dict[str, np.ndarray] = {}
    first = {
        node.output[0]: node
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] in feeds
    }
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    for name, node in first.items():
        scale, zero = _parameters(node, constants)
        info = np.iinfo(zero.dtype)
        codes = np.clip(np.rint(feeds[node.input[0]] / scale) + zero, info.min, info.max)
        values[name] = np.asarray(codes, zero.dtype)
    roots = {name: {name} for name in values}
    for layer in layers(model, inside):
        sandbox.next_program()
        name = layer.graph.output[0].name
        if not values.keys() >= {item.name for item in layer.graph.input}:
            raise NoOracle  # it reads what is made of constants alone
        inputs = {item.name: values[item.name] for item in layer.graph.input}
        if layer.graph.node[-1].name in on_host:
            segment = HostSegment(name, network_of(layer), ())
            values[name] = np.asarray(run_host(segment, inputs)[name])
        else:
            values[name] = np.asarray(weft.compile(layer, config).run(inputs).outputs[name])
        exact = _check_layer(layer, inputs, values[name], config)
        roots[name] = {name} | (
            set.intersection(*map(roots.__getitem__, inputs)) if _of_bytes(layer) else set()
        )
        if len(inputs) > 1 and len(roots[name]) > 1 and config.lookup_tables:
            values[name] = (
                exact  # a function of one value, which is computed in floating point at compile time
            )
    return values


def _of_bytes(layer: onnx.ModelProto) -> bool:
    """Return whether each element of a layer's result depends on exactly one element of each input."""
    known = {"Abs", "Add", "Clip", "Div", "HardSwish", "Max", "Min", "Mul", "Neg", "Relu", "Sigmoid", "Sub"}
    operators = {node.op_type for node in layer.graph.node if not node.op_type.endswith("Linear")}
    return operators <= known and all(np.prod(item.dims) == 1 for item in layer.graph.initializer)


def _inside(model: onnx.ModelProto, fused: set[str]) -> Iterator[str]:
    """Return the quantised values between the first and the second product of an attention, by the names of these
    nodes."""
    reached: set[str] = set()
    for node in model.graph.node:
        if node.name in fused or (reached.intersection(node.input) and node.op_type != "MatMul"):
            reached.update(node.output)
            if node.op_type == "QuantizeLinear":
                yield node.output[0]


def _check_layer(
    layer: onnx.ModelProto, inputs: dict[str, np.ndarray], given: np.ndarray, config: Config
) -> np.ndarray:
    """Return ONNX Runtime's value. Raises `Failure` if the given one is further from it than allowed."""
    ends = layer.graph.node[-1]
    constants = {item.name: numpy_helper.to_array(item) for item in layer.graph.initializer}
    scale, zero = _parameters(ends, constants)
    watched = onnx.ModelProto()
    watched.CopyFrom(layer)
    operators = [node.op_type for node in layer.graph.node if not node.op_type.endswith("Linear")]
    names = [ends.input[0], *dict.fromkeys(_dequantise(layer, inputs))]
    watched.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names
    )
    wanted, real, *terms = session(watched).run(None, inputs)
    if given.shape != wanted.shape or given.dtype != wanted.dtype:
        raise Failure(
            "wrong",
            f"{ends.output[0]} is {given.dtype} {given.shape}, not {wanted.dtype} {wanted.shape}",
            "shape",
        )
    off = np.abs(given.astype(np.int32) - wanted.astype(np.int32))
    allowed = _allowed_steps(layer, operators, real / scale, terms, float(scale), config)
    if 2 in (given.dtype.itemsize, *(value.dtype.itemsize for value in inputs.values())):
        allowed = np.maximum(
            allowed, _allowed_of_kernels(layer, operators, given.dtype, float(scale), len(terms))
        )
    if (off > allowed).any():
        at = np.unravel_index(int(np.argmax(off - allowed)), off.shape)
        raise Failure(
            "wrong",
            f"{'+'.join(operators)} {ends.output[0]}: {int((off > allowed).sum())} of {off.size} values differ, "
            f"at {tuple(map(int, at))} by {off[at]} steps: {given[at]} for {real[at] / scale + int(zero):.6f}",
            "+".join(operators),
        )  # fmt: skip
    return np.asarray(wanted)


def _dequantise(layer: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> Iterator[str]:
    return (
        node.output[0]
        for node in layer.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in inputs
    )


def _allowed_steps(
    layer: onnx.ModelProto,
    operators: list[str],
    steps: np.ndarray,
    terms: list[np.ndarray],
    scale: float,
    config: Config,
) -> np.ndarray:
    """Return the allowed error of every value in steps; `steps` is ONNX Runtime's value before rounding, `terms` the
    inputs."""
    if operators == ["Softmax"]:
        return np.full(steps.shape, 1 + variation(config, steps.shape[-1]) / scale)
    if "Attention" in operators or "Softmax" in operators:
        return _attention_error(layer, terms, scale, config)
    if config.kernel and _KERNELS & set(operators):
        return np.where(np.isfinite(steps), 1, 255)
    largest = np.minimum(np.abs(steps), 512)
    if operators[:1] == ["Add"]:
        largest = (sum(np.abs(term) for term in terms) + np.abs(steps * scale - sum(terms))) / scale
    near = NEAR + largest * 2.0**-config.mantissa_bits
    if operators[:1] in (["Add"], ["Sub"]) and len(terms) == 1:
        near = near + _input_scale(layer) / ADD_WEIGHT / 2 / scale
    if operators[:2] == ["MatMul", "Add"]:
        near = near + _accumulator_step(layer) / 2 / scale
    with np.errstate(invalid="ignore"):  # infinite values are saturated, and nothing else
        distance = np.abs(steps - np.floor(steps) - 0.5)
    return (distance <= near).astype(np.int32)


def _allowed_of_kernels(
    layer: onnx.ModelProto, operators: list[str], dtype: np.dtype, scale: float, terms: int
) -> float:
    """Return the allowed error in steps where the result or an input has 16 bits."""
    if dtype.itemsize == 1:
        return 1
    if operators[:1] in (["Add"], ["Sub"]) and terms == 1:
        return 1 + np.ceil(_input_scale(layer) / ADD_WEIGHT / 2 / scale)
    if operators[:2] == ["MatMul", "Add"]:
        return 1 + np.ceil(_accumulator_step(layer) / 2 / scale)
    return 1 if set(operators) <= _EXACT else WIDE_STEPS


def _attention_error(
    layer: onnx.ModelProto, terms: list[np.ndarray], scale: float, config: Config
) -> np.ndarray:
    """Return the error bound of every row of ONNX's operator without masks and groups, else None.

    Rows whose largest scores the device clamps are unbounded.
    """
    (node,) = [node for node in layer.graph.node if node.op_type in ("Attention", "Softmax")]
    factor = next((item.f for item in node.attribute if item.name == "scale"), None)
    heads = {term.shape[:2] for term in terms if term.ndim == 4}
    if factor is None or len(node.input) > 3 or len(terms) != 3 or len(heads) != 1:
        return np.full((), 255)
    query, key, values = (term.astype(np.float64) for term in terms)
    scores = query @ key.swapaxes(-1, -2) * factor
    seen = np.tri(*scores.shape[-2:], dtype=bool) if any(item.i for item in node.attribute) else True
    top = np.where(seen, scores, -np.inf).max(axis=-1, keepdims=True)
    error = 1 + variation(config, key.shape[-2]) * float(np.ptp(values)) / scale
    return np.where((top > HIGHEST) | (top < 20 - HIGHEST), 255, error)


def _input_scale(layer: onnx.ModelProto) -> float:
    """Return the scale of the only input of a layer, of which constants for channels are rounded shares."""
    constants = {item.name: numpy_helper.to_array(item) for item in layer.graph.initializer}
    (given,) = layer.graph.input
    return max(float(constants[node.input[1]]) for node in layer.graph.node if node.input[0] == given.name)


def _accumulator_step(layer: onnx.ModelProto) -> float:
    """Return the scale of a matrix product's sums, to which the device rounds a float bias."""
    constants = {item.name: numpy_helper.to_array(item) for item in layer.graph.initializer}
    makers = {node.output[0]: node for node in layer.graph.node}
    product = next(node for node in layer.graph.node if node.op_type == "MatMul")
    return float(np.prod([constants[makers[name].input[1]].max() for name in product.input]))


def variation(config: Config, columns: int) -> float:
    """Return the worst-case total error of a row's probabilities, which equal scores nearly reach.

    In a group of N columns the largest probability has at least half of all levels, and every other one is rounded to a
    level; scores have steps of 1/128 octave, and the table of powers of two 16 octaves.
    """
    levels = 2.0**config.probability_bits - 1 if config.softmax else 1.0
    octaves = 1 / 256 + 8 / config.table_depth
    return min(config.n, columns) / levels + 2 * np.log(2) * octaves
