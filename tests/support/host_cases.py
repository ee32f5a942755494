"""Random models of one operator that only the host evaluates, or that the device lacks in that form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.host_draws import Draw, Rng, axis, floats, maybe, numbers, set_attributes, shape, some
from support.host_layers import (
    convolution,
    normalisation,
    pool,
    product,
    quantisation,
    recurrent,
    resize,
    sampling,
)

OPSETS = (11, 12, 13, 16, 18, 19, 20, 21, 22)
"""Versions to draw from; a draw that the version does not define is repeated."""


def case(rng: Rng, kind: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Draw a valid model of one operator of a `kind` of `KINDS`, and inputs for it."""
    while True:
        op, inputs, attributes, outputs = KINDS[kind](rng)
        model, feeds = build(op, inputs, attributes, outputs, int(rng.choice(OPSETS)))
        if model is not None:
            return model, feeds


def build(
    op: str, inputs: list[Any], attributes: dict[str, Any], outputs: int, opset: int
) -> tuple[onnx.ModelProto | None, dict[str, np.ndarray]]:
    """Return the model, or None if it is not valid in that version."""
    names, feeds, constants = [], {}, []
    for index, value in enumerate(inputs):
        names.append("" if value is None else f"x{index}")
        if isinstance(value, list):
            constants.append(numpy_helper.from_array(value[0], names[-1]))
        elif value is not None:
            feeds[names[-1]] = value
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, name="only", **attributes)
    set_attributes = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    wanted = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in results]
    graph = helper.make_graph([node], "one", set_attributes, wanted, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        onnx.checker.check_model(inferred)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return None, {}
    return inferred, feeds


UNARY = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
    "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal",
    "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan",
    "Tanh", "ThresholdedRelu", "IsNaN", "IsInf", "Size", "Shape", "Flatten", "Hardmax", "LogSoftmax", "Softmax",
    "MeanVarianceNormalization", "BitwiseNot", "LpNormalization", "GlobalAveragePool", "GlobalMaxPool",
    "GlobalLpPool", "Det", "EyeLike", "NonZero",
]  # fmt: skip


def unary(rng: Rng) -> Draw:
    op = str(rng.choice(UNARY))
    size = shape(rng)
    attributes: dict[str, Any] = {}
    if op in ("Flatten", "Hardmax", "LogSoftmax", "Softmax", "LpNormalization"):
        attributes = set_attributes(axis=maybe(rng, axis(rng, len(size))))
    if op == "LpNormalization":
        attributes |= {"p": int(rng.integers(1, 3))}
    if op in ("Celu", "Elu", "LeakyRelu", "Selu", "ThresholdedRelu", "HardSigmoid"):
        attributes = set_attributes(alpha=maybe(rng, float(rng.uniform(0.1, 2))))
    if op == "Gelu":
        attributes = {"approximate": str(rng.choice(["none", "tanh"]))}
    if op == "Shrink":
        attributes = {"lambd": 0.7, "bias": 0.3}
    if op.startswith("Global") or op == "MeanVarianceNormalization":
        size = some(rng, 1, 5, int(rng.integers(3, 6)))
    if op == "GlobalLpPool":
        attributes = {"p": int(rng.integers(1, 4))}
    if op == "Det":
        size = [*size, 3, 3]
    kinds = {"Not": "?", "BitwiseNot": "bBil", "Sign": "fdbBil", "Abs": "fdbBil", "Neg": "fdbil"}.get(
        op, "fd"
    )
    value = numbers(rng, size if op != "EyeLike" else some(rng, 1, 6, 2), kinds)
    if op in ("Log", "Sqrt", "Acosh"):
        value = np.abs(value) + 1
    if op in ("Acos", "Asin", "Atanh"):
        value = np.tanh(value)
    return op, [value], attributes, 1


BINARY = [
    "Add", "Sub", "Mul", "Div", "Mod", "Pow", "PRelu", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Max", "Min", "Sum", "Mean", "MatMul",
    "Where", "Expand", "BitShift",
]  # fmt: skip


def binary(rng: Rng) -> Draw:
    op = str(rng.choice(BINARY))
    size = shape(rng, 0)
    other = [int(rng.choice([1, most])) for most in size[int(rng.integers(len(size) + 1)) :]]
    kinds = {"And": "?", "Or": "?", "Xor": "?"}.get(op, "bBil" if op.startswith("Bitwise") else "fdil")
    if op in ("Equal", "Less", "Greater", "Max", "Min", "Add", "Sub", "Mul"):
        kinds = "fdbBil"
    a = numbers(rng, size, kinds)
    b = numbers(rng, other, kinds).astype(a.dtype) if a.dtype != bool else numbers(rng, other, "?")
    attributes: dict[str, Any] = {}
    if op in ("Div", "Mod"):
        b = np.where(b == 0, np.ones((), b.dtype), b)
    if op == "Mod":
        attributes = {"fmod": int(a.dtype.kind == "f" or rng.integers(2))}
    if op == "Pow":
        a, b = np.abs(a) % 5 + 1, b % 3
        a, b = np.asarray(a), np.asarray(b)
    if op == "MatMul":
        m, k, n = some(rng, 1, 6, 3)
        a = numbers(rng, [*some(rng, 1, 3, int(rng.integers(0, 3))), m, k], "fdil")
        b = numbers(rng, [k, n], "f").astype(a.dtype)
    if op == "Where":
        return op, [numbers(rng, other, "?"), a, b], {}, 1
    if op == "Expand":
        return op, [a, [np.array(shape(rng, 0), np.int64)]], {}, 1
    if op == "BitShift":
        a, b = (rng.integers(0, 200, tuple(item)).astype(np.uint8) for item in (size, other))
        return op, [a, b % np.uint8(8)], {"direction": str(rng.choice(["LEFT", "RIGHT"]))}, 1
    return op, [a, b], attributes, 1


def reduction(rng: Rng) -> Draw:
    op = "Reduce" + str(
        rng.choice(["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"])
    )
    size = shape(rng)
    axes = maybe(rng, sorted({axis(rng, len(size)) % len(size) for _ in range(2)}), 0.8)
    value = numbers(rng, size, "fdil" if op != "ReduceLogSum" else "f")
    value = np.abs(value) + np.ones((), value.dtype) if op == "ReduceLogSum" else value
    value = value % 7 if op == "ReduceProd" and value.dtype.kind == "i" else value
    keep = set_attributes(keepdims=maybe(rng, int(rng.integers(2))))
    if rng.integers(2):
        return op, [value], keep | set_attributes(axes=axes), 1
    none = set_attributes(noop_with_empty_axes=maybe(rng, int(rng.integers(2))))
    return op, [value, None if axes is None else [np.array(axes, np.int64)]], keep | none, 1


def index(rng: Rng) -> Draw:
    op = str(rng.choice(["ArgMax", "ArgMin", "TopK", "CumSum", "Trilu", "OneHot"]))
    size = shape(rng)
    along = axis(rng, len(size))
    value = rng.permutation(int(np.prod(size))).reshape(size).astype(str(rng.choice(list("fil"))))
    if op == "CumSum":
        flags = {"exclusive": int(rng.integers(2)), "reverse": int(rng.integers(2))}
        return op, [value, [np.array(along, np.int64)]], flags, 1
    if op == "Trilu":
        return (
            op,
            [numbers(rng, [*size, 4, 5], "fil"), [np.array(int(rng.integers(-3, 4)), np.int64)]],
            {"upper": int(rng.integers(2))},
            1,
        )
    if op == "TopK":
        k = np.array([int(rng.integers(1, size[along] + 1))], np.int64)
        return op, [value, [k]], {"axis": along, "largest": int(rng.integers(2))}, 2
    if op == "OneHot":
        indices = rng.integers(-4, 4, tuple(size))
        return op, [indices, [np.array(4, np.int64)], [np.array([0, 3], np.float32)]], {"axis": along}, 1
    value = value // value.dtype.type(2)
    flags = {"axis": along, "keepdims": int(rng.integers(2)), "select_last_index": int(rng.integers(2))}
    return op, [value], flags, 1


MOVEMENTS = [
    "Pad", "Slice", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Concat", "Split",
    "Tile", "Transpose", "Reshape", "DepthToSpace", "SpaceToDepth", "Squeeze", "Unsqueeze", "ReverseSequence",
    "Compress", "Unique",
]  # fmt: skip


def movement(rng: Rng) -> Draw:
    op = str(rng.choice(MOVEMENTS))
    size = shape(rng)
    rank, value = len(size), numbers(rng, size, "fl")
    along = axis(rng, rank)
    if op == "Pad":
        mode = str(rng.choice(["constant", "reflect", "edge", "wrap"]))
        pads = [int(rng.integers(-1, max(1, size[at % rank]))) for at in range(2 * rank)]
        fill = maybe(rng, np.array(3, value.dtype)) if mode == "constant" else None
        return op, [value, [np.array(pads, np.int64)], fill], {"mode": mode}, 1
    if op == "Slice":
        step = int(rng.choice([-2, -1, 1, 2, 3]))
        ends = [[np.array([limit], np.int64)] for limit in some(rng, -7, 8, 2)]
        return op, [value, *ends, [np.array([along], np.int64)], [np.array([step], np.int64)]], {}, 1
    if op == "Gather":
        indices = rng.integers(-size[along], size[along], tuple(shape(rng, 0, 3)))
        return op, [value, indices], {"axis": along}, 1
    if op == "GatherElements":
        other = [int(rng.integers(1, most + 1)) for most in size]
        return op, [value, rng.integers(-size[along], size[along], tuple(other))], {"axis": along}, 1
    if op == "GatherND":
        depth = int(rng.integers(1, rank + 1))
        lead = some(rng, 1, 4, int(rng.integers(0, 3)))
        return op, [value, rng.integers(0, min(size), (*lead, depth))], {}, 1
    if op == "ScatterElements":
        other = [int(rng.integers(1, most + 1)) for most in size]
        places = np.arange(size[along])[: other[along % rank]].reshape([-1] + [1] * (rank - 1 - along % rank))
        indices = np.broadcast_to(places, other).astype(np.int64)
        how = set_attributes(reduction=maybe(rng, str(rng.choice(["add", "mul", "max", "min"]))))
        return op, [value, indices, numbers(rng, other, "f").astype(value.dtype)], {"axis": along} | how, 1
    if op == "ScatterND":
        rows = rng.permutation(size[0])[: int(rng.integers(1, size[0] + 1)), None].astype(np.int64)
        how = set_attributes(reduction=maybe(rng, str(rng.choice(["add", "mul", "max", "min"]))))
        updates = numbers(rng, [len(rows), *size[1:]], "f").astype(value.dtype)
        return op, [value, rows, updates], how, 1
    if op == "Concat":
        return op, [value, value[::-1], value], {"axis": along}, 1
    if op == "Split":
        first = int(rng.integers(0, size[along] + 1))
        parts = np.array([first, size[along] - first], np.int64)
        return op, [value, [parts]], {"axis": along}, 2
    if op == "Tile":
        return op, [value, [rng.integers(1, 4, rank)]], {}, 1
    if op == "Transpose":
        return op, [value], set_attributes(perm=maybe(rng, [int(at) for at in rng.permutation(rank)])), 1
    if op == "Reshape":
        wanted = [0 if rng.integers(2) else most for most in size]
        wanted[int(rng.integers(rank))] = -1
        return op, [value, [np.array(wanted, np.int64)]], {}, 1
    if op in ("DepthToSpace", "SpaceToDepth"):
        layout = {"mode": str(rng.choice(["DCR", "CRD"]))} if op == "DepthToSpace" else {}
        return op, [floats(rng, [2, 8, 4, 6])], {"blocksize": 2, **layout}, 1
    if op == "Squeeze":
        return op, [value.reshape([1, *size, 1]), [np.array([int(rng.choice([0, -1]))], np.int64)]], {}, 1
    if op == "Unsqueeze":
        return op, [value, [np.array([int(rng.integers(-rank - 1, rank + 1))], np.int64)]], {}, 1
    if op == "ReverseSequence":
        order = {"batch_axis": 0, "time_axis": 1} if rng.integers(2) else {"batch_axis": 1, "time_axis": 0}
        time = 5 if order["time_axis"] else 4
        lengths = rng.integers(1, time + 1, 9 - time)
        return op, [floats(rng, [4, 5, 2]), lengths], order, 1
    if op == "Compress":
        return op, [value, rng.integers(0, 2, size[along]).astype(bool)], {"axis": along}, 1
    return op, [value.astype(np.int64) // 64], {"sorted": 1}, 4


KINDS: dict[str, Callable[[Rng], Draw]] = {
    "unary": unary,
    "binary": binary,
    "reduction": reduction,
    "index": index,
    "pool": pool,
    "convolution": convolution,
    "product": product,
    "movement": movement,
    "resize": resize,
    "normalisation": normalisation,
    "quantisation": quantisation,
    "recurrent": recurrent,
    "sampling": sampling,
}
"""Generators by kind of operator."""
