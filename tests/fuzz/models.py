"""Well-formed protobuf models with false contents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fuzz import seeds
from fuzz.against_ort import compare_with_ort
from fuzz.files import Edit, offer_model
from fuzz.graphs import CONFIGS
from fuzz.outcome import Failure, Outcome
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper
from oracle import session

from weft.hdl.isa.config import Config

Rng = np.random.Generator
INTEGERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    1 << 16,
    (1 << 16) + 1,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31),
    1 << 40,
    (1 << 63) - 1,
]
NAMES = [
    "", "x", "[/foo]", "a[relu]b", "[red]", "a\x00b", "\x1b[31mred\x1b[0m", "../../up", "/abs", "file",
    "allow_pickle", "n" * 5000, "\u202egnp", "a\nb", "é☃", "%s{0}", "-o",
]  # fmt: skip
OPERATORS = [
    "Conv", "MatMul", "Gemm", "MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean", "Add", "Concat", "Softmax",
    "Reshape", "Transpose", "Flatten", "Relu", "Clip", "QuantizeLinear", "DequantizeLinear", "Attention", "QLinearConv",
    "QLinearMatMul", "Identity", "Cast", "Pad", "Slice", "Split", "Squeeze", "Unsqueeze", "ConvTranspose", "Loop", "If",
    "Constant", "Nothing", "GatherElements", "LSTM", "Resize", "Dropout", "RandomNormal", "NonZero", "MaxUnpool",
]  # fmt: skip
ATTRIBUTES = [
    "kernel_shape", "strides", "pads", "dilations", "group", "auto_pad", "axis", "perm", "transA", "transB", "alpha",
    "beta", "ceil_mode", "count_include_pad", "keepdims", "storage_order", "allowzero", "block_size", "saturate",
    "axes", "to", "is_causal", "scale", "q_num_heads", "kv_num_heads", "nothing",
]  # fmt: skip


def draw(rng: Rng) -> list[Edit]:
    """Draw the model, the configuration, and one to four changes, each with its own seed."""
    model = str(
        rng.choice([*seeds.models(), *(f"{kind} {seed}" for kind in seeds.LAYERS for seed in range(30))])
    )
    config = str(rng.choice(["tiny", "default"]))
    count = int(rng.choice([1, 1, 1, 2, 2, 4]))
    names = rng.choice(list(CHANGES), count)
    return [["model", model, config], *([str(name), int(rng.integers(1 << 30))] for name in names)]


def run(edits: list[Edit], folder: Path) -> Outcome:
    (_, name, config), *changes = edits
    model = onnx.load_from_string(seeds.model(name))
    for kind, seed in changes:
        with contextlib.suppress(NothingThere):
            CHANGES[kind](np.random.default_rng(seed), model)
    content = model.SerializeToString()
    said = offer_model(content, folder, config)
    return Outcome("refused", said) if said else judge(onnx.load_from_string(content), CONFIGS[config])


def judge(model: onnx.ModelProto, config: Config) -> Outcome:
    """Check a model that weft accepts: ONNX Runtime must accept it and agree, if it has all operators."""
    try:
        session(model)
    except Exception as error:
        text = str(error)
        if "INVALID_GRAPH" in text or "ShapeInferenceError" in text:
            raise Failure("wrong", f"weft takes what ONNX Runtime does not: {text}", "taken") from None
        return Outcome("done", "ONNX Runtime lacks something")
    feeds = inputs_of(model)
    return Outcome("done", "no oracle") if feeds is None else compare_with_ort(model, feeds, config)


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray] | None:
    """Draw inputs, if all of them are float and of moderate size."""
    rng, made = np.random.default_rng(1), {}
    constant = {item.name for item in model.graph.initializer}
    for item in model.graph.input:
        tensor = item.type.tensor_type
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
        if tensor.elem_type != TensorProto.FLOAT or np.prod(shape) > 1 << 16 or item.name in constant:
            return None
        made[item.name] = rng.normal(0, 2, shape).astype(np.float32)
    return made


class NothingThere(Exception):
    """The model has nothing that the change applies to."""


def _pick(rng: Rng, items: Any) -> Any:
    if not items:
        raise NothingThere
    return items[int(rng.integers(len(items)))]


def _integers(rng: Rng) -> list[int]:
    """Draw an attribute's integers: any number of them, some too large."""
    count = int(rng.choice([0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 8]))
    values = INTEGERS if rng.integers(2) else INTEGERS[:6]
    return [int(_pick(rng, values)) for _ in range(count)]


def _attribute(rng: Rng, model: onnx.ModelProto) -> None:
    """Remove an attribute, or change its type, length or value."""
    node = _pick(rng, model.graph.node)
    name = str(_pick(rng, [item.name for item in node.attribute] or ATTRIBUTES))
    if rng.random() < 0.3:
        name = str(_pick(rng, ATTRIBUTES))
    old = [item for item in node.attribute if item.name == name]
    for item in old:
        node.attribute.remove(item)
    values = [
        int(_pick(rng, INTEGERS)), _integers(rng), _integers(rng), _integers(rng), 0.5, float("nan"), "SAME_UPPER",
        "BAD", b"\xff\xfe", [0.5, -1.0], ["a", "b"], numpy_helper.from_array(np.zeros(3, np.float32)), model.graph,
    ]  # fmt: skip
    choice = int(rng.integers(len(values) + 2))
    if choice < len(values):
        value = values[choice]
        empty = isinstance(value, list) and not value
        kind = onnx.AttributeProto.INTS if empty else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))


def _shape(rng: Rng, model: onnx.ModelProto) -> None:
    """Change the shape of an input, an output or an inner value: contradictory, open, or huge."""
    info = _pick(rng, [*model.graph.input, *model.graph.output, *model.graph.value_info])
    dims = info.type.tensor_type.shape.dim
    choice = int(rng.integers(6))
    if choice == 0 or not dims:
        info.type.tensor_type.ClearField("shape")
    elif choice == 1:
        dims.add().dim_value = int(_pick(rng, INTEGERS))
    elif choice == 2:
        dims.pop()
    elif choice == 3:
        _pick(rng, dims).dim_param = str(_pick(rng, NAMES))
    else:
        _pick(rng, dims).dim_value = int(_pick(rng, INTEGERS))


def _type(rng: Rng, model: onnx.ModelProto) -> None:
    """Change the element type of an input, output or constant, or make it no tensor."""
    kind = int(rng.integers(0, 27))
    if rng.integers(2):
        _pick(rng, model.graph.initializer).data_type = kind
        return
    info = _pick(rng, [*model.graph.input, *model.graph.output])
    if rng.integers(4):
        info.type.tensor_type.elem_type = kind
    elif rng.integers(2):
        info.type.sequence_type.elem_type.tensor_type.elem_type = kind
    else:
        info.ClearField("type")


def _unused(rng: Rng, model: onnx.ModelProto) -> None:
    """Add an input that nothing reads."""
    shape = _pick(rng, [None, [], [0], [1, "n"], [1 << 31], [2, 3]])
    name = f"unused{len(model.graph.input)}"
    info = helper.make_tensor_value_info(name, int(rng.integers(0, 27)), shape)
    model.graph.input.append(info)
    if rng.integers(3) == 0:
        model.graph.output.append(info)


def _rename(rng: Rng, model: onnx.ModelProto) -> None:
    """Give a node an odd name, or a value everywhere."""
    new = str(_pick(rng, NAMES))
    if rng.integers(2):
        _pick(rng, model.graph.node).name = new
        return
    values = [item.name for item in (*model.graph.input, *model.graph.output, *model.graph.initializer)]
    _replace_value(model, str(_pick(rng, values)), new)


def _replace_value(model: onnx.ModelProto, old: str, new: str) -> None:
    for item in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        item.name = new if item.name == old else item.name
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def _wire(rng: Rng, model: onnx.ModelProto) -> None:
    """Connect a node's input to another value: of another shape, not yet computed, or undefined."""
    nodes = model.graph.node
    node = _pick(rng, nodes)
    values = [name for other in nodes for name in (*other.input, *other.output)] + ["", "nobody"]
    choice = int(rng.integers(4))
    if choice == 0 and node.input:
        node.input.pop()
    elif choice == 1:
        node.input.append(str(_pick(rng, values)))
    elif choice == 2 and node.output:
        node.output[int(rng.integers(len(node.output)))] = str(_pick(rng, values))
    elif node.input:
        node.input[int(rng.integers(len(node.input)))] = str(_pick(rng, values))


def _operator(rng: Rng, model: onnx.ModelProto) -> None:
    """Change an operator or domain."""
    node = _pick(rng, model.graph.node)
    if rng.integers(3):
        node.op_type = str(_pick(rng, OPERATORS))
    else:
        node.domain = str(_pick(rng, ["ai.onnx", "ai.onnx.ml", "com.microsoft", "my.own", "[/x]", "a\x00"]))
        if rng.integers(2):
            model.opset_import.append(helper.make_opsetid(node.domain, int(_pick(rng, INTEGERS))))


def _constant(rng: Rng, model: onnx.ModelProto) -> None:
    """Change a constant's values, shape or type, or remove its data."""
    tensor = _pick(rng, model.graph.initializer)
    try:
        old, name, choice = numpy_helper.to_array(tensor), tensor.name, int(rng.integers(8))
    except ValueError:  # an earlier change has given it another type
        return
    if choice == 0:
        tensor.ClearField("raw_data")
        return
    if choice == 1:
        tensor.dims.append(int(_pick(rng, INTEGERS)))
        return
    if choice == 2:
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = (
            "location",
            str(_pick(rng, ["/etc/passwd", "../x", "missing.bin", "model.onnx"])),
        )
        return
    fill = _pick(rng, [0, 1, -1, float("nan"), float("inf"), -0.5, 1e-45, 3e38])
    if choice == 3 and old.dtype.kind == "f":
        new = np.full_like(old, fill)
    elif choice == 4:
        new = old.reshape(-1)[: int(rng.integers(old.size + 1))]
    elif choice == 5:
        new = np.broadcast_to(old.reshape(-1)[:1], (int(rng.integers(0, 5)), int(rng.integers(1, 5)))).copy()
    elif choice == 6:
        new = old.astype(
            _pick(rng, [np.int8, np.uint8, np.int16, np.float16, np.float64, np.int64, np.bool_])
        )
    else:
        new = np.roll(old.reshape(-1), 1).reshape(old.shape) if old.size > 1 else np.zeros_like(old)
    if old.dtype.kind in "iu" and old.ndim == 1 and choice == 7:  # shapes and axes of operators
        new = np.array(_integers(rng), old.dtype) if old.dtype == np.int64 else new
    tensor.CopyFrom(numpy_helper.from_array(new, name))


def _order(rng: Rng, model: onnx.ModelProto) -> None:
    """Repeat, remove or reorder nodes and constants."""
    items = _pick(rng, [model.graph.node, model.graph.initializer, model.graph.input, model.graph.output])
    if not items:
        return
    at, choice = int(rng.integers(len(items))), int(rng.integers(3))
    if choice == 0:
        del items[at]
    elif choice == 1:
        items.append(items[at])
    else:
        moved = type(items[at])()
        moved.CopyFrom(items[at])
        del items[at]
        items.insert(int(rng.integers(len(items) + 1)), moved)


def _function(rng: Rng, model: onnx.ModelProto) -> None:
    """Add model functions that call themselves or each other, or double at every level."""
    choice, levels = int(rng.integers(4)), int(rng.choice([1, 2, 8, 30]))
    domain = "local"
    for level in range(levels):
        inner = f"f{level + 1}"
        if choice == 0:
            inner = f"f{level}"  # itself
        elif choice == 1 and level == levels - 1:
            inner = "f0"
        if level == levels - 1 and choice >= 2:
            nodes = [helper.make_node("Relu", ["x"], ["y"])]
        else:
            calls = 2 if choice == 3 else 1
            names = ["x", *(f"t{i}" for i in range(calls - 1)), "y"]
            nodes = [helper.make_node(inner, [names[i]], [names[i + 1]], domain=domain) for i in range(calls)]
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
        model.functions.append(helper.make_function(domain, f"f{level}", ["x"], ["y"], nodes, imports))
    model.opset_import.append(helper.make_opsetid(domain, 1))
    node = _pick(rng, model.graph.node)
    source, target = (node.output[0] if node.output else ""), "called"
    for other in model.graph.node:
        other.input[:] = [target if name == source else name for name in other.input]
    at = list(model.graph.node).index(node) + 1
    model.graph.node.insert(at, helper.make_node("f0", [source], [target], domain=domain))


def _version(rng: Rng, model: onnx.ModelProto) -> None:
    if rng.integers(2):
        model.ir_version = int(_pick(rng, [0, 1, 3, 7, 99, (1 << 31) - 1]))
    else:
        _pick(rng, model.opset_import).version = int(_pick(rng, [*INTEGERS, *range(1, 30)]))


def _nest(rng: Rng, model: onnx.ModelProto) -> None:
    """Nest subgraphs many levels deep."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    for _ in range(int(rng.choice([1, 10, 24]))):
        node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
        if node.ByteSize() > 1 << 20:
            break
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph([node], "g", [], [output])
    model.graph.node.extend(graph.node)


def _anything(rng: Rng, model: onnx.ModelProto) -> None:
    """Change any field of any message."""
    message: Message = model
    for _ in range(int(rng.integers(1, 8))):
        inner = [value for _, value in message.ListFields() if isinstance(value, Message)]
        lists = [value for _, value in message.ListFields() if hasattr(value, "append")]
        inner += [_pick(rng, value) for value in lists if value and isinstance(value[0], Message)]
        if not inner or rng.random() < 0.15:
            break
        message = _pick(rng, inner)
    _put(rng, message, _pick(rng, message.DESCRIPTOR.fields))


def _put(rng: Rng, message: Message, field: FieldDescriptor) -> None:
    value: Any
    if field.type == FieldDescriptor.TYPE_MESSAGE or rng.random() < 0.2:
        message.ClearField(field.name)
        return
    if field.type == FieldDescriptor.TYPE_STRING:
        value = str(_pick(rng, NAMES))
    elif field.type == FieldDescriptor.TYPE_BYTES:
        value = rng.bytes(int(rng.integers(0, 20)))
    elif field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        value = float(_pick(rng, [0, -1, float("nan"), float("inf"), 1e-45]))
    elif field.type == FieldDescriptor.TYPE_ENUM:
        value = int(_pick(rng, [item.number for item in field.enum_type.values]))
    else:
        small = field.type in (FieldDescriptor.TYPE_INT32,)
        value = int(_pick(rng, [item for item in INTEGERS if not small or abs(item) < 1 << 31]))
        value = abs(value) if field.type == FieldDescriptor.TYPE_UINT64 else value
    old = getattr(message, field.name)
    if hasattr(old, "append"):
        old.append(value)
    else:
        setattr(message, field.name, value)


CHANGES: dict[str, Callable[[Rng, onnx.ModelProto], None]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        _attribute, _shape, _type, _unused, _rename, _wire, _operator, _constant, _order, _function, _version, _nest,
        _anything,
    )
}  # fmt: skip
"""Changes of a model by name."""
